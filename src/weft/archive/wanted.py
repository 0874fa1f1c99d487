"""Which runs a listing wants, as SQL. Every query follows one tree in its own order, so a page costs what it shows.

Indexed are status, kind, name, time and labels (tags, parent, error); a queue and a text are looked for run by run.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import (
    BindParameter,
    ColumnElement,
    Select,
    and_,
    bindparam,
    exists,
    func,
    literal,
    literal_column,
    or_,
    select,
    true,
)

from weft.archive.tables import blobs, labels, runs, uses
from weft.core.fold import CODE, ENDINGS, ERROR, MAX_LABEL_CHARS, OPEN, PARENT, label

#: Columns that runs can be counted by.
COUNTED = ("status", "kind", "name", "queue")
KINDS = ("task", "graph", "workflow")
#: Statuses of runs that are fewer, as a rule, than those of one name.
RARE = ("failed", "cancelled")
#: How a spec has it, packed, that its run is debounced.
DEBOUNCED = b"\xa1B\xc3"
#: How often a condition holds that a tree is followed by, and one that is only looked at.
SELDOM, OFTEN = "0.001", "0.99"


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which runs a listing wants.

    `among`: those that have ended, as far as the archive knows (`ended`), the others (`open`), or all (`known`); or a status of
    the others: how these stand the hot store knows better, so all are found that may have it. Which tasks workers have, no
    event tells.
    """

    status: str | None = None
    among: str = "ended"
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
    #: Only those of which the run itself must tell whether they are wanted: what it is found by may be of before it was
    #: changed, or stand elsewhere in it.
    doubtful: bool = False

    @property
    def is_open(self) -> bool:
        return self.among not in ("ended", "known")

    @property
    def leaves_doubts(self) -> bool:
        return bool(self.tags) or self.error is not None or self.text is not None

    @property
    def names_what_is_no_label(self) -> bool:
        """Whether it could be taken for another label: a tag for what is none, or an error for one that is cut off."""
        return any(name.startswith("@") for name, _ in self.tags) or len(self.error or "") >= MAX_LABEL_CHARS

    @property
    def _labels(self) -> list[tuple[Sequence[str], str]]:
        """Labels that a run must have: one of some names, and a value."""
        found: list[tuple[Sequence[str], str]] = []
        if self.parent is not None:
            found.append(([PARENT], self.parent))
        if self.error is not None:
            found.append(([ERROR, CODE], label(self.error)))
        return found + [([name], value) for name, value in self.tags]


def page_queries(namespace: str, wanted: Wanted, limit: int, *, sqlite: bool) -> list[Select[Any]]:
    """Returns the queries whose answers, put together, are a page, newest first."""
    asked, plan = wanted._labels, _Plan(namespace, wanted, sqlite)
    if asked:
        (names, value), *others = asked
        follow = plan.by_label if sqlite else plan.along_label
        return [follow(name, value, others).limit(limit) for name in names]
    if wanted.name is not None and wanted.status not in RARE and not wanted.is_open:
        return [plan.by("name").limit(limit)]
    if wanted.status is None and wanted.kind is None and not wanted.is_open:
        return [plan.by().limit(limit)]
    # One tree serves both: of each status and kind its own newest, which are few.
    return [
        plan.by("status", "kind", status=status, kind=kind).limit(limit)
        for status, kind in _standings(wanted)
        if wanted.status in (None, status) and wanted.kind in (None, kind)
    ]


def _standings(wanted: Wanted) -> list[tuple[str, str]]:
    """Returns what runs that are wanted may be to the archive: status and kind."""
    if not wanted.is_open:
        return list(itertools.product(sorted(ENDINGS) if wanted.among == "ended" else [*sorted(ENDINGS), *OPEN], KINDS))
    # Of tasks the archive knows whether they wait; others wait and go on without being told of.
    tasks = OPEN if wanted.among in ("open", "queued") else (wanted.among,)
    return [(status, "task") for status in tasks] + list(itertools.product(OPEN, KINDS[1:]))


