"""What durable code workflows cost: ten steps in a row, a step alone, a sleep, a replay; `python -m bench.workflows` prints it.

As a case of `python -m bench` only the first is measured, by a worker process of its own and effects counted outside.
"""

import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from bench.driver import script
from bench.effects import FILE_VARIABLE, record
from bench.measurement import Measurement
from bench.processes import RoundFailed, wait_for_rest
from weft import Context, Weft

MODULE = "bench.workflows"
#: Steps of one workflow.
STEPS = 10
#: Workflows that a worker runs at once.
IN_FLIGHT = 500
#: Entries of the journal that is replayed.
REPLAYED = 10_000

Figures = dict[str, float]

app = Weft("workflows", redis_url=os.environ.get("BENCH_REDIS_URL"))


async def effect(n: int) -> int:
    return n + record()


async def nothing(n: int) -> int:
    return n


@app.workflow
async def ten(ctx: Context) -> int:
    total = 0
    for n in range(STEPS):
        total += await ctx.step(effect, n)
    return total


@app.workflow
async def timed(ctx: Context) -> list[float]:
    """How long each of a hundred steps takes, in ms, from one line to the next."""
    took, last = [], time.perf_counter()
    for n in range(100):
        await ctx.step(nothing, n)
        now = time.perf_counter()
        took.append((now - last) * 1000)
        last = now
    return took


@app.workflow
async def nap(ctx: Context) -> None:
    await ctx.sleep("30d")


@app.workflow
async def long(ctx: Context) -> int:
    for n in range(REPLAYED):
        await ctx.step(nothing, n)
    await ctx.receive("go")
    return REPLAYED


def workflows_case(m: Measurement, n: int) -> Figures:
    """Workflows of ten steps per second: started first, then run by one worker process."""
    m.prepare([sys.executable, "-m", MODULE, "start", str(n)])
    rate = m.drain([script("weft"), "worker", f"{MODULE}:app", "-c", str(IN_FLIGHT)], n * STEPS)
    return {"workflows": rate / STEPS}


def costs_case(m: Measurement) -> Figures:
    """One step alone, a replay, and what a run that sleeps takes."""
    done = subprocess.run(
        [sys.executable, "-m", MODULE, "costs", "2000"],
        env=m.env,
        cwd=m.cwd,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RoundFailed(f"costs: {done.stderr.strip().splitlines()[-1:]}")
    figures: Figures = json.loads(done.stdout)
    return figures


async def start(n: int) -> None:
    async with app:
        for at in range(0, n, 500):
            await asyncio.gather(*(ten.start() for _ in range(min(500, n - at))))


async def costs(n: int) -> Figures:
    """Measures single runs in this process."""
    async with app:
        await app.open()
        return {**await _steps(), **await _sleepers(n), "replay_s": await _replay()}


async def _steps() -> Figures:
    async with app.worker(concurrency=1):
        await (await timed.start()).result()
        await asyncio.to_thread(wait_for_rest, os.getpid())  # the archiver's process starts beside the worker
        samples = sorted([ms for _ in range(10) for ms in await (await timed.start()).result()])
    return {"step_p50_ms": statistics.median(samples), "step_p99_ms": samples[int(len(samples) * 0.99)]}


async def measure(n: int) -> Figures:
    """Measures everything in this process, on a store of its own."""
    async with app:
        ns = app.engine().ns
        await app.open()
        figures = await _steps()
        runs = [run for _ in range(n // 500) for run in await asyncio.gather(*(ten.start() for _ in range(500)))]
        before, cpu, began = _cpu(await ns.info("cpu")), time.process_time(), time.perf_counter()
        async with app.worker(concurrency=IN_FLIGHT):
            await asyncio.gather(*(run.result() for run in runs))
        figures["workflows_per_s"] = len(runs) / (time.perf_counter() - began)
        figures["worker_cpu_us"] = (time.process_time() - cpu) / len(runs) * 1e6
        figures["server_cpu_us"] = (_cpu(await ns.info("cpu")) - before) / len(runs) * 1e6
        figures |= await _sleepers(n)
        figures["replay_s"] = await _replay()
    return figures


async def _sleepers(n: int) -> Figures:
    ns = app.engine().ns
    before = int((await ns.info("memory"))["used_memory"])
    async with app.worker(concurrency=IN_FLIGHT):
        runs = await asyncio.gather(*(nap.start() for _ in range(n)))
        while (await runs[-1].status()) != "waiting" or (await runs[0].status()) != "waiting":
            await asyncio.sleep(0.05)
        await asyncio.sleep(0.5)
    log = int(await ns.read("MEMORY", "USAGE", ns.keys.log(0), "SAMPLES", 0, p=0))
    after = int((await ns.info("memory"))["used_memory"])
    return {"bytes_per_sleeper": (after - before) / n, "log_bytes": float(log)}


async def _replay() -> float:
    async with app.worker(concurrency=1):
        run = await long.start()
        while (await run.status()) != "waiting":
            await asyncio.sleep(0.05)
    async with app.worker(concurrency=1):
        began = time.perf_counter()
        await run.signal("go")
        await run.result()
        return time.perf_counter() - began


def _cpu(info: dict[str, str]) -> float:
    return float(info["used_cpu_user"]) + float(info["used_cpu_sys"])


def main(words: Sequence[str]) -> None:
    if words[:1] == ["start"]:
        return asyncio.run(start(int(words[1])))
    if words[:1] == ["costs"]:
        return print(json.dumps(asyncio.run(costs(int(words[1])))))
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory) / "effects"
        file.touch()
        os.environ |= {FILE_VARIABLE: str(file), "WEFT_DATA": directory}
        print(json.dumps(asyncio.run(measure(int(words[0]) if words else 2000)), indent=2))
    return None


if __name__ == "__main__":
    main(sys.argv[1:])
