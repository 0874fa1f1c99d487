"""What a worker and its child processes say to each other: msgpack behind a length."""

from __future__ import annotations

import socket
import struct
from typing import TypeVar

import msgspec

from weft.core.model import Token
from weft.core.steering import Sequel


class Job(msgspec.Struct):
    """Run this task with these arguments."""

    module: str
    name: str
    token: Token
    data: bytes


class Reply(msgspec.Struct):
    """A word on the way (`begun`, `report` or `line` set), or the end: data, or what follows its error."""

    data: bytes = b""
    sequel: Sequel | None = None
    report: str = ""
    line: bytes = b""
    #: The task's module is imported: from now on it is the function that takes time.
    begun: bool = False


Frame = TypeVar("Frame", Job, Reply)


def send(sock: socket.socket, frame: Job | Reply) -> None:
    body = msgspec.msgpack.encode(frame)
    sock.sendall(struct.pack(">I", len(body)) + body)


def receive(sock: socket.socket, kind: type[Frame]) -> Frame:
    """Returns the next frame; raises EOFError when the other side is gone."""
    (size,) = struct.unpack(">I", _exactly(sock, 4))
    return msgspec.msgpack.decode(_exactly(sock, size), type=kind)


def _exactly(sock: socket.socket, size: int) -> bytes:
    parts = bytearray()
    while len(parts) < size:
        part = sock.recv(size - len(parts))
        if not part:
            raise EOFError
        parts += part
    return bytes(parts)
