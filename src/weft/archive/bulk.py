"""Bulk statements: many rows in one.

One statement with many rows, not one row many times: the driver of SQLite lets go of Python's lock once per row it
steps over, and beside a busy event loop it waits up to 5 ms to get it back, each time.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import chain
from typing import Any

from sqlalchemy import LargeBinary, Table
from sqlalchemy.ext.asyncio import AsyncConnection

#: Placeholders of one statement at most: both databases take some 32,000.
PLACEHOLDERS = 16_000


async def insert(connection: AsyncConnection, table: Table, rows: Sequence[Sequence[Any]], *, update: bool) -> None:
    """Inserts rows, a column's worth of values each; a row whose key is there is left alone, or updated.

    Bytes that are empty do not replace those that are there: what a run was asked is told once.
    """
    sqlite = connection.dialect.name == "sqlite"
    width = len(table.columns)
    at = 0
    while at < len(rows):
        # Sizes are powers of two, so that the few statements there are stay prepared.
        n = min(1 << (len(rows) - at).bit_length() - 1, 1 << (PLACEHOLDERS // width).bit_length() - 1)
        values = tuple(chain.from_iterable(rows[at : at + n]))
        await connection.exec_driver_sql(_statement(table, n, update, sqlite), values)
        at += n


def marks(n: int, *, sqlite: bool, start: int = 1) -> str:
    """Returns n placeholders in the form a driver wants."""
    return ",".join("?" for _ in range(n)) if sqlite else ",".join(f"${start + i}" for i in range(n))


@lru_cache(maxsize=256)
def _statement(table: Table, n: int, update: bool, sqlite: bool) -> str:
    names = [column.name for column in table.columns]
    width = len(names)
    rows = ",".join(f"({marks(width, sqlite=sqlite, start=1 + row * width)})" for row in range(n))
    keys = [column.name for column in table.primary_key]
    what = "NOTHING"
    if update:
        what = "UPDATE SET " + ", ".join(_set(table, name) for name in names if name not in keys)
    columns, conflict = ", ".join(f'"{name}"' for name in names), ", ".join(f'"{name}"' for name in keys)
    return f"INSERT INTO {table.name} ({columns}) VALUES {rows} ON CONFLICT ({conflict}) DO {what}"


def _set(table: Table, name: str) -> str:
    if not isinstance(table.columns[name].type, LargeBinary):
        return f'"{name}"=excluded."{name}"'
    # An empty one has the length 0 in both databases, whatever their literals look like.
    kept = f'{table.name}."{name}"'
    return f'"{name}"=CASE WHEN length(excluded."{name}")=0 THEN {kept} ELSE excluded."{name}" END'
