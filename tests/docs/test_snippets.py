"""Every Python and shell block of the documentation runs as it is written, in an empty directory, on an embedded store.

Python blocks of a page run in order in one session, as a reader would type them into `python -m asyncio`. A block that
begins with `# name.py` is saved under that name (and a YAML block with `# name.yaml`); one that calls `asyncio.run` (or is
such a file) runs as a script.
Shell blocks run in order in the same directory: `weft dev` and `weft worker` in the background until the page ends,
other commands of `weft` by the host of the command line (there are a hundred), `make` only as far as its target exists.
A block that cannot run says why: `<!-- not run: reason -->`.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from pages import PAGES, ROOT, Block, blocks_of

import cli_host

#: Seconds one block, or one page's session, may take.
PATIENCE = 120

#: Blocks of the whole documentation that may be excused from running.
MOST_EXCUSED = 8

RUNNABLE = ("python", "bash")


class Reader:
    """Somebody who follows one page in an empty directory."""

    def __init__(self, home: Path, about: str) -> None:
        self.home = home
        self.background: list[subprocess.Popen[str]] = []
        clean = {name: value for name, value in os.environ.items() if not name.startswith(("WEFT_", "PYTEST_"))}
        self.bin = Path(sys.executable).parent
        (hosted := home / ".bin").mkdir()
        cli_host.put_on_path(hosted)
        path = os.pathsep.join([str(hosted), str(self.bin), clean.get("PATH", "")])
        self.environment = clean | {"PATH": path, "HOME": str(home)}
        # A page that is not about the archive need not wait for a second process of each worker.
        if "archive" not in about:
            self.environment["WEFT_ARCHIVE"] = "no"
        # Also where Weft is not installed, only found: there nothing tells pytest of its plugin.
        self.environment["PYTEST_PLUGINS"] = "weft.testing.plugin"

    def run(self, command: list[str]) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command, cwd=self.home, env=self.environment, text=True, capture_output=True, timeout=PATIENCE, check=False
        )

    def run_session(self, page: str, blocks: list[Block]) -> None:
        """Types the page's Python blocks into one interpreter."""
        file = self.home / ".session.json"
        file.write_text(json.dumps([{"page": page, "line": block.line, "text": block.text} for block in blocks]))
        done = self.run([sys.executable, str(Path(__file__).with_name("page_session.py")), str(file)])
        assert done.returncode == 0, f"{page}:\n{done.stdout}{done.stderr}"

    def run_script(self, page: str, block: Block) -> None:
        """Runs a block as a program of its own, and compares what it prints with its `#>` comments."""
        file = self.home / (block.file or "program.py")
        file.write_text(block.text)
        if is_library(block):
            done = self.run([sys.executable, "-c", f"import {file.stem}"])
        else:
            done = self.run([sys.executable, file.name])
        assert done.returncode == 0, f"{page}:{block.line}:\n{done.stdout}{done.stderr}"
        told = [line.strip()[2:].strip() for line in block.text.splitlines() if line.strip().startswith("#>")]
        got = done.stdout.splitlines()
        assert not told or told == got, f"{page}:{block.line}: it says it prints {told}, it printed {got}"

    def run_shell(self, page: str, block: Block) -> None:
        """Runs commands line by line."""
        for line in block.text.replace("\\\n", " ").splitlines():
            command = line.partition(" #")[0].strip()
            if not command or command.startswith("#"):
                continue
            if command.startswith("export "):
                name, _, value = command.removeprefix("export ").partition("=")
                self.environment[name] = shlex.split(value)[0]
            elif command.startswith("unset "):
                self.environment.pop(command.removeprefix("unset ").strip(), None)
            elif command.split()[:2] in (["weft", "dev"], ["weft", "worker"]):
                self.run_in_background(command)
            elif command.startswith("make "):
                checked = subprocess.run(
                    ["make", "-n", *shlex.split(command)[1:]], cwd=ROOT, capture_output=True, check=False
                )
                assert checked.returncode == 0, f"{page}:{block.line}: {command}: {checked.stderr.decode()}"
            else:
                self.fill_in_run_id(command)
                done = self.run(["bash", "-c", command])
                wanted = int(found[1]) if (found := re.search(r"# exit (\d)", line)) else 0
                assert done.returncode == wanted, f"{page}:{block.line}: {command}\n{done.stdout}{done.stderr}"

    def fill_in_run_id(self, command: str) -> None:
        """`$RUN` on a page is the newest run: a reader would copy its id from the line above."""
        if "$RUN" in command:
            listed = self.run(["weft", "runs", "ls", "--json"])
            self.environment["RUN"] = json.loads(listed.stdout.splitlines()[0])["id"]

    def run_in_background(self, command: str) -> None:
        log = self.home / f"background-{len(self.background)}.log"
        program, *words = shlex.split(command)
        with log.open("w") as out:
            process = subprocess.Popen(
                [str(self.bin / program), *words],
                cwd=self.home,
                env=self.environment,
                text=True,
                stdout=out,
                stderr=out,
            )
        self.background.append(process)
        until = time.monotonic() + 30
        while "ready" not in (said := log.read_text()):
            assert process.poll() is None, f"{command} ended early:\n{said}"
            assert time.monotonic() < until, f"{command} was never ready:\n{said}"
            time.sleep(0.05)

    def leave(self) -> None:
        for process in reversed(self.background):
            process.send_signal(signal.SIGINT)
            process.wait(30)


@pytest.fixture
def reader(tmp_path: Path, page: str) -> Iterator[Reader]:
    following = Reader(tmp_path, (ROOT / page).read_text())
    yield following
    following.leave()


def is_script(block: Block) -> bool:
    return block.language == "python" and (bool(block.file) or "asyncio.run(" in block.text)


def is_library(block: Block) -> bool:
    """Whether a file only declares things, for commands further down the page to use."""
    return bool(block.file) and "asyncio.run(" not in block.text and ".sync." not in block.text


@pytest.mark.parametrize("page", [page for page in PAGES if any(b.language in RUNNABLE for b in blocks_of(page))])
def test_what_a_page_shows_runs_as_written(page: str, reader: Reader) -> None:
    blocks = [block for block in blocks_of(page) if block.language in RUNNABLE and not block.not_run]
    session: list[Block] = []
    for block in blocks_of(page):
        if block.language == "yaml" and block.file:
            (reader.home / block.file).write_text(block.text)
    for block in blocks:
        if is_script(block):
            reader.run_script(page, block)
        elif block.language == "bash":
            reader.run_shell(page, block)
        else:
            session.append(block)
    if session:
        reader.run_session(page, session)


def test_few_blocks_are_excused_and_each_says_why() -> None:
    excused = [(page, block) for page in PAGES for block in blocks_of(page) if block.not_run]
    assert len(excused) <= MOST_EXCUSED, [f"{page}:{block.line}" for page, block in excused]
    assert all(len(block.not_run.split()) >= 3 for _, block in excused)


def test_code_of_another_library_is_shown_on_one_page_only_and_is_python() -> None:
    shown = [(page, block) for page in PAGES for block in blocks_of(page) if block.language == "py"]
    assert {page for page, _ in shown} <= {"docs/from-celery.md"}, "write python: it is run"
    for page, block in shown:
        compile(block.text, f"{page}:{block.line}", "exec")


def test_no_code_hides_in_a_block_without_a_language() -> None:
    bare = [f"{page}:{block.line}" for page in PAGES for block in blocks_of(page) if not block.language]
    assert not bare, "name their language (text, if it is none): " + ", ".join(bare)
