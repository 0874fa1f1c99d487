"""`durability="committed"`: the row first, then the run. Whatever dies in between, what was acknowledged comes back, once."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from weft import AlreadyRunning, Conflict, DurabilityUnmet, InvalidOption, Weft
from weft.archive.database import Database
from weft.archive.starts import Starts
from weft.engine import committed
from weft.engine.committed import commits_of, make_start
from weft.engine.housekeeping import reconciler
from weft.errors import ArchiveBehind, Unavailable
from weft.ids import partition_of
from weft.store.archived import set_behind

pytestmark = pytest.mark.leaves("history", "open runs")


@pytest.fixture
def things(app, tmp_path):
    """A task, a graph and a workflow that note what they did outside of the store."""
    notes = tmp_path / "effects"

    def note(word: str) -> None:
        with notes.open("a") as file:
            file.write(word + "\n")

    class Things:
        @staticmethod
        def noted():
            return sorted(notes.read_text().split()) if notes.exists() else []

    @app.task
    async def work(n: int, text: str = "") -> int:
        note(f"work-{n}")
        return n + len(text)

    @app.workflow
    async def flow(ctx, n: int) -> int:
        return await ctx.step(work, n)

    graph = app.graph("g")

    @graph.node
    async def first(n: int) -> int:
        note(f"graph-{n}")
        return n

    below = app.graph("below")

    @below.node
    async def deep(n: int) -> int:
        note(f"deep-{n}")
        return n

    Things.work, Things.flow, Things.graph = work, flow, graph
    return Things


@pytest.fixture
def at_once(monkeypatch):
    """Lets the reconciler begin what was written just now."""
    monkeypatch.setattr(reconciler, "GRACE", -1.0)


@pytest.fixture
def no_redis(monkeypatch):
    """Lets a producer write its row, and then die or be cut off: the store is told nothing."""

    async def cut(*_, **__):
        raise Unavailable("cut off")

    def arm(on=True):
        monkeypatch.setattr(committed, "begin", cut if on else honest)

    honest = committed.begin
    return arm


async def reconcile(app, archivers):
    """Archives what there is, and looks after starts; returns how many were begun."""
    made = await archivers()
    for each in made:
        await each.drain()
        await each._reconciler.look(each._checkpoint)
    return sum(each._reconciler.begun for each in made)


async def lose(app, raw, archivers):
    raw.delete(*raw.scan_iter(match=f"{app.engine().ns.keys.namespace}:*"))
    for each in await archivers():
        assert await each._recover()


async def test_every_kind_of_run_is_acknowledged_as_committed_and_its_row_goes_when_it_is_archived(
    app, things, start_worker, archive, archivers, rows
):
    await archive()
    bound = things.work.options(durability="committed")
    runs = [
        await bound.enqueue(1),
        await bound.enqueue(2, text="x" * 10_000),
        *await bound.enqueue_many([(3,), {"n": 4, "text": "y" * 5_000}]),
        await things.graph.options(durability="committed").start({"n": 5}),
        await things.flow.options(durability="committed").start(6),
    ]
    assert [(await run.info()).durability for run in runs] == ["committed"] * 6
    assert {row.run for row in await rows("starts")} == {run.id for run in runs}
    assert (await (await things.work.enqueue(0)).info()).durability == "redis"

    await start_worker()
    assert [await run.result(30) for run in runs] == [1, 10_002, 3, 5_004, 5, 6]
    await archive()
    await reconcile(app, archivers)
    assert await rows("starts") == []
    assert things.noted() == sorted([*(f"work-{n}" for n in (0, 1, 2, 3, 4, 6)), "graph-5"])


async def test_what_was_acknowledged_comes_back_when_the_store_is_emptied_at_once(
    app, things, start_worker, archive, archivers, raw, rows
):
    await archive()
    bound = things.work.options(durability="committed")
    lost = await things.work.enqueue(99)
    runs = [
        await bound.options(idempotency_key="k", tags={"a": "b"}, priority=9).enqueue(1, text="x" * 10_000),
        *await bound.enqueue_many([(2,), (3,)]),
        await things.graph.options(durability="committed", idempotency_key="g").start({"n": 4}),
        await things.flow.options(durability="committed", id="mine").start(5),
    ]
    later = await bound.options(delay="1h").enqueue(98)

    await lose(app, raw, archivers)
    await archive()

    info = await runs[0].info()
    assert (info.durability, info.tags, info.priority) == ("committed", {"a": "b"}, 9)
    due = (await later.info()).due_at
    assert timedelta(minutes=59) < due - (await later.info()).created_at < timedelta(hours=1, seconds=1)
    # Keys and ids stand again, too.
    assert (await bound.options(idempotency_key="k").enqueue(1, text="x" * 10_000)).id == runs[0].id
    with pytest.raises(AlreadyRunning):
        await things.flow.options(id="mine").start(5)
    await start_worker()
    assert [await run.result(30) for run in runs] == [10_001, 2, 3, 4, 5]
    await archive()
    await reconcile(app, archivers)
    assert things.noted() == ["graph-4", "work-1", "work-2", "work-3", "work-5"], "each once"
    assert [row.run for row in await rows("starts")] == []
    assert lost.id not in {run.id for run in await app.runs.list(limit=100)}
    await later.cancel()


async def test_a_start_that_the_store_never_heard_of_is_begun_once_by_two_reconcilers(
    app, things, start_worker, archive, archivers, rows, no_redis, at_once
):
    await archive()
    no_redis()
    told = []
    for start in (
        lambda: things.work.options(durability="committed").enqueue(1),
        lambda: things.work.options(durability="committed").enqueue_many([(2,), (3,)]),
        lambda: things.graph.options(durability="committed").start({"n": 4}),
        lambda: things.flow.options(durability="committed").start(5),
    ):
        with pytest.raises(DurabilityUnmet, match="stands in the database, but the store did not take it") as unmet:
            await start()
        told += unmet.value.facts["runs"]
    assert {row.run for row in await rows("starts")} == set(told) and len(told) == 5
    with pytest.raises(Unavailable, match="an archiver starts it from there"):
        await (await app.runs.get(told[0])).info()

    no_redis(False)
    one, other = await archivers(), await archivers()
    for each in (*one, *other):
        await each.drain()
    await asyncio.gather(*(each._reconciler.look(each._checkpoint) for each in (*one, *other)))
    assert sum(each._reconciler.begun for each in (*one, *other)) == 5

    await start_worker()
    for id in told:
        await (await app.runs.get(id)).result(30)
    await archive()
    assert await reconcile(app, archivers) == 0
    assert things.noted() == ["graph-4", "work-1", "work-2", "work-3", "work-5"]
    assert await rows("starts") == []


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
async def test_nothing_is_begun_that_whoever_asked_may_still_be_about_to_begin(
    app, things, archive, archivers, no_redis, rows
):
    await archive()
    no_redis()
    with pytest.raises(DurabilityUnmet):
        await things.work.options(durability="committed").enqueue(1)
    assert await reconcile(app, archivers) == 0
    assert len(await rows("starts")) == 1


async def test_a_run_that_ended_and_was_forgotten_before_it_was_archived_is_not_begun_again(
    app, things, start_worker, archive, archivers, raw, at_once
):
    await archive()
    await start_worker()
    run = await things.work.options(durability="committed", keep_result="100ms").enqueue(1)
    assert await run.result(10) == 1
    key = app.engine().ns.keys.run(partition_of(run.id), run.id)
    while raw.exists(key):
        await asyncio.sleep(0.02)
    # The archiver has not come to it: the log is ahead.
    for each in await archivers():
        await each._open()
        await each._reconciler.look(each._checkpoint)
        assert each._reconciler.begun == 0
    assert await reconcile(app, archivers) == 0
    assert things.noted() == ["work-1"]


async def test_asking_again_by_the_same_key_or_id_gives_the_same_run(
    app, things, archive, archivers, no_redis, rows, at_once
):
    await archive()
    bound = things.work.options(durability="committed", idempotency_key="k")
    graph = things.graph.options(durability="committed", idempotency_key="g")
    flow = things.flow.options(durability="committed", id="mine")
    no_redis()
    first = []
    for start in (lambda: bound.enqueue(1), lambda: graph.start({"n": 2}), lambda: flow.start(3)):
        with pytest.raises(DurabilityUnmet, match="gives the same run") as unmet:
            await start()
        first.append(unmet.value.facts["run"])

    no_redis(False)
    again = await bound.enqueue(1)
    assert (again.id, again.deduplicated) == (first[0], True)
    assert (await again.info()).durability == "committed"
    with pytest.raises(Conflict, match="was used before") as conflict:
        await bound.enqueue(2)
    assert conflict.value.facts["run"] == first[0]
    assert (await graph.start({"n": 2})).id == first[1]
    with pytest.raises(AlreadyRunning) as running:
        await flow.start(3)
    assert running.value.facts["run"] == first[2]
    assert (await (await app.runs.get(first[2])).info()).status == "queued"
    assert {row.run for row in await rows("starts")} == set(first)
    assert await reconcile(app, archivers) == 0
    await archive()
    await reconcile(app, archivers)
    assert (await bound.enqueue(1)).id == first[0], "also when only the archive knows it"


async def test_fifty_starts_with_one_key_make_one_run(app, things, archive, rows):
    await archive()
    bound = things.work.options(durability="committed", idempotency_key="k")
    runs = await asyncio.gather(*(bound.enqueue(1) for _ in range(50)))
    assert len({run.id for run in runs}) == 1 and len(await rows("starts")) == 1
    assert [run.deduplicated for run in runs].count(False) == 1
    assert len(await app.runs.list()) == 1


async def test_the_end_of_a_window_and_of_a_run_make_room_for_the_next(app, things, start_worker, archive, rows):
    @app.task(unique_for="1h")
    async def single(fail: bool) -> None:
        if fail:
            raise ValueError("no")

    await archive()
    await start_worker()
    bound = things.work.options(durability="committed", idempotency_key="k", idempotency_window="100ms")
    one = await bound.enqueue(1)
    await asyncio.sleep(0.2)  # the window itself
    other = await bound.enqueue(1)
    assert other.id != one.id

    flow = things.flow.options(durability="committed", id="mine")
    assert await (before := await flow.start(2)).result(10) == 2
    assert await (after := await flow.start(3)).result(10) == 3
    assert before.id != after.id
    # A run that failed does not stand in the way; one that completed does.
    failed = await single.options(durability="committed").enqueue(True)
    with pytest.raises(Exception, match="no"):
        await failed.result(10)
    assert (await single.options(durability="committed").enqueue(True)).id != failed.id
    done = await single.options(durability="committed").enqueue(False)
    await done.result(10)
    again = await single.options(durability="committed").enqueue(False)
    assert (again.id, again.deduplicated) == (done.id, True)
    assert len(await rows("starts")) == 7


async def test_a_run_that_was_started_otherwise_is_acknowledged_when_it_is_archived(
    app, things, archive, rows, monkeypatch
):
    await archive()
    plain = await things.work.options(idempotency_key="k").enqueue(1)
    monkeypatch.setattr(committed, "PATIENCE", 0.1)
    bound = things.work.options(durability="committed", idempotency_key="k")
    with pytest.raises(DurabilityUnmet, match="is not known to stand in the database") as unmet:
        await bound.enqueue(1)
    assert unmet.value.facts["run"] == plain.id and await rows("starts") == []
    assert (await plain.info()).durability == "redis"
    await archive()
    again = await bound.enqueue(1)
    assert (again.id, (await again.info()).durability) == (plain.id, "committed")


async def test_a_start_whose_key_another_run_took_is_dropped_unless_the_store_was_lost_since(
    app, things, start_worker, archive, archivers, rows, no_redis, at_once, raw, server, tmp_path
):
    await archive()
    bound = things.work.options(durability="committed", idempotency_key="k")
    no_redis()
    with pytest.raises(DurabilityUnmet):
        await bound.enqueue(1)
    # Whoever asks without the level does not look at the database.
    other = await things.work.options(idempotency_key="k").enqueue(1)
    no_redis(False)
    assert await reconcile(app, archivers) == 0 and await rows("starts") == []

    # Accepted, lost with the store before it was archived; and then a start like it, in a store that knows of nothing.
    # In the partition of the first, of which something is archived: one of which nothing is counts as new, not as lost.
    same = next(key for key in map(str, range(100)) if app.engine().home(key) == partition_of(other.id))
    owed = await things.work.options(durability="committed", idempotency_key=same).enqueue(2)
    raw.delete(*raw.scan_iter(match=f"{app.engine().ns.keys.namespace}:*"))
    nowhere = f"sqlite:///{tmp_path / 'none.sqlite'}"
    stranger = Weft("shop", redis_url=server.url, namespace=app.engine().ns.keys.namespace, database_url=nowhere)
    elsewhere = stranger.task(things.work.fn)
    async with stranger:
        taken = await elsewhere.options(idempotency_key=same).enqueue(2)
    assert taken.id != owed.id and partition_of(owed.id) == partition_of(other.id)
    for each in await archivers():
        await each._recover()
    await start_worker()
    assert await owed.result(20) == 2 and await (await app.runs.get(taken.id)).result(20) == 2


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
async def test_a_level_that_cannot_be_met_is_refused_with_nothing_written(
    app, things, archive, rows, tmp_path, monkeypatch, server
):
    bound = things.work.options(durability="committed")
    monkeypatch.setattr(committed, "PATIENCE", 0.1)
    with pytest.raises(DurabilityUnmet, match="nobody does so in this namespace: start a worker"):
        await bound.enqueue(1)
    await archive()
    ns = app.engine().ns
    for p in range(ns.partitions):
        await set_behind(ns, p, "too far behind")
    with pytest.raises(ArchiveBehind, match="too far behind"):
        await bound.enqueue(1)
    for p in range(ns.partitions):
        await set_behind(ns, p, "")

    for url, match in (
        (f"sqlite:///{tmp_path / 'other.sqlite'}", "needs the database to which this namespace is archived"),
        ("postgresql://nobody@127.0.0.1:1/none", "does not serve"),
    ):
        monkeypatch.setenv("WEFT_DATABASE_URL", url)
        elsewhere = Weft("elsewhere", redis_url=server.url, namespace=ns.keys.namespace)

        @elsewhere.task
        async def work(n: int) -> int:
            return n

        async with elsewhere:
            with pytest.raises(DurabilityUnmet, match=match) as unmet:
                await work.options(durability="committed").enqueue(1)
            assert unmet.value.retryable and "Nothing was started" in unmet.value.message
    assert not (tmp_path / "other.sqlite").exists()
    assert await rows("starts") == [] and await app.runs.list() == []


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
async def test_what_would_change_what_was_written_is_refused(app, archive):
    @app.task(debounce="1s")
    async def bounced(n: int) -> None: ...

    @app.task(unique_for="1s", unique="replace")
    async def replaced(n: int) -> None: ...

    @app.task(unique_for="1s", unique="drop")
    async def dropped(n: int) -> None: ...

    await archive()
    for task in (bounced, replaced, dropped):
        with pytest.raises(InvalidOption, match="a later call would change what durability='committed' has written"):
            await task.options(durability="committed").enqueue(1)
        with pytest.raises(InvalidOption):
            await task.options(durability="committed").enqueue_many([(1,)])


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
async def test_deadlines_and_windows_go_on_while_a_start_lies_there(app, things, archive, archivers, rows):
    await archive()
    engine = app.engine()
    home = await commits_of(engine).check(0)
    spec = things.work.options(durability="committed", deadline="1h", delay="30m", idempotency_key="k")._spec
    start = make_start("r0-x", 0, spec, b"", home, same="s")
    late = start.request(home.now_ms + 600_000)
    assert (late.deadline_ms, late.key_ms) == (3_000_000, 24 * 3_600_000 - 600_000)
    assert (late.delay_ms, late.due_ms) == (0, home.now_ms + 1_800_000)
    assert start.request(home.now_ms + 7_200_000).deadline_ms == 1, "it fails at once, as it would have"
    assert start.request(home.now_ms, free=True).key == ""


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
async def test_whoever_stood_still_does_not_begin_what_is_the_reconcilers_by_then(
    app, things, archive, rows, monkeypatch
):
    await archive()
    write = Starts.write

    async def slow(self, *args):
        found = await write(self, *args)
        monkeypatch.setattr(committed, "GRACE", -1.0)
        return found

    monkeypatch.setattr(Starts, "write", slow)
    with pytest.raises(DurabilityUnmet, match="this process took too long"):
        await things.work.options(durability="committed").enqueue(1)
    assert await app.runs.list() == [] and len(await rows("starts")) == 1


async def test_many_at_once_share_transactions(app, things, archive, monkeypatch, rows):
    await archive()
    calls, write = [], Starts.write

    async def counted(self, asked, now_ms):
        calls.append(len(asked))
        return await write(self, asked, now_ms)

    monkeypatch.setattr(Starts, "write", counted)
    await asyncio.gather(*(things.work.options(durability="committed").enqueue(n) for n in range(100)))
    assert sum(calls) == 100 and len(calls) < 50
    assert len(await rows("starts")) == 100


async def test_a_locked_database_refuses_and_asking_again_makes_one_run(
    app, things, archive, rows, database, database_url, monkeypatch
):
    monkeypatch.setattr("weft.archive.database.BUSY_MS", 50)
    monkeypatch.setattr("weft.archive.database.STATEMENT_SECONDS", 0.5)
    await archive()
    bound = things.work.options(durability="committed", idempotency_key="k")
    other = Database(app.database())
    try:
        async with other.writing() as holder:
            if not database.is_sqlite:
                await holder.exec_driver_sql("LOCK TABLE weft_starts IN ACCESS EXCLUSIVE MODE")
            with pytest.raises(DurabilityUnmet, match="the database did not take run") as unmet:
                await bound.enqueue(1)
            plain = await things.work.options(delay="1h").enqueue(2)  # others need no database
    finally:
        await other.close()
    assert unmet.value.retryable and [run.id for run in await app.runs.list()] == [plain.id]
    run = await bound.enqueue(1)
    assert [row.run for row in await rows("starts")] == [run.id]


async def test_a_database_that_refuses_writes_is_told_of_and_nothing_is_started(
    app, things, archive, rows, database, monkeypatch
):
    await archive()
    honest = Starts._insert

    async def insert(self, connection, asked):
        on = "PRAGMA query_only=ON" if database.is_sqlite else "SET TRANSACTION READ ONLY"
        await connection.exec_driver_sql(on)
        try:
            await honest(self, connection, asked)
        finally:
            if database.is_sqlite:
                await connection.exec_driver_sql("PRAGMA query_only=OFF")

    monkeypatch.setattr(Starts, "_insert", insert)
    with pytest.raises(DurabilityUnmet, match=r"(?i)read-?only"):
        await things.work.options(durability="committed").enqueue(1)
    with pytest.raises(DurabilityUnmet, match=r"(?i)r[0-9]+-\S+ and 2 more.*read-?only"):
        await things.work.options(durability="committed").enqueue_many([(1,), (2,), (3,)])
    assert await app.runs.list() == [] and await rows("starts") == []
