"""Writing: a batch of events becomes rows, and the checkpoint moves, in one transaction or not at all."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any

import msgspec
from sqlalchemy import Text, cast, func, select
from sqlalchemy.ext.asyncio import AsyncConnection

from weft.archive import bulk
from weft.archive.database import Database, is_poison
from weft.archive.rows import write_rows
from weft.archive.tables import blobs, blocks, checkpoints, facts, gaps, labels, places, runs, statuses, steps, uses
from weft.core.fold import Logged, RunState, StepState, read_facts
from weft.core.portions import portions
from weft.core.rows import Rows
from weft.core.status import MARK
from weft.errors import ArchiveUnavailable, CheckpointMoved, PoisonRow

#: The log before its first entry.
START = "0-0"
#: Bytes of large values that one statement brings.
STATEMENT_BYTES = 32_000_000
#: Number of the lock that PostgreSQL keeps, shared by those who use blobs, alone by who drops them: `use` and `weft` in ASCII.
USES_LOCK = 0x75736577656674

_STATE_COLUMNS = [column.name for column in runs.columns][2:-3]
assert list(RunState.__struct_fields__[: len(_STATE_COLUMNS)]) == _STATE_COLUMNS, "a state begins with its columns"
_state_values = attrgetter(*_STATE_COLUMNS)
_STEP_COLUMNS = [column.name for column in steps.columns]
#: Returns a step as a row.
step_row = attrgetter(*_STEP_COLUMNS)


@dataclass(slots=True)
class Gap:
    """Something of a run that could not be stored as it was."""

    run: str
    entry: str
    raw: bytes
    error: str


@dataclass(slots=True)
class Batch:
    """What a stretch of a log becomes."""

    namespace: str
    partition: int
    #: The checkpoint it was read from, and the entry it ends with; the same when it keeps nothing.
    after: str
    upto: str
    at_ms: int
    #: The partition's epoch when its log was opened: what was read before a loss must not be stored while the partition is
    #: rebuilt from what is stored, nor after. Nothing: who rebuilds it stores it.
    epoch: int | None = None
    #: Packed entries, and the number of the last of them.
    blocks: list[bytes] = field(default_factory=list)
    block: int = 0
    #: The same of what is indexed: from where, up to which entry, and up to which block.
    indexed_after: str = ""
    indexed_upto: str = ""
    indexed_block: int = 0
    events: list[Logged] = field(default_factory=list)
    runs: dict[str, RunState] = field(default_factory=dict)
    steps: dict[tuple[str, str], StepState] = field(default_factory=dict)
    #: What runs are found by: run, name and value each.
    labels: list[tuple[str, str, str]] = field(default_factory=list)
    blobs: dict[str, bytes] = field(default_factory=dict)
    #: Which run uses which blob.
    uses: set[tuple[str, str]] = field(default_factory=set)
    #: Digests of definitions that its runs follow.
    definitions: set[str] = field(default_factory=set)
    #: Blocks that a run has no more room for: run, the last of them, all of them.
    places: list[tuple[str, int, str]] = field(default_factory=list)
    gaps: list[Gap] = field(default_factory=list)
    #: What was observed of tasks elsewhere.
    statuses: list[Logged] = field(default_factory=list)
    #: What else its events tell, and what the versions in it are called.
    rows: Rows = field(default_factory=Rows)
    called: dict[str, str] = field(default_factory=dict)


async def read_identity(database: Database) -> str:
    """Returns the id that the database got when it was made."""
    async with database.reading() as connection:
        row = (await connection.execute(select(facts.c.value).where(facts.c.name == "database"))).first()
    return str(row[0]) if row else ""


async def open_checkpoint(database: Database, namespace: str, p: int) -> tuple[str, int, str, int]:
    """Returns the entry up to which a log is kept, the number of its newest block, and the same of what is indexed.

    One that never was is begun.
    """
    async with database.writing() as connection:
        new = (namespace, p, START, 0, 0, 0, 0, "", 0, START, 0)
        await bulk.insert(connection, checkpoints, [new], update=False)
        columns = (checkpoints.c.entry, checkpoints.c.block, checkpoints.c.indexed, checkpoints.c.indexed_block)
        query = select(*columns).where(checkpoints.c.namespace == namespace, checkpoints.c.partition == p)
        entry, block, indexed, indexed_block = (await connection.execute(query)).one()
        return str(entry), int(block), str(indexed), int(indexed_block)


async def read_blocks(database: Database, namespace: str, p: int, first: int, n: int) -> list[bytes]:
    """Returns blocks in order. Raises ArchiveUnavailable when they are not there."""
    wanted = (blocks.c.number >= first, blocks.c.number < first + n)
    query = select(blocks.c.data).where(blocks.c.namespace == namespace, blocks.c.partition == p, *wanted)
    async with database.reading() as connection:
        found = [bytes(data) for data in (await connection.execute(query.order_by(blocks.c.number))).scalars()]
    if not found:
        raise ArchiveUnavailable(f"the cold store {database.address.shown} lost block {first} of partition {p}")
    return found


async def write_batch(database: Database, batch: Batch) -> list[Gap]:
    """Stores a batch and moves the checkpoint. Returns what could not be stored, runs whose state has a gap from now on.

    Raises CheckpointMoved, with nothing stored, when another archiver has moved it meanwhile.
    """
    try:
        async with database.writing() as connection:
            await _move_checkpoint(connection, batch)
            await _insert(connection, batch)
        return batch.gaps
    except PoisonRow:
        pass
    # Some row of it is poison. Once more, run by run, each of which may fail by itself.
    async with database.writing() as connection:
        await _move_checkpoint(connection, batch)
        for part in _parts(batch):
            try:
                async with connection.begin_nested():
                    await _insert(connection, part)
            except Exception as error:
                if not is_poison(error):
                    raise
                batch.gaps.append(await _store_gap(connection, part, error))
    return batch.gaps


async def read_states(database: Database, namespace: str, ids: Sequence[str]) -> dict[str, RunState]:
    """Reads how runs stand, without what they were asked and gave."""
    if not ids:
        return {}
    # As one row of JSON, for the reason that rows go in by one statement: the driver lets go of Python's lock at each row.
    rest = func.hex(runs.c.rest) if database.is_sqlite else func.encode(runs.c.rest, "hex")
    columns = [*(runs.c[name] for name in _STATE_COLUMNS), rest]
    packed = (
        func.json_group_array(func.json_array(*columns))
        if database.is_sqlite
        else cast(func.json_agg(func.json_build_array(*columns)), Text)
    )
    found: dict[str, RunState] = {}
    async with database.reading() as connection:
        for at in range(0, len(ids), 500):
            # By their moment alone: two lists would be looked up in all combinations.
            born = [born_of(id) for id in ids[at : at + 500]]
            query = select(packed).where(runs.c.namespace == namespace, runs.c.born.in_(born))
            text = (await connection.execute(query)).scalar()
            for row in msgspec.json.decode(text or "[]"):
                found[row[0]] = RunState.restore(row[:-1], bytes.fromhex(row[-1]))
    return found


def born_of(id: str) -> str:
    """Returns the part of a run's id that is in order of time."""
    return id.partition("-")[2]


