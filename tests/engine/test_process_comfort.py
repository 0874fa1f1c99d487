"""Hooks and resources of tasks that run in processes: hooks are called in the worker, resources opened in the child."""

import os
import signal

import pytest

from weft import StepFailed
from weft.sdk.hooks import Hooks


async def test_hooks_run_in_the_worker_around_a_task_in_a_process(process_app, start_worker, monkeypatch):
    import process_tasks

    seen: list[object] = []
    monkeypatch.setattr(process_app, "hooks", Hooks())
    process_app.before_task(lambda here: seen.append(os.getpid()))
    process_app.after_task(lambda here, result: seen.append(result))
    process_app.on_error(lambda here, error: seen.append(error))
    await start_worker(process_app)

    result = await (await process_tasks.where.enqueue()).result(30)
    with pytest.raises(StepFailed):
        await (await process_tasks.boom.enqueue("x")).result(30)

    assert result[0] != os.getpid()
    assert seen[:3] == [os.getpid(), result, os.getpid()]
    assert isinstance(seen[3], StepFailed)
    assert seen[3].type == "LookupError"


async def test_a_process_opens_its_own_resources_and_closes_them(process_app, start_worker, monkeypatch, tmp_path):
    import process_tasks

    marks = tmp_path / "marks"
    monkeypatch.setenv("WEFT_TEST_MARKS", str(marks))
    worker = await start_worker(process_app)
    first = await (await process_tasks.uses.enqueue()).result(30)
    second = await (await process_tasks.uses.enqueue()).result(30)

    assert first == second == ["resource", first[1], first[1]]
    assert first[1] != os.getpid()
    assert marks.read_text() == "open\n"
    await worker.stop()
    assert marks.read_text() == "open\nclose\n"


async def test_what_a_process_logs_stays_with_its_run(process_app, start_worker):
    import process_tasks

    await start_worker(process_app)
    run = await process_tasks.logs.enqueue()
    await run.result(30)

    (line,) = await run.logs()
    assert line.message == "from a child"
    assert line.fields["pid"] != os.getpid()


async def test_a_signal_to_all_processes_of_a_service_does_not_cost_an_attempt(
    process_app, start_worker, tmp_path, eventually
):
    import process_tasks

    await start_worker(process_app)
    path = tmp_path / "lingers"
    run = await process_tasks.linger.enqueue(str(path))
    await eventually(path.exists, within=30)
    child = int(path.read_text())
    os.kill(child, signal.SIGTERM)
    path.unlink()

    assert await run.result(30) == child, "whether it goes on is the worker's to say"
