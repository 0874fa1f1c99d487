"""How far the archive is behind the log, and what database it is."""

from __future__ import annotations

import msgspec

from weft.engine.cold import Cold, load_archive
from weft.engine.engine import Engine
from weft.errors import ArchiveUnavailable, WeftError
from weft.settings import read_setting
from weft.store.archived import forget_mark, read_behind, read_mark, read_memory
from weft.store.durability import read_home
from weft.store.runs import read_runs, scan_runs

#: Milliseconds after which a run that stands in the database should have been started by somebody.
UNSTARTED_MS = 60_000
#: Runs of one partition that are looked at for whether the archive has them: whoever has more of them is told by those.
LOOKED_AT = 5_000


class Lag(msgspec.Struct):
    """Over all partitions: entries that are not archived, and the age of the oldest of them."""

    entries: int = 0
    seconds: float = 0.0
    #: The age of the oldest entry that is archived, and by which its run cannot be found yet: at full load that takes longer.
    index_seconds: float = 0.0
    #: Ids of the databases that logs are archived to; none: nobody archives.
    databases: set[str] = msgspec.field(default_factory=set)
    #: The URL of one of them, without its password.
    name: str = ""


class Room(msgspec.Struct):
    """How much room the fullest server has: bytes used, what it may use, and from where on new runs are refused."""

    used: int = 0
    most: int = 0
    soft: int = 0
    #: Why new runs are refused right now, by partitions that do so; empty: they are taken.
    refused: list[str] = msgspec.field(default_factory=list)


async def read_room(engine: Engine) -> Room:
    """Reads how full the store is, and whether it takes new runs."""
    await engine.open()
    room = Room()
    for p in range(engine.ns.partitions):
        if why := await read_behind(engine.ns, p):
            room.refused.append(why)
        if p and not engine.ns.server.clustered:
            continue
        used, most = await read_memory(engine.ns, p)
        if used * max(1, room.most) >= room.used * max(1, most):
            room.used, room.most = used, most
    room.soft = int(room.most * read_setting("WEFT_MAX_MEMORY"))
    return room


async def read_lag(engine: Engine) -> Lag:
    """Reads how far behind the archive is, from what the hot store knows of it."""
    await engine.open()
    lag = Lag()
    for p in range(engine.ns.partitions):
        mark = await read_mark(engine.ns, p)
        if mark.database:
            lag.databases.add(mark.database)
            lag.name = mark.name
            lag.entries += mark.lag_entries
            lag.seconds = max(lag.seconds, mark.lag_ms / 1000)
            lag.index_seconds = max(lag.index_seconds, mark.index_ms / 1000)
    return lag


async def read_database(engine: Engine) -> tuple[str, str, int]:
    """Returns id, schema and number of gaps of this engine's database. Raises ArchiveUnavailable."""
    await load_archive("writer")
    from weft.archive.schema import read_schema
    from weft.archive.writer import read_identity

    if not engine.cold.exists:
        raise ArchiveUnavailable("there is no such file")
    schema = await read_schema(engine.cold.database)
    if not schema.current:
        raise ArchiveUnavailable("it has no tables of Weft")
    return await read_identity(engine.cold.database), schema.current, await engine.cold.reader.count_gaps()


async def why_unusable(engine: Engine) -> str:
    """Tells why nothing can be archived to this engine's database; empty when it answers, or is a file yet to be made."""
    if not engine.cold.exists:
        return ""
    await load_archive("schema")
    from weft.archive.schema import check_room

    try:
        await check_room(engine.cold.database)
    except WeftError as error:
        return error.message
    return ""


async def count_starts(engine: Engine) -> int:
    """Counts runs that stand in this engine's database, and that nobody has set out to start for a minute."""
    from weft.archive.starts import Starts

    table, n = Starts(engine.cold.database, engine.ns.keys.namespace), 0
    for p in range(engine.ns.partitions):
        before_ms = (await read_home(engine.ns, p)).clock_ms - UNSTARTED_MS
        n += await table.count_lying(p, before_ms)
    return n


async def count_outside(engine: Engine, lag: Lag) -> int:
    """Counts runs under way that the archive has not from their first event on, and will not have: they began before it did."""
    n = 0
    for p in range(engine.ns.partitions):
        # What is younger may just not have come there yet.
        before_ms = (
            (await read_home(engine.ns, p)).now_ms - UNSTARTED_MS - int(1000 * (lag.seconds + lag.index_seconds))
        )
        cursor, looked = 0, 0
        while True:
            cursor, found = await scan_runs(engine.ns, p, cursor)
            ids = [run for run in found if "/" not in run]
            rows = await read_runs(engine.ns, p, ids) if ids else []
            old = [row.id for row in rows if row is not None and row.open and row.number("born", 0) < before_ms]
            n += len(set(old) - await engine.cold.reader.whole(old))
            looked += len(ids)
            if not cursor or looked >= LOOKED_AT:
                break
    return n


async def retire(engine: Engine) -> int:
    """Forgets that the logs are archived: they are trimmed by age from here on, until somebody archives them again."""
    await engine.open()
    return sum([await forget_mark(engine.ns, p) for p in range(engine.ns.partitions)])


async def migrate_database(cold: Cold, *, apply: bool) -> tuple[str, str, str]:
    """Returns the schema that the database has, the one it is to have, and the one it has after; empty: none."""
    await load_archive("schema")
    from weft.archive.schema import check, migrate, read_schema

    database = cold.database
    found = check(database, await read_schema(database))
    after = (await migrate(database))[1] if apply else found
    return found.current, found.head, after.current
