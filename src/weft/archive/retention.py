"""Letting go of what was kept long enough: runs with all that is theirs, and what was observed of work elsewhere.

A run goes in one transaction: its row, its steps and labels, its events out of the blocks that tell of it, and the blobs that
no other run uses. Very many blocks go ahead, a bounded number at a time; whoever dies in between leaves the row, and with it
the knowledge of what is still to be done.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from sqlalchemy import ColumnElement, and_, bindparam, delete, exists, func, not_, or_, select, tuple_
from sqlalchemy.ext.asyncio import AsyncConnection

from weft.archive.blocks import without_runs
from weft.archive.database import Database
from weft.archive.reader import ColdRun, as_cold
from weft.archive.tables import (
    approvals,
    blobs,
    blocks,
    checkpoints,
    labels,
    letters,
    patches,
    places,
    runs,
    schedules,
    statuses,
    steps,
    uses,
)
from weft.archive.writer import USES_LOCK, born_of
from weft.core.fold import PURGED, labels_of
from weft.core.retention import BY_AGE, Policy, Rule
from weft.ids import partition_of, stamp_of

#: Runs looked at, and let go, at once.
PAGE = 200
#: Blocks rewritten by one transaction.
MAX_BLOCKS = 32
#: Observations dropped by one transaction.
OBSERVATIONS = 2_000


@dataclass(slots=True)
class Gone:
    """What was let go."""

    runs: list[str] = field(default_factory=list)
    blobs: int = 0


class Retention:
    """The archive of one namespace, for whoever lets go of what is in it."""

    def __init__(self, database: Database, namespace: str) -> None:
        self._database, self._namespace = database, namespace

    async def due(self, policy: Policy, now_ms: int, *, after: str = "") -> list[ColdRun]:
        """Returns a page of ended runs that are kept no longer by a policy, oldest first. `after`: those born after."""
        cutoff = policy.shortest_ms
        if cutoff is None:
            return []
        # Nothing ended before it was born; what is younger than the shortest time is not even looked at.
        query = select(runs).where(runs.c.namespace == self._namespace, runs.c.born < stamp_of(now_ms - cutoff))
        # By its end, not by its status: the rows are wanted in the order of time.
        query = query.where(runs.c.ended_ms > 0, runs.c.gap == 0, runs.c.claims_ms <= now_ms)
        query = query.where(_due(policy, now_ms))
        if after:
            query = query.where(runs.c.born > after)
        async with self._database.reading() as connection:
            return [as_cold(row) for row in await connection.execute(query.order_by(runs.c.born).limit(PAGE))]

    async def purged(self, now_ms: int, *, after: str = "") -> tuple[list[ColdRun], str]:
        """Returns some of the runs that somebody purged, and where the next page begins; nothing: this was the last.

        Those with a key that still stands are left out: without its run nobody would know of it after a loss. So are steps,
        which are a part of their run.
        """
        mine = (letters.c.namespace == self._namespace, letters.c.purged_ms > 0, letters.c.run > after)
        named = select(letters.c.run).where(*mine, letters.c.run.not_like("%/%")).order_by(letters.c.run).limit(PAGE)
        async with self._database.reading() as connection:
            ids = list((await connection.execute(named)).scalars())
            query = select(runs).where(runs.c.namespace == self._namespace, runs.c.born.in_(map(born_of, ids)))
            query = query.where(runs.c.id.in_(ids), runs.c.claims_ms <= now_ms)
            found = [as_cold(row) for row in await connection.execute(query)]
        # One that was brought back since has another end.
        return [run for run in found if run.state.keep_ms == PURGED], ids[-1] if len(ids) == PAGE else ""

    async def drop(self, found: Sequence[ColdRun]) -> Gone:
        """Lets runs go; those that went on meanwhile are left alone."""
        seen = {run.state.id: run for run in found}
        async with self._database.reading() as connection:
            places_of = await self._places(connection, seen.values())
        numbers = sorted(places_of)
        # The last transaction has the rows.
        while len(numbers) > MAX_BLOCKS:
            some, numbers = numbers[:MAX_BLOCKS], numbers[MAX_BLOCKS:]
            async with self._database.writing() as connection:
                await self._rewrite(connection, some, await self._still(connection, seen))
        async with self._database.writing() as connection:
            if not self._database.is_sqlite:
                await connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({USES_LOCK})")
            ids = await self._still(connection, seen)
            await self._rewrite(connection, numbers, ids)
            return Gone(sorted(ids), await self._drop_rows(connection, [seen[id] for id in ids]))

    async def observed(self, before_ms: int, *, apply: bool) -> int:
        """Drops what was observed of work elsewhere before a moment, a bounded number; returns how many. Only counts without
        `apply`, all of it."""
        old = (statuses.c.namespace == self._namespace, statuses.c.moment < before_ms)
        if not apply:
            async with self._database.reading() as connection:
                query = select(func.count()).select_from(statuses).where(*old)
                return int((await connection.execute(query)).scalar() or 0)
        async with self._database.writing() as connection:
            found = await connection.execute(
                select(checkpoints.c.partition).where(checkpoints.c.namespace == self._namespace)
            )
            for p in found.scalars().all():
                mine = (*old, statuses.c.partition == p)
                edge = select(statuses.c.moment).where(*mine).order_by(statuses.c.moment).limit(1).offset(OBSERVATIONS)
                until = (await connection.execute(edge)).scalar()
                n = await connection.execute(delete(statuses).where(*mine, statuses.c.moment <= (until or before_ms)))
                if n.rowcount:
                    return int(n.rowcount)
        return 0

    async def schedules(self, before_ms: int, *, apply: bool) -> int:
        """Drops schedules that were deleted before a moment; returns how many. Only counts without `apply`."""
        old = (*self._deleted, schedules.c.deleted_ms < before_ms)
        if not apply:
            async with self._database.reading() as connection:
                query = select(func.count()).select_from(schedules).where(*old)
                return int((await connection.execute(query)).scalar() or 0)
        async with self._database.writing() as connection:
            return int((await connection.execute(delete(schedules).where(*old))).rowcount)

    async def count(self, rule: Rule, earlier: Sequence[Rule]) -> tuple[int, int]:
        """Returns how many ended runs a rule is about, and when the oldest of them ended; 0: none."""
        mine = (runs.c.namespace == self._namespace, runs.c.ended_ms > 0, *_about(rule, earlier))
        async with self._database.reading() as connection:
            row = (await connection.execute(select(func.count(), func.min(runs.c.ended_ms)).where(*mine))).one()
        return int(row[0]), int(row[1] or 0)

    async def count_observed(self) -> tuple[int, int]:
        """Returns how much was observed of work elsewhere, and when the oldest was."""
        query = select(func.count(), func.min(statuses.c.moment)).where(statuses.c.namespace == self._namespace)
        async with self._database.reading() as connection:
            row = (await connection.execute(query)).one()
        return int(row[0]), int(row[1] or 0)

    async def count_schedules(self) -> tuple[int, int]:
        """Returns how many schedules were deleted, and when the first of them was."""
        query = select(func.count(), func.min(schedules.c.deleted_ms)).where(*self._deleted)
        async with self._database.reading() as connection:
            row = (await connection.execute(query)).one()
        return int(row[0]), int(row[1] or 0)

    @property
    def _deleted(self) -> tuple[ColumnElement[bool], ...]:
        return schedules.c.namespace == self._namespace, schedules.c.deleted_ms > 0

    async def _places(self, connection: AsyncConnection, found: Iterable[ColdRun]) -> set[tuple[int, int]]:
        """Returns partition and number of all blocks that tell of runs."""
        texts = {run.state.id: [run.state.blocks] for run in found}
        earlier = await connection.execute(select(places.c.run, places.c.blocks).where(places.c.run.in_(list(texts))))
        for run, text in earlier:
            texts[run].append(text)
        return {
            (partition_of(run), int(number))
            for run, parts in texts.items()
            for text in parts
            for number in text.split()
        }

    async def _still(self, connection: AsyncConnection, seen: dict[str, ColdRun]) -> set[str]:
        """Returns those that stand as they were seen."""
        born = [born_of(id) for id in seen]
        query = select(runs.c.id, runs.c.seq).where(runs.c.namespace == self._namespace, runs.c.born.in_(born))
        rows = await connection.execute(query)
        return {id for id, seq in rows if id in seen and seq == seen[id].state.seq}

    async def _rewrite(self, connection: AsyncConnection, numbers: Sequence[tuple[int, int]], ids: set[str]) -> None:
        """Takes the events of runs out of blocks; a block with nothing left goes."""
        if not numbers or not ids:
            return
        mine = (blocks.c.namespace == self._namespace, tuple_(blocks.c.partition, blocks.c.number).in_(numbers))
        rows = (await connection.execute(select(blocks.c.partition, blocks.c.number, blocks.c.data).where(*mine))).all()
        for p, number, data in rows:
            left = await asyncio.to_thread(without_runs, bytes(data), ids)
            at = (blocks.c.namespace == self._namespace, blocks.c.partition == p, blocks.c.number == number)
            if left is None:
                await connection.execute(delete(blocks).where(*at))
            elif left != data:
                await connection.execute(blocks.update().where(*at).values(data=left))

    async def _drop_rows(self, connection: AsyncConnection, found: Sequence[ColdRun]) -> int:
        ids = [run.state.id for run in found]
        if not ids:
            return 0
        # What people did stays in the audit.
        for table in (steps, places, patches, approvals, letters):
            await connection.execute(delete(table).where(table.c.run.in_(ids)))
        born = [born_of(id) for id in ids]
        await connection.execute(
            delete(runs).where(runs.c.namespace == self._namespace, runs.c.born.in_(born), runs.c.id.in_(ids))
        )
        await self._drop_labels(connection, found)
        mine = uses.c.run.in_(ids)
        digests = list((await connection.execute(select(uses.c.digest).where(mine).distinct())).scalars())
        if not digests:
            return 0
        await connection.execute(delete(uses).where(mine))
        unused = ~exists().where(uses.c.digest == blobs.c.digest)
        dropped = 0
        for at in range(0, len(digests), PAGE):
            some = blobs.c.digest.in_(digests[at : at + PAGE])
            dropped += (await connection.execute(delete(blobs).where(some, unused))).rowcount
        return dropped

    async def _drop_labels(self, connection: AsyncConnection, found: Sequence[ColdRun]) -> None:
        keys = [
            {"a": self._namespace, "b": name, "c": value, "d": born_of(id), "e": id}
            for run in found
            for id, name, value in labels_of(run.state, run.spec.tags if run.spec else {})
        ]
        if keys:
            columns = zip(labels.primary_key, "abcde", strict=True)
            await connection.execute(
                delete(labels).where(*(column == bindparam(name) for column, name in columns)), keys
            )


def _due(policy: Policy, now_ms: int) -> ColumnElement[bool]:
    """Tells which runs are kept no longer: for each rule those that it, and none before it, is about."""
    return or_(
        *(
            and_(*_about(rule, policy.rules[:i]), runs.c.ended_ms < now_ms - rule.keep_ms)
            for i, rule in enumerate(policy.rules)
            if rule.keep_ms is not None and rule.kind not in BY_AGE
        )
    )


def _about(rule: Rule, earlier: Sequence[Rule]) -> list[ColumnElement[bool]]:
    return [_fits(rule), *(not_(_fits(each)) for each in earlier if each.kind not in BY_AGE)]


def _fits(rule: Rule) -> ColumnElement[bool]:
    columns = {"kind": rule.kind, "status": rule.status, "name": rule.name}
    parts = [runs.c[name] == value for name, value in columns.items() if value]
    for name, value in rule.tags:
        label = (labels.c.namespace == runs.c.namespace, labels.c.name == name, labels.c.value == value)
        parts.append(exists().where(*label, labels.c.born == runs.c.born, labels.c.run == runs.c.id))
    return and_(*parts) if parts else runs.c.gap >= 0
