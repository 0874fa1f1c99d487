"""What a task raises decides what follows: Retry, Snooze, Fatal, Discard; on the loop, in threads and in processes."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
import steering_tasks
from steering_tasks import (
    always,
    choosy_in_process,
    choosy_on_loop,
    fatal_in_thread,
    fatal_on_loop,
    in_process,
    in_thread,
    nonsense,
    on_loop,
    stubborn,
)

from weft import RunCancelled, RunStatus, Snooze, StepFailed
from weft.errors import InvalidOption

WAYS = pytest.mark.parametrize("task", [on_loop, in_thread, in_process], ids=lambda task: task.name)


@pytest.fixture
async def worker(server, namespace, monkeypatch, start_worker):
    monkeypatch.setenv("WEFT_REDIS_URL", server.url)
    monkeypatch.setenv("WEFT_NAMESPACE", namespace)
    yield await start_worker(steering_tasks.app)
    await steering_tasks.app.close()


async def waits(run, eventually):
    """Waits until a run waits; returns how it stands."""

    async def waiting():
        info = await run.info()
        return info if info.status == RunStatus.WAITING else None

    return await eventually(waiting, within=30)


@WAYS
async def test_a_retry_waits_as_long_as_it_says_and_burns_an_attempt(worker, eventually, task):
    run = await task.enqueue("retry")
    info = await waits(run, eventually)
    assert timedelta(minutes=59) < info.due_at - datetime.now(UTC) <= timedelta(hours=1)
    assert (info.attempt, info.error["type"], info.error["message"]) == (2, "Retry", "the bank is closed")

    await run.reschedule(delay=0)

    assert await run.result(timeout=30) == [2, 2]
    assert [event.type for event in await run.history()] == ["queued", "retrying", "rescheduled", "completed"]


@WAYS
async def test_a_cancelled_error_that_nobody_asked_for_is_retried_like_a_failure(worker, eventually, task):
    run = await task.enqueue("cancelled")
    info = await waits(run, eventually)
    assert (info.attempt, info.error["type"], info.error["message"]) == (2, "CancelledError", "from within")

    await run.reschedule(delay=0)

    assert await run.result(timeout=30) == [2, 2]


@pytest.mark.parametrize(
    "task", [fatal_on_loop, fatal_in_thread, choosy_in_process, choosy_on_loop], ids=lambda task: task.name
)
async def test_a_cancelled_error_goes_by_the_options_of_the_task(worker, task):
    run = await task.enqueue()
    with pytest.raises(StepFailed, match="CancelledError: from within"):
        await run.result(timeout=30)
    assert (await run.info()).attempt == 1


async def test_a_retry_without_a_time_takes_the_back_off(worker, eventually):
    run = await on_loop.enqueue("back-off")
    info = await waits(run, eventually)
    assert timedelta(minutes=119) < info.due_at - datetime.now(UTC) <= timedelta(hours=2)
    await run.cancel()


@WAYS
async def test_a_snooze_burns_no_attempt(worker, eventually, task):
    run = await task.enqueue("snooze")
    info = await waits(run, eventually)
    assert timedelta(minutes=59) < info.due_at - datetime.now(UTC) <= timedelta(hours=1)
    assert (info.attempt, info.delivery, info.error) == (1, 2, None)

    await run.reschedule(delay=0)

    assert await run.result(timeout=30) == [1, 2]
    snoozed = (await run.history())[1]
    assert (snoozed.type, snoozed.data["reason"], snoozed.data["after_ms"]) == (
        "snoozed",
        "until the bank opens",
        3_600_000,
    )


@WAYS
async def test_fatal_fails_at_once_with_its_cause(worker, task):
    run = await task.enqueue("fatal")
    with pytest.raises(StepFailed, match="Fatal: no such account") as caught:
        await run.result(timeout=30)
    assert (caught.value.type, caught.value.causes) == ("Fatal", [{"type": "KeyError", "message": "17"}])
    assert [event.type for event in await run.history()] == ["queued", "failed"]


@WAYS
async def test_discard_ends_the_run_as_cancelled_with_its_reason(worker, task):
    run = await task.enqueue("discard")
    with pytest.raises(RunCancelled, match="paid already"):
        await run.result(timeout=30)
    assert await run.status() == RunStatus.CANCELLED
    last = (await run.history())[-1]
    assert (last.type, last.data["error"]["code"]) == ("cancelled", "discarded")


async def test_a_retry_beyond_the_retries_fails(worker):
    run = await always.enqueue("x")
    with pytest.raises(StepFailed, match="Retry: again"):
        await run.result(timeout=30)
    assert [event.type for event in await run.history()] == ["queued", "retrying", "failed"]


async def test_an_explicit_retry_wins_over_retry_on(worker):
    assert await (await stubborn.enqueue()).result(timeout=30) == [3]


async def test_a_snooze_that_makes_no_sense_is_the_tasks_error(worker):
    run = await nonsense.options(retries=0).enqueue()
    with pytest.raises(StepFailed, match="negative") as caught:
        await run.result(timeout=30)
    assert caught.value.type == "InvalidOption"


@pytest.mark.parametrize("delay", [0, "-1s", "soon", float("inf"), "9999d", True])
def test_a_snooze_takes_only_a_length_of_time(delay):
    with pytest.raises(InvalidOption, match="Snooze"):
        Snooze(delay)
