"""Reading hot, then cold: whoever asks need not know which store has a run."""

from __future__ import annotations

import asyncio

import pytest

from weft import HistoryExpired, NotFound, ResultExpired, RunCancelled, StepFailed, Weft
from weft.engine import runs
from weft.errors import ArchiveUnavailable
from weft.ids import partition_of


@pytest.fixture
def tasks(app):
    class Tasks:
        @app.task
        async def add(a: int, b: int) -> int:
            return a + b

        @app.task
        async def bad() -> None:
            raise ValueError("never")

        @app.task
        async def large(text: str) -> str:
            return text * 2

        @app.task(keep_result="2s")
        async def brief() -> int:
            return 7

    return Tasks


async def test_a_run_reads_the_same_from_both_stores(app, tasks, start_worker, archive, forget):
    await start_worker()
    good = await tasks.add.options(tags={"team": "a"}, idempotency_key="k").enqueue(1, 2)
    bad = await tasks.bad.enqueue()
    assert await good.result(10) == 3
    with pytest.raises(StepFailed):
        await bad.result(10)
    hot = [(await run.info(), await run.history(), str(await run.explain())) for run in (good, bad)]
    await archive()
    forget(good, bad)

    cold = [(await run.info(), await run.history(), str(await run.explain())) for run in (good, bad)]

    assert cold == hot
    assert await good.result() == 3 and await app.runs.get(good.id).result() == 3
    assert (await app.runs.get(good.id)).id == good.id
    with pytest.raises(StepFailed, match="never"):
        await bad.result()
    assert [event.type async for event in good.events(after=1)] == ["completed"]
    assert not await good.cancel()


async def test_a_cancelled_run_reads_the_same_from_both_stores(app, tasks, archive, forget):
    run = await tasks.add.options(delay="1h").enqueue(1, 2)
    await run.cancel("no longer needed")
    await archive()
    forget(run)

    with pytest.raises(RunCancelled, match="no longer needed"):
        await run.result()
    assert await run.cancel() and (await run.info()).error["message"] == "no longer needed"


async def test_large_values_are_archived_too(app, tasks, start_worker, archive, forget):
    await start_worker()
    run = await tasks.large.enqueue("ab" * 5_000)
    await run.result(10)
    await archive()
    forget(run)

    assert await run.result() == "ab" * 10_000
    assert (await run.history())[1].data["result"]["size"] > 10_000


async def test_a_result_is_kept_for_keep_result_and_no_longer_wherever_it_is(
    app, tasks, start_worker, archive, forget, database
):
    await start_worker()
    run = await tasks.brief.enqueue()
    assert await run.result(10) == 7
    await archive()
    forget(run)
    async with database.writing() as connection:
        await connection.exec_driver_sql("UPDATE weft_runs SET ended_ms = ended_ms - 3000000")

    with pytest.raises(ResultExpired, match="keep_result"):
        await run.result()
    assert (await run.info()).status == "completed" and len(await run.history()) == 2


async def test_what_neither_store_has_is_not_found(app, tasks, archive):
    await app.open()
    await archive()
    unknown = app.runs.get("r0-06GY00W8H4YG6SCE898DEZ")
    with pytest.raises(NotFound, match="never was"):
        await unknown.info()
    with pytest.raises(NotFound):
        await unknown.result()


@pytest.mark.leaves("history")
async def test_a_run_with_a_gap_is_not_guessed_at(app, tasks, start_worker, archive, forget, raw, one_home):
    await start_worker()
    run = await tasks.add.enqueue(1, 2)
    await run.result(10)
    entry = raw.xadd(app.engine().ns.keys.log(0), {"at": "1", "by": "me", run.id: "9|progress||0.1 "})
    await archive()
    raw.xdel(app.engine().ns.keys.log(0), entry)
    forget(run)

    for ask in (run.info, run.result, run.history):
        with pytest.raises(HistoryExpired, match="gap"):
            await ask()
    good = await tasks.add.enqueue(1, 2)
    await good.result(10)
    await archive()
    forget(good)
    assert {info.id: info.gap for info in await app.runs.list()} == {run.id: True, good.id: False}


async def test_a_list_has_what_is_hot_and_what_is_cold_once_in_order_page_by_page(
    app, tasks, start_worker, archive, forget
):
    await start_worker()
    runs = []
    for n in range(12):
        runs.append(await tasks.add.options(tags={"odd": n % 2}).enqueue(n, 0))
        await runs[-1].result(10)
        await asyncio.sleep(0.002)  # ids of one millisecond are in no order
    bad = await tasks.bad.enqueue()
    with pytest.raises(StepFailed):
        await bad.result(10)
    await archive()
    forget(*runs[:6])
    later = await tasks.add.options(delay="1h").enqueue(0, 0)
    order = [later.id, bad.id, *(run.id for run in reversed(runs))]

    assert [info.id for info in await app.runs.list()] == order
    paged, last = [], None
    while page := await app.runs.list(limit=4, after=last):
        paged += [info.id for info in page]
        last = page[-1].id
    assert paged == order
    assert [info.id for info in await app.runs.list(status="failed")] == [bad.id]
    assert [info.id for info in await app.runs.list(status="waiting")] + [
        info.id for info in await app.runs.list(status="queued")
    ] == [later.id]
    odd = [info.id for info in await app.runs.list(tag=("odd", "1"), status="completed", name="add")]
    assert odd == [run.id for run in reversed(runs[1::2])]
    assert await app.runs.list(queue="other") == []
    with pytest.raises(NotFound):
        await app.runs.list(after="nonsense")
    await later.cancel()


