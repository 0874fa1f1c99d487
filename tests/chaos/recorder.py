"""The effect recorder: a process of its own that notes what tasks did to the outside world.

Tasks send one datagram per effect. A datagram is whole or absent, so a worker killed in the middle of a send leaves no
half row; and it lies in the kernel once `send` returns, so an effect counts from then on, whoever dies next.

    python -m chaos.recorder SOCKET FILE
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import time
from dataclasses import dataclass
from pathlib import Path

#: Environment variable that tells tasks where the recorder listens.
ADDRESS = "CHAOS_RECORDER"


@dataclass(frozen=True)
class Row:
    """One effect as its task told it."""

    key: str
    run: str
    attempt: int
    delivery: int
    fence: int
    pid: int
    worker: str
    at: float  # monotonic seconds, comparable between processes of one machine
    phase: str


_socket: tuple[tuple[int, str], socket.socket] | None = None


def record(phase: str, *, key: str, run: str, attempt: int, delivery: int, fence: int) -> None:
    """Tells the recorder of one effect; called inside tasks, in whatever process they run."""
    global _socket  # noqa: PLW0603 - one socket per process and recorder
    here = os.getpid(), os.environ[ADDRESS]
    if _socket is None or _socket[0] != here:
        if _socket is not None:
            _socket[1].close()
        _socket = here, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        _socket[1].connect(here[1])
    row = [key, run, attempt, delivery, fence, os.getpid(), os.environ.get("CHAOS_NAME", ""), time.monotonic(), phase]
    _socket[1].send(json.dumps(row).encode())


class Effects:
    """Reads what the recorder wrote."""

    def __init__(self, address: Path, file: Path) -> None:
        self.address, self.file = address, file

    def rows(self) -> list[Row]:
        """Returns every effect sent before this call."""
        self._sync()
        # What was sent since may be in the file by half.
        whole, _, _ = self.file.read_bytes().rpartition(b"\n")
        lines = whole.splitlines()
        return [Row(*json.loads(line)) for line in lines if line.startswith(b"[")]

    def find(self, phase: str | None = None, run: str | None = None) -> list[Row]:
        return [r for r in self.rows() if (phase is None or r.phase == phase) and (run is None or r.run == run)]

    def _sync(self, timeout: float = 10.0) -> None:
        """Sends a mark through the same queue and waits until it is in the file."""
        mark = f'"{time.monotonic_ns()}"'.encode()
        size = self.file.stat().st_size
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
            sock.connect(str(self.address))
            sock.send(mark)
        deadline = time.monotonic() + timeout
        while mark not in self._since(size):
            if time.monotonic() > deadline:
                raise TimeoutError("the effect recorder does not answer")
            time.sleep(0.002)

    def _since(self, size: int) -> bytes:
        with self.file.open("rb") as file:
            file.seek(size)
            return file.read()


def serve(address: str, file: str) -> None:
    """Appends every datagram as a line, until it is killed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    out = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
        sock.bind(address)
        while True:
            os.write(out, sock.recv(65536) + b"\n")


if __name__ == "__main__":
    serve(sys.argv[1], sys.argv[2])
