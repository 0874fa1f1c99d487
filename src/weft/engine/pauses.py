"""The verbs that hold a graph run and let it go on, with its children. Running steps finish; what follows them waits."""

from __future__ import annotations

import time

from weft.core.model import RunStatus
from weft.engine.engine import Engine
from weft.engine.holding import has_children, spread
from weft.engine.runs import find
from weft.errors import Conflict, InvalidOption
from weft.ids import partition_of
from weft.store.pauses import pause_run, resume_run
from weft.store.runs import RunRow

#: Characters of a reason that are kept.
MAX_REASON = 500


async def pause(engine: Engine, run: str, *, reason: str, by: str) -> bool:
    """Pauses a graph run; returns whether it is paused now (False: it had ended)."""
    text, ns, p = checked_reason(reason), engine.ns, partition_of(run)
    row = await load_graph(engine, run)
    if not row.open:
        return False
    spreads = await has_children(ns, p, row)
    status, _ = await pause_run(ns, p, run, by=by, reason=text, at_ms=int(time.time() * 1000), spreads=spreads)
    if spreads:
        await spread(ns, p, run)
    return status == RunStatus.PAUSED


async def resume(engine: Engine, run: str, *, by: str) -> bool:
    """Lets a paused graph run go on; returns whether it does now (False: it had ended)."""
    ns, p = engine.ns, partition_of(run)
    row = await load_graph(engine, run)
    if not row.open:
        return False
    spreads = await has_children(ns, p, row)
    status, _ = await resume_run(ns, p, run, by=by, spreads=spreads)
    if spreads:
        await spread(ns, p, run)
    return status == RunStatus.RUNNING


async def load_graph(engine: Engine, run: str) -> RunRow:
    """Reads a graph run; raises NotFound, and Conflict for a run of a task or a workflow."""
    row = await find(engine, run)
    if row.spec.flow:
        raise Conflict(
            f"run {run} is of a workflow, not of a graph: cancel it, or, if it failed, have `weft dlq replay` start it anew",
            run=run,
        )
    if not row.is_graph:
        raise Conflict(
            f"run {run} is one task, not a graph: pause its queue or task, reschedule or replay it instead", run=run
        )
    return row


def checked_reason(reason: str) -> str:
    """Returns a reason as it is kept; raises for what is no text."""
    if not isinstance(reason, str):
        raise InvalidOption(f"reason must be a text, not a {type(reason).__name__}", option="reason")
    return reason[:MAX_REASON].encode("utf-8", "replace").decode()
