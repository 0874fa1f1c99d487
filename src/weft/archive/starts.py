"""Starts in the database: written before the store is told, dropped when the archive has their runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Row, delete, select, update
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncConnection

from weft.archive.database import Database
from weft.archive.tables import runs, starts
from weft.archive.writer import born_of
from weft.core.starts import Start
from weft.ids import partition_of

#: Rows of one statement.
ROWS = 500


class Starts:
    """The starts of one namespace."""

    def __init__(self, database: Database, namespace: str) -> None:
        self._database, self._namespace = database, namespace
        self._mine = starts.c.namespace == namespace

    async def write(self, asked: Sequence[Start], now_ms: int) -> list[Start]:
        """Stores starts, all or none; returns those that stand: for a claim that another one has, that one."""
        # In one order, whoever writes: two that meet at two claims would wait for each other for ever.
        rows = sorted(asked, key=lambda start: (start.claim, start.run))
        claims = sorted({start.claim for start in rows if start.claim})
        async with self._database.writing() as connection:
            for at in range(0, len(claims), ROWS):
                over = (starts.c.claim.in_(claims[at : at + ROWS]), starts.c.claim_ms <= now_ms)
                await connection.execute(update(starts).where(self._mine, *over).values(claim=""))
            held: dict[str, Start] = {}
            # A row with the same claim may be dropped between the two statements: then the claim is free.
            while not held or not held.keys() >= set(claims):
                for at in range(0, len(rows), ROWS):
                    await self._insert(connection, rows[at : at + ROWS])
                held = await self._held(connection, claims)
                if not claims:
                    break
            others = [start.run for start in held.values() if start.run not in {one.run for one in asked}]
            for at in range(0, len(others), ROWS):
                again = update(starts).where(self._mine, starts.c.run.in_(others[at : at + ROWS]))
                await connection.execute(again.values(tried_ms=now_ms))
        return [held[start.claim] if start.claim else start for start in asked]

    async def stands(self, run: str) -> str:
        """Tells where a run stands safely: `start` as one of these, `archive`, or nowhere."""
        where = (self._mine, starts.c.partition == partition_of(run), starts.c.run == run)
        async with self._database.reading() as connection:
            if (await connection.execute(select(starts.c.run).where(*where))).first() is not None:
                return "start"
        return "archive" if await self.archived([run]) else ""

    async def page(self, p: int, after: str, limit: int) -> list[tuple[str, int]]:
        """Returns runs of a partition, in order, with the moment when somebody last set out to start each."""
        where = (self._mine, starts.c.partition == p, starts.c.run > after)
        query = select(starts.c.run, starts.c.tried_ms).where(*where).order_by(starts.c.run).limit(limit)
        async with self._database.reading() as connection:
            return [(str(run), int(tried_ms)) for run, tried_ms in await connection.execute(query)]

    async def read(self, p: int, ids: Sequence[str]) -> list[Start]:
        """Returns starts by the ids of their runs; those that are gone are left out."""
        query = select(starts).where(self._mine, starts.c.partition == p, starts.c.run.in_(ids))
        async with self._database.reading() as connection:
            return [_start(row) for row in await connection.execute(query)]

    async def archived(self, ids: Sequence[str]) -> set[str]:
        """Returns those runs that the archive has."""
        found: set[str] = set()
        async with self._database.reading() as connection:
            for at in range(0, len(ids), ROWS):
                born = [born_of(id) for id in ids[at : at + ROWS]]
                query = select(runs.c.id).where(runs.c.namespace == self._namespace, runs.c.born.in_(born))
                found |= {str(id) for (id,) in await connection.execute(query)}
        return found & set(ids)

    async def drop(self, ids: Sequence[str]) -> None:
        """Forgets starts."""
        async with self._database.writing() as connection:
            for at in range(0, len(ids), ROWS):
                some = ids[at : at + ROWS]
                homes = sorted({partition_of(id) for id in some})
                where = (self._mine, starts.c.partition.in_(homes), starts.c.run.in_(some))
                await connection.execute(delete(starts).where(*where))

    async def release(self, run: str) -> None:
        """Takes the claim from a start: calls like it make a run of their own."""
        where = (self._mine, starts.c.partition == partition_of(run), starts.c.run == run)
        async with self._database.writing() as connection:
            await connection.execute(update(starts).where(*where).values(claim=""))

    async def count_lying(self, p: int, before_ms: int) -> int:
        """Counts starts of a partition that nobody has set out to start since a moment, and that the archive does not have."""
        after, n = "", 0
        while page := await self.page(p, after, ROWS):
            after = page[-1][0]
            old = [run for run, tried_ms in page if tried_ms < before_ms]
            n += len(old) - len(await self.archived(old))
        return n

    async def _insert(self, connection: AsyncConnection, rows: Sequence[Start]) -> None:
        values = [{"namespace": self._namespace, **_values(start)} for start in rows]
        insert = sqlite.insert if self._database.is_sqlite else postgresql.insert
        await connection.execute(insert(starts).values(values).on_conflict_do_nothing())

    async def _held(self, connection: AsyncConnection, claims: Sequence[str]) -> dict[str, Start]:
        held: dict[str, Start] = {}
        for at in range(0, len(claims), ROWS):
            query = select(starts).where(self._mine, starts.c.claim.in_(claims[at : at + ROWS]))
            for row in await connection.execute(query):
                held[row.claim] = _start(row)
        return held


_FIELDS = Start.__struct_fields__


def _values(start: Start) -> dict[str, Any]:
    return {name: getattr(start, name) for name in _FIELDS}


def _start(row: Row[Any]) -> Start:
    values = {name: getattr(row, name) for name in _FIELDS}
    for name in ("spec", "input", "more"):
        values[name] = bytes(values[name])
    return Start(**values)
