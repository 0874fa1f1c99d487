"""The audit in the database: entries are added, each with the hash of the one before; reading, and checking the chains."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, select, tuple_
from sqlalchemy.ext.asyncio import AsyncConnection

from weft.archive import bulk
from weft.archive.database import Database
from weft.archive.tables import audit, audit_heads
from weft.core.acts import START, Audited, Deed, Verdict, audited, chain

#: Entries checked at once.
PAGE = 500
#: Problems that are told.
MAX_PROBLEMS = 100

_DEED = [column.name for column in audit.columns][3:-1]
assert sorted(_DEED) == sorted(Deed.__struct_fields__), "a row has what an act says"


@dataclass(frozen=True, slots=True)
class Sought:
    """Which entries a listing wants."""

    actor: str | None = None
    action: str | None = None
    object: str | None = None
    run: str | None = None
    since_ms: int | None = None
    until_ms: int | None = None
    #: Only entries older than this one: ms, chain, number.
    before: tuple[int, int, int] | None = None


async def add(connection: AsyncConnection, namespace: str, number: int, deeds: Sequence[Deed]) -> None:
    """Adds entries to a chain, within a transaction; those that are there are left out. Whoever comes second waits."""
    if not deeds:
        return
    row = (audit_heads.c.namespace == namespace, audit_heads.c.chain == number)
    await bulk.insert(connection, audit_heads, [(namespace, number, 0, START)], update=False)
    # Taken by a write, so that two can never add to the same end.
    await connection.execute(audit_heads.update().where(*row).values(chain=number))
    at, last = (await connection.execute(select(audit_heads.c.number, audit_heads.c.hash).where(*row))).one()
    sources = [deed.source for deed in deeds]
    known = select(audit.c.source).where(
        audit.c.namespace == namespace, audit.c.chain == number, audit.c.source.in_(sources)
    )
    seen = set((await connection.execute(known)).scalars())
    rows: list[tuple[Any, ...]] = []
    for deed in deeds:
        if deed.source in seen:
            continue
        seen.add(deed.source)
        at += 1
        last = chain(last, namespace, (number, at), deed)
        rows.append((namespace, number, at, *(getattr(deed, name) for name in _DEED), last))
    if rows:
        await bulk.insert(connection, audit, rows, update=False)
        await connection.execute(audit_heads.update().where(*row).values(number=at, hash=last))


async def read(database: Database, namespace: str, sought: Sought, *, limit: int) -> list[tuple[int, Audited]]:
    """Returns entries, the newest first, each with its ms."""
    order = (audit.c.at_ms, audit.c.chain, audit.c.number)
    wanted: list[ColumnElement[bool]] = [audit.c.namespace == namespace]
    for column, value in (
        (audit.c.actor, sought.actor),
        (audit.c.action, sought.action),
        (audit.c.object, sought.object),
        (audit.c.run, sought.run),
    ):
        if value is not None:
            wanted.append(column == value)
    if sought.since_ms is not None:
        wanted.append(audit.c.at_ms >= sought.since_ms)
    if sought.until_ms is not None:
        wanted.append(audit.c.at_ms < sought.until_ms)
    if sought.before is not None:
        wanted.append(tuple_(*order) < tuple_(*sought.before))
    query = select(audit).where(*wanted).order_by(*(column.desc() for column in order)).limit(limit)
    async with database.reading() as connection:
        rows = (await connection.execute(query)).all()
    return [(int(row.at_ms), audited(int(row.chain), int(row.number), _deed(row), str(row.hash))) for row in rows]


async def verify(database: Database, namespace: str, anchors: Sequence[tuple[int, int, str]]) -> Verdict:
    """Checks all chains from their first entry on: nothing changed, removed or added in between, up to their heads."""
    mine = [select(table.c.chain).where(table.c.namespace == namespace).distinct() for table in (audit, audit_heads)]
    async with database.reading() as connection:
        numbers = sorted({int(one) for query in mine for one in (await connection.execute(query)).scalars()})
    noted = {(number, at): hash for number, at, hash in anchors}
    links = [await _Link(database, namespace, number, noted).check() for number in numbers]
    problems = [problem for link in links for problem in link.problems]
    problems += [f"{number}:{at}, which was noted, is missing" for number, at in noted]
    ends = [f"{link.number}:{link.at}:{link.last}" for link in links if link.at]
    return Verdict(not problems, sum(link.checked for link in links), ends, problems[:MAX_PROBLEMS])


class _Link:
    """One chain as far as it was checked."""

    def __init__(self, database: Database, namespace: str, number: int, noted: dict[tuple[int, int], str]) -> None:
        self._database, self._namespace, self.number, self._noted = database, namespace, number, noted
        self.at, self.last, self.checked = 0, START, 0
        self.problems: list[str] = []

    async def check(self) -> _Link:
        while True:
            before = self.at
            async for row in self._walk():
                self._check_row(row)
            # Read behind the rows: it is written with them, so it is never older than what was seen.
            head, hash = await self._head()
            if head <= self.at or self.at == before:
                break
        number = self.number
        if head > self.at:
            self.problems.append(f"{number}:{self.at + 1} to {number}:{head} are missing")
        elif head < self.at:
            self.problems.append(f"{number}:{head + 1} to {number}:{self.at} stand behind the end of their chain")
        elif hash != self.last:
            self.problems.append(f"{number}:{head} is not the entry that its chain ends with")
        return self

    def _check_row(self, row: Any) -> None:
        place = (self.number, int(row.number))
        if place[1] != self.at + 1:
            self.problems.append(f"{self.number}:{self.at + 1} to {self.number}:{place[1] - 1} are missing")
        elif not self._follows(place, row):
            self.problems.append(f"{self.number}:{place[1]} was changed, or the one before it")
        self.at, self.last, self.checked = place[1], str(row.hash), self.checked + 1
        known = self._noted.pop(place, None)
        if known is not None and known != self.last:
            self.problems.append(f"{self.number}:{self.at} is not the entry that was noted")

    def _follows(self, place: tuple[int, int], row: Any) -> bool:
        """Tells whether an entry goes with its hash and the one before. What no archiver writes cannot even be read."""
        try:
            return chain(self.last, self._namespace, place, _deed(row)) == str(row.hash)
        except (TypeError, ValueError):
            return False

    async def _head(self) -> tuple[int, str]:
        mine = (audit_heads.c.namespace == self._namespace, audit_heads.c.chain == self.number)
        async with self._database.reading() as connection:
            row = (await connection.execute(select(audit_heads).where(*mine))).first()
        return (0, START) if row is None else (int(row.number), str(row.hash))

    async def _walk(self) -> AsyncIterator[Any]:
        at = self.at
        mine = (audit.c.namespace == self._namespace, audit.c.chain == self.number)
        while True:
            query = select(audit).where(*mine, audit.c.number > at).order_by(audit.c.number).limit(PAGE)
            async with self._database.reading() as connection:
                rows = (await connection.execute(query)).all()
            for row in rows:
                yield row
            if len(rows) < PAGE:
                return
            at = rows[-1].number


def _deed(row: Any) -> Deed:
    said = {name: getattr(row, name) for name in _DEED}
    return Deed(**{**said, "detail": bytes(said["detail"]), "at_ms": int(said["at_ms"])})
