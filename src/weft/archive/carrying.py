"""Runs as files: what a file needs of the archive, and storing a run that a file brought, whole or not at all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sqlalchemy import func, select

from weft.archive import bulk
from weft.archive.blocks import pack
from weft.archive.database import Database
from weft.archive.rows import write_rows
from weft.archive.tables import blobs, blocks, checkpoints, labels, runs, steps, uses
from weft.archive.writer import USES_LOCK, born_of, run_row, step_row
from weft.core.fold import Logged, RunState, StepState, labels_of
from weft.core.model import SPEC_DECODER
from weft.core.rows import Rows
from weft.errors import Conflict
from weft.ids import partition_of


async def read_values(database: Database, run: str) -> dict[str, bytes]:
    """Returns the large values that a run uses, by name."""
    query = select(blobs.c.digest, blobs.c.data).join(uses, uses.c.digest == blobs.c.digest).where(uses.c.run == run)
    async with database.reading() as connection:
        return {digest: bytes(data) for digest, data in await connection.execute(query)}


async def write_run(
    database: Database,
    namespace: str,
    state: RunState,
    of_steps: Sequence[StepState],
    events: Sequence[Logged],
    values: Mapping[str, bytes],
    shared: set[str],
    told: Rows,
) -> None:
    """Stores a run that ended elsewhere, with the patches and approvals that it `told` of.

    `shared`: definitions among its values, which do not go with it.

    Raises Conflict, with nothing stored, when the archive has a run of that id, in another namespace too: steps and values
    are kept by the id of their run, and would go with whichever goes first.
    """
    p, born = partition_of(state.id), born_of(state.id)
    async with database.writing() as connection:
        if not database.is_sqlite:
            await connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({USES_LOCK})")
        known = set((await connection.execute(select(checkpoints.c.namespace).distinct())).scalars()) | {namespace}
        there = (runs.c.namespace.in_(sorted(known)), runs.c.born == born, runs.c.id == state.id)
        if (found_in := (await connection.execute(select(runs.c.namespace).where(*there))).scalar()) is not None:
            where = "" if found_in == namespace else f", in namespace {found_in!r}: look at it there"
            raise Conflict(f"the archive has a run {state.id} already{where}; nothing was imported", run=state.id)
        # Below zero: those above are the archiver's.
        mine = (blocks.c.namespace == namespace, blocks.c.partition == p)
        lowest = (await connection.execute(select(func.min(blocks.c.number)).where(*mine))).scalar()
        number = min(0, lowest or 0) - 1
        state.blocks = f" {number}"
        tags = SPEC_DECODER.decode(state.spec).tags
        found = [(namespace, name, value, born, id) for id, name, value in labels_of(state, tags)]
        used = [(state.id, name) for name in values if name not in shared]
        await bulk.insert(
            connection, blocks, [(namespace, p, number, pack([_entry(event) for event in events]))], update=False
        )
        await bulk.insert(connection, runs, [run_row(namespace, state)], update=False)
        for table, rows in ((steps, [step_row(each) for each in of_steps]), (labels, found), (uses, used)):
            await bulk.insert(connection, table, rows, update=False)
        await bulk.insert(connection, blobs, list(values.items()), update=False)
        await write_rows(connection, namespace, p, told, {})


def _entry(event: Logged) -> tuple[bytes, list[bytes]]:
    """Returns an event as an entry of the log."""
    told = f"{event.seq}|{event.type}|{event.facts}|".encode() + event.payload
    return event.entry.encode(), [b"at", str(event.at_ms).encode(), b"by", event.by.encode(), event.run.encode(), told]
