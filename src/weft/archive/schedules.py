"""Schedules in the database: a row each, of those that were deleted too."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec
from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncConnection

from weft.archive import bulk
from weft.archive.database import Database
from weft.archive.tables import schedules
from weft.core.acts import clean
from weft.core.scheduled import SPEC_DECODER, ScheduleAct, Scheduled, apply, see, status_of

#: Rows read by name at once.
PAGE = 500

_pack = msgspec.msgpack.Encoder(order="sorted").encode
_unpack = msgspec.msgpack.Decoder(dict[str, bytes]).decode


async def tell_acts(connection: AsyncConnection, namespace: str, p: int, acts: Sequence[ScheduleAct]) -> None:
    """Stores what people did to schedules, within a transaction."""
    known = await _read(connection, namespace, sorted({act.name for act in acts}))
    for act in acts:
        known[act.name] = apply(known.get(act.name), act)
    await _write(connection, namespace, p, known.values())


async def keep(
    database: Database,
    namespace: str,
    p: int,
    seen: Mapping[str, Mapping[str, bytes]],
    gone: Sequence[str],
    now_ms: int,
) -> None:
    """Stores schedules as a look at the store found them, and which of them it no longer has."""
    async with database.writing() as connection:
        known = await _read(connection, namespace, sorted(seen))
        found = [see(known.get(name), name, dict(fields), now_ms) for name, fields in seen.items()]
        await _write(connection, namespace, p, found)
        mine = (schedules.c.namespace == namespace, schedules.c.partition == p, schedules.c.deleted_ms == 0)
        for name in gone:
            # What was told of it later is newer than the look.
            old = (schedules.c.name == name, schedules.c.changed_ms < now_ms)
            await connection.execute(
                schedules.update().where(*mine, *old).values(status="deleted", deleted_ms=now_ms, next_ms=0)
            )


async def read(
    database: Database, namespace: str, *, p: int | None = None, deleted: bool = False, name: str | None = None
) -> list[Scheduled]:
    """Returns schedules by name: of one partition or of all, with those that were deleted or without."""
    query = select(schedules).where(schedules.c.namespace == namespace).order_by(schedules.c.name)
    if p is not None:
        query = query.where(schedules.c.partition == p)
    if not deleted:
        query = query.where(schedules.c.deleted_ms == 0)
    if name is not None:
        query = query.where(schedules.c.name == name)
    async with database.reading() as connection:
        return [_scheduled(row) for row in await connection.execute(query)]


async def _read(connection: AsyncConnection, namespace: str, names: Sequence[str]) -> dict[str, Scheduled]:
    found: dict[str, Scheduled] = {}
    for at in range(0, len(names), PAGE):
        some = schedules.c.name.in_(names[at : at + PAGE])
        rows = await connection.execute(select(schedules).where(schedules.c.namespace == namespace, some))
        found |= {row.name: _scheduled(row) for row in rows}
    return found


async def _write(connection: AsyncConnection, namespace: str, p: int, found: Iterable[Scheduled]) -> None:
    rows = [_row(namespace, p, one) for one in found]
    if rows:
        await bulk.insert(connection, schedules, rows, update=True)


def _scheduled(row: Any) -> Scheduled:
    told = (int(row.changed_ms), row.changed_by, int(row.deleted_ms), row.deleted_by, int(row.seen_ms))
    return Scheduled(row.name, _unpack(bytes(row.fields)), *told)


def _row(namespace: str, p: int, one: Scheduled) -> tuple[Any, ...]:
    try:
        spec = SPEC_DECODER.decode(one.fields.get("spec", b""))
        said = (spec.expr, spec.tz, spec.run.name, spec.declared_by)
    except msgspec.MsgspecError:
        # Something else wrote its key: it is kept as it is.
        said = ("", "", "", "")
    return (
        namespace,
        one.name,
        p,
        status_of(one),
        *map(clean, said),
        one.number("born"),
        one.number("next") if status_of(one) == "active" else 0,
        one.number("last"),
        _text(one, "run"),
        one.number("paused_at"),
        _text(one, "paused_by"),
        one.changed_ms,
        one.changed_by,
        one.deleted_ms,
        one.deleted_by,
        one.seen_ms,
        _pack(one.fields),
    )


def _text(one: Scheduled, name: str) -> str:
    return clean(one.fields.get(name, b"").decode("utf-8", "replace"))
