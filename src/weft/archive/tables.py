"""The tables of the cold store, declared once for SQLite and PostgreSQL. A change here needs a migration."""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, Index, LargeBinary, MetaData, Table, Text, text

metadata = MetaData()


def _table(name: str, *columns: Column[object] | Index) -> Table:
    return Table(f"weft_{name}", metadata, *columns)


def _text(name: str, *, key: bool = False) -> Column[object]:
    return Column(name, Text, primary_key=key, nullable=False)


def _number(name: str, *, key: bool = False) -> Column[object]:
    return Column(name, BigInteger, primary_key=key, nullable=False, autoincrement=False)


def _bytes(name: str) -> Column[object]:
    return Column(name, LargeBinary, nullable=False)


#: How each run stands: its events, folded. One tree, in order of time: new rows go to its end, and listings page by it.
runs = _table(
    "runs",
    _text("namespace", key=True),
    # The id without its partition, which is in order of time.
    _text("born", key=True),
    _text("id", key=True),
    _text("kind"),
    _text("name"),
    _text("queue"),
    _text("status"),
    _number("seq"),
    _number("created_ms"),
    _number("started_ms"),
    _number("ended_ms"),
    # Until when its records of an idempotency key or of calls that count as one stand; 0: it has none.
    _number("claims_ms"),
    _number("gap"),
    # Numbers of the newest blocks that tell of it; earlier ones stand in `places`.
    _text("blocks"),
    # The rest of its state, packed: nobody looks for runs by it.
    _bytes("rest"),
    # What was asked for, packed; empty: the event that had it was lost.
    _bytes("spec"),
    # Its result or error, packed; while it is open the error of the attempt before.
    _bytes("value"),
    Index("weft_runs_by_name", "namespace", "name", "born"),
    # Few runs have a record.
    Index(
        "weft_runs_by_claims",
        "namespace",
        "claims_ms",
        sqlite_where=text("claims_ms > 0"),
        postgresql_where=text("claims_ms > 0"),
    ),
    # One for both: a page by either is put together from the few values of the other.
    Index("weft_runs_by_state", "namespace", "status", "kind", "born"),
)
runs.dialect_options["sqlite"]["with_rowid"] = False

#: What few runs have and runs are found by: tags, `@parent`, and of failed ones `@error` and `@code`. One tree, in the order
#: of listings. What a run had before it was changed or retried may still stand here: readers look at the run itself, too.
labels = _table(
    "labels",
    _text("namespace", key=True),
    _text("name", key=True),
    _text("value", key=True),
    _text("born", key=True),
    _text("run", key=True),
)
labels.dialect_options["sqlite"]["with_rowid"] = False

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
    # How long it stood in a queue, was executed, and waited for a moment or for somebody; and since when it does what it does.
    _number("queued_ms"),
    _number("running_ms"),
    _number("waiting_ms"),
    _number("since_ms"),
)

#: The log, as it was: many entries, packed and compressed, in order. A run names the blocks that tell of it.
blocks = _table(
    "blocks", _text("namespace", key=True), _number("partition", key=True), _number("number", key=True), _bytes("data")
)

#: Earlier blocks of runs that very many tell of: numbers up to and including `upto`.
places = _table("places", _text("run", key=True), _number("upto", key=True), _text("blocks"))

#: Values too large to stand in an event, by their sha256; definitions of graphs too.
blobs = _table("blobs", _text("digest", key=True), Column("data", LargeBinary, nullable=False))

#: Which runs use which blobs: a blob goes with the last of them. Run `` stands for all from before this table.
uses = _table("uses", _text("run", key=True), _text("digest", key=True), Index("weft_uses_by_digest", "digest", "run"))
uses.dialect_options["sqlite"]["with_rowid"] = False

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

