"""Which runs a listing wants, as SQL. Every query follows one tree in its own order, so a page costs what it shows.

Indexed are status, kind, name, time and labels (tags, parent, error); a queue and a text are looked for run by run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import BindParameter, ColumnElement, Select, and_, bindparam, exists, func, literal, or_, select

from weft.archive.tables import blobs, labels, runs, uses
from weft.core.fold import CODE, ERROR, PARENT

#: Columns that runs can be counted by.
COUNTED = ("status", "kind", "name", "queue")


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which runs a listing wants. Only finished ones: how the others stand, the hot store knows better."""

    status: str | None = None
    kind: str | None = None
    name: str | None = None
    queue: str | None = None
    tags: tuple[tuple[str, str], ...] = ()
    #: The run that has started them.
    parent: str | None = None
    #: Class or code of the error that they failed with.
    error: str | None = None
    #: In what they were given or gave.
    text: str | None = None
    #: Not older than this, and older than this, by the part of an id that is in order of time.
    since: str = ""
    before: str = ""

    @property
    def _labels(self) -> list[tuple[Sequence[str], str]]:
        """Labels that a run must have: one of some names, and a value."""
        found: list[tuple[Sequence[str], str]] = []
        if self.parent is not None:
            found.append(([PARENT], self.parent))
        if self.error is not None:
            found.append(([ERROR, CODE], self.error))
        return found + [([name], value) for name, value in self.tags]


def page_queries(namespace: str, wanted: Wanted, limit: int, *, sqlite: bool) -> list[Select[Any]]:
    """Returns the queries whose answers, put together, are a page, newest first."""
    asked = wanted._labels
    columns = _columns(wanted, sqlite=sqlite)
    if not asked:
        query = select(runs).where(runs.c.namespace == namespace, *_times(runs.c.born, wanted), *columns)
        return [query.order_by(runs.c.born.desc()).limit(limit)]
    (names, value), *others = asked
    found = []
    for name in names:
        of_run = and_(runs.c.namespace == namespace, runs.c.born == labels.c.born, runs.c.id == labels.c.run)
        query = select(runs).select_from(labels.join(runs, of_run))
        query = query.where(labels.c.namespace == namespace, labels.c.name == name, labels.c.value == value)
        query = query.where(*_times(labels.c.born, wanted), *columns, *(_has(*other) for other in others))
        found.append(query.order_by(labels.c.born.desc()).limit(limit))
    return found


def count_query(namespace: str, wanted: Wanted, by: str, *, sqlite: bool) -> Select[Any]:
    """Returns the query that counts runs by a column."""
    return select(runs.c[by], func.count()).where(*_all(namespace, wanted, sqlite=sqlite)).group_by(runs.c[by])


def among_query(namespace: str, wanted: Wanted, ids: Sequence[str], *, sqlite: bool) -> Select[Any]:
    """Returns the query for those of some runs that a listing wants."""
    born = runs.c.born.in_([id.partition("-")[2] for id in ids])
    return select(runs).where(*_all(namespace, wanted, sqlite=sqlite), born, runs.c.id.in_(ids))


def _all(namespace: str, wanted: Wanted, *, sqlite: bool) -> list[ColumnElement[bool]]:
    own = [runs.c.namespace == namespace, *_times(runs.c.born, wanted), *_columns(wanted, sqlite=sqlite)]
    return own + [_has(*label) for label in wanted._labels]


def _times(born: ColumnElement[Any], wanted: Wanted) -> list[ColumnElement[bool]]:
    bounds = [born >= wanted.since] if wanted.since else []
    return [*bounds, born < wanted.before] if wanted.before else bounds


def _columns(wanted: Wanted, *, sqlite: bool) -> list[ColumnElement[bool]]:
    found: list[ColumnElement[bool]] = []
    for name in ("status", "kind", "name", "queue"):
        value = getattr(wanted, name)
        if value is not None:
            found.append(runs.c[name] == value)
    if wanted.error is not None:
        found.append(runs.c.status == "failed")
    # Not by statuses: a list of them would be looked up one by one, and sorted.
    found.append(runs.c.ended_ms > 0)
    if wanted.text is not None:
        found.append(_contains(wanted.text, sqlite=sqlite))
    return found


def _has(names: Sequence[str], value: str) -> ColumnElement[bool]:
    label = (labels.c.namespace == runs.c.namespace, labels.c.name.in_(names), labels.c.value == value)
    return exists().where(*label, labels.c.born == runs.c.born, labels.c.run == runs.c.id)


def _contains(text: str, *, sqlite: bool) -> ColumnElement[bool]:
    """Tells whether a text stands in what a run was given or gave. Values are packed, texts in them are not."""
    needle: BindParameter[bytes] = bindparam("needle", text.encode(), unique=True)

    def holds(column: ColumnElement[Any]) -> ColumnElement[bool]:
        place = func.instr(column, needle) if sqlite else func.position(needle.op("IN")(column))
        return place > literal(0)

    used = and_(uses.c.run == runs.c.id, blobs.c.digest == uses.c.digest)
    return or_(holds(runs.c.spec), holds(runs.c.value), exists().where(used, holds(blobs.c.data)))
