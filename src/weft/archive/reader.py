"""Reading: runs, their events and their values, as the archive has them. Reads only; makes no database and no schema."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Row, Select, and_, func, select
from sqlalchemy.ext.asyncio import AsyncConnection

from weft.archive.database import Database
from weft.archive.schema import check, read_schema
from weft.archive.tables import blobs, checkpoints, events, gaps, runs, tags
from weft.core.fold import ENDINGS, Logged, RunState
from weft.core.model import SPEC_DECODER, RunSpec
from weft.errors import ArchiveUnavailable


@dataclass(slots=True)
class ColdRun:
    """A run as the archive has it. `spec` is None when the event that had it was lost, `value` while it is open."""

    state: RunState
    spec: RunSpec | None
    #: Its result or its error, packed.
    value: bytes | None
    #: The error of the attempt before, while it is open.
    error: bytes | None = None


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
        found = await self._runs(_with_values().where(runs.c.id == id, runs.c.namespace == self._namespace))
        return found[0] if found else None

    async def listed(self, wanted: Wanted, *, limit: int) -> list[ColdRun]:
        """Returns finished runs, newest first."""
        query = _with_values().where(runs.c.namespace == self._namespace)
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

    async def events(self, id: str, *, after: int = 0) -> Sequence[Logged]:
        """Returns the events of a run, in order."""
        if not await self.ready():
            return []
        query = select(events).where(events.c.run == id, events.c.seq > after)
        async with self._database.reading() as connection:
            return [_event(row) for row in await connection.execute(query.order_by(events.c.seq, events.c.entry))]

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

    async def _runs(self, query: Select[tuple[object, ...]]) -> list[ColdRun]:
        if not await self.ready():
            return []
        async with self._database.reading() as connection:
            found = [_cold(row) for row in await connection.execute(query)]
            for run in found:
                if run.value is None and run.state.attempt > 1:
                    run.error = await _last_error(connection, run.state.id)
        return found


_spec_event = events.alias("spec_event")
_end_event = events.alias("end_event")


def _with_values() -> Select[tuple[object, ...]]:
    """Selects runs with the payloads that say what they were asked and what they gave."""
    return select(runs, _spec_event.c.payload.label("spec"), _end_event.c.payload.label("value")).select_from(
        runs.outerjoin(
            _spec_event, and_(_spec_event.c.run == runs.c.id, _spec_event.c.seq == runs.c.spec_seq)
        ).outerjoin(
            _end_event,
            and_(_end_event.c.run == runs.c.id, _end_event.c.seq == runs.c.seq, _end_event.c.type.in_(ENDINGS)),
        )
    )


async def _last_error(connection: AsyncConnection, id: str) -> bytes | None:
    query = select(events.c.payload).where(events.c.run == id, events.c.type == "retrying")
    data = (await connection.execute(query.order_by(events.c.seq.desc()).limit(1))).scalar()
    return None if data is None else bytes(data)


def _cold(row: Row[tuple[object, ...]]) -> ColdRun:
    values = dict(row._mapping)
    spec, value = values.pop("spec"), values.pop("value")
    del values["namespace"], values["born"]
    return ColdRun(
        RunState(**values), None if spec is None else SPEC_DECODER.decode(spec), None if value is None else bytes(value)
    )


def _event(row: Row[Any]) -> Logged:
    values: Any = row
    run, seq, entry, kind, at_ms, by, facts, payload = values
    return Logged(run, seq, entry, kind, at_ms, by, facts, bytes(payload))
