"""Tasks in processes of their own: children that are used again, errors and values that cross, and what dies with one."""

import pytest

from weft import StepFailed
from weft.worker import processes


async def test_a_process_task_runs_in_a_child_and_the_child_is_used_again(process_app, start_worker):
    import os

    from process_tasks import where

    await start_worker(process_app)
    first, parent = await (await where.enqueue()).result(30)
    second, _ = await (await where.enqueue()).result(30)

    assert first == second != os.getpid()
    assert parent == os.getpid()


async def test_errors_and_large_values_cross_the_process_boundary(process_app, start_worker):
    from process_tasks import boom, echo

    await start_worker(process_app)

    with pytest.raises(StepFailed, match="LookupError: no such number") as caught:
        await (await boom.enqueue("x")).result(30)
    assert caught.value.causes[0]["type"] == "ValueError"
    assert "int(text)" in caught.value.traceback
    assert await (await echo.enqueue(b"z" * 300_000)).result(30) == b"z" * 300_000


async def test_a_process_that_dies_fails_its_step_and_the_next_gets_a_new_one(process_app, start_worker):
    from process_tasks import die, echo

    await start_worker(process_app)

    with pytest.raises(StepFailed, match="exit code 7"):
        await (await die.enqueue()).result(30)
    assert await (await echo.enqueue(b"ok")).result(30) == b"ok"


async def test_a_process_task_declared_out_of_reach_says_what_to_do(app, start_worker):
    @app.task(pool="process")
    def local() -> None: ...

    await start_worker()

    with pytest.raises(StepFailed, match="declare pool='process' tasks at module level"):
        await (await local.enqueue()).result(30)


async def test_reports_of_a_process_are_events_like_any_other(process_app, start_worker):
    from process_tasks import report

    await start_worker(process_app)
    run = await report.enqueue()
    run_id, attempt, effect_key, _ = (await run.result(30)).split()

    assert (run_id, attempt, effect_key) == (run.id, "1", f"{run.id}/report/0/0")
    events = await run.history()
    # Reports that come faster than they can be sent are merged: the newest counts.
    assert {e.data["progress"] for e in events if e.type == "progress"} <= {0.25, 0.5}


async def test_a_heartbeat_of_a_process_is_no_progress(process_app, start_worker):
    from process_tasks import beat

    await start_worker(process_app)
    run = await beat.enqueue()
    await run.result(30)

    assert [e.type for e in await run.history()] == ["queued", "started", "completed"]


async def test_the_wait_for_a_free_process_is_not_time_that_the_function_takes(process_app, start_worker, monkeypatch):
    from process_tasks import work

    monkeypatch.setattr(processes, "MAX_PROCESSES", 1)
    await start_worker(process_app)
    runs = await work.enqueue_many([(0.6,)] * 5)  # together longer than the timeout of each
    assert [await run.result(30) for run in runs] == [0.6] * 5


async def test_the_start_of_a_process_is_not_time_that_the_function_takes(process_app, start_worker, monkeypatch):
    from process_tasks import work, works

    monkeypatch.setenv("SLOW_IMPORT", "3")
    await start_worker(process_app)
    task, flow = await work.enqueue(0.0), await works.start(0.0)
    assert (await task.result(30), await flow.result(30)) == (0.0, 0.0)

    # From then on the time limit holds.
    for run in (await work.enqueue(60.0), await works.start(60.0)):
        with pytest.raises(StepFailed, match=r"longer than its timeout of 2 s"):
            await run.result(30)


async def test_a_process_that_does_not_come_up_fails_the_attempt(process_app, start_worker, monkeypatch):
    from process_tasks import work

    monkeypatch.setattr(processes, "START_SECONDS", 0.2)
    monkeypatch.setenv("SLOW_IMPORT", "60")
    await start_worker(process_app)
    with pytest.raises(StepFailed, match=r"has not imported process_tasks within 0\.2 s"):
        await (await work.enqueue(0.0)).result(30)


def test_the_pool_of_processes_is_bounded():
    assert processes.MAX_PROCESSES >= 2
