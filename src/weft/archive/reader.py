"""Reading: runs, their events and their values, as the archive has them. Reads only; makes no database and no schema."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import ColumnElement, Row, Select, func, select
from sqlalchemy.ext.asyncio import AsyncConnection

from weft.archive.blocks import events_of, events_of_many
from weft.archive.database import Database
from weft.archive.schema import check, read_schema
from weft.archive.tables import blobs, blocks, checkpoints, gaps, letters, places, runs, starts
from weft.archive.wanted import Wanted, among_query, count_query, page_queries
from weft.core.fold import Logged, RunState
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
        """Returns runs that are wanted, newest first."""
        if not await self.ready():
            return []
        async with self._database.reading() as connection:
            return await self._page(connection, wanted, limit)

    async def counted(
        self, wanted: Wanted, by: str, *, without: Collection[str], admits: Callable[[ColdRun], Awaitable[bool]]
    ) -> dict[str, int]:
        """Counts finished runs by one of their columns, `without` those, and those that are not admitted after all.

        All by one moment: what is archived meanwhile must not be taken off that was not counted.
        """
        if not await self.ready():
            return {}
        async with self._database.snapshot() as connection:
            query = count_query(self._namespace, wanted, by, sqlite=self._database.is_sqlite)
            counts = {str(value): int(n) for value, n in await connection.execute(query)}
            async for page in self._doubts(connection, wanted, without):
                for run in page:
                    if run.state.id in without or not await admits(run):
                        counts[getattr(run.state, by)] -= 1
        return counts

    async def _doubts(
        self, connection: AsyncConnection, wanted: Wanted, without: Collection[str]
    ) -> AsyncIterator[list[ColdRun]]:
        """Yields those of the runs that a count counts, once each, that it may not be about."""
        purged = select(letters.c.run).where(letters.c.namespace == self._namespace, letters.c.purged_ms > 0)
        ids = sorted({*without, *(await connection.execute(purged)).scalars()})
        for at in range(0, len(ids), AT_ONCE * 10):
            some = ids[at : at + AT_ONCE * 10]
            query = among_query(self._namespace, wanted, some, sqlite=self._database.is_sqlite)
            yield [as_cold(row) for row in await connection.execute(query)]
        told, page = set(ids), list[ColdRun]()
        doubtful = replace(wanted, doubtful=True)
        while wanted.leaves_doubts and (not page or len(page) == AT_ONCE * 10):
            page = await self._page(connection, doubtful, AT_ONCE * 10)
            if not page:
                return
            doubtful = replace(doubtful, before=page[-1].state.id.partition("-")[2])
            yield [run for run in page if run.state.id not in told]

    async def _page(self, connection: AsyncConnection, wanted: Wanted, limit: int) -> list[ColdRun]:
        found: dict[str, ColdRun] = {}
        for query in page_queries(self._namespace, wanted, limit, sqlite=self._database.is_sqlite):
            found |= {run.state.id: run for run in map(as_cold, await connection.execute(query))}
        return sorted(found.values(), key=lambda run: run.state.id.partition("-")[2], reverse=True)[:limit]

    async def whole(self, ids: Sequence[str]) -> set[str]:
        """Returns those of some runs that are archived from their first event on."""
        found: set[str] = set()
        for at in range(0, len(ids), AT_ONCE * 10):
            some = list(ids[at : at + AT_ONCE * 10])
            born = [id.partition("-")[2] for id in some]
            mine = (runs.c.namespace == self._namespace, runs.c.born.in_(born), runs.c.id.in_(some), runs.c.gap == 0)
            async with self._database.reading() as connection:
                found |= set((await connection.execute(select(runs.c.id).where(*mine))).scalars())
        return found

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

    async def events_of_runs(self, states: Sequence[RunState]) -> dict[str, list[Logged]]:
        """Returns what `all_events` does for each of some runs of one partition, whose blocks are mostly the same."""
        ids = {state.id for state in states}
        if not ids:
            return {}
        numbers = {int(number) for state in states for number in state.blocks.split()}
        found: dict[str, list[Logged]] = {id: [] for id in ids}
        async with self._database.reading() as connection:
            earlier = (await connection.execute(select(places.c.blocks).where(places.c.run.in_(sorted(ids))))).scalars()
            numbers |= {int(number) for text in earlier for number in str(text).split()}
            mine = (blocks.c.namespace == self._namespace, blocks.c.partition == partition_of(states[0].id))
            wanted = sorted(numbers)
            for at in range(0, len(wanted), AT_ONCE):
                query = select(blocks.c.data).where(*mine, blocks.c.number.in_(wanted[at : at + AT_ONCE]))
                data = (await connection.execute(query.order_by(blocks.c.number))).scalars().all()
                told = await asyncio.to_thread(events_of_many, [bytes(each) for each in data], ids)
                for id, events in told.items():
                    found[id] += events
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
