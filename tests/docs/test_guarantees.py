"""Every promise names tests that exist, or says that it is not built."""

from __future__ import annotations

import re

from pages import ROOT

PAGE = ROOT / "docs" / "GUARANTEES.md"


def promises() -> dict[str, str]:
    """Returns the text of each numbered promise by its heading."""
    parts = re.split(r"^### (\d+\. .+)$", PAGE.read_text().split("\n## ")[1], flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def test_there_are_ten() -> None:
    assert [heading.split(".")[0] for heading in promises()] == [str(n) for n in range(1, 11)]


def limits() -> dict[str, str]:
    """Returns what is promised about limits: each bold sentence with the lines below it."""
    text = PAGE.read_text().split("\n## What limits promise\n")[1].split("\nNot promised:")[0]
    parts = re.split(r"^\*\*(.+?)\*\*", text, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def test_each_promise_is_proved_by_tests_or_named_as_not_built() -> None:
    assert len(limits()) >= 6
    for heading, text in (promises() | limits()).items():
        proofs = re.findall(r"\[`([^`]+)`\]\(\.\./(tests/[^)]+\.py)\)", text)
        assert proofs or "**Not built yet.**" in text, f"{heading}: nothing proves it"
        for name, path in proofs:
            assert (ROOT / path).is_file(), f"{heading}: {path} does not exist"
            function = name.partition("::")[2]
            assert f"def {function}(" in (ROOT / path).read_text(), f"{heading}: {path} has no {function}"
