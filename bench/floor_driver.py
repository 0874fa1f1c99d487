"""Not a peer: the least that a task on a stream can cost, as a yardstick for this machine.

A token in a stream, a reader that blocks on it, one script that takes the token, keeps the result and publishes it.
No retries, leases, log, limits, codec or types. What a row takes more than this one is what its features cost.
"""

import asyncio
import collections
import contextlib
import itertools
import os
import sys
from typing import Any
from urllib.parse import urlsplit

import hiredis
import uvloop

from bench.driver import Driver, batches
from bench.effects import record

START = """
redis.call('HSET', KEYS[1], 'status', 'queued')
return redis.call('XADD', KEYS[2], '*', 'run', KEYS[1])"""
END = """
redis.call('XACK', KEYS[2], 'workers', ARGV[1])
redis.call('XDEL', KEYS[2], ARGV[1])
redis.call('HSET', KEYS[1], 'status', 'completed', 'result', ARGV[2])
redis.call('PUBLISH', 'ended', KEYS[1])"""
#: Tokens of one read.
BATCH = 100


class Line(asyncio.Protocol):
    """One connection: commands of a turn of the loop go out together, replies come back in order."""

    def __init__(self) -> None:
        self._reader = hiredis.Reader()
        self._asked: collections.deque[asyncio.Future[Any]] = collections.deque()
        self._buffer: list[bytes] = []
        self.pushed: dict[bytes, asyncio.Future[Any]] = {}

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        self._loop = asyncio.get_running_loop()

    def data_received(self, data: bytes) -> None:
        self._reader.feed(data)
        while (reply := self._reader.gets()) is not False:
            if type(reply) is list and reply and reply[0] == b"message":
                self.pushed.pop(reply[2]).set_result(None)
                continue
            future = self._asked.popleft()
            if isinstance(reply, Exception):
                future.set_exception(reply)
            else:
                future.set_result(reply)

    def call(self, *command: str | bytes) -> asyncio.Future[Any]:
        if not self._buffer:
            self._loop.call_soon(self._flush)
        self._buffer.append(hiredis.pack_command(command))
        future = self._loop.create_future()
        self._asked.append(future)
        return future

    def close(self) -> None:
        self._transport.close()

    def _flush(self) -> None:
        self._transport.write(b"".join(self._buffer))
        self._buffer.clear()


async def connect() -> Line:
    url = urlsplit(os.environ["BENCH_REDIS_URL"])
    _, line = await asyncio.get_running_loop().create_connection(Line, url.hostname, url.port)
    return line


async def noop() -> int:
    return record()


async def work() -> None:
    reader, writer = await connect(), await connect()
    with contextlib.suppress(hiredis.ReplyError):  # another process made the group
        await writer.call("XGROUP", "CREATE", "tasks", "workers", "0", "MKSTREAM")
    end = await writer.call("SCRIPT", "LOAD", END)
    running: set[asyncio.Task[None]] = set()

    async def run(entry: bytes, run_key: bytes) -> None:
        await writer.call("EVALSHA", end, "2", run_key, "tasks", entry, str(await noop()))

    while True:
        read = ("XREADGROUP", "GROUP", "workers", str(os.getpid()), "COUNT", str(BATCH), "BLOCK", "1000")
        got = await reader.call(*read, "STREAMS", "tasks", ">")
        for entry, fields in got[0][1] if got else ():
            task = asyncio.create_task(run(entry, fields[1]))
            running.add(task)
            task.add_done_callback(running.discard)
        if len(running) >= BATCH:
            await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)


class PeerDriver(Driver):
    async def open(self, stack: contextlib.AsyncExitStack) -> None:
        self._line, self._ear = await connect(), await connect()
        for line in (self._line, self._ear):
            stack.callback(line.close)
        self._start = await self._line.call("SCRIPT", "LOAD", START)
        await self._ear.call("SUBSCRIBE", "ended")
        self._numbers = itertools.count()
        self._prefix = os.urandom(4).hex()

    def worker_command(self, processes: int) -> list[str]:
        return [sys.executable, "-m", "bench.floor_driver", str(processes)]

    async def enqueue_one(self, n: int) -> None:
        for _ in range(n):
            await self._enqueue(self._next())

    async def enqueue_bulk(self, n: int) -> None:
        for size in batches(n):
            await asyncio.gather(*(self._enqueue(self._next()) for _ in range(size)))

    async def round_trip(self) -> None:
        run_key = self._next()
        ended = self._ear.pushed[run_key.encode()] = asyncio.get_running_loop().create_future()
        await self._enqueue(run_key)
        await ended

    def _next(self) -> str:
        return f"run:{self._prefix}:{next(self._numbers)}"

    def _enqueue(self, run_key: str) -> asyncio.Future[Any]:
        return self._line.call("EVALSHA", self._start, "2", run_key, "tasks")


if __name__ == "__main__":
    for _ in range(int(sys.argv[1]) - 1):
        if os.fork() == 0:
            break
    uvloop.run(work())
