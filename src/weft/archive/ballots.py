"""Ballots in the database: written before the store is told of a vote, dropped when the archive has it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from sqlalchemy import Row, delete, func, select, tuple_
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncConnection

from weft.archive.database import Database
from weft.archive.tables import approvals, ballots
from weft.core.approvals import Vote
from weft.core.ballots import Ballot
from weft.ids import partition_of

#: Where a page begins: behind this run, step and number.
Place = tuple[str, str, int]


class Ballots:
    """The ballots of one namespace."""

    def __init__(self, database: Database, namespace: str) -> None:
        self._database, self._namespace = database, namespace
        self._mine = ballots.c.namespace == namespace

    async def write(self, ballot: Ballot) -> list[Ballot]:
        """Stores a ballot behind those of its approval; returns them in order, it is the last.

        One of the same call that stands there is not stored again: it is the last of those returned.
        """
        async with self._database.writing() as connection:
            while True:
                found = await self._of(connection, ballot.run, ballot.step)
                for i, one in enumerate(found):
                    if _call(one) == _call(ballot):
                        return found[: i + 1]
                number = found[-1].number + 1 if found else 1
                # Whoever was given the same number meanwhile is waited for, and seen then: nobody passes another unseen.
                if await self._insert(connection, msgspec.structs.replace(ballot, number=number)):
                    return [*found, msgspec.structs.replace(ballot, number=number)]

    async def page(self, p: int, after: Place, limit: int) -> list[Ballot]:
        """Returns ballots of a partition in order: those of one approval as they are numbered."""
        place = tuple_(ballots.c.run, ballots.c.step, ballots.c.number)
        query = select(ballots).where(self._mine, ballots.c.partition == p, place > tuple_(*after))
        query = query.order_by(ballots.c.run, ballots.c.step, ballots.c.number).limit(limit)
        async with self._database.reading() as connection:
            return [_ballot(row) for row in await connection.execute(query)]

    async def drop(self, found: Sequence[Ballot]) -> None:
        """Forgets ballots."""
        async with self._database.writing() as connection:
            for one in found:
                where = (ballots.c.partition == one.partition, ballots.c.run == one.run, ballots.c.step == one.step)
                # A number may be another's by now.
                same = (ballots.c.number == one.number, ballots.c.request == one.vote.request)
                await connection.execute(delete(ballots).where(self._mine, *where, *same))

    async def is_opened(self, ballot: Ballot) -> bool:
        """Tells whether the archive has the opening that a ballot is about."""
        of = (approvals.c.namespace == self._namespace, approvals.c.run == ballot.run, approvals.c.step == ballot.step)
        query = select(approvals.c.seq).where(*of, approvals.c.opened_ms == ballot.opened_ms)
        async with self._database.reading() as connection:
            return (await connection.execute(query)).first() is not None

    async def count(self, p: int) -> int:
        """Counts ballots of a partition."""
        query = select(func.count()).select_from(ballots).where(self._mine, ballots.c.partition == p)
        async with self._database.reading() as connection:
            return int((await connection.execute(query)).scalar_one())

    async def _of(self, connection: AsyncConnection, run: str, step: str) -> list[Ballot]:
        where = (self._mine, ballots.c.partition == partition_of(run), ballots.c.run == run, ballots.c.step == step)
        query = select(ballots).where(*where).order_by(ballots.c.number)
        return [_ballot(row) for row in await connection.execute(query)]

    async def _insert(self, connection: AsyncConnection, ballot: Ballot) -> bool:
        insert = sqlite.insert if self._database.is_sqlite else postgresql.insert
        values = {"namespace": self._namespace, **_values(ballot)}
        done = await connection.execute(insert(ballots).values(values).on_conflict_do_nothing())
        return bool(done.rowcount)


def _call(ballot: Ballot) -> tuple[object, ...]:
    # With the person and what they say: another call may have come with the same request, and is refused when it is counted.
    return ballot.opened_ms, ballot.vote.request, ballot.vote.by, ballot.vote.decision


def _values(ballot: Ballot) -> dict[str, Any]:
    vote = ballot.vote
    return {
        **{name: getattr(ballot, name) for name in Ballot.__struct_fields__ if name != "vote"},
        **{name: getattr(vote, name) for name in ("decision", "at_ms", "comment", "via", "request")},
        "actor": vote.by,
        "form": b"" if vote.form is None else msgspec.json.encode(vote.form),
    }


def _ballot(row: Row[Any]) -> Ballot:
    form = msgspec.json.decode(bytes(row.form)) if row.form else None
    vote = Vote(row.decision, row.actor, row.at_ms, row.comment, form, row.via, row.request)
    return Ballot(row.run, row.partition, row.step, row.opened_ms, row.digest, row.life, vote, row.number)