#: How far each log is archived: kept as blocks, and how far these are indexed. Moved in the transaction that stores the rows.
checkpoints = _table(
    "checkpoints",
    _text("namespace", key=True),
    _number("partition", key=True),
    _text("entry"),
    # Number of the newest block.
    _number("block"),
    _number("at_ms"),
    # The partition's epoch as last seen; and while it is rebuilt the next one, who does that, and until when that one may.
    _number("epoch"),
    _number("recovering"),
    _text("holder"),
    _number("until_ms"),
    # The last entry, and the last block, of which runs have their rows.
    _text("indexed"),
    _number("indexed_block"),
)

#: What operators set, as last seen.
settings = _table(
    "settings",
    _text("namespace", key=True),
    _number("partition", key=True),
    _text("kind", key=True),
    _text("name", key=True),
    _bytes("data"),
)

#: What was observed of tasks elsewhere, by where the log tells of it. Names are digests; ids from elsewhere may hold anything.
statuses = _table(
    "statuses",
    _text("namespace", key=True),
    _number("partition", key=True),
    _number("moment", key=True),
    _number("number", key=True),
    _text("task"),
    # Empty: this observation does not say.
    _text("parent"),
    _number("at_ms"),
    _bytes("seen"),
    Index("weft_statuses_by_task", "namespace", "task", "moment", "number"),
    Index(
        "weft_statuses_by_parent",
        "namespace",
        "parent",
        "task",
        sqlite_where=text("parent <> ''"),
        postgresql_where=text("parent <> ''"),
    ),
)

#: Runs that were asked for with `durability="committed"`, until the archive has them: everything to start them by.
starts = _table(
    "starts",
    _text("namespace", key=True),
    _number("partition", key=True),
    _text("run", key=True),
    _text("kind"),
    # What makes calls count as one, and until when.
    _text("claim"),
    _number("claim_ms"),
    _text("same"),
    _number("at_ms"),
    _number("tried_ms"),
    _text("life"),
    _bytes("spec"),
    _bytes("input"),
    _bytes("more"),
    Index(
        "weft_starts_by_claim",
        "namespace",
        "claim",
        unique=True,
        sqlite_where=text("claim <> ''"),
        postgresql_where=text("claim <> ''"),
    ),
)

#: What people said to approvals, until the archive has it. Stored before the store is told; in this order it is told.
ballots = _table(
    "ballots",
    _text("namespace", key=True),
    _number("partition", key=True),
    _text("run", key=True),
    _text("step", key=True),
    _number("number", key=True),
    # Which opening of the approval it is about, what that showed, and in which life of the partition.
    _number("opened_ms"),
    _text("digest"),
    _text("life"),
    _text("actor"),
    _text("decision"),
    _number("at_ms"),
    _text("comment"),
    _text("via"),
    _text("request"),
    # JSON; empty: none.
    _bytes("form"),
)

#: Versions of graphs: definitions that runs were started with, or that somebody published. What they say stands in `blobs`.
definitions = _table(
    "definitions",
    _text("namespace", key=True),
    _text("name", key=True),
    _text("digest", key=True),
    # As its author calls it; empty: not at all.
    _text("version"),
    _number("first_ms"),
    # The first run that was archived; empty: it was published without one.
    _text("run"),
    _text("actor"),
    Index("weft_definitions_by_age", "namespace", "name", "first_ms"),
)

#: Which version a tag names. Empty: it was taken away, which can be undone.
definition_tags = _table(
    "definition_tags",
    _text("namespace", key=True),
    _text("name", key=True),
    _text("tag", key=True),
    _text("digest"),
    # Its place among its moves: `undo` goes one back, `redo` one forth.
    _number("position"),
    _number("at_ms"),
    _text("actor"),
)

#: Where a tag has been; what stands behind its position can be redone.
definition_moves = _table(
    "definition_moves",
    _text("namespace", key=True),
    _text("name", key=True),
    _text("tag", key=True),
    _number("position", key=True),
    _text("digest"),
    _number("at_ms"),
    _text("actor"),
    _text("reason"),
)

