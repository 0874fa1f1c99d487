"""Finding runs: lists, filters, tags and what one read tells."""

import asyncio

import pytest

from weft import InvalidOption, StepFailed


@pytest.fixture
async def fleet(app, start_worker):
    """Three finished runs and two queued ones, of two tasks, with tags."""

    @app.task(tags={"team": "a"})
    async def good(n: int = 0) -> int:
        return n

    @app.task(queue="other", tags={"team": "b"})
    async def bad() -> None:
        raise ValueError("no")

    await start_worker(queues=["default", "other"])
    done = [await good.enqueue(1), await good.options(tags={"n": 2, "hot": True}).enqueue(2)]
    for run in done:
        await run.result(10)
    failed = await bad.enqueue()
    with pytest.raises(StepFailed):
        await failed.result(10)
    queued = [await good.options(queue="nobody").enqueue(3), await good.options(delay="1h").enqueue(4)]
    yield {"done": done, "failed": failed, "queued": queued}
    for run in queued:
        await run.cancel()


def ids(infos) -> set[str]:
    return {info.id for info in infos}


async def test_everything_is_listed_newest_first(app, fleet):
    infos = await app.runs.list()

    assert ids(infos) == ids([*fleet["done"], fleet["failed"], *fleet["queued"]])
    stamps = [info.id.partition("-")[2][:9] for info in infos]
    assert stamps == sorted(stamps, reverse=True)


async def test_filters_narrow_the_list_and_combine(app, fleet):
    done, queued = ids(fleet["done"]), ids(fleet["queued"])

    assert ids(await app.runs.list(status="completed")) == done
    assert ids(await app.runs.list(status="failed")) == {fleet["failed"].id}
    assert ids(await app.runs.list(status="queued")) == queued
    assert ids(await app.runs.list(name="good")) == done | queued
    assert ids(await app.runs.list(queue="other")) == {fleet["failed"].id}
    assert ids(await app.runs.list(tag=("team", "a"))) == done | queued
    assert ids(await app.runs.list(tag=("hot", "true"))) == {fleet["done"][1].id}
    assert ids(await app.runs.list(name="good", status="queued", queue="nobody")) == {fleet["queued"][0].id}
    assert await app.runs.list(name="good", status="failed") == []


async def test_the_limit_cuts_after_the_filter(app, fleet):
    assert len(await app.runs.list(limit=2)) == 2
    assert len(await app.runs.list(limit=1, status="failed")) == 1


@pytest.mark.parametrize("options", [{"status": "done"}, {"limit": 0}, {"limit": -1}])
async def test_senseless_filters_are_refused(app, options):
    with pytest.raises(InvalidOption):
        await app.runs.list(**options)


async def test_a_long_list_is_read_in_pages(app, add):
    runs = await add.options(queue="nobody").enqueue_many([(n, n) for n in range(450)])

    infos = await app.runs.list(limit=1000)

    assert ids(infos) == ids(runs)
    await asyncio.gather(*(run.cancel() for run in runs))


async def test_an_empty_namespace_lists_nothing(app):
    assert await app.runs.list() == []


async def test_one_read_tells_everything(app, add, start_worker):
    run = await add.options(priority=7, tags={"team": "a", "n": 1, "x": 1.5, "y": False}).enqueue(1, 2)
    before = await run.info()
    await start_worker()
    await run.result(10)
    after = await run.info()

    assert (before.id, before.name, before.kind, before.queue, before.priority) == (run.id, "add", "task", "default", 7)
    assert (before.status, before.attempt, before.delivery, before.crashes) == ("queued", 1, 1, 0)
    assert before.tags == {"team": "a", "n": "1", "x": "1.5", "y": "false"}
    assert before.started_at is before.finished_at is before.due_at is before.deadline_at is before.progress is None
    assert (before.error, before.worker, before.message, before.durability) == (None, "", "", "redis")
    assert after.status == "completed"
    assert after.status.finished
    assert after.created_at <= after.started_at <= after.finished_at
    assert after.created_at.tzinfo is not None


async def test_a_running_step_names_its_worker(app, start_worker, eventually):
    release = asyncio.Event()

    @app.task
    async def wait() -> None:
        await release.wait()

    worker = await start_worker()
    run = await wait.enqueue()

    async def held() -> str:
        return (await run.info()).worker

    assert await eventually(held) == worker.session
    assert await run.status() == "running"
    assert ids(await app.runs.list(status="running")) == {run.id}
    release.set()
    await run.result(10)
