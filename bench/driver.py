"""The inside of a driver process: `python -m bench.driver NAME`, run by the peer's own interpreter.

The harness writes one JSON list per line, `["enqueue_bulk", 1000]`, and reads one JSON object back, `{"value": …}`
or `{"error": …}`. End of input ends the process. Only the standard library and the peer are imported here.
"""

import asyncio
import contextlib
import importlib
import inspect
import json
import os
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from typing import IO, Any

#: Concurrent enqueue calls for asyncio peers that have no bulk call.
IN_FLIGHT = 64
#: Tasks per bulk call, for peers that have one.
BULK_SIZE = 1000
#: Seconds a result may take before the row fails.
RESULT_TIMEOUT_S = 10
#: Idle seconds between two latency samples.
PAUSE_S = 0.003


class Driver(ABC):
    """What the harness asks of a peer. Each method may be plain or `async`."""

    async def open(self, stack: contextlib.AsyncExitStack) -> None:  # noqa: B027 - some peers connect by themselves
        """Connects; whatever is entered on `stack` is closed at the end."""

    @abstractmethod
    def worker_command(self, processes: int) -> list[str]:
        """The command that starts this many worker processes."""

    @abstractmethod
    def enqueue_one(self, n: int) -> Awaitable[None] | None:
        """Enqueues `n` no-op tasks, one call after the other."""

    def enqueue_bulk(self, n: int) -> Awaitable[None] | None:
        """Enqueues `n` no-op tasks the fastest public way; a peer marked `has_bulk=False` is never asked."""
        raise NotImplementedError

    @abstractmethod
    def round_trip(self) -> Awaitable[object] | object:
        """Enqueues one task and returns when its result is here."""

    async def latency(self, n: int) -> list[float]:
        """Milliseconds of `n` round trips with an idle pause before each."""
        samples = []
        for _ in range(n):
            await asyncio.sleep(PAUSE_S)
            start = time.perf_counter()
            await _settled(self.round_trip())
            samples.append((time.perf_counter() - start) * 1000)
        return samples


async def in_flight(call: Callable[[], Awaitable[object]], n: int) -> None:
    """Makes `n` calls, `IN_FLIGHT` at a time."""
    for start in range(0, n, IN_FLIGHT):
        await asyncio.gather(*[call() for _ in range(min(IN_FLIGHT, n - start))])


def batches(n: int) -> list[int]:
    """The sizes of the bulk calls that make `n` tasks."""
    full, rest = divmod(n, BULK_SIZE)
    return [BULK_SIZE] * full + ([rest] if rest else [])


def script(name: str) -> str:
    """A command installed next to this interpreter."""
    return os.path.join(os.path.dirname(sys.executable), name)


async def serve(driver: Driver, replies: IO[str]) -> None:
    """Answers the harness until end of input."""
    async with contextlib.AsyncExitStack() as stack:
        await driver.open(stack)
        while line := await asyncio.to_thread(sys.stdin.readline):
            method, *arguments = json.loads(line)
            try:
                reply = {"value": await _settled(getattr(driver, method)(*arguments))}
            except Exception as error:
                reply = {"error": f"{type(error).__name__}: {error}"}
            print(json.dumps(reply), file=replies, flush=True)


async def _settled(value: Any) -> Any:
    return await value if inspect.isawaitable(value) else value


def main() -> None:
    # A library that prints must not be read as a reply: replies get the real stdout, everyone else stderr.
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    module = importlib.import_module(f"bench.{sys.argv[1]}_driver")
    try:
        from uvloop import new_event_loop
    except ImportError:
        from asyncio import new_event_loop
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(serve(module.PeerDriver(), replies))


if __name__ == "__main__":
    main()
