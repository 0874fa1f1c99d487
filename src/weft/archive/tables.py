"""The tables of the cold store, declared once for SQLite and PostgreSQL. A change here needs a migration."""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, Index, LargeBinary, MetaData, Table, Text

metadata = MetaData()


def _table(name: str, *columns: Column[object] | Index) -> Table:
    return Table(f"weft_{name}", metadata, *columns)


def _text(name: str, *, key: bool = False) -> Column[object]:
    return Column(name, Text, primary_key=key, nullable=False)


def _number(name: str, *, key: bool = False) -> Column[object]:
    return Column(name, BigInteger, primary_key=key, nullable=False, autoincrement=False)


#: How each run stands: its events, folded. What it was asked and what it gave stands in those events.
runs = _table(
    "runs",
    _text("namespace"),
    # The id without its partition: in order of time, so that listings page by it.
    _text("born"),
    _text("id", key=True),
    _text("kind"),
    _text("name"),
    _text("queue"),
    _text("status"),
    _number("seq"),
    _number("spec_seq"),
    _number("attempt"),
    _number("delivery"),
    _number("crashes"),
    _number("created_ms"),
    _number("started_ms"),
    _number("ended_ms"),
    _number("due_ms"),
    _number("deadline_ms"),
    _number("keep_ms"),
    _text("progress"),
    _text("worker"),
    _number("gap"),
    Index("weft_runs_by_time", "namespace", "born"),
)

#: Tags of runs, for finding runs by them.
tags = _table(
    "tags",
    _text("run", key=True),
    _text("name", key=True),
    _text("value"),
    Index("weft_tags_by_value", "name", "value", "run"),
)

#: The steps of graph runs. What a step gave stands in the event of its run that tells of its end.
steps = _table(
    "steps",
    _text("run", key=True),
    _text("step", key=True),
    _text("name"),
    _text("status"),
    _number("attempt"),
    _number("created_ms"),
    _number("started_ms"),
    _number("ended_ms"),
    _number("seq"),
)

#: Every event, as the log had it. A step of a graph run may be opened again under the same name, so its numbers may repeat:
#: the log entry tells one from the other.
events = _table(
    "events",
    _text("run", key=True),
    _number("seq", key=True),
    _text("entry", key=True),
    _text("type"),
    _number("at_ms"),
    _text("by"),
    _text("facts"),
    Column("payload", LargeBinary, nullable=False),
)
events.dialect_options["sqlite"]["with_rowid"] = False

#: Values too large to stand in an event, by their sha256; definitions of graphs too.
blobs = _table("blobs", _text("digest", key=True), Column("data", LargeBinary, nullable=False))

#: What could not be stored as it was: the run has a gap from here on.
gaps = _table(
    "gaps",
    _text("namespace", key=True),
    _number("partition", key=True),
    _text("entry", key=True),
    _text("run", key=True),
    Column("raw", LargeBinary, nullable=False),
    _text("error"),
)

#: How far each log is archived. Moved in the transaction that stores the rows.
checkpoints = _table(
    "checkpoints",
    _text("namespace", key=True),
    _number("partition", key=True),
    _text("entry"),
    _number("at_ms"),
)

#: Facts about the database itself: `database`, an id it got when it was made.
facts = _table("facts", _text("name", key=True), _text("value"))

#: The table in which Alembic keeps which migrations were applied.
VERSION_TABLE = "weft_version"

__all__ = ["VERSION_TABLE", "blobs", "checkpoints", "events", "facts", "gaps", "metadata", "runs", "steps", "tags"]
