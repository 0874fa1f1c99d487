"""Real servers on loopback: each answers by a function of the test, and remembers what it was sent."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field

Answering = Callable[["Received", asyncio.StreamWriter], Awaitable[None]]


@dataclass
class Received:
    """One request as it stood on the wire."""

    line: str
    headers: dict[str, str]
    body: bytes


@dataclass
class Site:
    """A server, and what it was sent."""

    port: int
    received: list[Received] = field(default_factory=list)
    connections: int = 0


def respond(status: int = 200, body: bytes = b"", **headers: str) -> Answering:
    """Makes a plain answer; `content_type="text/plain"` becomes a header."""

    async def answer(request: Received, writer: asyncio.StreamWriter) -> None:
        lines = [f"HTTP/1.1 {status} Said", f"Content-Length: {len(body)}"]
        lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
        writer.write("\r\n".join([*lines, "", ""]).encode("latin-1"))
        writer.write(b"" if request.line.startswith("HEAD") else body)
        await writer.drain()

    return answer


@contextlib.asynccontextmanager
async def serve(answer: Answering, *, tls: ssl.SSLContext | None = None) -> AsyncIterator[Site]:
    """Runs a server until the block ends."""

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        site.connections += 1
        try:
            while not writer.is_closing():
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
                headers = {
                    name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:-2])
                }
                body = await reader.readexactly(int(headers.get("content-length", "0")))
                site.received.append(Received(head[0], headers, body))
                await answer(site.received[-1], writer)
        except (OSError, asyncio.IncompleteReadError):
            pass  # the client has had enough
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    tasks: set[asyncio.Task[None]] = set()
    writers: list[asyncio.StreamWriter] = []

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.ensure_future(connected(reader, writer))
        tasks.add(task)
        writers.append(writer)

    server = await asyncio.start_server(accept, "127.0.0.1", 0, ssl=tls)
    site = Site(server.sockets[0].getsockname()[1])
    try:
        yield site
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        for writer in writers:
            writer.transport.abort()
        await asyncio.gather(*tasks, return_exceptions=True)


def names(**addresses: str | list[str]) -> Callable[[str, int], Awaitable[list[str]]]:
    """Makes a resolver that knows these names; `good_test` is good.test."""
    known = {name.replace("_", "."): [found] if isinstance(found, str) else found for name, found in addresses.items()}

    async def resolver(host: str, port: int) -> list[str]:
        return known[host]

    return resolver
