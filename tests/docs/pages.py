"""Reads the pages of the documentation: their code blocks, links and headings."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

#: Every page a reader may land on.
PAGES = sorted(
    path.relative_to(ROOT).as_posix()
    for pattern in ("*.md", "docs/**/*.md", "src/weft/README.md")
    for path in ROOT.glob(pattern)
)

#: The comment that keeps a block from being run. The reason is for the reader of the source.
NOT_RUN = re.compile(r"<!-- not run: (.+?) -->\s*$")


@dataclass(frozen=True)
class Block:
    """One fenced block: its language, its text, and the line its text begins at."""

    language: str
    text: str
    line: int
    not_run: str

    @property
    def file(self) -> str:
        """The name of the file it shows, when its first line is a comment with just that."""
        found = re.match(r"# (\w+\.\w+)\n", self.text)
        return found[1] if found else ""


def blocks_of(page: str) -> list[Block]:
    """Returns the fenced blocks of a page, in order."""
    found: list[Block] = []
    lines = (ROOT / page).read_text().splitlines()
    fence, begin = "", 0
    for number, line in enumerate(lines):
        if not fence and (match := re.match(r"(```+)(\w*)\s*$", line)):
            fence, language, begin = match[1], match[2], number + 1
        elif fence and line.strip() == fence:
            before = next((text for text in reversed(lines[: begin - 1]) if text.strip()), "")
            reason = NOT_RUN.search(before)
            text = "\n".join(lines[begin:number]) + "\n"
            found.append(Block(language, text, begin + 1, reason[1] if reason else ""))
            fence = ""
    assert not fence, f"{page}: the block at line {begin} is never closed"
    return found


def prose_of(page: str) -> str:
    """Returns a page without its code: blocks and `code` left out."""
    text = re.sub(r"^(```+).*?^\1\s*$", "", (ROOT / page).read_text(), flags=re.DOTALL | re.MULTILINE)
    return re.sub(r"`[^`\n]*`", "``", text)


def anchors_of(page: str) -> set[str]:
    """Returns what a link to a page may name after its `#`, the way GitHub makes it from headings."""
    text = (ROOT / page).read_text()
    headings = re.findall(
        r"^#{1,6} (.+)$", re.sub(r"^(```+).*?^\1\s*$", "", text, flags=re.DOTALL | re.MULTILINE), re.M
    )
    made = {re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-") for heading in headings}
    return made | set(re.findall(r"<a id=['\"]([^'\"]+)['\"]", text))
