"""Queues and priorities, workers that come and go, tasks nobody knows yet, hooks."""

import asyncio

import pytest

from weft import InvalidOption, Weft


async def test_priority_order_is_exact(app, one_home, start_worker):
    order: list[int] = []

    @app.task
    async def note(priority: int) -> None:
        order.append(priority)

    given = [5, 1, 10, 3, 10, 7, 1, 5]
    runs = [await note.options(priority=priority).enqueue(priority) for priority in given]

    await start_worker(concurrency=1)
    for run in runs:
        await run.result(10)

    assert order == sorted(given, reverse=True)


async def test_equal_priorities_are_served_in_order_of_arrival(app, one_home, start_worker):
    order: list[int] = []

    @app.task
    async def note(n: int) -> None:
        order.append(n)

    runs = await note.enqueue_many([(n,) for n in range(100)])
    await start_worker(concurrency=1)
    await asyncio.gather(*(run.result(20) for run in runs))

    assert order == list(range(100))


async def test_a_worker_serves_its_queues_only_and_the_first_one_first(app, one_home, start_worker):
    order: list[str] = []

    @app.task
    async def note(queue: str) -> None:
        order.append(queue)

    runs = {queue: await note.options(queue=queue).enqueue(queue) for queue in ("slow", "other", "fast")}
    await start_worker(queues=["fast", "slow"], concurrency=1)
    for queue in ("fast", "slow"):
        await runs[queue].result(10)

    assert order == ["fast", "slow"]
    assert await runs["other"].status() == "queued"
    await runs["other"].cancel()


async def test_concurrency_bounds_how_many_run_at_once_over_all_partitions(app, start_worker):
    running = most = 0

    @app.task
    async def job() -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.002)
        running -= 1

    await start_worker(concurrency=3)
    runs = await asyncio.gather(*(job.enqueue() for _ in range(60)))
    await asyncio.gather(*(run.result(20) for run in runs))

    assert most == 3


async def test_two_workers_share_the_work_and_nothing_runs_twice(app, start_worker):
    ran: list[int] = []

    @app.task
    async def job(n: int) -> None:
        ran.append(n)
        await asyncio.sleep(0)

    await start_worker(concurrency=5)
    await start_worker(concurrency=5)
    runs = await job.enqueue_many([(n,) for n in range(300)])
    await asyncio.gather(*(run.result(20) for run in runs))

    assert sorted(ran) == list(range(300))


async def test_settings_give_queues_and_concurrency(app, start_worker, monkeypatch):
    monkeypatch.setenv("WEFT_QUEUES", "a, b")
    monkeypatch.setenv("WEFT_CONCURRENCY", "7")

    worker = await start_worker()

    assert (worker.queues, worker.concurrency) == (["a", "b"], 7)


@pytest.mark.parametrize("options", [{"concurrency": 0}, {"queues": []}, {"queues": ["a b"]}, {"queues": "default"}])
async def test_senseless_workers_are_refused(app, options):
    with pytest.raises(InvalidOption):
        app.worker(**options)


async def test_an_unknown_task_waits_and_is_served_when_a_worker_that_knows_it_arrives(
    app, add, start_worker, server, namespace, short_lease, eventually
):
    # Given a run of a task that this app's worker has never heard of.
    newer = Weft("newer", redis_url=server.url, namespace=namespace)

    @newer.task
    async def added_later(n: int) -> int:
        return n + 1

    old = await start_worker()
    run = await added_later.enqueue(1)

    async def was_handed_back() -> bool:
        return "returned" in [e.type for e in await run.history()]

    await eventually(was_handed_back)
    assert await run.status() == "queued"
    assert "unknown task" in [e.data.get("reason") for e in await run.history()]

    # When a worker comes that knows it.
    await start_worker(newer)

    # Then it is served, and no attempt was burnt; the other work went on meanwhile.
    assert await run.result(10) == 2
    info = await run.info()
    assert (info.attempt, info.crashes) == (1, 0)
    assert await (await add.enqueue(1, 2)).result(10) == 3
    assert old.session
    await newer.close()


# --- hooks ----------------------------------------------------------------------------------------


async def test_hooks_run_once_around_the_work_of_a_worker(app, start_worker):
    told: list[str] = []

    @app.on_startup
    async def open_pool() -> None:
        told.append("open")

    @app.on_startup
    def warm_up() -> None:
        told.append("warm")

    @app.on_shutdown
    async def close_pool() -> None:
        told.append("close")

    @app.task
    async def job() -> None:
        told.append("work")

    run = await job.enqueue()
    async with app.worker():
        await run.result(10)
        assert told == ["open", "warm", "work"]

    assert told == ["open", "warm", "work", "close"]


async def test_a_startup_hook_that_fails_keeps_the_worker_from_claiming(app, add):
    @app.on_startup
    def fail() -> None:
        raise RuntimeError("no database")

    run = await add.enqueue(1, 2)
    with pytest.raises(RuntimeError, match="no database"):
        async with app.worker():
            pass

    assert await run.status() == "queued"
    await run.cancel()


async def test_producers_run_no_hooks(app, add):
    @app.on_startup
    def fail() -> None:
        raise AssertionError("a producer is no worker")

    async with app:
        run = await add.enqueue(1, 2)
        await run.cancel()


async def test_with_aging_what_waits_long_enough_overtakes_what_is_more_important(app, one_home, start_worker):
    order: list[str] = []

    @app.task
    async def note(who: str) -> None:
        order.append(who)

    runs = [await note.options(priority=1).enqueue("old")]
    await asyncio.sleep(0.5)
    runs += [await note.options(priority=9).enqueue(f"new {n}") for n in range(20)]
    await start_worker(concurrency=1, aging="20ms")
    for run in runs:
        await run.result(10)

    assert order.index("old") < 20
    assert [who for who in order if who != "old"] == [f"new {n}" for n in range(20)]


async def test_without_aging_priorities_are_strict_however_long_something_waits(app, one_home, start_worker):
    order: list[int] = []

    @app.task
    async def note(priority: int) -> None:
        order.append(priority)

    runs = [await note.options(priority=1).enqueue(1)]
    await asyncio.sleep(0.05)
    runs += [await note.options(priority=9).enqueue(9) for _ in range(5)]
    await start_worker(concurrency=1)
    for run in runs:
        await run.result(10)
    assert order == [9, 9, 9, 9, 9, 1]


@pytest.mark.parametrize("aging", [-1, "soon", float("inf")])
async def test_an_aging_that_cannot_be_meant_is_refused(app, aging):
    with pytest.raises(InvalidOption, match="aging"):
        app.worker(aging=aging)
