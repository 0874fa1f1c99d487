"""Weft: the public API with default settings, nothing else."""

import asyncio
import contextlib
import os

from bench.driver import RESULT_TIMEOUT_S, Driver, batches, script
from bench.effects import record
from weft import Graph, Weft

#: Starts of graphs that are under way at once.
GATHERED = 250

app = Weft("bench", redis_url=os.environ["BENCH_REDIS_URL"])


@app.task
async def noop() -> int:
    return record()


@app.task
async def noop_item(item: int) -> int:
    return record()


def chain_of(name: str, nodes: int, *, wait_at: int | None = None) -> Graph:
    """Returns nodes one behind the other; one of them may wait."""
    graph = app.graph(name)
    for i in range(nodes):
        after = [f"s{i - 1}"] if i else []
        if i == wait_at:
            graph.wait(f"s{i}", duration="1h", after=after)
        else:
            graph.task(f"s{i}", noop, after=after)
    return graph


chain = chain_of("chain", 10)
scatter = app.graph("scatter")
scatter.task("items", noop_item, map="input.items")
waiting = chain_of("waiting", 10, wait_at=5)


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

    async def chains(self, n: int) -> None:
        await self._start(chain, n)

    async def waiting(self, n: int) -> None:
        await self._start(waiting, n)

    async def long_chains(self, n: int, nodes: int) -> None:
        await self._start(chain if nodes == 10 else chain_of("long", nodes), n)

    async def scatter(self, n: int) -> None:
        run = await scatter.start({"items": list(range(n))})
        if await run.result(timeout=200) != [1] * n:
            raise RuntimeError("the map gave something else")

    async def _start(self, graph: Graph, n: int) -> None:
        for at in range(0, n, GATHERED):
            await asyncio.gather(*[graph.start() for _ in range(min(GATHERED, n - at))])
