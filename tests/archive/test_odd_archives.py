"""Archives under odd conditions: one database for two namespaces, a full disk, entries of the log that are very large."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import time
from pathlib import Path

import pytest

from servers import raw_entries
from weft import NotFound, Weft
from weft.archive import database as opening
from weft.core.retention import parse_policy
from weft.engine.health import examine
from weft.engine.housekeeping.archiver import make_archivers
from weft.engine.retention import Sweep, Swept
from weft.store.archived import read_mark

DAY = 86_400_000
MB = 1_000_000


def declare(app: Weft):
    if "large" in app.tasks:
        return app.tasks["large"], app.graphs["twin"]

    @app.task(tags={"team": "a"})
    async def large(text: str) -> str:
        return text * 2

    graph = app.graph("twin", output="${made}")
    graph.task("made", call="large", with_={"text": "${input.text}"})
    return large, graph


async def run_both(app: Weft):
    """Runs a task and a graph with large values, the same whoever does it, and archives them."""
    large, graph = declare(app)
    async with app.worker(archive=False):
        runs = [await large.enqueue("y" * 9_000), await graph.start({"text": "y" * 9_000})]
        for run in runs:
            assert await run.result(20) == "y" * 18_000
    engine = app.engine()
    for each in make_archivers(engine.ns, engine.cold, "a-test", hot_ms=60_000):
        await each.drain()
    return runs


@pytest.mark.leaves("history", "broken keys")
async def test_a_database_of_two_namespaces_lets_go_of_one_and_keeps_the_other(
    app, server, namespace, database_url, forget, raw
):
    other = Weft("testing", redis_url=server.url, namespace=f"{namespace}x", database_url=database_url)
    mine = await run_both(app)
    async with other:
        theirs = await run_both(other)
        engine = other.engine()
        for run in theirs:
            for key in raw.scan_iter(f"{namespace}x:*{run.id}*"):
                raw.delete(key)
        forget(*mine)

        swept, one = Swept(), app.engine()
        sweep = Sweep(one.ns, one.cold, parse_policy("1d"), int(time.time() * 1000) + 30 * DAY)
        while await sweep.step(swept):
            pass

        assert swept.runs == 2 and swept.by_kind == {"task": 1, "graph": 1}
        for run in mine:
            with pytest.raises(NotFound):
                await run.info()
        assert await app.runs.list() == [] and {info.id for info in await other.runs.list(tag=("team", "a"))} == {
            theirs[0].id
        }
        for run in theirs:
            assert await run.result(5) == "y" * 18_000
            events = await run.history()
            assert [event.seq for event in events] == list(range(1, len(events) + 1))
        assert (await theirs[1].graph())["nodes"]["made"]["output"] == "y" * 18_000
        # And what is shared by content is there for the next one, too.
        again = await run_both(app)
        forget(*again)
        assert [await run.result(5) for run in again] == ["y" * 18_000] * 2
        assert engine.ns.keys.namespace != one.ns.keys.namespace
    for key in raw.scan_iter(f"{namespace}x:*"):
        raw.delete(key)


async def test_runs_go_on_while_the_disk_is_full_and_are_archived_after(
    app, start_worker, archive, archivers, rows, database_url, eventually, monkeypatch, caplog
):
    if not database_url.startswith("sqlite"):
        pytest.skip("a page limit stands for the disk, and only SQLite has one")
    await archive()
    file = Path(database_url.removeprefix("sqlite:///"))
    with contextlib.closing(sqlite3.connect(file)) as looking:
        pages = looking.execute("PRAGMA page_count").fetchone()[0]
    limit = [pages + 1]
    prepare = opening._prepare_sqlite_writer

    def full(connection, record):
        prepare(connection, record)
        connection.execute(f"PRAGMA max_page_count={limit[0]}").close()

    monkeypatch.setattr(opening, "_prepare_sqlite_writer", full)
    archiving = await archivers()
    for each in archiving:
        each.start()
    large, _ = declare(app)
    await start_worker()

    runs = [await large.enqueue(f"{n}" * 9_000) for n in range(6)]
    for run in runs:
        await run.result(20)
    ns = app.engine().ns

    async def behind():
        return sum([(await read_mark(ns, p)).lag_entries for p in range(ns.partitions)]) > 0

    await eventually(lambda: any("disk is full" in str(record.__dict__) for record in caplog.records), within=30)
    assert await behind() and len(await rows("runs")) < 6, "nothing is marked that is not stored"
    assert not await rows("gaps"), "what does not fit on the disk is no poison"

    limit[0] = pages + 10_000
    await asyncio.gather(*(each.stop() for each in archiving))  # the limit is that of a connection
    for each in await archivers():
        each.start()

    async def archived():
        return len(await rows("runs")) == 6 and not await behind()

    await eventually(archived, within=30)
    assert not await rows("gaps")


async def test_entries_of_the_log_of_several_megabytes_are_archived(
    app, start_worker, archive, rows, forget, raw, monkeypatch
):
    monkeypatch.setattr("weft.engine.runs.CHUNK", 2_000)

    @app.task
    async def size(text: str) -> int:
        return len(text)

    runs = await size.enqueue_many([(f"{n:04d}" * 950,) for n in range(1_500)])
    ns = app.engine().ns
    entries = [fields for p in range(ns.partitions) for _, fields in raw_entries(raw, ns.keys.log(p))]
    longest = max(sum(map(len, fields)) for fields in entries)
    await start_worker(concurrency=200)
    await asyncio.gather(*(run.result(60) for run in runs))
    await archive()

    assert longest > 4 * MB
    assert len(await rows("runs")) == 1_500 and not await rows("gaps")
    forget(runs[700])
    assert await runs[700].result(5) == 3_800
    assert [event.type for event in await runs[700].history()] == ["queued", "completed"]


@pytest.mark.leaves("history")
async def test_runs_that_began_before_their_archive_are_told_of(app, archive, raw, monkeypatch):
    @app.task
    async def later(n: int) -> int:
        return n

    monkeypatch.setattr("weft.engine.lag.UNSTARTED_MS", 0)
    early = [await later.options(delay="1h").enqueue(n) for n in range(3)]
    ns = app.engine().ns
    for p in range(ns.partitions):
        raw.xtrim(ns.keys.log(p), maxlen=0)  # nobody archived, and its age was over
    late = await later.options(delay="1h").enqueue(7)
    await archive()

    health = await examine(app.engine())

    (found,) = [one for one in health.findings if one.about == "archive" and one.level == "warning"]
    assert health.database.outside == 3 and found.message.startswith("3 runs under way began before this archive")

    for run in [*early, late]:
        await run.cancel()
    await archive()
    assert (await examine(app.engine())).database.outside == 0


async def test_many_large_values_are_archived_in_portions(app, archive, start_worker, raw, monkeypatch):
    from weft.archive import writer

    @app.task
    async def grow(n: int, text: str) -> str:
        return text + text

    kept, asked, write = [], [], writer.write_batch

    async def spy(database, batch):
        kept.append(sum(map(len, batch.blobs.values())))
        return await write(database, batch)

    read_many = type(app.engine().ns).read_many

    async def ask(self, commands, *, p):
        replies = await read_many(self, commands, p=p)
        asked.append(sum(len(reply) for reply in replies if isinstance(reply, bytes)))
        return replies

    monkeypatch.setattr(writer, "write_batch", spy)
    monkeypatch.setattr(writer, "STATEMENT_BYTES", 50_000)
    monkeypatch.setattr(type(app.engine().ns), "read_many", ask)
    monkeypatch.setattr("weft.store.archived.ASKED_BYTES", 50_000)
    monkeypatch.setattr("weft.engine.housekeeping.archiver.BATCH_BYTES", 200_000)
    runs = [await grow.enqueue(n, f"{n:05d}" * 4_000) for n in range(40)]  # 0.8 MB, in an entry each
    await archive()
    assert len(kept) > 4 and max(kept) <= 200_000 and max(asked) <= 50_000

    await start_worker()
    for run in runs:
        await run.result(20)
    await archive()
    raw.delete(
        *raw.scan_iter(app.engine().ns.keys.blob(0, "*", "*")), *(app.engine().ns.keys.run(0, r.id) for r in runs)
    )
    assert [(await run.result())[:5] for run in runs] == [f"{n:05d}" for n in range(40)]
