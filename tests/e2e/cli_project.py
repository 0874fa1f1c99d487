"""A directory with an app in it, and the command line as a user would type it there: real processes, embedded store."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil

import cli_host
from servers import server_program
from weft.store.embedded import EmbeddedServer

ROOT = Path(__file__).resolve().parents[2]

#: Seconds anything may take before a test gives up; far more than it needs.
PATIENCE = 30.0

TASKS = '''
import asyncio, os
from datetime import datetime
from pathlib import Path
from weft import Weft, current

app = Weft("shop")

@app.task
async def add(a: int, b: int) -> int:
    return a + b

@app.task
def greet(name: str) -> str:
    return f"Hello, {name}!"

@app.task
def talk(words: str) -> None:
    current().log.info("%s", words, n=1)

@app.task
async def fail(message: str = "no") -> None:
    raise ValueError(message)

@app.task
async def echo(items: list[int], when: datetime, flag: bool = False, text: str = "", other=None) -> list:
    return [items, when.isoformat(), flag, text, other]

@app.task(timeout="1m", retries=3)
async def hold(name: str) -> list[int]:
    """Runs until a file appears; tells attempt and delivery."""
    here = current()
    Path(f"{name}.started.{here.attempt}.{here.delivery}").write_text(str(os.getpid()))
    while not Path(f"{name}.go").exists():
        await asyncio.sleep(0.01)
    return [here.attempt, here.delivery]

@app.task(queue="high")
async def urgent() -> str:
    return "done"
'''


class Output:
    """What a command gave."""

    def __init__(self, done: subprocess.CompletedProcess[str]) -> None:
        self.out, self.err, self.code = done.stdout, done.stderr, done.returncode

    @property
    def document(self) -> Any:
        """The one JSON document on stdout."""
        return json.loads(self.out)

    @property
    def documents(self) -> list[Any]:
        """The JSON Lines on stdout."""
        return [json.loads(line) for line in self.out.splitlines()]

    @property
    def rows(self) -> list[list[str]]:
        """The tab-separated lines on stdout."""
        return [line.split("\t") for line in self.out.splitlines()]


class Project:
    """A user's directory."""

    def __init__(self, root: Path, *, tasks: str = TASKS, **env: str) -> None:
        self.root = root
        root.mkdir(parents=True, exist_ok=True)
        (root / "tasks.py").write_text(tasks)
        (root / "pyproject.toml").write_text('[tool.weft]\napp = "tasks:app"\n')
        self.env = {
            **{name: value for name, value in os.environ.items() if not name.startswith("WEFT_")},
            "PYTHONPATH": str(ROOT / "src"),
            # What the suite runs on, whatever is installed here: an older server on PATH lacks what some commands need.
            "WEFT_SERVER_BINARY": str(server_program()),
            # Those that care about the archive say so.
            "WEFT_ARCHIVE": "no",
            **env,
        }
        self._started: list[Started] = []

    def weft(self, *words: str, code: int | None = 0, input: str = "", cwd: Path | None = None, **env: str) -> Output:
        """Runs one command to its end; fails the test when it ends with another code."""
        done = cli_host.run(words, cwd=cwd or self.root, env={**self.env, **env}, input=input, timeout=PATIENCE * 2)
        assert code is None or done.returncode == code, f"{words}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        assert "src/weft/cli" not in done.stderr, f"a traceback of our own: {done.stderr}"
        return Output(done)

    def on_terminal(self, *words: str) -> str:
        """Runs one command with stdout on a terminal, 200 columns wide; returns what it drew."""
        ours, theirs = pty.openpty()
        env = {**self.env, "COLUMNS": "200", "TERM": "xterm-256color"}
        done = subprocess.Popen([sys.executable, "-m", "weft", *words], cwd=self.root, env=env, stdout=theirs)
        os.close(theirs)
        drawn = bytearray()
        with suppress(OSError):  # how a terminal says that nobody is left on its other side
            while part := os.read(ours, 1 << 16):
                drawn += part
        os.close(ours)
        assert done.wait(PATIENCE) == 0
        return drawn.decode()

    def start(self, *words: str, env: Mapping[str, str] | None = None, ready: str | None = r"ready\b") -> Started:
        """Starts a command that stays, and waits for a line of it."""
        started = Started([sys.executable, "-m", "weft", *words], self.root, {**self.env, **(env or {})})
        self._started.append(started)
        if ready:
            started.wait_for(ready)
        return started

    def wait_for_file(self, pattern: str) -> Path:
        """Waits until a file of that name lies in the directory, with something in it."""
        return until(lambda: next((p for p in self.root.glob(pattern) if p.stat().st_size), None))

    def close(self) -> None:
        """Ends what was started, and the embedded server if a process that was killed left it behind."""
        for started in self._started:
            started.end()
        if (self.root / ".weft" / "valkey.pid").exists():
            EmbeddedServer.attach(self.root / ".weft").detach(stop=True)


@contextmanager
def archiving(root: Path) -> Iterator[Project]:
    """A project whose workers archive, as they do unless told otherwise; its server outlives them."""
    project = Project(root)
    del project.env["WEFT_ARCHIVE"]
    held = EmbeddedServer.attach(project.root / ".weft")
    yield project
    project.close()
    held.detach()


class Started:
    """A command that runs; what it says on stderr is read as it comes."""

    def __init__(self, command: list[str], cwd: Path, env: Mapping[str, str]) -> None:
        self.process = subprocess.Popen(
            command,
            cwd=cwd,
            env=env,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.lines: list[str] = []
        self._news = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def text(self) -> str:
        return "".join(self.lines)

    @property
    def pid(self) -> int:
        return self.process.pid

    def wait_for(self, pattern: str, *, n: int = 1) -> list[re.Match[str]]:
        """Waits until `n` matches of a pattern were said; returns all there are."""
        deadline = time.monotonic() + PATIENCE
        with self._news:
            while len(found := list(re.finditer(pattern, self.text))) < n:
                left = deadline - time.monotonic()
                assert left > 0, f"{pattern!r} was not said {n} times:\n{self.text}"
                assert self._reader.is_alive() or self._news.wait(0.05), f"it ended without {pattern!r}:\n{self.text}"
                self._news.wait(min(left, 0.5))
        return found

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def wait(self) -> int:
        """Waits for its end; returns the exit code."""
        code = self.process.wait(PATIENCE)
        self._reader.join(PATIENCE)
        return code

    def end(self) -> None:
        """Ends it in haste; after a test that failed, also by force, with what it started."""
        if self.process.poll() is not None:
            return
        family = [*psutil.Process(self.pid).children(recursive=True), psutil.Process(self.pid)]
        for _ in range(2):
            self.signal(signal.SIGTERM)
        try:
            self.process.wait(PATIENCE / 3)
        except subprocess.TimeoutExpired:
            for member in family:
                with suppress(psutil.NoSuchProcess):
                    member.send_signal(signal.SIGKILL)
            self.process.wait(PATIENCE)

    def _read(self) -> None:
        assert self.process.stderr is not None
        with self.process.stderr as stream:
            for line in stream:
                with self._news:
                    self.lines.append(line)
                    self._news.notify_all()
        with self._news:
            self._news.notify_all()


def is_gone(pid: int) -> bool:
    """Tells whether a process has ended; one that nobody has buried yet counts."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def until(check: Callable[[], Any], within: float = PATIENCE) -> Any:
    """Waits until a check gives something true, and returns it."""
    deadline = time.monotonic() + within
    while not (found := check()):
        assert time.monotonic() < deadline, f"still not so after {within} s"
        time.sleep(0.01)
    return found
