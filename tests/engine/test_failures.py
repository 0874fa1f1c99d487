"""Failing: retries and their delays, time limits, deadlines, and what an error looks like when it comes back."""

import asyncio
import json
import threading
import time

import psutil
import pytest

from weft import StepFailed, current

# --- retries --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("backoff", "delays"),
    [("fixed", [20, 20, 20]), ("linear", [20, 40, 60]), ("exponential", [20, 40, 80])],
)
async def test_the_delay_between_attempts_grows_as_asked(app, start_worker, backoff, delays):
    @app.task(retries=3, backoff=backoff, retry_delay="20ms", jitter=False)
    async def flaky() -> int:
        if current().attempt < 4:
            raise ValueError(f"attempt {current().attempt}")
        return current().attempt

    await start_worker()
    run = await flaky.enqueue()

    assert await run.result(10) == 4
    events = await run.history()
    assert [e.type for e in events] == ["queued", "retrying", "retrying", "retrying", "completed"]
    assert [e.data["after_ms"] for e in events[1:4]] == delays
    # And no attempt began before its delay was over.
    for failure, delay, following in zip(events[1:4], delays, events[2:5], strict=True):
        assert following.data["started"] - failure.at.timestamp() * 1000 >= delay - 0.5


async def test_the_delay_never_grows_beyond_its_limit_and_jitter_keeps_half(app, start_worker):
    @app.task(retries=4, retry_delay="20ms", max_delay="30ms")
    async def flaky() -> None:
        raise ValueError("no")

    await start_worker()
    run = await flaky.enqueue()
    with pytest.raises(StepFailed):
        await run.result(10)

    delays = [e.data["after_ms"] for e in await run.history() if e.type == "retrying"]
    assert 10 <= delays[0] <= 20
    assert all(15 <= delay <= 30 for delay in delays[1:])


async def test_retries_n_means_n_plus_one_attempts(app, start_worker):
    attempts = []

    @app.task(retries=2, retry_delay="1ms")
    async def failing() -> None:
        attempts.append(current().attempt)
        raise ValueError("no")

    await start_worker()
    run = await failing.enqueue()

    with pytest.raises(StepFailed, match="ValueError: no"):
        await run.result(10)
    assert attempts == [1, 2, 3]
    info = await run.info()
    assert (info.status, info.attempt) == ("failed", 3)


async def test_a_run_waiting_for_its_retry_says_so(app, start_worker, eventually):
    @app.task(retries=1, retry_delay="1h", max_delay="1h", jitter=False)
    async def failing() -> None:
        raise ValueError("no")

    await start_worker()
    run = await failing.enqueue()
    await eventually(lambda: _status_is(run, "waiting"))

    info = await run.info()
    assert (info.attempt, info.error["type"]) == (2, "ValueError")
    assert 3590 < (info.due_at - info.started_at).total_seconds() < 3610 if info.started_at else info.due_at
    await run.cancel()


async def _status_is(run, status: str) -> bool:
    return await run.status() == status


async def test_a_completed_run_shows_no_error_of_an_earlier_attempt(app, start_worker):
    @app.task(retries=1, retry_delay="1ms")
    async def flaky() -> str:
        if current().attempt == 1:
            raise ValueError("no")
        return "ok"

    await start_worker()
    run = await flaky.enqueue()
    await run.result(10)

    assert (await run.info()).error is None


async def test_only_the_named_errors_are_retried_and_fatal_ones_never(app, start_worker):
    @app.task(retries=3, retry_delay="1ms", retry_on=(LookupError,), fatal_on=(IndexError,))
    async def failing(kind: str) -> None:
        raise {"key": KeyError, "index": IndexError, "value": ValueError}[kind](kind)

    await start_worker()
    attempts = {}
    for kind in ("key", "index", "value"):
        run = await failing.enqueue(kind)
        with pytest.raises(StepFailed):
            await run.result(10)
        attempts[kind] = (await run.info()).attempt

    assert attempts == {"key": 4, "index": 1, "value": 1}


@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt, GeneratorExit, asyncio.CancelledError])
async def test_whatever_user_code_raises_is_the_outcome_of_its_step_alone(app, add, start_worker, kind):
    @app.task
    async def rude() -> None:
        raise kind

    @app.task
    def rude_thread() -> None:
        raise kind

    await start_worker()

    for task in (rude, rude_thread):
        with pytest.raises(StepFailed) as caught:
            await (await task.enqueue()).result(10)
        # What cannot travel through an await comes as a RuntimeError that names it.
        assert kind.__name__ in str(caught.value)
    assert await (await add.enqueue(1, 2)).result(10) == 3


# --- the error that comes back --------------------------------------------------------------------


