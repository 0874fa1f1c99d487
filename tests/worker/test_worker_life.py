"""The life of a worker: hooks that fail, a second start, a stop without a start, a life after the first."""

import asyncio

import pytest

from weft import Context, UserError, Weft
from weft.errors import OwnershipLost


def fail() -> None:
    raise RuntimeError("no database")


async def fail_later() -> None:
    await asyncio.sleep(0)
    raise ValueError("no pool")


@pytest.mark.parametrize(("hook", "error"), [(fail, RuntimeError), (fail_later, ValueError)])
async def test_a_worker_whose_start_up_fails_says_which_hook_and_where(app: Weft, hook, error):
    app.on_startup(hook)
    with pytest.raises(error) as caught:
        async with app.worker():
            pass
    (note,) = caught.value.__notes__
    assert note.startswith(f"raised by the start-up hook {hook.__name__} ({__file__}:")
    assert await app.workers.list() == []


async def test_every_shutdown_hook_is_called_and_the_first_error_raised(app: Weft):
    called = []
    app.on_shutdown(lambda: called.append(1))
    app.on_shutdown(fail)
    app.on_shutdown(fail_later)
    app.on_shutdown(lambda: called.append(2))

    with pytest.raises(RuntimeError, match="no database") as caught:
        async with app.worker():
            pass

    assert called == [1, 2]
    assert "shutdown hook fail " in caught.value.__notes__[0]
    assert await app.workers.list() == []


async def test_a_worker_that_runs_is_not_started_a_second_time(app: Weft, start_worker):
    worker = await start_worker()
    with pytest.raises(UserError, match="runs already"):
        await worker.start()
    assert len(await app.workers.list()) == 1


async def test_a_worker_that_does_not_run_stops_without_a_word(app: Weft):
    worker = app.worker()
    await worker.stop()
    app.on_startup(fail)
    with pytest.raises(RuntimeError):
        await worker.start()
    await worker.stop()

    app.startup.clear()
    async with worker:
        assert len(await app.workers.list()) == 1
    await worker.stop()


async def test_a_worker_that_starts_again_serves_as_before(app: Weft, add, eventually):
    worker = app.worker(grace=60)
    async with worker:
        assert await (await add.enqueue(1, 2)).result(10) == 3
    worker.hasten()  # too late for the life that has ended, and not meant for the next one

    async with worker:
        assert await (await add.enqueue(3, 4)).result(10) == 7
        first = worker.session
        worker._on_lost(OwnershipLost("declared dead"))
        await eventually(lambda: worker.session != first)
        assert await (await add.enqueue(5, 6)).result(10) == 11
        assert not worker._hasten.is_set()


async def test_a_step_that_weft_itself_cannot_execute_is_handed_back(app: Weft, start_worker, monkeypatch, caplog):
    # Given a task, a graph and a workflow, and a worker that fails at each step once.
    monkeypatch.setattr("weft.worker.worker.FAULT_DELAY_MS", 20)
    pair = app.graph("pair", output="${second}")

    @app.task
    async def single() -> str:
        return "single"

    @pair.node
    async def first() -> int:
        return 1

    @pair.node(after=first)
    async def second(first: int) -> int:
        return first + 1

    @app.workflow
    async def flow(ctx: Context) -> str:
        return "flow"

    worker = await start_worker()
    execute, failed = worker.executor.execute, set()

    async def fail_once(execution):
        if execution.token.run not in failed:
            failed.add(execution.token.run)
            raise AssertionError("unheard of")
        return await execute(execution)

    monkeypatch.setattr(worker.executor, "execute", fail_once)

    # When they are started, then they end all the same, and the log says what was wrong.
    runs = [await single.enqueue(), await pair.start(), await flow.start()]
    assert [await run.result(10) for run in runs] == ["single", 2, "flow"]
    assert [event.type for event in await runs[0].history()] == ["queued", "returned", "completed"]
    assert sum("could not be executed" in record.getMessage() for record in caplog.records) == len(failed)
    assert all("fail_once" in record.facts["where"] for record in caplog.records if record.levelname == "ERROR")
