"""Hooks around tasks that run in processes of their own: they are called in the worker."""

import os

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
