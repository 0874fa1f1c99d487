"""The reconciler: gives open runs back what an operator or a fault tore away."""

import asyncio

import pytest

from weft.engine.gates import admit
from weft.engine.housekeeping import sweeper as module
from weft.engine.housekeeping.sweeper import Sweeper
from weft.store.keys import GROUP


@pytest.fixture
def reconciler(ns) -> Sweeper:
    """The part of the sweeper that reconciles, ticked by hand."""
    return Sweeper(ns, 0, "s-sweeper", lease=30.0, retention_ms=3_600_000)


async def rounds(reconciler: Sweeper, n: int) -> None:
    """Lets the reconciler look at all runs n times."""
    for _ in range(n):
        await reconciler.tick()
        while reconciler._cursor:
            await reconciler.tick()


async def types(run) -> list[str]:
    return [event.type for event in await run.history()]


async def test_a_deleted_stream_is_cured_and_the_runs_are_served(add, one_home, start_worker, short_lease, ns, raw):
    runs = await add.enqueue_many([(n, n) for n in range(20)])
    raw.delete(ns.keys.tasks(0, "default", 5))

    await start_worker()

    assert [await run.result(10) for run in runs] == [2 * n for n in range(20)]
    assert await types(runs[0]) == ["queued", "recovered", "completed"]
    assert (await runs[0].info()).crashes == 0


async def test_a_deleted_timer_is_set_again_and_fires(add, one_home, start_worker, short_lease, ns, raw):
    run = await add.options(delay="300ms").enqueue(1, 2)
    raw.delete(ns.keys.timers(0))

    await start_worker()

    assert await run.result(10) == 3
    assert await types(run) == ["queued", "completed"]


async def test_a_deleted_consumer_costs_a_second_run_and_one_result(held, one_home, start_worker, short_lease, ns, raw):
    # Given a step that runs while its consumer is deleted behind its back.
    worker = await start_worker()
    run = await held.running()
    raw.xgroup_delconsumer(ns.keys.tasks(0, "default", 5), GROUP, worker.session)

    # Then it is emitted anew; the old execution learns that it lost the step, and its commit would be refused.
    while len(held.deliveries) < 2:
        await asyncio.sleep(0.01)
    held.release.set()
    assert await run.result(10) == "delivery 2"
    assert [e for e in await types(run) if e != "started"] == ["queued", "recovered", "completed"]


@pytest.mark.parametrize("slot", ["is still there", "is gone"])
async def test_a_lost_token_never_exceeds_its_limit_nor_leaks_its_slot(
    app, one_home, start_worker, reconciler, ns, raw, slot
):
    # Given a limit of one, and a run that was let through whose token is deleted behind its back.
    now, most = 0, 0

    @app.task(concurrency=1)
    async def alone(n: int) -> int:
        nonlocal now, most
        now += 1
        most = max(most, now)
        await asyncio.sleep(0.01)
        now -= 1
        return n

    runs = await alone.enqueue_many([(n,) for n in range(4)])
    gate = ns.keys.gate(0, "task|alone")
    assert raw.zrange(gate, 0, -1) == [runs[0].id.encode()]
    raw.delete(ns.keys.tasks(0, "default", 5))
    if slot == "is gone":
        raw.delete(gate)

    # When it is cured, and the heads of the line are let through where there is room.
    await rounds(reconciler, 2)
    await admit(ns, 0, ["task|alone"])

    # Then there are never more tokens than slots, and all have their turn.
    assert raw.xlen(ns.keys.tasks(0, "default", 5)) == raw.zcard(gate) == 1
    await start_worker()

    assert sorted([await run.result(10) for run in runs]) == list(range(len(runs)))
    assert most == 1
    assert not raw.exists(gate)


async def test_it_takes_two_looks_before_anything_is_cured(add, one_home, reconciler, ns, raw):
    run = await add.enqueue(1, 2)
    raw.delete(ns.keys.tasks(0, "default", 5))

    await rounds(reconciler, 1)
    assert await types(run) == ["queued"]

    await rounds(reconciler, 1)
    assert await types(run) == ["queued", "recovered"]
    await run.cancel()


async def test_a_lost_run_is_found_among_more_keys_than_one_look_covers(
    add, one_home, reconciler, ns, raw, monkeypatch
):
    monkeypatch.setattr(module, "RECONCILE_PAGE", 10)
    runs = await add.enqueue_many([(n, n) for n in range(200)])
    raw.delete(ns.keys.tasks(0, "default", 5))

    await rounds(reconciler, 3)

    assert {tuple(await types(run)) for run in runs} == {("queued", "recovered")}
    await asyncio.gather(*(run.cancel() for run in runs))


async def test_healthy_runs_are_left_alone(add, held, one_home, start_worker, reconciler):
    await start_worker(queues=["default"])
    running = await held.running()
    queued = await add.options(queue="other").enqueue(1, 2)
    delayed = await add.options(delay="1h").enqueue(1, 2)

    await rounds(reconciler, 4)

    assert await types(queued) == await types(delayed) == ["queued"]
    held.release.set()
    assert await running.result(10) == "delivery 1"
    for run in (queued, delayed):
        await run.cancel()


async def test_old_events_are_trimmed_after_the_retention(add, one_home, ns, raw, start_worker):
    # Given enough events that the log has whole nodes to give up.
    await start_worker()
    for n in range(150):
        await (await add.enqueue(n, n)).result(10)
    before = raw.xlen(ns.keys.log(0))
    patient = Sweeper(ns, 0, "s-1", lease=30.0, retention_ms=3_600_000)
    await patient._trim()
    assert raw.xlen(ns.keys.log(0)) == before

    hasty = Sweeper(ns, 0, "s-1", lease=30.0, retention_ms=-60_000)
    await hasty._trim()

    assert raw.xlen(ns.keys.log(0)) < before
    raw.delete(ns.keys.log(0))
