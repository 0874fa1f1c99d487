"""Weft: the public API with default settings, nothing else."""

import contextlib
import os

from bench.driver import RESULT_TIMEOUT_S, Driver, batches, script
from bench.effects import record
from weft import Weft

app = Weft("bench", redis_url=os.environ["BENCH_REDIS_URL"])


@app.task
async def noop() -> int:
    return record()


class PeerDriver(Driver):
    async def open(self, stack: contextlib.AsyncExitStack) -> None:
        await stack.enter_async_context(app)

    def worker_command(self, processes: int) -> list[str]:
        command = [script("weft"), "worker", "bench.weft_driver:app", "-c", "100"]
        return command if processes == 1 else [*command, "--processes", str(processes)]

    async def enqueue_one(self, n: int) -> None:
        for _ in range(n):
            await noop.enqueue()

    async def enqueue_bulk(self, n: int) -> None:
        for size in batches(n):
            await noop.enqueue_many([()] * size)

    async def round_trip(self) -> int:
        run = await noop.enqueue()
        return await run.result(timeout=RESULT_TIMEOUT_S)
