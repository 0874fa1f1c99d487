"""SAQ on Redis, its default job options: results are kept for ten minutes."""

import contextlib
import os
from typing import Any

from saq import Queue

from bench.driver import RESULT_TIMEOUT_S, Driver, in_flight, script
from bench.effects import record

queue = Queue.from_url(os.environ["BENCH_REDIS_URL"])


async def noop(_context: dict[str, Any]) -> int:
    return record()


#: Read by the `saq` command.
settings = {"queue": queue, "functions": [noop], "concurrency": 100}


class PeerDriver(Driver):
    async def open(self, stack: contextlib.AsyncExitStack) -> None:
        await queue.connect()
        stack.push_async_callback(queue.disconnect)

    def worker_command(self, processes: int) -> list[str]:
        return [script("saq"), "bench.saq_driver.settings", "--workers", str(processes), "--quiet"]

    async def enqueue_one(self, n: int) -> None:
        for _ in range(n):
            await queue.enqueue("noop")

    async def enqueue_bulk(self, n: int) -> None:
        await in_flight(lambda: queue.enqueue("noop"), n)

    async def round_trip(self) -> int:
        # `apply` polls; its default of half a second would measure only itself.
        return await queue.apply("noop", timeout=RESULT_TIMEOUT_S, poll_interval=0.001)
