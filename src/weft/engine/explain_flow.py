"""Says what a workflow run waits for."""

from __future__ import annotations

from datetime import UTC, datetime

from weft.core.flow import is_flow
from weft.core.model import RunStatus
from weft.engine.engine import Engine
from weft.engine.explain import RESTS, Explanation
from weft.engine.flows import versions_served
from weft.ids import partition_of
from weft.store.runs import RunRow, is_diverged


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
    if missing:
        text += f"; then it cannot go on: {missing}"
    return Explanation(row.id, RunStatus.WAITING, "awaiting", text, queue=row.spec.queue, until=until)


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
