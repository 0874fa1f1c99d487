"""Versions of graphs and their tags in the database. A tag moves by compare-and-set, with its move and its audit entry in
one transaction: the database itself is where it is done, so nothing can be lost on the way."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import delete, select
from sqlalchemy.ext.asyncio import AsyncConnection

from weft.archive import acts, bulk
from weft.archive.database import Database
from weft.archive.tables import blobs, definition_moves, definition_tags, definitions
from weft.core.acts import OWN_CHAIN, Deed


@dataclass(frozen=True, slots=True)
class VersionRow:
    """A version of a graph."""

    name: str
    digest: str
    #: As its author calls it; empty: not at all.
    version: str
    first_ms: int
    run: str
    actor: str


@dataclass(frozen=True, slots=True)
class TagRow:
    """Where a tag is. `digest` is empty when it was taken away."""

    tag: str
    digest: str
    position: int
    at_ms: int
    actor: str
    #: How many of its moves can be redone.
    ahead: int = 0


@dataclass(frozen=True, slots=True)
class Move:
    """A move of a tag: where it must be (None: no matter; empty: nowhere), and where it goes."""

    name: str
    tag: str
    expected: str | None
    #: `tag`, `untag`, `undo` or `redo`; the last two find out by themselves where to.
    verb: str
    digest: str
    at_ms: int
    actor: str
    via: str
    reason: str
    source: str


class Versions:
    """The versions of one namespace's graphs."""

    def __init__(self, database: Database, namespace: str) -> None:
        self._database, self._namespace = database, namespace

    async def names(self) -> list[str]:
        """Returns the graphs that have versions."""
        query = select(definitions.c.name).where(definitions.c.namespace == self._namespace).distinct()
        async with self._database.reading() as connection:
            return sorted(str(name) for name in (await connection.execute(query)).scalars())

    async def versions(self, name: str, *, limit: int | None = None) -> list[VersionRow]:
        """Returns the versions of a graph, the newest first."""
        query = (
            select(definitions)
            .where(definitions.c.namespace == self._namespace, definitions.c.name == name)
            .order_by(definitions.c.first_ms.desc(), definitions.c.digest)
        )
        async with self._database.reading() as connection:
            rows = (await connection.execute(query if limit is None else query.limit(limit))).all()
        return [VersionRow(*row[1:]) for row in rows]

    async def tags(self, name: str) -> list[TagRow]:
        """Returns the tags of a graph by name, those that were taken away too."""
        async with self._database.reading() as connection:
            return await self._tags(connection, name)

    async def blob(self, digest: str) -> bytes | None:
        """Returns what a definition says, or None."""
        async with self._database.reading() as connection:
            data = (await connection.execute(select(blobs.c.data).where(blobs.c.digest == digest))).scalar()
        return None if data is None else bytes(data)

    async def publish(self, row: VersionRow, data: dict[str, bytes], deed: Deed) -> bool:
        """Stores a version with what its subgraphs follow; returns whether it was new."""
        async with self._database.writing() as connection:
            mine = (definitions.c.namespace == self._namespace, definitions.c.name == row.name)
            known = select(definitions.c.digest).where(*mine, definitions.c.digest == row.digest)
            if (await connection.execute(known)).first() is not None:
                return False
            await bulk.insert(connection, blobs, list(data.items()), update=False)
            values = (self._namespace, row.name, row.digest, row.version, row.first_ms, row.run, row.actor)
            await bulk.insert(connection, definitions, [values], update=False)
            await acts.add(connection, self._namespace, OWN_CHAIN, [deed])
        return True

    async def move(self, move: Move) -> tuple[str, TagRow]:
        """Moves a tag; returns `moved`, `same` (it is there already), `other` (it is elsewhere) or `end` (nothing to undo or
        redo), and where it is now."""
        async with self._database.writing() as connection:
            # First of all: whoever else moves it waits for this row.
            blank = (self._namespace, move.name, move.tag, "", 0, move.at_ms, move.actor)
            await bulk.insert(connection, definition_tags, [blank], update=False)
            mine = self._of(definition_tags, move.name, move.tag)
            await connection.execute(definition_tags.update().where(*mine).values(tag=move.tag))
            (found,) = [row for row in await self._tags(connection, move.name) if row.tag == move.tag]
            word, target, position = await self._decide(connection, move, found)
            if word == "moved":
                await self._write(connection, move, found, target, position)
                found = TagRow(move.tag, target, position, move.at_ms, move.actor)
            elif found.position == 0:
                await connection.execute(delete(definition_tags).where(*mine))
        return word, found

    async def _decide(self, connection: AsyncConnection, move: Move, found: TagRow) -> tuple[str, str, int]:
        if move.expected is not None and move.expected != found.digest:
            return "other", "", 0
        if move.verb in ("tag", "untag"):
            word = "same" if found.digest == move.digest else "moved"
            return word, move.digest, found.position + 1
        position = found.position + (-1 if move.verb == "undo" else 1)
        if position < 0 or (move.verb == "redo" and not found.ahead):
            return "end", "", 0
        at = (*self._of(definition_moves, move.name, move.tag), definition_moves.c.position == position)
        target = (await connection.execute(select(definition_moves.c.digest).where(*at))).scalar()
        # Before its first move it was nowhere.
        return ("end", "", 0) if target is None and position else ("moved", str(target or ""), position)

    async def _write(self, connection: AsyncConnection, move: Move, found: TagRow, target: str, position: int) -> None:
        mine = self._of(definition_tags, move.name, move.tag)
        if move.verb in ("tag", "untag"):
            # What could be redone cannot any more: it led elsewhere.
            ahead = (*self._of(definition_moves, move.name, move.tag), definition_moves.c.position >= position)
            await connection.execute(delete(definition_moves).where(*ahead))
            values = (self._namespace, move.name, move.tag, position, target, move.at_ms, move.actor, move.reason)
            await bulk.insert(connection, definition_moves, [values], update=False)
        await connection.execute(
            definition_tags.update()
            .where(*mine)
            .values(digest=target, position=position, at_ms=move.at_ms, actor=move.actor)
        )
        deed = Deed(
            move.source,
            move.at_ms,
            move.actor,
            move.via,
            f"definition.{move.verb}",
            f"{move.name}@{move.tag}",
            found.digest,
            target,
            move.reason,
        )
        await acts.add(connection, self._namespace, OWN_CHAIN, [deed])

    async def _tags(self, connection: AsyncConnection, name: str) -> list[TagRow]:
        mine = (definition_tags.c.namespace == self._namespace, definition_tags.c.name == name)
        found = (await connection.execute(select(definition_tags).where(*mine).order_by(definition_tags.c.tag))).all()
        moves = (definition_moves.c.namespace == self._namespace, definition_moves.c.name == name)
        last: dict[str, int] = {}
        for tag, position in await connection.execute(
            select(definition_moves.c.tag, definition_moves.c.position).where(*moves)
        ):
            last[tag] = max(last.get(tag, 0), position)
        return [
            TagRow(row.tag, row.digest, row.position, row.at_ms, row.actor, last.get(row.tag, 0) - row.position)
            for row in found
        ]

    def _of(self, table: Any, name: str, tag: str) -> Sequence[Any]:
        return table.c.namespace == self._namespace, table.c.name == name, table.c.tag == tag
