"""Log lines of runs that have ended: no event tells of them, so they are kept like large values, under a name of their own."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from weft.archive import bulk
from weft.archive.database import Database
from weft.archive.tables import blobs, uses
from weft.archive.writer import USES_LOCK

_pack = msgspec.msgpack.Encoder().encode
_unpack = msgspec.msgpack.Decoder(tuple[int, list[bytes]]).decode


def lines_name(run: str) -> str:
    """Returns the name under which the lines of a run are kept. A digest has no space."""
    return f"lines {run}"


async def write_lines(database: Database, found: Mapping[str, tuple[int, list[bytes]]]) -> None:
    """Keeps the lines of runs: how many there were, and the last of them, packed. What was kept of a run before is replaced."""
    async with database.writing() as connection:
        if not database.is_sqlite:
            await connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock_shared({USES_LOCK})")
        await bulk.insert(connection, uses, [(run, lines_name(run)) for run in sorted(found)], update=False)
        rows = [(lines_name(run), _pack(lines)) for run, lines in sorted(found.items())]
        await bulk.insert(connection, blobs, rows, update=True)


def parse_lines(data: bytes) -> tuple[int, list[bytes]]:
    """Returns how many lines there were, and the last of them."""
    return _unpack(data)
