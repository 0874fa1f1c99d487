"""Trees of workflows: each runs some activities, then starts children as deep as it goes; results from 100 bytes to 5 MB.

The shape is that of the benchmark of go-workflows. `python -m bench.tree` prints it by itself.
"""

import asyncio
import json
import os
import sys
import tempfile
import time
from collections.abc import Sequence

from bench.driver import script
from bench.effects import FILE_VARIABLE, record
from bench.measurement import Measurement
from weft import Context, Weft

MODULE = "bench.tree"
#: Levels below the root, children of each workflow, activities of each workflow.
DEPTH, FAN_OUT, ACTIVITIES = 2, 3, 2
#: Bytes that an activity returns, and how many trees are measured with that.
SIZES = {100: 60, 10_000: 40, 1_000_000: 2, 5_000_000: 1}

#: Workflows and activities of one tree.
WORKFLOWS = sum(FAN_OUT**level for level in range(DEPTH + 1))
PER_TREE = WORKFLOWS * ACTIVITIES

Figures = dict[str, float]

app = Weft("tree", redis_url=os.environ.get("BENCH_REDIS_URL"))


@app.task
async def activity(size: int) -> bytes:
    record()
    return bytes(size)


@app.workflow
async def tree(ctx: Context, depth: int, size: int) -> int:
    results = await ctx.gather(*[ctx.call(activity, size) for _ in range(ACTIVITIES)])
    total = sum(len(result) for result in results)
    if depth:
        total += sum(await ctx.gather(*[ctx.child(tree, depth - 1, size) for _ in range(FAN_OUT)]))
    return total


def tree_case(m: Measurement, size: int) -> Figures:
    """Activities per second of trees with results of one size, by one worker process."""
    n = SIZES[size]
    m.prepare([sys.executable, "-m", MODULE, "start", str(n), str(size)])
    return {f"tree_{size}": m.drain([script("weft"), "worker", f"{MODULE}:app", "-c", "100"], n * PER_TREE)}


async def start(n: int, size: int) -> None:
    async with app:
        await asyncio.gather(*(tree.start(DEPTH, size) for _ in range(n)))


async def measure(sizes: Sequence[int]) -> dict[str, Figures]:
    """Measures in this process, on a store of its own."""
    figures: dict[str, Figures] = {}
    async with app, app.worker(concurrency=100):
        for size in sizes:
            began, n = time.perf_counter(), SIZES[size]
            runs = await asyncio.gather(*(tree.start(DEPTH, size) for _ in range(n)))
            totals = await asyncio.gather(*(run.result() for run in runs))
            took = time.perf_counter() - began
            assert set(totals) == {PER_TREE * size}
            figures[f"{size} bytes"] = {
                "trees_per_s": n / took,
                "workflows_per_s": n * WORKFLOWS / took,
                "activities_per_s": n * PER_TREE / took,
                "mb_per_s": n * PER_TREE * size / took / 1e6,
            }
    return figures


def main(words: Sequence[str]) -> None:
    if words[:1] == ["start"]:
        return asyncio.run(start(int(words[1]), int(words[2])))
    with tempfile.TemporaryDirectory() as directory:
        os.environ |= {FILE_VARIABLE: f"{directory}/effects", "WEFT_DATA": directory}
        open(os.environ[FILE_VARIABLE], "w").close()
        print(json.dumps(asyncio.run(measure([int(word) for word in words] or list(SIZES))), indent=2))
    return None


if __name__ == "__main__":
    main(sys.argv[1:])