async def read_steps(database: Database, wanted: Iterable[tuple[str, str]]) -> dict[tuple[str, str], StepState]:
    """Reads how steps of graph runs stand."""
    asked = set(wanted)
    ids = sorted({run for run, _ in asked})
    found: dict[tuple[str, str], StepState] = {}
    if not ids:
        return found
    names = sorted({step for _, step in asked})
    async with database.reading() as connection:
        for at in range(0, len(ids), 500):
            for offset in range(0, len(names), 500):
                rows = await connection.execute(
                    select(steps).where(
                        steps.c.run.in_(ids[at : at + 500]), steps.c.step.in_(names[offset : offset + 500])
                    )
                )
                found |= {(row.run, row.step): StepState(**row._mapping) for row in rows}
    return {key: state for key, state in found.items() if key in asked}


async def _move_checkpoint(connection: AsyncConnection, batch: Batch) -> None:
    """First of all: it takes the lock that a second archiver waits for, and it finds the checkpoint moved."""
    alive = () if batch.epoch is None else (checkpoints.c.recovering == 0, checkpoints.c.epoch <= batch.epoch)
    moved = await connection.execute(
        checkpoints.update()
        .where(
            checkpoints.c.namespace == batch.namespace,
            checkpoints.c.partition == batch.partition,
            checkpoints.c.entry == batch.after,
            checkpoints.c.indexed == batch.indexed_after,
            *alive,
        )
        .values(
            entry=batch.upto,
            block=batch.block,
            indexed=batch.indexed_upto,
            indexed_block=batch.indexed_block,
            at_ms=batch.at_ms,
        )
    )
    if moved.rowcount != 1:
        raise CheckpointMoved(
            f"the checkpoint of partition {batch.partition} is no longer at {batch.after}, or it was lost"
        )


