"""What a rebuilt store is made of: the turn to rebuild it, unfinished runs, records of calls, and what operators had set."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import ColumnElement, func, or_, select, update

from weft.archive import bulk, schedules
from weft.archive.database import Database
from weft.archive.reader import ColdRun, as_cold
from weft.archive.rows import read_replays
from weft.archive.tables import blobs, checkpoints, labels, runs, settings, steps
from weft.archive.writer import read_identity
from weft.core.fold import ENDINGS, OPEN, PARENT

#: Runs read at once.
PAGE = 500
#: How many times as long as it is taken for a turn may seem to last.
FAR_AHEAD = 4


@dataclass(frozen=True, slots=True)
class Home:
    """What the archive knows of a partition: up to where its log is archived, its epoch, and whether it is being rebuilt."""

    entry: str
    epoch: int
    #: The epoch it is being rebuilt under; 0: it is not.
    recovering: int
    #: Blocks that are kept and not indexed.
    behind: int


async def read_partitions(database: Database, namespace: str) -> set[int]:
    """Returns the partitions of a namespace that were archived."""
    async with database.reading() as connection:
        found = await connection.execute(select(checkpoints.c.partition).where(checkpoints.c.namespace == namespace))
        return {int(p) for (p,) in found}


class Recovery:
    """The archive of one partition, for whoever rebuilds it."""

    def __init__(self, database: Database, namespace: str, p: int) -> None:
        self._database, self._namespace, self._p = database, namespace, p
        self._row = (checkpoints.c.namespace == namespace, checkpoints.c.partition == p)

    async def identity(self) -> str:
        """Returns the id that the database got when it was made."""
        return await read_identity(self._database)

    async def partitions(self) -> set[int]:
        """Returns the partitions of the namespace that were archived."""
        return await read_partitions(self._database, self._namespace)

    async def home(self) -> Home | None:
        """Returns what is known of the partition; None when it was never archived."""
        behind = checkpoints.c.block - checkpoints.c.indexed_block
        query = select(checkpoints.c.entry, checkpoints.c.epoch, checkpoints.c.recovering, behind).where(*self._row)
        async with self._database.reading() as connection:
            row = (await connection.execute(query)).first()
        return None if row is None else Home(str(row[0]), *map(int, row[1:]))

    async def note_epoch(self, epoch: int) -> None:
        """Notes at which epoch the partition is. One that is being rebuilt is left alone."""
        async with self._database.writing() as connection:
            known = (*self._row, checkpoints.c.recovering == 0, checkpoints.c.epoch < epoch)
            await connection.execute(update(checkpoints).where(*known).values(epoch=epoch))

    async def take(self, holder: str, *, at_least: int, now_ms: int, lease_ms: int) -> int:
        """Takes the turn to rebuild the partition; returns the epoch to do that under, 0 while it is another's turn.

        Who takes over from one that died goes on under the same epoch. A turn that ends far ahead was taken by a clock that
        was set back since: nobody would live to see its end.
        """
        async with self._database.writing() as connection:
            over = or_(checkpoints.c.until_ms < now_ms, checkpoints.c.until_ms > now_ms + FAR_AHEAD * lease_ms)
            free = or_(over, checkpoints.c.holder == holder)
            taken = await connection.execute(
                update(checkpoints).where(*self._row, free).values(holder=holder, until_ms=now_ms + lease_ms)
            )
            if taken.rowcount != 1:
                return 0
            query = select(checkpoints.c.recovering).where(*self._row)
            number = max(int((await connection.execute(query)).scalar_one()), at_least)
            await connection.execute(update(checkpoints).where(*self._row).values(recovering=number))
        return number

    async def renew(self, holder: str, *, now_ms: int, lease_ms: int) -> bool:
        """Keeps the turn; returns False when it is another's by now."""
        async with self._database.writing() as connection:
            kept = await connection.execute(
                update(checkpoints).where(*self._row, checkpoints.c.holder == holder).values(until_ms=now_ms + lease_ms)
            )
        return kept.rowcount == 1

    async def finish(self, number: int) -> None:
        """Notes that the partition was rebuilt."""
        async with self._database.writing() as connection:
            await connection.execute(
                update(checkpoints)
                .where(*self._row, checkpoints.c.recovering == number)
                .values(epoch=number, recovering=0, holder="", until_ms=0)
            )

    async def unfinished(self) -> AsyncIterator[list[ColdRun]]:
        """Yields runs that have not ended, oldest first, those with gaps too."""
        async for page in self._pages(runs.c.status.in_(OPEN)):
            yield page

    async def claiming(self, now_ms: int) -> AsyncIterator[list[ColdRun]]:
        """Yields ended runs whose records still stand."""
        async for page in self._pages(runs.c.claims_ms > now_ms, runs.c.status.in_(ENDINGS)):
            yield page

    async def awaited(self) -> AsyncIterator[list[ColdRun]]:
        """Yields ended children of workflow runs that are open in other partitions."""
        elsewhere = runs.c.id.not_like(f"r{self._p}-%")
        parents = select(runs.c.id).where(runs.c.namespace == self._namespace, runs.c.status.in_(OPEN), elsewhere)
        mine = (labels.c.namespace == self._namespace, labels.c.name == PARENT, labels.c.run.like(f"r{self._p}-%"))
        children = select(labels.c.run).where(*mine, labels.c.value.in_(parents))
        ended = (runs.c.kind == "workflow", runs.c.status.in_(ENDINGS), runs.c.gap == 0)
        async for page in self._pages(*ended, runs.c.id.in_(children)):
            yield page

    async def letters(self, since_ms: int) -> AsyncIterator[list[ColdRun]]:
        """Yields tasks and workflows that failed for good since a moment."""
        failed = (runs.c.status == "failed", runs.c.kind != "graph", runs.c.ended_ms > since_ms, runs.c.gap == 0)
        async for page in self._pages(*failed):
            yield page

    async def replays(self, ids: Sequence[str]) -> dict[str, str]:
        """Returns as which runs dead letters were replayed, also those that were replayed out of the archive."""
        return await read_replays(self._database, self._namespace, ids)

    async def failing(self, since_ms: int) -> AsyncIterator[list[ColdRun]]:
        """Yields graph runs with steps that failed since a moment, however the runs stand."""
        failed = select(steps.c.run).where(steps.c.status == "failed", steps.c.ended_ms > since_ms)
        async for page in self._pages(runs.c.kind == "graph", runs.c.gap == 0, runs.c.id.in_(failed)):
            yield page

    async def mark_gaps(self, seen: Mapping[str, int]) -> int:
        """Marks unfinished runs whose last archived event is still the one given; returns how many there were."""
        marked, ids = 0, list(seen)
        async with self._database.writing() as connection:
            for at in range(0, len(ids), PAGE):
                some = ids[at : at + PAGE]
                mine = (runs.c.namespace == self._namespace, runs.c.born.in_([id.partition("-")[2] for id in some]))
                query = select(runs.c.id, runs.c.seq).where(*mine, runs.c.status.in_(OPEN), runs.c.gap == 0)
                torn = [id for id, seq in await connection.execute(query) if seen.get(id) == seq]
                await connection.execute(update(runs).where(*mine, runs.c.id.in_(torn)).values(gap=1))
                marked += len(torn)
        return marked

    async def count(self) -> dict[str, int]:
        """Counts unfinished runs: `task`, `graph`, `workflow`, and `gap` for those that nobody can tell how they stand."""
        kind = (runs.c.gap, runs.c.kind)
        query = select(*kind, func.count()).where(*self._mine(), runs.c.status.in_(OPEN)).group_by(*kind)
        found = {"task": 0, "graph": 0, "workflow": 0, "gap": 0}
        async with self._database.reading() as connection:
            for gap, name, n in await connection.execute(query):
                found["gap" if gap else name] += n
        return found

    async def known(self, ids: Sequence[str]) -> set[str]:
        """Returns which of these runs are archived, however they stand."""
        born = [id.partition("-")[2] for id in ids]
        query = select(runs.c.id).where(runs.c.namespace == self._namespace, runs.c.born.in_(born))
        async with self._database.reading() as connection:
            return set((await connection.execute(query)).scalars()) & set(ids) if ids else set()

    async def blob(self, digest: str) -> bytes | None:
        """Returns a value by its digest, or None."""
        async with self._database.reading() as connection:
            data = (await connection.execute(select(blobs.c.data).where(blobs.c.digest == digest))).scalar()
        return None if data is None else bytes(data)

    async def read_settings(self) -> dict[tuple[str, str], bytes]:
        """Returns what operators had set, by kind and name."""
        mine = (settings.c.namespace == self._namespace, settings.c.partition == self._p)
        async with self._database.reading() as connection:
            rows = await connection.execute(select(settings.c.kind, settings.c.name, settings.c.data).where(*mine))
            return {(kind, name): bytes(data) for kind, name, data in rows}

    async def write_settings(self, changed: Mapping[tuple[str, str], bytes], gone: Sequence[tuple[str, str]]) -> None:
        """Keeps what operators set, as far as it changed."""
        mine = (settings.c.namespace == self._namespace, settings.c.partition == self._p)
        async with self._database.writing() as connection:
            for kind, name in gone:
                await connection.execute(
                    settings.delete().where(*mine, settings.c.kind == kind, settings.c.name == name)
                )
            rows = [(self._namespace, self._p, kind, name, data) for (kind, name), data in changed.items()]
            if rows:
                await bulk.insert(connection, settings, rows, update=True)

    async def read_schedules(self) -> dict[str, dict[str, bytes]]:
        """Returns the schedules that were not deleted, as the store had them."""
        return {one.name: one.fields for one in await schedules.read(self._database, self._namespace, p=self._p)}

    async def write_schedules(
        self, changed: Mapping[str, Mapping[str, bytes]], gone: Sequence[str], *, now_ms: int
    ) -> None:
        """Keeps schedules as a look found them, as far as they changed."""
        await schedules.keep(self._database, self._namespace, self._p, changed, gone, now_ms)

    def _mine(self) -> tuple[ColumnElement[bool], ...]:
        return runs.c.namespace == self._namespace, runs.c.id.like(f"r{self._p}-%")

    async def _pages(self, *wanted: ColumnElement[bool]) -> AsyncIterator[list[ColdRun]]:
        after = ""
        while True:
            query = select(runs).where(*self._mine(), *wanted, runs.c.born > after).order_by(runs.c.born).limit(PAGE)
            async with self._database.reading() as connection:
                page = [as_cold(row) for row in await connection.execute(query)]
            if page:
                yield page
            if len(page) < PAGE:
                return
            after = page[-1].state.id.partition("-")[2]
