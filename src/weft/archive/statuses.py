"""Reading what was observed of tasks elsewhere, as the archive has it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Select, func, select, tuple_

from weft.archive.database import Database
from weft.archive.tables import statuses

#: Where an observation stands in the log.
Place = tuple[int, int]
#: An observation: its place, when it was told, and what (packed).
Row = tuple[Place, int, bytes]

_ORDER = (statuses.c.moment, statuses.c.number)


async def read_observations(
    database: Database, namespace: str, task: str, *, before: Place | None, limit: int
) -> list[Row]:
    """Returns what was observed of a task (by digest) before a place, the newest first."""
    query = _rows(namespace).where(statuses.c.task == task)
    if before is not None:
        query = query.where(tuple_(*_ORDER) < tuple_(*before))
    return await _read(database, query.order_by(*(column.desc() for column in _ORDER)).limit(limit))


async def read_parent(database: Database, namespace: str, task: str) -> bytes | None:
    """Returns the newest observation of a task that names its parent, packed; None when none does."""
    query = _rows(namespace).where(statuses.c.task == task, statuses.c.parent != "")
    found = await _read(database, query.order_by(*(column.desc() for column in _ORDER)).limit(1))
    return found[0][2] if found else None


async def read_children(database: Database, namespace: str, parent: str, *, limit: int) -> list[str]:
    """Returns the digests of a task's children, those that were observed first in front."""
    first = func.min(statuses.c.moment)
    query = (
        select(statuses.c.task)
        .where(statuses.c.namespace == namespace, statuses.c.parent == parent)
        .group_by(statuses.c.task)
        .order_by(first, statuses.c.task)
        .limit(limit)
    )
    async with database.reading() as connection:
        return [str(task) for task in (await connection.execute(query)).scalars()]


async def read_newest(database: Database, namespace: str, p: int, *, since_ms: int, limit: int) -> Sequence[Row]:
    """Returns the newest of what a partition's log told since a moment, the oldest of them first."""
    query = _rows(namespace).where(statuses.c.partition == p, statuses.c.moment >= since_ms)
    newest = await _read(database, query.order_by(*(column.desc() for column in _ORDER)).limit(limit))
    return newest[::-1]


async def read_feed(
    database: Database, namespace: str, p: int, *, after: Place, before: Place | None, limit: int
) -> Sequence[Row]:
    """Returns what a partition's log told between two places, the oldest first; without `before` up to its end."""
    query = _rows(namespace).where(statuses.c.partition == p, tuple_(*_ORDER) > tuple_(*after))
    if before is not None:
        query = query.where(tuple_(*_ORDER) < tuple_(*before))
    return await _read(database, query.order_by(*_ORDER).limit(limit))


def _rows(namespace: str) -> Select[Any]:
    return select(*_ORDER, statuses.c.at_ms, statuses.c.seen).where(statuses.c.namespace == namespace)


async def _read(database: Database, query: Select[Any]) -> list[Row]:
    async with database.reading() as connection:
        rows = (await connection.execute(query)).all()
    return [((int(moment), int(number)), int(at_ms), bytes(seen)) for moment, number, at_ms, seen in rows]
