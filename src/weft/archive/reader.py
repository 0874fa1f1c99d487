"""Reading: runs, their events and their values, as the archive has them. Reads only; makes no database and no schema."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, Row, Select, func, select

from weft.archive.blocks import events_of
from weft.archive.database import Database
from weft.archive.schema import check, read_schema
from weft.archive.tables import blobs, blocks, checkpoints, gaps, places, runs, starts, tags
from weft.core.fold import ENDINGS, Logged, RunState
from weft.core.history import read_history
from weft.core.model import SPEC_DECODER, RunSpec
from weft.errors import ArchiveUnavailable
from weft.ids import partition_of

#: Blocks that are read at once.
AT_ONCE = 50


@dataclass(slots=True)
class ColdRun:
    """A run as the archive has it. `spec` is None when the event that had it was lost."""

    state: RunState
    spec: RunSpec | None
    #: Its result or its error, packed; while it is open the error of the attempt before, if there was one.
    value: bytes | None


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which runs a listing wants. Only finished ones: how the others stand, the hot store knows better."""

    status: str | None = None
    name: str | None = None
    tag: tuple[str, str] | None = None
    queue: str | None = None
    #: Only runs older than this one, by the part of its id that is in order of time.
    before: str = ""


class Reader:
    """Reads one namespace of a database."""

    def __init__(self, database: Database, namespace: str) -> None:
        self._database, self._namespace = database, namespace
        self._ready = False

    async def ready(self) -> bool:
        """Tells whether there is an archive to read. Raises when there should be one and it does not serve."""
        if not self._ready:
            found = check(self._database, await read_schema(self._database))
            if not found.current:
                return False
            if not found.is_current:
                raise ArchiveUnavailable(
                    f"the cold store {self._database.address.shown} has schema {found.current}, older than {found.head}:"
                    " apply what is missing by `weft migrate`, or start a worker, which does"
                )
            self._ready = True
        return True

    async def run(self, id: str) -> ColdRun | None:
        """Returns a run, or None when the archive has none of that id."""
        found = await self._runs(select(runs).where(*self._row_of(id)))
        return found[0] if found else None

    async def is_to_start(self, run: str) -> bool:
        """Tells whether a run was committed before it was started, and is not archived yet."""
        mine = (starts.c.namespace == self._namespace, starts.c.partition == partition_of(run), starts.c.run == run)
        async with self._database.reading() as connection:
            return (await connection.execute(select(starts.c.run).where(*mine))).first() is not None

    async def listed(self, wanted: Wanted, *, limit: int) -> list[ColdRun]:
        """Returns finished runs, newest first."""
        query = select(runs).where(runs.c.namespace == self._namespace)
        query = query.where(runs.c.status.in_(ENDINGS) if wanted.status is None else runs.c.status == wanted.status)
        query = query.where(runs.c.status.in_(ENDINGS))
        if wanted.name is not None:
            query = query.where(runs.c.name == wanted.name)
        if wanted.queue is not None:
            query = query.where(runs.c.queue == wanted.queue)
        if wanted.before:
            query = query.where(runs.c.born < wanted.before)
        if wanted.tag is not None:
            tagged = select(tags.c.run).where(tags.c.name == wanted.tag[0], tags.c.value == wanted.tag[1])
            query = query.where(runs.c.id.in_(tagged))
        return await self._runs(query.order_by(runs.c.born.desc()).limit(limit))

    async def events(self, id: str, *, after: int = 0) -> list[Logged]:
        """Returns the events of a run with seq > after, in order."""
        own = [event for event in await self.all_events(id) if event.run == id]
        return [event for event in read_history(id, own).events if event.seq > after]

    async def all_events(self, id: str) -> list[Logged]:
        """Returns the events of a run and of its steps as the log had them."""
        if not await self.ready():
            return []
        async with self._database.reading() as connection:
            newest = (await connection.execute(select(runs.c.blocks).where(*self._row_of(id)))).scalar()
            if newest is None:
                return []
            earlier = await connection.execute(
                select(places.c.blocks).where(places.c.run == id).order_by(places.c.upto)
            )
            numbers = [int(number) for text in [*earlier.scalars(), newest] for number in str(text).split()]
            found: list[Logged] = []
            for at in range(0, len(numbers), AT_ONCE):
                query = select(blocks.c.data).where(
                    blocks.c.namespace == self._namespace,
                    blocks.c.partition == partition_of(id),
                    blocks.c.number.in_(numbers[at : at + AT_ONCE]),
                )
                data = (await connection.execute(query.order_by(blocks.c.number))).scalars().all()
                found += await asyncio.to_thread(events_of, [bytes(each) for each in data], id)
        return found

    async def blob(self, digest: str) -> bytes | None:
        """Returns a value by its digest, or None."""
        if not await self.ready():
            return None
        async with self._database.reading() as connection:
            data = (await connection.execute(select(blobs.c.data).where(blobs.c.digest == digest))).scalar()
        return None if data is None else bytes(data)

    async def checkpoint(self, p: int) -> str:
        """Returns the log entry up to which a partition is archived, or nothing."""
        if not await self.ready():
            return ""
        query = select(checkpoints.c.entry).where(
            checkpoints.c.namespace == self._namespace, checkpoints.c.partition == p
        )
        async with self._database.reading() as connection:
            return str((await connection.execute(query)).scalar() or "")

    async def count_gaps(self) -> int:
        """Returns how many pieces could not be stored as they were."""
        if not await self.ready():
            return 0
        query = select(func.count()).select_from(gaps).where(gaps.c.namespace == self._namespace)
        async with self._database.reading() as connection:
            return int((await connection.execute(query)).scalar() or 0)

    def _row_of(self, id: str) -> tuple[ColumnElement[bool], ...]:
        return runs.c.namespace == self._namespace, runs.c.born == id.partition("-")[2], runs.c.id == id

    async def _runs(self, query: Select[tuple[object, ...]]) -> list[ColdRun]:
        if not await self.ready():
            return []
        async with self._database.reading() as connection:
            return [as_cold(row) for row in await connection.execute(query)]


def as_cold(row: Row[Any]) -> ColdRun:
    """Returns the run that a row tells of."""
    _, _, *columns, rest, spec, value = tuple(row)
    state = RunState.restore(columns, *map(bytes, (rest, spec, value)))
    return ColdRun(state, SPEC_DECODER.decode(state.spec) if state.spec else None, state.value or None)
