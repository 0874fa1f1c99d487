"""Hooks around attempts: before, after, on error."""

import asyncio
import logging
from contextvars import ContextVar

import pytest

from weft import Current, Discard, Fatal, Retry, Snooze, StepFailed, current
from weft.errors import DefinitionError


async def test_hooks_before_run_in_order_and_those_behind_in_reverse(app, start_worker):
    seen: list[str] = []

    @app.before_task
    def first(here: Current) -> None:
        seen.append("before 1")

    @app.before_task
    async def second(here: Current) -> None:
        await asyncio.sleep(0)
        seen.append("before 2")

    @app.after_task
    async def third(here: Current, result: int) -> None:
        seen.append(f"after 1 {result}")

    @app.after_task
    def fourth(here: Current, result: int) -> None:
        assert current().run_id == here.run_id
        seen.append(f"after 2 {here.step} {here.attempt}")

    @app.on_error
    def never(here: Current, error: BaseException) -> None:
        seen.append("error")

    @app.task
    async def job(n: int) -> int:
        seen.append("job")
        return n + 1

    await start_worker()

    assert await (await job.enqueue(1)).result(10) == 2
    assert seen == ["before 1", "before 2", "job", "after 2 job 1", "after 1 2"]


async def test_error_hooks_run_in_reverse_at_every_failed_attempt(app, start_worker):
    seen: list[str] = []
    app.on_error(lambda here, error: seen.append(f"1 {here.attempt} {error!r}"))
    app.on_error(lambda here, error: seen.append(f"2 {here.attempt}"))
    app.after_task(lambda here, result: seen.append(f"after {here.attempt} {result}"))

    @app.task(retries=1, retry_delay="1ms", jitter=False)
    async def job() -> str:
        if current().attempt == 1:
            raise LookupError("not yet")
        return "done"

    await start_worker()

    assert await (await job.enqueue()).result(10) == "done"
    assert seen == ["2 1", "1 1 LookupError('not yet')", "after 2 done"]


async def test_an_error_in_a_hook_before_fails_the_attempt_like_the_tasks_own(app, start_worker):
    seen: list[str] = []

    @app.before_task
    async def refuse(here: Current) -> None:
        if here.attempt == 1:
            raise PermissionError("not now")

    app.before_task(lambda here: seen.append(f"second {here.attempt}"))
    app.on_error(lambda here, error: seen.append(repr(error)))

    @app.task(retries=1, retry_delay="1ms", fatal_on=ValueError)
    async def job() -> None:
        seen.append("job")

    @app.task
    async def once() -> None:
        seen.append("never")

    await start_worker()

    await (await job.enqueue()).result(10)
    assert seen == ["PermissionError('not now')", "second 2", "job"]
    with pytest.raises(StepFailed, match="PermissionError: not now"):
        await (await once.enqueue()).result(10)


async def test_errors_behind_an_attempt_are_logged_and_change_nothing(app, start_worker, caplog):
    seen: list[str] = []

    @app.after_task
    async def last(here: Current, result: object) -> None:
        seen.append("after")

    @app.after_task
    async def broken(here: Current, result: object) -> None:
        raise SystemExit("hook")

    @app.on_error
    def broken_too(here: Current, error: BaseException) -> None:
        raise RuntimeError("hook")

    @app.task
    async def good() -> int:
        return 1

    @app.task
    async def bad() -> None:
        raise LookupError("its own")

    await start_worker()
    caplog.set_level(logging.ERROR, "weft.worker")

    assert await (await good.enqueue()).result(10) == 1
    with pytest.raises(StepFailed, match="LookupError: its own"):
        await (await bad.enqueue()).result(10)
    assert seen == ["after"]
    told = [record.getMessage().partition("  ")[0] for record in caplog.records]
    assert told == ["a hook failed; the outcome stands"] * 2


async def test_a_result_that_a_hook_changes_stays_as_it_was(app, start_worker):
    app.after_task(lambda here, result: result.append("hook"))

    @app.task
    async def job() -> list[str]:
        return ["task"]

    await start_worker()

    assert await (await job.enqueue()).result(10) == ["task"]


