"""Runs that a verb needs in the hot store: those that only the archive has have ended, and are told so."""

from __future__ import annotations

from weft.engine.coldruns import find_cold
from weft.engine.engine import Engine
from weft.engine.runs import load
from weft.errors import Conflict, NotFound
from weft.store.runs import RunRow


async def load_living(engine: Engine, run: str) -> RunRow:
    """Reads one run that the hot store holds; raises Conflict for one that has ended and only the archive has, NotFound."""
    try:
        return await load(engine, run)
    except NotFound:
        row = await find_cold(engine, run)
        if row is None:
            raise
        status = row.text("status")
        raise Conflict(
            f"run {run} has ended ({status}), and only the archive has it still", run=run, status=status
        ) from None