#: Patches of runs, by the event that tells of each.
patches = _table(
    "patches",
    _text("namespace", key=True),
    _text("run", key=True),
    _number("seq", key=True),
    _number("revision"),
    # The revision that it takes back; 0: none.
    _number("undoes"),
    _number("at_ms"),
    _text("author"),
    _text("reason"),
    _text("definition"),
    _text("previous"),
    _bytes("operations"),
    Index("weft_patches_by_author", "namespace", "author", "at_ms"),
)

#: What people were asked, and what they decided; `seq` is that of the event that asked.
approvals = _table(
    "approvals",
    _text("namespace", key=True),
    _text("run", key=True),
    _text("step", key=True),
    _number("seq", key=True),
    _number("opened_ms"),
    _text("title"),
    # Of what was shown: a decision names it.
    _text("digest"),
    _text("status"),
    _number("decided_ms"),
    _text("decided_by"),
    _text("via"),
    # What was asked for and shown, as the event tells it, and the decision with all votes: JSON.
    _bytes("asked"),
    _bytes("decision"),
    Index("weft_approvals_by_age", "namespace", "opened_ms"),
)

#: What people did to dead letters. The letters themselves are runs that failed.
letters = _table(
    "letters",
    _text("namespace", key=True),
    _text("run", key=True),
    _text("replayed_as"),
    _text("investigated_by"),
    _text("note"),
    _number("at_ms"),
    _number("purged_ms"),
)

#: Schedules, those that were deleted too: told by what people did to them, and by a look every few seconds.
schedules = _table(
    "schedules",
    _text("namespace", key=True),
    _text("name", key=True),
    _number("partition"),
    # active, paused, ended or deleted.
    _text("status"),
    _text("expr"),
    _text("tz"),
    _text("task"),
    # The app whose code declares it; empty: it was created at run time.
    _text("declared_by"),
    _number("created_ms"),
    # 0: there is none.
    _number("next_ms"),
    _number("last_ms"),
    # The run that was started last.
    _text("run"),
    _number("paused_ms"),
    _text("paused_by"),
    _number("changed_ms"),
    _text("changed_by"),
    _number("deleted_ms"),
    _text("deleted_by"),
    # When the store was last looked at for it.
    _number("seen_ms"),
    # All of it, as the store has it, packed: from this it is rebuilt.
    _bytes("fields"),
)

#: What people did. Rows are added and never changed; each has the hash of the one before it in its own.
audit = _table(
    "audit",
    _text("namespace", key=True),
    _number("chain", key=True),
    _number("number", key=True),
    _text("source"),
    _number("at_ms"),
    _text("actor"),
    _text("via"),
    _text("action"),
    _text("object"),
    _text("before"),
    _text("after"),
    _text("reason"),
    _bytes("detail"),
    _text("run"),
    _text("hash"),
    Index("weft_audit_by_source", "namespace", "chain", "source", unique=True),
    Index("weft_audit_by_at", "namespace", "at_ms"),
    Index("weft_audit_by_actor", "namespace", "actor"),
    Index("weft_audit_by_object", "namespace", "object"),
)

#: The newest entry of each chain: without it nobody would see that the newest rows were removed.
audit_heads = _table(
    "audit_heads", _text("namespace", key=True), _number("chain", key=True), _number("number"), _text("hash")
)

#: Facts about the database itself: `database`, an id it got when it was made.
facts = _table("facts", _text("name", key=True), _text("value"))

#: The table in which Alembic keeps which migrations were applied.
VERSION_TABLE = "weft_version"

__all__ = [
    "VERSION_TABLE",
    "approvals",
    "audit",
    "audit_heads",
    "ballots",
    "blobs",
    "blocks",
    "checkpoints",
    "definition_moves",
    "definition_tags",
    "definitions",
    "facts",
    "gaps",
    "labels",
    "letters",
    "metadata",
    "patches",
    "places",
    "runs",
    "schedules",
    "settings",
    "starts",
    "statuses",
    "steps",
    "uses",
]