async def test_an_error_comes_back_with_class_message_traceback_and_causes(app, start_worker):
    def innermost() -> None:
        raise KeyError("inner")

    @app.task
    async def failing() -> None:
        try:
            innermost()
        except KeyError as error:
            raise RuntimeError("outer") from error

    await start_worker()
    run = await failing.enqueue()

    with pytest.raises(StepFailed) as caught:
        await run.result(10)
    error = caught.value
    assert str(error) == "RuntimeError: outer"
    assert error.type == "RuntimeError"
    assert error.causes == [{"type": "KeyError", "message": "'inner'"}]
    assert "innermost()" in error.traceback
    info = await run.info()
    assert (info.error["type"], info.error["message"]) == ("RuntimeError", "outer")


async def test_a_traceback_begins_with_the_code_of_the_task(app, start_worker):
    @app.task
    async def on_the_loop() -> None:
        raise ExceptionGroup("both", [ValueError("a"), KeyError("b")])

    @app.task
    def in_a_thread() -> None:
        json.loads("{")

    await start_worker()
    for run, theirs in ((await on_the_loop.enqueue(), "on_the_loop"), (await in_a_thread.enqueue(), "in_a_thread")):
        with pytest.raises(StepFailed) as caught:
            await run.result(10)
        first = next(line for line in caught.value.traceback.splitlines() if "File " in line)
        assert f"in {theirs}" in first and "/weft/worker/" not in caught.value.traceback


async def test_an_error_that_cannot_be_printed_or_stored_whole_still_fails_the_run(app, start_worker):
    class Broken(Exception):
        def __str__(self) -> str:
            raise TypeError("no text for you")

    @app.task
    async def unprintable() -> None:
        raise Broken

    @app.task
    async def endless() -> None:
        raise ValueError("x" * 1_000_000 + "\ud800")

    await start_worker()

    with pytest.raises(StepFailed, match="cannot be read") as caught:
        await (await unprintable.enqueue()).result(10)
    assert caught.value.type == "Broken"
    with pytest.raises(StepFailed) as caught:
        await (await endless.enqueue()).result(10)
    assert len(str(caught.value)) < 3_000


@pytest.mark.parametrize("pool", [None, "thread"])
async def test_an_error_whose_own_code_raises_still_fails_the_run(app, start_worker, pool):
    class Tangled(Exception):
        def __str__(self) -> str:
            raise KeyboardInterrupt

        @property
        def __cause__(self) -> BaseException:
            raise RuntimeError("there is no telling")

    if pool:

        @app.task
        def tangled() -> None:
            raise Tangled
    else:

        @app.task
        async def tangled() -> None:
            raise Tangled

    @app.task
    async def plain() -> str:
        return "goes on"

    await start_worker()

    with pytest.raises(StepFailed, match="cannot be read") as caught:
        await (await tangled.enqueue()).result(10)
    assert caught.value.type == "Tangled" and "raise Tangled" in caught.value.traceback
    assert await (await plain.enqueue()).result(10) == "goes on"


async def test_arguments_the_code_no_longer_takes_fail_with_both_signatures(app, start_worker, server, namespace):
    # Given a call queued by an older version.
    from weft import Weft

    before = Weft("before", redis_url=server.url, namespace=namespace)

    @before.task(name="send")
    async def old(to: str, body: str) -> None: ...

    run = await old.enqueue("ann", "hi")
    await before.close()

    # When the parameter is gone from the code.
    @app.task(retries=5)
    async def send(to: str, subject: str = "none") -> str:
        return f"{to} {subject}"

    await start_worker()

    # Then it fails at once, with what was stored and what is taken now.
    with pytest.raises(StepFailed, match=r"stored arguments \(to, body\) do not fit send\(to: str, subject: str"):
        await app.runs.get(run.id).result(10)
    # And a parameter that was added with a default is no trouble.
    assert await (await send.enqueue("bob")).result(10) == "bob none"


class Raises(Exception):
    @property
    def code(self) -> str:
        raise RuntimeError("no code")


class Text(str):
    __slots__ = ()

    def __str__(self) -> str:
        raise RuntimeError("no text")


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (Raises("x"), ""),
        (type("Sub", (Exception,), {"code": Text("no_money")})("x"), "no_money"),
        (type("Lone", (Exception,), {"code": "a\ud800"})("x"), "a?"),
        (type("Long", (Exception,), {"code": "c" * 5_000})("x"), "c" * 200),
        (type("Method", (Exception,), {"code": lambda self: 7})("x"), ""),
    ],
)
async def test_a_code_that_cannot_be_stored_costs_no_step_its_outcome(app, start_worker, error, code):
    @app.task
    async def fail() -> None:
        raise error

    await start_worker()
    run = await fail.enqueue()

    with pytest.raises(StepFailed, match="x"):
        await run.result(10)
    assert (await run.info()).error.get("code", "") == code


# --- time limits ----------------------------------------------------------------------------------


