"""Dead letters that only the archive has: those the store has let go, and runs that failed elsewhere and were imported.

They are marked in the database itself, which has no other state of them: whoever reserves a replay there starts it.
"""

from __future__ import annotations

import time

import msgspec

from weft.core.acts import Deed
from weft.core.effects import step_of
from weft.core.model import RunStatus
from weft.engine.coldruns import cold_blob, find_cold
from weft.engine.engine import Engine, user_name
from weft.engine.runs import find
from weft.errors import HistoryExpired, NotFound, PartitionLost
from weft.ids import partition_of
from weft.store.runs import RunRow


async def find_letter(engine: Engine, id: str) -> RunRow | None:
    """Returns a run that failed as the archive has it, with what was done to it; None when it has none of that id."""
    if step_of(id):
        return None
    row = await find_cold(engine, id)
    if row is None or row.text("status") != RunStatus.FAILED:
        return row
    from weft.archive.rows import read_letter

    done = await read_letter(engine.cold.database, engine.ns.keys.namespace, id)
    if done is None:
        return row
    if done.purged_ms:
        return None
    if done.replayed_as:
        row.fields["replayed"] = done.replayed_as.encode()
    if done.note:
        row.fields["investigated"] = f"{done.at_ms} {done.investigated_by} {done.note}".encode()
    return row


def home_for(engine: Engine, row: RunRow) -> int:
    """Returns the partition that a replay goes to: that of the letter, unless it is of a namespace with more of them."""
    p = partition_of(row.id)
    return p if p < engine.ns.partitions else engine.home()


async def input_for(engine: Engine, row: RunRow) -> bytes | None:
    """Returns the arguments of a letter; None when they are no longer kept."""
    return await cold_blob(engine, row.spec.blob) if row.spec.blob else row.spec.input


async def is_known(engine: Engine, run: str) -> bool:
    """Tells whether either store knows a run, however it stands."""
    try:
        await find(engine, run)
    except NotFound:
        return False
    except (PartitionLost, HistoryExpired):
        return True
    return True


async def reserve(engine: Engine, run: str, fresh: str, *, force: bool) -> tuple[str, bool]:
    """Takes an id for the replay of a letter; returns the id that it has, and whether it is the one that was taken now."""
    from weft.archive.rows import reserve_replay

    now_ms = int(time.time() * 1000)
    detail = msgspec.json.encode({"forced": force, "replayed_as": fresh})
    deed = Deed(f"replay:{fresh}", now_ms, user_name(), engine.id, "letter.replay", run, "", "", detail=detail)
    async with engine.cold.turn:
        return await reserve_replay(engine.cold.database, engine.ns.keys.namespace, run, fresh, deed, force=force)
