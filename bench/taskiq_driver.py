"""taskiq on Redis streams with the Redis result backend."""

import contextlib
import os

from taskiq_redis import RedisAsyncResultBackend, RedisStreamBroker

from bench.driver import RESULT_TIMEOUT_S, Driver, in_flight, script
from bench.effects import record

url = os.environ["BENCH_REDIS_URL"]
broker = RedisStreamBroker(url).with_result_backend(RedisAsyncResultBackend(url))


@broker.task
async def noop() -> int:
    return record()


class PeerDriver(Driver):
    async def open(self, stack: contextlib.AsyncExitStack) -> None:
        await broker.startup()  # declares the consumer group, so workers started later see every task
        stack.push_async_callback(broker.shutdown)

    def worker_command(self, processes: int) -> list[str]:
        options = ["--workers", str(processes), "--max-async-tasks", "100", "--log-level", "ERROR"]
        return [script("taskiq"), "worker", "bench.taskiq_driver:broker", *options]

    async def enqueue_one(self, n: int) -> None:
        for _ in range(n):
            await noop.kiq()

    async def enqueue_bulk(self, n: int) -> None:
        await in_flight(noop.kiq, n)

    async def round_trip(self) -> int:
        task = await noop.kiq()
        # `wait_result` polls; its default of 0.2 s would measure only itself.
        result = await task.wait_result(check_interval=0.001, timeout=RESULT_TIMEOUT_S)
        return result.return_value
