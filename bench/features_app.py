"""What the feature cases run: tasks with and without limits, and small producers for them."""

import asyncio
import json
import os
import sys
import time
from datetime import UTC, datetime, timedelta

from bench.effects import record
from weft import Weft

app = Weft("features", redis_url=os.environ["BENCH_REDIS_URL"])

#: Calls of one `enqueue_many`.
BULK = 1000


@app.task
async def plain(key: int) -> int:
    return record()


@app.task(concurrency_key=lambda key: key, concurrency_per_key=1_000_000)
async def keyed(key: int) -> int:
    """A limit that never closes: what does it cost to have one?"""
    return record()


@app.task(concurrency_key=lambda key: key, concurrency_per_key=1)
async def strict(key: int) -> int:
    """One of each key at a time."""
    return record()


@app.task
async def later() -> int:
    return record()


@app.task(queue="quick")
async def quick() -> int:
    return 1


async def enqueue(name: str, n: int, keys: int) -> dict[str, float]:
    task = {"plain": plain, "keyed": keyed, "strict": strict}[name]
    async with app:
        await app.open()
        start = time.perf_counter()
        for at in range(0, n, BULK):
            await task.enqueue_many([(i % keys,) for i in range(at, min(n, at + BULK))])
        return {"seconds": time.perf_counter() - start}


async def enqueue_later(n: int, lead: float) -> dict[str, float]:
    """Starts runs that are all due within one second, `lead` seconds from now; returns when that second begins."""
    async with app:
        base = datetime.now(UTC) + timedelta(seconds=lead)
        for part in range(10):
            bound = later.options(eta=base + timedelta(seconds=part / 10))
            for at in range(0, n // 10, BULK):
                await bound.enqueue_many([()] * min(BULK, n // 10 - at))
        left = (base - datetime.now(UTC)).total_seconds()
        return {"base": base.timestamp(), "left": left}


async def sample_quick(seconds: float) -> dict[str, float]:
    """Round trips through another queue for a while; returns the slowest but one per cent, in ms."""
    async with app:
        samples, end = [], time.monotonic() + seconds
        while time.monotonic() < end:
            start = time.perf_counter()
            await (await quick.enqueue()).result(timeout=30)
            samples.append((time.perf_counter() - start) * 1000)
            await asyncio.sleep(0.01)
        samples.sort()
        return {"p50": samples[len(samples) // 2], "p99": samples[int(len(samples) * 0.99)], "n": len(samples)}


async def create_schedules(n: int) -> dict[str, float]:
    async with app:
        for at in range(0, n, 100):
            await asyncio.gather(
                *(app.schedules.create(f"s{i}", "* * * * *", plain, (i,)) for i in range(at, at + 100))
            )
        return {"n": float(n)}


if __name__ == "__main__":
    verb, *words = sys.argv[1:]
    work = {
        "enqueue": lambda: enqueue(words[0], int(words[1]), int(words[2])),
        "later": lambda: enqueue_later(int(words[0]), float(words[1])),
        "quick": lambda: sample_quick(float(words[0])),
        "schedules": lambda: create_schedules(int(words[0])),
    }[verb]
    print(json.dumps(asyncio.run(work())))
