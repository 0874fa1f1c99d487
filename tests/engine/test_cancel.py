"""Cancelling: wherever a run stands, it ends once, and whoever waits or works is told."""

import asyncio
import threading

import pytest

from weft import InvalidOption, RunCancelled


async def test_a_queued_run_never_starts(app, start_worker):
    ran: list[int] = []

    @app.task
    async def job(n: int) -> None:
        ran.append(n)

    first, second = await job.enqueue(1), await job.enqueue(2)

    assert await first.cancel("changed my mind") is True

    await start_worker()
    await second.result(10)
    assert ran == [2]
    assert await first.status() == "cancelled"
    with pytest.raises(RunCancelled, match="changed my mind"):
        await first.result(10)


async def test_a_running_async_step_gets_an_ordinary_cancellation(app, add, start_worker):
    started, seen = asyncio.Event(), asyncio.Event()

    @app.task(timeout=None)
    async def slow() -> None:
        started.set()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            seen.set()
            raise

    worker = await start_worker(concurrency=1)
    run = await slow.enqueue()
    await asyncio.wait_for(started.wait(), 10)
    assert await run.status() == "running"

    assert await run.cancel() is True

    # Well before the heartbeat would notice: the worker is told.
    await asyncio.wait_for(seen.wait(), 5)
    with pytest.raises(RunCancelled):
        await run.result(10)
    # And its only slot is free again.
    assert await (await add.enqueue(1, 2)).result(10) == 3
    assert worker.running == {}


async def test_a_cancelled_step_cannot_complete_its_run_any_more(app, add, start_worker, eventually):
    started = asyncio.Event()

    @app.task(timeout=None)
    async def stubborn() -> str:
        started.set()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            return "done anyway"
        return "never"

    worker = await start_worker()
    run = await stubborn.enqueue()
    await asyncio.wait_for(started.wait(), 10)

    await run.cancel()

    await eventually(lambda: not worker.running)
    assert await (await add.enqueue(1, 2)).result(10) == 3
    assert await run.status() == "cancelled"
    assert [e.type for e in await run.history()] == ["queued", "cancelled"]


async def test_a_running_thread_is_abandoned(app, add, start_worker):
    started, release = threading.Event(), threading.Event()

    @app.task(timeout=None)
    def stuck() -> None:
        started.set()
        release.wait(60)

    await start_worker(concurrency=1)
    run = await stuck.enqueue()
    await asyncio.to_thread(started.wait, 10)

    assert await run.cancel() is True

    with pytest.raises(RunCancelled):
        await run.result(10)
    assert await (await add.enqueue(1, 2)).result(10) == 3
    release.set()


async def test_a_delayed_run_never_becomes_due(add, start_worker, advance):
    await start_worker()
    run = await add.options(delay="1h").enqueue(1, 2)

    assert await run.cancel() is True

    await advance(7_200_000)
    assert await (await add.enqueue(1, 2)).result(10) == 3
    assert await run.status() == "cancelled"


async def test_a_finished_run_stays_as_it_is(add, start_worker):
    await start_worker()
    run = await add.enqueue(1, 2)
    await run.result(10)

    assert await run.cancel() is False

    assert await run.result(10) == 3


async def test_cancelling_twice_says_yes_twice_and_is_one_event(add):
    run = await add.enqueue(1, 2)

    assert [await run.cancel("first"), await run.cancel("second")] == [True, True]

    events = await run.history()
    assert [e.type for e in events] == ["queued", "cancelled"]
    assert events[-1].data["error"]["message"] == "first"


async def test_cancelling_against_completion_has_one_winner(app, start_worker):
    @app.task
    async def job() -> int:
        return 1

    await start_worker()
    runs = await job.enqueue_many([()] * 40)

    said = await asyncio.gather(*(run.cancel() for run in runs))

    for run, cancelled in zip(runs, said, strict=True):
        if cancelled:
            with pytest.raises(RunCancelled):
                await run.result(10)
        else:
            assert await run.result(10) == 1
        assert [e.terminal for e in await run.history()].count(True) == 1


@pytest.mark.parametrize("reason", ["", "ä €", "x" * 100_000, "\ud800", "a\x00b"])
async def test_any_text_is_a_reason(add, reason):
    run = await add.enqueue(1, 2)

    assert await run.cancel(reason) is True

    assert len((await run.info()).error["message"]) <= 2_000


async def test_a_reason_that_is_no_text_is_refused_and_nothing_is_cancelled(add):
    run = await add.enqueue(1, 2)

    with pytest.raises(InvalidOption, match="reason"):
        await run.cancel(5)  # type: ignore[arg-type]

    assert await run.status() == "queued"
    await run.cancel()
