"""Says what a graph run waits for that nothing but people and other programs can bring about."""

from __future__ import annotations

from weft.core.effects import step_id
from weft.engine.engine import Engine
from weft.ids import partition_of
from weft.store.approvals import read_approvals
from weft.store.graphs import read_open_steps
from weft.store.runs import RunRow, read_runs
from weft.store.waits import read_parked

#: Waiting steps that are named.
SHOWN = 5


async def explain_waits(engine: Engine, row: RunRow) -> tuple[str, str] | None:
    """Returns why a graph run does not go on, as a word and a sentence; None while some step goes on without help."""
    ns, run, p = engine.ns, row.id, partition_of(row.id)
    if not (await read_parked(ns, p, [run]))[0]:
        return None
    steps = await read_open_steps(ns, p, run)
    rows = await read_runs(ns, p, [step_id(run, step) for step in steps])
    waiting = [held for held in rows if held is not None and held.waits]
    if not waiting:
        return None
    texts = []
    for held in waiting[:SHOWN]:
        step = held.id.partition("/")[2]
        if held.waits != "approval":
            texts.append(f"{step} waits for signal {held.waits.partition(':')[2]}")
            continue
        (asked,) = await read_approvals(ns, p, [held.id])
        who = ", ".join(asked.state.approvers) if asked is not None else ""
        texts.append(f"{step} waits for the approval of {who or 'anybody'} (weft approvals show {held.id})")
    more = f" and {len(waiting) - SHOWN} more" if len(waiting) > SHOWN else ""
    return "approval" if waiting[0].waits == "approval" else "signal", "; ".join(texts) + more
