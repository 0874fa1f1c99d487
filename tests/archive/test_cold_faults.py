"""Faults of the cold store and of the archiver: runs go on, nothing is lost, nothing is stored twice."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from weft.archive import bulk
from weft.errors import ArchiveUnavailable, ForeignArchive
from weft.store.archived import read_mark

#: Dies by SIGKILL in the n-th bulk statement of its life.
VICTIM = """
import os, signal, sys
from weft.archive import bulk
honest, left = bulk.insert, int(sys.argv.pop())
async def insert(*args, **options):
    global left
    left -= 1
    if left == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    await honest(*args, **options)
bulk.insert = insert
sys.argv[1:] = ["archiver", "--once"]
from weft.cli.commands import run
run()
"""


@pytest.fixture
def add(app):
    @app.task
    async def add(a: int, b: int) -> int:
        return a + b

    return add


async def some(add, n):
    runs = await add.enqueue_many([(i, 1) for i in range(n)])
    await asyncio.gather(*(run.result(60) for run in runs))
    return runs


def entry_of(text):
    ms, _, n = text.partition("-")
    return int(ms), int(n)


async def agree(rows, logged):
    """Checks that the rows are exactly what the log has up to the checkpoint."""
    upto = {row.partition: entry_of(row.entry) for row in await rows("checkpoints")}
    wanted = {
        (run, seq, entry) for run, seq, entry in logged() if entry_of(entry) <= upto[int(run[1:].partition("-")[0])]
    }
    stored = [(row.run, row.seq, row.entry) for row in await rows("events")]
    assert set(stored) == wanted and len(stored) == len(wanted)
    seqs = {}
    for run, seq, _ in wanted:
        seqs[run] = max(seqs.get(run, 0), seq)
    assert {row.id: row.seq for row in await rows("runs")} == seqs


async def test_an_archiver_killed_at_any_statement_leaves_rows_and_checkpoint_in_agreement(
    app, add, start_worker, archive, rows, logged, server, database_url
):
    await start_worker()
    await archive()
    env = {
        **os.environ,
        "WEFT_REDIS_URL": server.url,
        "WEFT_NAMESPACE": app.engine().ns.keys.namespace,
        "WEFT_DATABASE_URL": database_url,
    }
    # 1 is the checkpoint's own row, 2 the events, 3 the runs, 4 the events of the second batch.
    for nth in (2, 3, 4):
        await some(add, 20)
        died = await asyncio.to_thread(
            subprocess.run, [sys.executable, "-c", VICTIM, str(nth)], env=env, capture_output=True, cwd=Path.cwd()
        )
        assert died.returncode in (-9, 0), died.stderr.decode()
        await agree(rows, logged)

    await archive()
    await agree(rows, logged)
    assert {(row.run, row.seq, row.entry) for row in await rows("events")} == logged()


async def test_runs_go_on_while_the_database_is_locked_and_are_archived_after(
    app, add, start_worker, archive, archivers, rows, logged, database_url, eventually, monkeypatch
):
    if not database_url.startswith("sqlite"):
        pytest.skip("only SQLite is locked as a whole")
    await archive()
    monkeypatch.setattr("weft.archive.database.BUSY_MS", 50)
    for each in await archivers():
        each.start()
    holder = sqlite3.connect(database_url.removeprefix("sqlite:///"), isolation_level=None)
    holder.execute("BEGIN EXCLUSIVE")
    await start_worker()

    await some(add, 10)
    ns = app.engine().ns
    marks = [await read_mark(ns, p) for p in range(ns.partitions)]
    assert sum(mark.lag_entries for mark in marks) > 0

    holder.execute("ROLLBACK")
    holder.close()
    await eventually(lambda: _caught_up(rows, logged), within=30)
    await agree(rows, logged)


async def test_a_database_that_refuses_writes_stops_nothing_and_is_archived_to_after(
    app, add, start_worker, archive, archivers, rows, logged, database, eventually, monkeypatch
):
    await start_worker()
    await archive()
    honest, refusing = bulk.insert, True

    async def insert(connection, *args, **options):
        if refusing:
            on = "PRAGMA query_only=ON" if database.is_sqlite else "SET TRANSACTION READ ONLY"
            await connection.exec_driver_sql(on)
        try:
            await honest(connection, *args, **options)
        finally:
            if refusing and database.is_sqlite:
                await connection.exec_driver_sql("PRAGMA query_only=OFF")

    monkeypatch.setattr(bulk, "insert", insert)
    await some(add, 5)
    for each in await archivers():
        with pytest.raises(ArchiveUnavailable, match=r"(?i)read-?only"):
            await each.drain()
    await agree(rows, logged)

    refusing = False
    await some(add, 5)
    await archive()
    assert await _caught_up(rows, logged)


async def test_connections_cut_by_the_server_are_made_again(
    app, add, start_worker, archive, archivers, rows, logged, database, eventually
):
    if database.is_sqlite:
        pytest.skip("SQLite has no connections to cut")
    await archive()
    for each in await archivers():
        each.start()
    await start_worker()
    for _ in range(3):
        await some(add, 20)
        async with database.reading() as connection:
            await connection.exec_driver_sql(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )

    await eventually(lambda: _caught_up(rows, logged), within=30)
    await agree(rows, logged)


async def test_a_worker_works_while_its_database_cannot_be_opened(app, add, start_worker, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("not a directory")
    monkeypatch.setenv("WEFT_DATABASE_URL", f"sqlite:///{tmp_path / 'file' / 'archive.sqlite'}")
    await start_worker(archive=True)
    assert [await run.result(10) for run in await some(add, 3)] == [1, 2, 3]


async def test_a_log_is_archived_to_one_database_only(
    app, add, start_worker, archive, archivers, tmp_path, monkeypatch, rows
):
    from weft.engine.lag import retire

    await start_worker()
    await some(add, 3)
    await archive()

    monkeypatch.setenv("WEFT_DATABASE_URL", f"sqlite:///{tmp_path / 'other.sqlite'}")
    for each in await archivers():
        with pytest.raises(ForeignArchive):
            await each.drain()

    assert await retire(app.engine()) == app.engine().ns.partitions
    assert await archive() == 6


async def _caught_up(rows, logged):
    kept = {(row.run, row.seq, row.entry) for row in await rows("events")} == logged()
    return kept and all(row.indexed == row.entry for row in await rows("checkpoints"))