async def test_plain_tasks_see_what_a_hook_put_in_their_context(app, start_worker):
    tenant: ContextVar[str] = ContextVar("tenant")
    results: list[str] = []
    app.before_task(lambda here: tenant.set(here.tags["tenant"]) and None)
    app.after_task(lambda here, result: results.append(result))

    @app.task
    def plain() -> str:
        return tenant.get()

    @app.task
    async def on_the_loop() -> str:
        return tenant.get()

    await start_worker()

    assert await (await plain.options(tags={"tenant": "a"}).enqueue()).result(10) == "a"
    assert await (await on_the_loop.options(tags={"tenant": "b"}).enqueue()).result(10) == "b"
    assert results == ["a", "b"]


async def test_a_timeout_reaches_the_error_hooks(app, start_worker):
    seen: list[BaseException] = []
    app.on_error(lambda here, error: seen.append(error))

    @app.task(timeout="50ms")
    async def slow() -> None:
        await asyncio.sleep(60)

    await start_worker()

    with pytest.raises(StepFailed, match="TimeoutError"):
        await (await slow.enqueue()).result(10)
    assert [type(error) for error in seen] == [TimeoutError]


async def test_the_time_limit_watches_over_hooks_before_and_not_over_those_behind(app, start_worker):
    release = asyncio.Event()

    @app.before_task
    async def hang(here: Current) -> None:
        if here.step == "stuck":
            await asyncio.sleep(60)

    @app.after_task
    async def outlast(here: Current, result: int) -> None:
        await release.wait()

    @app.task(timeout="50ms")
    async def stuck() -> None: ...

    @app.task(timeout="50ms")
    async def quick() -> int:
        asyncio.get_running_loop().call_later(0.2, release.set)
        return 1

    await start_worker()

    with pytest.raises(StepFailed, match="TimeoutError"):
        await (await stuck.enqueue()).result(10)
    assert await (await quick.enqueue()).result(10) == 1


async def test_a_step_that_is_handed_back_has_not_failed(app, start_worker):
    seen: list[str] = []
    started = asyncio.Event()
    app.on_error(lambda here, error: seen.append("error"))
    app.after_task(lambda here, result: seen.append("after"))

    @app.task(timeout=None)
    async def job() -> str:
        if current().delivery == 1:
            started.set()
            await asyncio.sleep(60)
        return "second delivery"

    worker = await start_worker()
    run = await job.enqueue()
    await asyncio.wait_for(started.wait(), 10)
    await worker.stop(grace=0)
    assert seen == []

    await start_worker()
    assert await run.result(10) == "second delivery"
    assert seen == ["after"]


async def test_a_worker_that_stops_during_a_hook_keeps_the_outcome(app, start_worker):
    entered = asyncio.Event()

    @app.after_task
    async def hang(here: Current, result: int) -> None:
        entered.set()
        await asyncio.sleep(60)

    @app.task
    async def job() -> int:
        return 7

    worker = await start_worker()
    run = await job.enqueue()
    await asyncio.wait_for(entered.wait(), 10)
    await worker.stop(grace=0)

    assert await run.result(10) == 7


@pytest.mark.parametrize(
    ("decorator", "hook", "message"),
    [
        ("before_task", lambda: None, r"takes a function of \(current\)"),
        ("after_task", lambda here: None, r"takes a function of \(current, result\)"),
        ("on_error", lambda here, error, more: None, r"takes a function of \(current, error\)"),
        ("before_task", "text", "not 'text'"),
    ],
)
def test_a_hook_that_could_not_be_called_is_refused_where_it_is_written(app, decorator, hook, message):
    with pytest.raises(DefinitionError, match=message):
        getattr(app, decorator)(hook)


def test_a_generator_is_no_hook(app):
    def around(here: Current):
        yield

    with pytest.raises(DefinitionError, match="generator"):
        app.before_task(around)


@pytest.mark.parametrize(
    ("raised", "called"),
    [(Retry("r", after="1ms"), True), (Fatal("f"), True), (Snooze("1ms"), False), (Discard("d"), False)],
    ids=["retry", "fatal", "snooze", "discard"],
)
async def test_what_a_task_raises_to_be_put_off_or_dropped_is_no_error(app, start_worker, raised, called):
    heard: list[str] = []

    @app.on_error
    def note(here: Current, error: BaseException) -> None:
        heard.append(type(error).__name__)

    @app.task(retries=1)
    async def job() -> None:
        if current().delivery == 1:
            raise raised

    await start_worker()
    run = await job.enqueue()
    await asyncio.wait([asyncio.ensure_future(run.result(10))])

    assert heard == ([type(raised).__name__] if called else [])
