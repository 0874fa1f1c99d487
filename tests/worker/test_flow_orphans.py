"""Workflow runs and calls that a dead worker held: they are taken up again, whichever queue they stand in."""

from __future__ import annotations

import asyncio

import pytest

from weft import Context, Weft
from weft.worker import suspects


@pytest.mark.parametrize("kept", [2_000, 0], ids=["kept", "replayed"])
async def test_what_a_dead_worker_held_goes_on_on_every_queue(
    app: Weft, one_home, die_with, start_worker, short_lease, buried, eventually, monkeypatch, kept: int
):
    monkeypatch.setattr("weft.worker.flows.MAX_KEPT", kept)

    @app.task(queue="calls")
    async def double(n: int) -> int:
        return 2 * n

    @app.workflow(queue="children")
    async def below(ctx: Context, n: int) -> int:
        return await ctx.call(double, n)

    @app.workflow(queue="parents")
    async def above(ctx: Context, n: int) -> int:
        return await ctx.child(below, n) + await ctx.call(double, n)

    # Given a worker each that dies with the parent, with its child, and with the first call.
    run = await above.start(1)
    ns = app.engine().ns
    for queue, next_queue in (("parents", "children"), ("children", "calls"), ("calls", "")):
        dead = f"s-dead-{queue}"

        async def died(queue: str = queue, dead: str = dead) -> object:
            return await die_with(0, session=dead, queues=(queue,))

        await eventually(died)
        if next_queue:  # somebody brings it to where the next one dies
            worker = await start_worker(queues=[queue])
            await buried(dead)

            async def stands(key: str = ns.keys.tasks(0, next_queue, 5)) -> object:
                return await ns.caller.execute_command("XLEN", key)

            await eventually(stands)
            await worker.stop()

    await start_worker(queues=["parents", "children", "calls"])

    assert await run.result(10) == 4
    await buried("s-dead-calls")


async def test_a_run_that_often_waited_is_not_kept_away_for_long_when_it_is_a_suspect(
    app: Weft, one_home, die_with, start_worker, short_lease, buried, raw, monkeypatch: pytest.MonkeyPatch
):
    """It waits behind another suspect like a step that was never handed back, however often it was delivered."""
    monkeypatch.setattr(suspects, "PATIENCE", 0.01)
    begun, over = asyncio.Event(), asyncio.Event()
    delays: list[float] = []
    monkeypatch.setattr(suspects, "backoff", lambda times, **_: delays.append(times) or 0.01)

    @app.task(queue="tasks")
    async def long() -> None:
        begun.set()
        await over.wait()

    @app.workflow
    async def flow(ctx: Context) -> int:
        return sum([await ctx.receive("n", type=int) for _ in range(20)])

    run = await flow.start()
    async with app.worker() as worker:
        for n in range(19):
            await run.signal("n", n)
            while not (kept := worker.executor.flows._waiting.get(run.id)) or kept._length < n + 2:
                await asyncio.sleep(0.005)
    await run.signal("n", 19)
    step = await long.enqueue()
    ns = app.engine().ns
    for queue in ("tasks", "default"):
        await die_with(0, session=f"s-dead-{queue}", queues=(queue,))
    for id in (run.id, step.id):
        raw.hset(ns.keys.run(0, id), "crashes", 2)

    await start_worker(queues=["tasks", "default"])
    await begun.wait()
    while len(delays) < 2:
        await asyncio.sleep(0.005)
    assert delays[:2] == [0, 1]
    over.set()
    assert await run.result(10) == sum(range(20))
    assert (await run.info()).delivery > 20


async def test_a_suspect_that_has_come_further_makes_room_for_the_next_one(
    app: Weft, one_home, die_with, start_worker, short_lease, buried, raw, eventually, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(suspects, "PATIENCE", 60.0)
    working: list[int] = []
    over = asyncio.Event()

    async def work(n: int) -> int:
        working.append(n)
        await over.wait()
        return n

    @app.workflow
    async def flow(ctx: Context, n: int) -> int:
        return await ctx.step(work, await ctx.step(abs, n))

    # Given three runs that would be poison by one more death, and a worker for all.
    runs = [await flow.start(-n) for n in range(3)]
    await die_with(0)
    for run in runs:
        raw.hset(app.engine().ns.keys.run(0, run.id), "crashes", 2)
    worker = await start_worker(concurrency=5)

    # Each has committed its first step when it comes to the second, so the next one may begin.
    await eventually(lambda: sorted(working) == [0, 1, 2])
    over.set()
    assert [await run.result(10) for run in runs] == [0, 1, 2]
    await eventually(lambda: worker.slots.free == worker.slots.size)