async def test_finished_runs_leave_the_hot_store_early_once_they_are_archived(app, tasks, start_worker, archive, raw):
    await start_worker()
    good, large, bad = await tasks.add.enqueue(1, 2), await tasks.large.enqueue("x" * 9_000), await tasks.bad.enqueue()
    await asyncio.gather(good.result(10), large.result(10))
    with pytest.raises(StepFailed):
        await bad.result(10)
    keys = app.engine().ns.keys

    def ttl(run):
        p = partition_of(run.id)
        found = list(raw.scan_iter(f"{keys.prefix(p)}*{run.id}*"))
        return max(raw.pttl(key) for key in found)

    assert ttl(good) > 3_000_000
    await archive(hot_ms=60_000)

    assert ttl(good) <= 60_000 and ttl(large) <= 60_000
    assert ttl(bad) > 3_000_000  # a dead letter stays what it is


async def test_a_run_whose_steps_logged_keeps_its_lines(app, start_worker, archive, raw):
    from weft import current

    @app.task
    async def talk() -> None:
        current().log.info("hello")

    await start_worker()
    run = await talk.enqueue()
    await run.result(10)
    await archive(hot_ms=1)
    assert [line.message for line in await run.logs()] == ["hello"]


@pytest.mark.leaves("history")
async def test_only_what_was_archived_long_enough_ago_is_trimmed(
    app, tasks, start_worker, archive, archivers, raw, logged, one_home
):
    await start_worker()
    runs = await tasks.add.enqueue_many([(n, n) for n in range(300)])
    for n in range(150):
        runs.append(await tasks.add.enqueue(n, n))
    await asyncio.gather(*(run.result(30) for run in runs))
    before = len(logged())
    await archive()
    assert len(logged()) == before  # five minutes

    await asyncio.sleep(0.02)
    later = await tasks.add.options(delay="1h").enqueue(0, 0)
    (each,) = [a for a in await archivers(hot_ms=1) if a.p == 0]
    await each.drain()

    # Whole nodes only, and never the entry up to which it is archived.
    assert len(logged()) < before
    assert await each._open() and not (await _stretch(app, each)).torn
    assert await runs[0].result() == 0 and len(await runs[0].history()) == 2
    await later.cancel()


async def _stretch(app, each):
    from weft.store.archived import read_log

    return await read_log(app.engine().ns, each.p, each._checkpoint, limit=10)


async def test_the_sweeper_leaves_an_archived_log_alone(app, tasks, start_worker, archive, logged, monkeypatch):
    from weft.engine.housekeeping.sweeper import Sweeper

    await start_worker()
    await (await tasks.add.enqueue(1, 2)).result(10)
    await archive()
    ns, before = app.engine().ns, logged()
    for p in range(ns.partitions):
        await Sweeper(ns, p, "s-test", lease=1, retention_ms=1)._trim()
    assert logged() == before


async def test_a_database_that_does_not_answer_is_not_mistaken_for_one_without_the_run(app, tasks, monkeypatch):
    pytest.importorskip("asyncpg")
    engine = app.engine()
    await engine.open()
    monkeypatch.setenv("WEFT_DATABASE_URL", "postgresql://nobody@127.0.0.1:1/none")
    other = Weft("other", redis_url=app._redis_url, namespace=app._namespace)
    async with other:
        with pytest.raises(ArchiveUnavailable):
            await other.runs.get("r0-06GY00W8H4YG6SCE898DEZ").info()


@pytest.mark.leaves("history")  # the step that opens more items is opened again and again, under one name
async def test_a_graph_run_is_archived_with_its_steps(app, start_worker, archive, rows, logged, forget):
    graph = app.graph("report")

    @graph.node
    async def fetch(input: dict) -> list:
        return [1, 2, 3, 4, 5, 6]

    @graph.node(after=fetch, map="fetch", max_parallel=2)
    async def square(item: int) -> int:
        return item * item

    @graph.node(after=square)
    async def total(square: list) -> int:
        return sum(square)

    await start_worker()
    run = await graph.start({})
    assert await run.result(20) == 91
    hot = (await run.info(), await run.history())
    await archive()

    stored = [(row.run, row.seq, row.entry) for row in await rows("events")]
    assert len(stored) == len(set(stored)) and set(stored) == logged()
    steps = {row.step: row for row in await rows("steps")}
    assert {"fetch", "total", *(f"square#{n}" for n in range(6))} <= set(steps)
    assert {row.status for row in steps.values()} == {"completed"}
    assert [row.kind for row in await rows("runs")] == ["graph"]
    forget(run)
    assert (await run.info(), await run.history()) == hot
    assert await run.result() == 91


async def test_a_run_that_begins_and_is_archived_while_it_is_looked_for_is_not_taken_for_lost(
    app, tasks, archive, monkeypatch
):
    run = await tasks.add.options(delay="1h").enqueue(1, 2)
    await archive()
    load, looks = runs.load, []

    async def came_too_early(engine, id):
        looks.append(id)
        if len(looks) == 1:
            raise NotFound(f"there is no run {id}", run=id)
        return await load(engine, id)

    monkeypatch.setattr(runs, "load", came_too_early)

    assert (await run.info()).status == "queued"
    assert len(looks) == 2
    await run.cancel()