async def _insert(connection: AsyncConnection, batch: Batch) -> None:
    first = batch.block - len(batch.blocks) + 1
    plans: list[tuple[Any, Sequence[Sequence[Any]], bool]] = [
        (
            blocks,
            [(batch.namespace, batch.partition, first + n, data) for n, data in enumerate(batch.blocks)],
            True,
        ),
        (runs, [run_row(batch.namespace, state) for state in batch.runs.values()], True),
        (steps, [step_row(state) for state in batch.steps.values()], True),
        (labels, [(batch.namespace, name, value, born_of(run), run) for run, name, value in batch.labels], False),
        (uses, sorted(batch.uses), False),
        # Not all by one statement, which has a time limit.
        *((blobs, some, False) for some in portions(_sized(batch.blobs), STATEMENT_BYTES)),
        (places, batch.places, True),
        (statuses, [_status_row(batch, event) for event in batch.statuses], False),
        (
            gaps,
            [(batch.namespace, batch.partition, gap.entry, gap.run, gap.raw, gap.error) for gap in batch.gaps],
            True,
        ),
    ]
    if batch.uses and connection.dialect.name != "sqlite":
        # Else a blob could go with its last run while this one, whose use nobody sees yet, relies on it.
        await connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock_shared({USES_LOCK})")
    for table, rows, update in plans:
        if rows:
            await bulk.insert(connection, table, rows, update=update)
    if batch.rows:
        await write_rows(connection, batch.namespace, batch.partition, batch.rows, batch.called)


def run_row(namespace: str, state: RunState) -> tuple[Any, ...]:
    """Returns a run as a row."""
    return (namespace, born_of(state.id), *_state_values(state), state.pack_rest(), state.spec, state.value)


def _status_row(batch: Batch, event: Logged) -> tuple[Any, ...]:
    moment, _, number = event.entry.partition("-")
    parent = read_facts(event.facts).get("parent", "")
    task = event.run.removeprefix(MARK)
    return (batch.namespace, batch.partition, int(moment), int(number), task, parent, event.at_ms, event.payload)


def _sized(values: Mapping[str, bytes]) -> Iterable[tuple[tuple[str, bytes], int]]:
    return ((item, len(item[1])) for item in values.items())


def _parts(batch: Batch) -> list[Batch]:
    """Takes a batch apart: what belongs to one run, each, and blocks, blobs and gaps, which are stored whatever is in them."""

    def part() -> Batch:
        return Batch(batch.namespace, batch.partition, batch.after, batch.upto, batch.at_ms)

    parts: dict[str, Batch] = {}
    rest = part()
    rest.block, rest.blocks, rest.blobs, rest.gaps = batch.block, batch.blocks, batch.blobs, list(batch.gaps)
    rest.statuses, rest.uses, rest.rows = batch.statuses, batch.uses, batch.rows.of_nobody()
    for event in batch.events:
        parts.setdefault(event.run.partition("/")[0], part()).events.append(event)
    for run, state in batch.runs.items():
        parts.setdefault(run, part()).runs[run] = state
    for key, step in batch.steps.items():
        parts.setdefault(key[0], part()).steps[key] = step
    for label in batch.labels:
        parts.setdefault(label[0], part()).labels.append(label)
    for place in batch.places:
        parts.setdefault(place[0], part()).places.append(place)
    for run, one in parts.items():
        one.rows, one.called = batch.rows.of_run(run), batch.called
    return [rest, *parts.values()]


async def _store_gap(connection: AsyncConnection, part: Batch, error: Exception) -> Gap:
    """Stores a run's part as what can always be stored: its events as bytes. What was known of the run stays."""
    run = (next(iter(part.runs), "") or (part.events[0].run if part.events else "")).partition("/")[0]
    raw = msgspec.msgpack.encode(part.events)
    message = str(getattr(error, "orig", error)).encode("ascii", "backslashreplace").decode().replace("\0", "\\0")
    gap = Gap(run, part.upto, raw, message[:1000])
    # The block has the events too: the run's row is told where, and nothing else.
    where = part.runs[run].blocks if run in part.runs else ""
    blank = RunState(run, gap=1, blocks=where)
    await bulk.insert(connection, runs, [run_row(part.namespace, blank)], update=False)
    row_of = (runs.c.namespace == part.namespace, runs.c.born == born_of(run), runs.c.id == run)
    await connection.execute(runs.update().where(*row_of).values(gap=1, blocks=where))
    row = (part.namespace, part.partition, gap.entry, gap.run, gap.raw, gap.error)
    await bulk.insert(connection, gaps, [row], update=True)
    return gap