async def test_an_async_task_over_its_time_limit_is_cancelled_and_retried(app, start_worker):
    seen: list[str] = []

    @app.task(timeout="50ms", retries=1, retry_delay="1ms")
    async def slow() -> str:
        if current().attempt == 1:
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                seen.append("cancelled")
                raise
        return "second"

    await start_worker()
    run = await slow.enqueue()

    assert await run.result(10) == "second"
    assert seen == ["cancelled"]
    retrying = (await run.history())[1]
    assert (retrying.type, retrying.data["error"]["type"], retrying.data["error"]["code"]) == (
        "retrying",
        "TimeoutError",
        "timeout",
    )


async def test_an_async_task_that_swallows_its_cancellation_has_timed_out_all_the_same(app, start_worker):
    @app.task(timeout="50ms")
    async def stubborn() -> str:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            return "done anyway"
        return "never"

    await start_worker()

    with pytest.raises(StepFailed, match=r"timeout of 0\.05 s"):
        await (await stubborn.enqueue()).result(10)


async def test_a_thread_over_its_time_limit_is_abandoned_and_the_worker_goes_on(app, add, start_worker):
    release = threading.Event()

    @app.task(timeout="50ms")
    def stuck() -> None:
        release.wait(60)

    await start_worker(concurrency=1)
    run = await stuck.enqueue()

    # The thread goes on, and nobody waits for it: not even the only slot is blocked.
    with pytest.raises(StepFailed, match="TimeoutError"):
        await run.result(10)
    assert not release.is_set()
    assert await (await add.enqueue(1, 2)).result(10) == 3
    release.set()


async def test_a_process_over_its_time_limit_is_killed(process_app, start_worker, tmp_path, eventually):
    from process_tasks import echo, hang

    # Given a child that is up, so that the time limit is the function's alone.
    await start_worker(process_app)
    await (await echo.enqueue(b"")).result(30)
    file = tmp_path / "pid"

    with pytest.raises(StepFailed, match="TimeoutError"):
        await (await hang.enqueue(str(file))).result(30)

    await eventually(lambda: not psutil.pid_exists(int(file.read_text())))
    assert await (await echo.enqueue(b"next")).result(30) == b"next"


async def test_no_time_limit_means_none(app, start_worker):
    @app.task(timeout=None)
    async def patient() -> str:
        await asyncio.sleep(0.1)
        return "ok"

    await start_worker()

    assert await (await patient.enqueue()).result(10) == "ok"


# --- deadlines ------------------------------------------------------------------------------------


async def test_a_run_that_is_not_served_in_time_fails_at_its_deadline(add, start_worker, advance):
    # Given a worker that keeps the timers and serves another queue.
    await start_worker(queues=["other"])
    run = await add.options(deadline="1h").enqueue(1, 2)
    assert await run.status() == "queued"
    info = await run.info()
    assert 3590 < (info.deadline_at - info.created_at).total_seconds() < 3610

    await advance(3_600_001)

    with pytest.raises(StepFailed, match="did not finish before its deadline") as caught:
        await run.result(10)
    assert caught.value.type == "DeadlineExceeded"


async def test_a_deadline_stops_a_running_step_and_its_retries(app, start_worker, advance):
    started, stopped = asyncio.Event(), asyncio.Event()

    @app.task(retries=10, deadline="1h", timeout=None)
    async def slow() -> None:
        started.set()
        try:
            await asyncio.sleep(60)
        finally:
            stopped.set()

    await start_worker()
    run = await slow.enqueue()
    await asyncio.wait_for(started.wait(), 10)

    await advance(3_600_001)

    with pytest.raises(StepFailed, match="deadline"):
        await run.result(10)
    await asyncio.wait_for(stopped.wait(), 10)
    assert [e.type for e in await run.history()][-1] == "failed"


async def test_a_run_that_finishes_in_time_never_meets_its_deadline(add, start_worker, advance):
    await start_worker()
    run = await add.options(deadline="1h").enqueue(1, 2)
    assert await run.result(10) == 3

    await advance(7_200_000)

    assert await run.status() == "completed"


# --- delays ---------------------------------------------------------------------------------------


async def test_a_delayed_run_starts_when_it_is_due_and_not_before(add, start_worker, advance):
    await start_worker()
    run = await add.options(delay="1h").enqueue(1, 2)
    info = await run.info()
    assert info.status == "queued"
    assert 3590 < (info.due_at - info.created_at).total_seconds() < 3610

    await advance(3_590_000)
    with pytest.raises(TimeoutError):
        await run.result(0.1)

    await advance(10_001)
    assert await run.result(10) == 3


async def test_a_short_delay_passes_in_real_time(add, start_worker):
    await start_worker()
    began = time.time()
    run = await add.options(delay=0.2).enqueue(1, 2)

    assert await run.result(10) == 3
    assert time.time() - began >= 0.2


async def test_an_earlier_delay_overtakes_a_later_one(add, start_worker):
    await start_worker()
    later = await add.options(delay="1h").enqueue(1, 1)
    sooner = await add.options(delay="50ms").enqueue(2, 2)

    assert await sooner.result(10) == 4
    await later.cancel()
