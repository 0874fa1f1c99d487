"""Says what a workflow run waits for."""

from __future__ import annotations

from datetime import UTC, datetime

from weft.core.model import RunStatus
from weft.engine.explain import Explanation
from weft.store.runs import RunRow


def explain_flow(row: RunRow) -> Explanation | None:
    """Returns what the code of a workflow run waits for, and where; None while it does not wait."""
    awaits = row.text("awaits")
    if not row.open or not awaits or row.token:
        return None
    until = None if row.due_ms is None else datetime.fromtimestamp(row.due_ms / 1000, UTC)
    diverged = awaits.startswith("the code of workflow")
    reason, text = ("diverged", awaits) if diverged else ("awaiting", f"its code waits for {awaits}")
    if until is not None and not diverged:
        text += f"; at the latest until {until:%Y-%m-%d %H:%M:%S} UTC"
    return Explanation(row.id, RunStatus.WAITING, reason, text, queue=row.spec.queue, until=until)
