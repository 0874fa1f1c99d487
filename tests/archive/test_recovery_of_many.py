"""Ten thousand unfinished runs of all kinds are rebuilt within a minute."""

from __future__ import annotations

import asyncio
import time

import pytest

from weft import Context
from weft.core.fold import RunState
from weft.ids import partition_of

pytestmark = pytest.mark.leaves("history", "open runs")

#: Seconds that a rebuilding may take.
WITHIN = 60.0


async def rebuilt(app, archive, archivers, start_worker, raw, *, tasks: int, graphs: int, flows: int) -> float:
    """Leaves runs unfinished, wipes the store and returns how many seconds it took to rebuild it."""

    @app.task
    async def work(n: int) -> int:
        return n

    graph = app.graph("waiting", output="${last}")
    graph.task("first", call="work", with_={"n": "${input.n}"})
    graph.task("each", call="work", map="[1, 2, 3]", with_={"n": "${item}"}, after="first")
    graph.wait("go", signal="go", after="each")
    graph.task("last", call="work", with_={"n": "${first}"}, after="go")

    @app.workflow
    async def flow(ctx: Context, n: int) -> int:
        first = await ctx.step(work, n)
        second = await ctx.call(work, first)
        return second + await ctx.receive("go", type=int)

    worker = await start_worker(concurrency=100)
    made = {"graph": [], "flow": []}
    for at in range(0, graphs, 100):
        made["graph"] += await asyncio.gather(*(graph.start({"n": n}) for n in range(at, min(at + 100, graphs))))
    for at in range(0, flows, 100):
        made["flow"] += await asyncio.gather(*(flow.start(n) for n in range(at, min(at + 100, flows))))
    delayed = await work.options(delay="1h").enqueue_many([(n,) for n in range(tasks // 2)])

    async def waits(run, event: str, n: int) -> None:
        while sum(one.type == event for one in await run.history()) < n:
            await asyncio.sleep(0.05)

    for run in made["graph"]:
        await waits(run, "step_waiting", 1)
    for run in made["flow"]:
        await waits(run, "step_completed", 2)
    await worker.stop()
    queued = await work.enqueue_many([(n,) for n in range(tasks // 2, tasks)])
    await archive()
    raw.delete(*raw.scan_iter(match=f"{app.engine().ns.keys.namespace}:*", count=1_000))

    began = time.monotonic()
    for each in await archivers():
        assert await each._recover()
    seconds = time.monotonic() - began

    await start_worker(concurrency=100)
    for run in (*made["graph"][:: max(1, graphs // 20)], *made["flow"][:: max(1, flows // 20)]):
        await run.signal("go", 1)
    for n, run in list(enumerate(made["graph"]))[:: max(1, graphs // 20)]:
        assert await run.result(60) == n
    for n, run in list(enumerate(made["flow"]))[:: max(1, flows // 20)]:
        assert await run.result(60) == n + 1
    assert await queued[-1].result(60) == tasks - 1
    assert await delayed[0].status() == "queued"
    return seconds


async def test_a_hundred_unfinished_runs_of_all_kinds_go_on(app, archive, archivers, start_worker, raw):
    await rebuilt(app, archive, archivers, start_worker, raw, tasks=40, graphs=30, flows=30)


@pytest.mark.chaos
async def test_ten_thousand_unfinished_runs_are_rebuilt_within_a_minute(app, archive, archivers, start_worker, raw):
    seconds = await rebuilt(app, archive, archivers, start_worker, raw, tasks=7_000, graphs=1_500, flows=1_500)

    print(f"10,000 unfinished runs were rebuilt in {seconds:.1f} s")
    assert seconds < WITHIN


async def test_events_of_many_runs_are_those_of_each(app, archive, start_worker, quiet):
    @app.task
    async def work(n: int) -> int:
        return n

    graph = app.graph("chain")
    graph.task("first", call="work", with_={"n": 1})
    graph.task("second", call="work", with_={"n": 2}, after="first")
    await start_worker()
    runs = []
    for n in range(6):
        runs.append(await (graph.start() if n % 2 else work.enqueue(n)))
        await runs[-1].result(20)
        await quiet()
        await archive()

    reader = app.engine().cold.reader
    by_home: dict[int, list[RunState]] = {}
    for run in runs:
        state = (await reader.run(run.id)).state
        by_home.setdefault(partition_of(run.id), []).append(state)

    for states in by_home.values():
        many = await reader.events_of_runs(states)
        assert many == {state.id: await reader.all_events(state.id) for state in states}
        assert all(many.values())
    assert await reader.events_of_runs([]) == {}