class _Plan:
    """Says in which tree runs are looked for: databases that know nothing of the values in it would guess."""

    def __init__(self, namespace: str, wanted: Wanted, sqlite: bool) -> None:
        self._namespace, self._wanted, self._sqlite = namespace, wanted, sqlite

    def by(self, *driving: str, **values: str) -> Select[Any]:
        """Returns the query that follows the tree of some columns, or that of all runs."""
        given = {name: getattr(self._wanted, name) for name in COUNTED} | values
        terms = [self._equals(name, value, name in driving) for name, value in given.items() if value is not None]
        query = select(runs).where(self._likely(runs.c.namespace == self._namespace, OFTEN), *terms)
        query = query.where(*_times(runs.c.born, self._wanted), *_rest(self._wanted, sqlite=self._sqlite))
        return query.order_by(runs.c.born.desc())

    def by_label(self, name: str, value: str, others: Sequence[tuple[Sequence[str], str]]) -> Select[Any]:
        """Returns the query that follows a label."""
        of_run = and_(runs.c.namespace == self._namespace, runs.c.born == labels.c.born, runs.c.id == labels.c.run)
        given = {name: getattr(self._wanted, name) for name in COUNTED}
        terms = [self._equals(name, value, False) for name, value in given.items() if value is not None]
        query = select(runs).select_from(labels.join(runs, of_run)).where(*terms)
        query = query.where(labels.c.namespace == self._namespace, labels.c.name == name, labels.c.value == value)
        query = query.where(*_times(labels.c.born, self._wanted), *_rest(self._wanted, sqlite=self._sqlite))
        return query.where(*(_has(*other) for other in others)).order_by(labels.c.born.desc())

    def along_label(self, name: str, value: str, others: Sequence[tuple[Sequence[str], str]]) -> Select[Any]:
        """The same for PostgreSQL, which would join a frequent label as a whole: the offset has it take run by run."""
        label = (labels.c.namespace == self._namespace, labels.c.name == name, labels.c.value == value)
        of_run = (runs.c.namespace == self._namespace, runs.c.born == labels.c.born, runs.c.id == labels.c.run)
        given = {name: getattr(self._wanted, name) for name in COUNTED}
        terms = [runs.c[name] == value for name, value in given.items() if value is not None]
        terms += [*_rest(self._wanted, sqlite=self._sqlite), *(_has(*other) for other in others)]
        found = select(runs).where(*of_run, *terms).offset(literal_column("0")).lateral("found")
        query = select(found).select_from(labels.join(found, true())).where(*label)
        return query.where(*_times(labels.c.born, self._wanted)).order_by(labels.c.born.desc())

    def _equals(self, name: str, value: str, drives: bool) -> ColumnElement[bool]:
        return self._likely(runs.c[name] == value, SELDOM if drives else OFTEN)

    def _likely(self, term: ColumnElement[bool], share: str) -> ColumnElement[bool]:
        """Tells SQLite how often a condition holds. PostgreSQL knows."""
        return func.likelihood(term, literal_column(share)) if self._sqlite else term


def count_query(namespace: str, wanted: Wanted, by: str, *, sqlite: bool) -> Select[Any]:
    """Returns the query that counts runs by a column."""
    (names, value), *others = wanted._labels or [((), "")]
    if len(names) == 1:
        found = _Plan(namespace, wanted, sqlite).by_label(names[0], value, others).order_by(None)
        return found.with_only_columns(runs.c[by], func.count(), maintain_column_froms=True).group_by(runs.c[by])
    return select(runs.c[by], func.count()).where(*_all(namespace, wanted, sqlite=sqlite)).group_by(runs.c[by])


def among_query(namespace: str, wanted: Wanted, ids: Sequence[str], *, sqlite: bool) -> Select[Any]:
    """Returns the query for those of some runs that a listing wants."""
    born = runs.c.born.in_([id.partition("-")[2] for id in ids])
    return select(runs).where(*_all(namespace, wanted, sqlite=sqlite), born, runs.c.id.in_(ids))


def _all(namespace: str, wanted: Wanted, *, sqlite: bool) -> list[ColumnElement[bool]]:
    given = {name: getattr(wanted, name) for name in COUNTED}
    own = [runs.c[name] == value for name, value in given.items() if value is not None]
    own += [runs.c.namespace == namespace, *_times(runs.c.born, wanted), *_rest(wanted, sqlite=sqlite)]
    return own + [_has(*label) for label in wanted._labels]


def _times(born: ColumnElement[Any], wanted: Wanted) -> list[ColumnElement[bool]]:
    bounds = [born >= wanted.since] if wanted.since else []
    return [*bounds, born < wanted.before] if wanted.before else bounds


def _rest(wanted: Wanted, *, sqlite: bool) -> list[ColumnElement[bool]]:
    # Not by statuses: a list of them would be looked up one by one, and sorted.
    found = (
        [] if wanted.among == "known" else [runs.c.ended_ms > 0 if wanted.among == "ended" else runs.c.ended_ms == 0]
    )
    if wanted.error is not None:
        found.append(runs.c.status == "failed")
    if wanted.text is not None:
        found.append(_contains(wanted.text, sqlite=sqlite))
    elif wanted.doubtful and not wanted.names_what_is_no_label:
        # Tags change when a newer call gives a run its arguments that waits, errors when a graph run is tried again.
        changed = and_(runs.c.claims_ms > 0, _holds(runs.c.spec, DEBOUNCED, sqlite=sqlite))
        found.append(or_(*([changed] if wanted.tags else []), *([runs.c.kind == "graph"] if wanted.error else [])))
    return found


def _has(names: Sequence[str], value: str) -> ColumnElement[bool]:
    other = labels.alias()
    label = (other.c.namespace == runs.c.namespace, other.c.name.in_(names), other.c.value == value)
    return exists().where(*label, other.c.born == runs.c.born, other.c.run == runs.c.id)


def _contains(text: str, *, sqlite: bool) -> ColumnElement[bool]:
    """Tells whether a text stands in what a run was given or gave. Values are packed, texts in them are not."""
    data = text.encode()
    # Joined by name: of two tables that stand side by side in a lateral part SQLAlchemy warns whoever asks.
    used = uses.join(blobs, blobs.c.digest == uses.c.digest)
    large = exists().select_from(used).where(uses.c.run == runs.c.id, _holds(blobs.c.data, data, sqlite=sqlite))
    return or_(_holds(runs.c.spec, data, sqlite=sqlite), _holds(runs.c.value, data, sqlite=sqlite), large)


def _holds(column: ColumnElement[Any], data: bytes, *, sqlite: bool) -> ColumnElement[bool]:
    needle: BindParameter[bytes] = bindparam("needle", data, unique=True)
    place = func.instr(column, needle) if sqlite else func.position(needle.op("IN")(column))
    return place > literal(0)
