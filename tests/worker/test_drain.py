"""Draining: a worker that stops claims nothing more, finishes or hands back what it has, and leaves no trace."""

import asyncio
import threading
import time

import pytest

from weft.store.sessions import read_sessions
from weft.worker import lane


async def types(run) -> list[str]:
    return [event.type for event in await run.history()]


async def test_steps_may_finish_within_the_grace(held, start_worker):
    worker = await start_worker()
    run = await held.running()

    stopping = asyncio.create_task(worker.stop(grace=20))
    await asyncio.sleep(0)
    held.release.set()
    await stopping

    assert await run.result(5) == "delivery 1"
    assert held.cancelled == 0


async def test_nothing_is_claimed_once_the_drain_has_begun(held, add, start_worker, eventually):
    worker = await start_worker()
    run = await held.running()

    stopping = asyncio.create_task(worker.stop(grace=20))
    await eventually(lambda: all(each._claiming.done() for each in worker.lanes), within=1)
    late = await add.enqueue(1, 2)
    held.release.set()
    await stopping

    assert await late.status() == "queued"
    assert await types(late) == ["queued"]
    await run.result(5)
    await late.cancel()


async def test_after_the_grace_steps_are_handed_back_without_burning_an_attempt(held, start_worker, app):
    first = await start_worker()
    run = await held.running()

    await first.stop(grace=0.05)

    assert held.cancelled == 1
    info = await run.info()
    assert (info.status, info.attempt, info.delivery, info.crashes) == ("queued", 1, 2, 0)
    assert await types(run) == ["queued", "returned"]
    # And another worker takes over.
    held.release.set()
    await start_worker()
    assert await run.result(10) == "delivery 2"


async def test_a_second_signal_ends_the_grace(held, start_worker, eventually):
    worker = await start_worker()
    run = await held.running()

    stopping = asyncio.create_task(worker.stop(grace=60))
    await eventually(lambda: all(each._claiming.done() for each in worker.lanes))
    assert not stopping.done()
    began = time.monotonic()
    worker.hasten()
    await stopping

    assert time.monotonic() - began < 5
    assert await types(run) == ["queued", "returned"]
    await run.cancel()


async def test_a_thread_that_does_not_end_is_handed_back_and_holds_nobody_up(app, start_worker):
    started, release = threading.Event(), threading.Event()

    @app.task(timeout=None)
    def stuck() -> None:
        started.set()
        release.wait(60)

    worker = await start_worker()
    run = await stuck.enqueue()
    await asyncio.to_thread(started.wait, 10)

    began = time.monotonic()
    await worker.stop(grace=0.05)

    assert time.monotonic() - began < 5
    assert await types(run) == ["queued", "returned"]
    release.set()
    await run.cancel()


async def test_a_step_that_swallows_the_cancellation_is_handed_back_too(app, start_worker):
    started = asyncio.Event()

    @app.task(timeout=None)
    async def stubborn() -> str:
        started.set()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            return "half a result"
        return "never"

    worker = await start_worker()
    run = await stubborn.enqueue()
    await asyncio.wait_for(started.wait(), 10)

    await worker.stop(grace=0)

    assert await types(run) == ["queued", "returned"]
    await run.cancel()


async def test_a_worker_that_left_leaves_no_session_lease_or_consumer(held, add, start_worker, ns, raw):
    worker = await start_worker()
    await (await add.enqueue(1, 2)).result(10)
    for p in range(ns.partitions):
        assert worker.session in await read_sessions(ns, p)

    await worker.stop()

    for p in range(ns.partitions):
        assert await read_sessions(ns, p) == {}
        assert not raw.exists(ns.keys.session(p, worker.session))
        assert not raw.exists(ns.keys.lock(p, "timers"), ns.keys.lock(p, "sweeper"))
        stream = ns.keys.tasks(p, "default", 5)
        if raw.exists(stream):
            assert raw.xinfo_consumers(stream, "weft") == []


async def test_an_idle_worker_stops_at_once(start_worker):
    worker = await start_worker()

    began = time.monotonic()
    await worker.stop()

    assert time.monotonic() - began < 2


async def test_what_a_cancelled_claim_took_unseen_is_handed_back(add, start_worker, monkeypatch, one_home):
    # Given a worker whose claim was carried out by the server while its reply never came.
    claimed = asyncio.Event()
    real = lane.claim_steps

    async def reply_never_comes(*args, **options):
        tokens = await real(*args, **options)
        if tokens and options.get("after", ">") == ">":
            claimed.set()
            await asyncio.Event().wait()
        return tokens

    monkeypatch.setattr(lane, "claim_steps", reply_never_comes)
    worker = await start_worker()
    run = await add.enqueue(1, 2)
    await asyncio.wait_for(claimed.wait(), 10)
    assert await run.status() == "running"

    # When it is told to stop.
    await worker.stop()

    # Then the step is in its queue again, and no attempt or crash is counted.
    info = await run.info()
    assert (info.status, info.attempt, info.crashes) == ("queued", 1, 0)
    monkeypatch.setattr(lane, "claim_steps", real)
    await start_worker()
    assert await run.result(10) == 3


async def test_an_idle_worker_takes_over_what_a_stopping_one_hands_back(held, start_worker):
    # Given one worker that is busy and one that waits for work.
    first = await start_worker(concurrency=1)
    run = await held.running()
    await start_worker(concurrency=1)

    held.release.set()
    held.started.clear()
    await first.stop(grace=0)

    # Then the idle one is woken, well before it would look by itself.
    assert await run.result(1.5) in ("delivery 1", "delivery 2")


@pytest.mark.parametrize("n", [1, 40])
async def test_results_under_way_are_committed_before_a_worker_leaves(app, start_worker, n):
    @app.task
    async def quick(n: int) -> int:
        return n

    worker = await start_worker()
    runs = await quick.enqueue_many([(i,) for i in range(n)])
    await asyncio.sleep(0)

    await worker.stop(grace=10)

    for run in runs:
        # Each is finished or waits in its queue; none is in between.
        assert await run.status() in ("completed", "queued")
    await start_worker()
    assert [await run.result(10) for run in runs] == list(range(n))
