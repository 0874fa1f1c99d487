"""Says what a workflow run waits for."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgspec

from weft.core.effects import step_id, step_of
from weft.core.flow import is_flow
from weft.core.model import RunStatus
from weft.engine.engine import Engine
from weft.engine.explain import RESTS, Explanation, explain_row
from weft.engine.flows import versions_served
from weft.ids import partition_of
from weft.store.graphs import read_open_steps
from weft.store.runs import RunRow, is_diverged, read_runs

#: Calls of a workflow run that are explained one by one.
MAX_EXPLAINED = 20
#: Reasons of calls that somebody must do something about, and of those that go on by themselves.
_STUCK = frozenset({"no_worker", "struck", "task_paused", "queue_paused"})
_MOVING = frozenset({"running", "queued", "admitting"})


async def explain_flow(engine: Engine, row: RunRow) -> Explanation | None:
    """Returns what the code of a workflow run waits for, and where; None while it does not wait."""
    awaits = row.text("awaits")
    if not row.open or not is_flow(row.spec) or row.token or (not awaits and not row.spec.version):
        return None
    missing = await _missing_version(engine, row)
    if not awaits:
        text = missing + (RESTS if row.due_ms and row.delivery > 1 else "")
        return Explanation(row.id, RunStatus.QUEUED, "no_worker", text, queue=row.spec.queue) if missing else None
    until = None if row.due_ms is None else datetime.fromtimestamp(row.due_ms / 1000, UTC)
    if is_diverged(row):
        return Explanation(row.id, RunStatus.WAITING, "diverged", awaits, queue=row.spec.queue, until=until)
    text = f"its code waits for {awaits}"
    if until is not None:
        text += f"; at the latest until {until:%Y-%m-%d %H:%M:%S} UTC"
    n_open, calls = await _calls(engine, row)
    # The one that somebody must do something about stands for all: what moves by itself needs no words.
    first = max(calls, key=lambda call: (call.reason in _STUCK) - (call.reason in _MOVING), default=None)
    if first is not None:
        text += f"; {first.step}: {first.text}"
    if missing:
        text += f"; then it cannot go on: {missing}"
    step = first.step if first is not None else ""
    facts: Any = {"queue": row.spec.queue, "until": until, "step": step, "open_steps": n_open, "steps": calls}
    return Explanation(row.id, RunStatus.WAITING, "awaiting", text, **facts)


async def _calls(engine: Engine, row: RunRow) -> tuple[int, list[Explanation]]:
    """Returns how many calls of a workflow run are open, and why the oldest of them do not go on."""
    p = partition_of(row.id)
    opened = await read_open_steps(engine.ns, p, row.id)
    names = sorted(opened, key=lambda step: (opened[step], step))
    rows = await read_runs(engine.ns, p, [step_id(row.id, name) for name in names[:MAX_EXPLAINED]])
    found = [await explain_row(engine, p, one) for one in rows if one is not None and one.open]
    return len(names), [msgspec.structs.replace(one, run_id=row.id, step=step_of(one.run_id)) for one in found]


async def _missing_version(engine: Engine, row: RunRow) -> str:
    """Says that nobody has the version that a run is pinned to; empty when somebody has, or it is not pinned."""
    spec = row.spec
    if not spec.version:
        return ""
    served = await versions_served(engine.ns, partition_of(row.id))
    if (spec.queue, spec.name, spec.version) in served:
        return ""
    others = sorted(version for queue, name, version in served if (queue, name) == (spec.queue, spec.name))
    have = f"; they have {', '.join(others)}" if others else ""
    return f"no live worker of queue {spec.queue} has version {spec.version} of workflow {spec.name}{have}"
