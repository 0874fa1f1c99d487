"""The runs that steps of graph runs have started: their children. Their ids follow from run, step and attempt."""

from __future__ import annotations

from weft.ids import child_run_id
from weft.store.namespace import Namespace
from weft.store.runs import RunRow, read_runs

#: How often a run can be retried, each time with children of its own.
MAX_LIVES = 1_000


async def find_child(
    ns: Namespace, p: int, run: str, step: str, attempt: int, *, since_ms: int = 0
) -> tuple[str, RunRow | None]:
    """Returns the id of a step's child, and the child if it was started.

    `since_ms`: when the step was opened. A child that ended before that is of a step which a retry of its run has opened anew.
    """
    # A step that is open was opened in the run's newest life, and what earlier lives started may be gone.
    for life in range(await _lives(ns, p, run), MAX_LIVES):
        child = child_run_id(run, step, attempt, life)
        row = (await read_runs(ns, p, [child]))[0]
        if row is None or row.open or row.number("ended", 0) >= since_ms:
            break
    return child, row


async def newest_child(ns: Namespace, p: int, run: str, step: str, attempt: int) -> tuple[str, RunRow | None]:
    """Returns the child that a step has started last; of one that has started none, the id it would have."""
    newest: tuple[str, RunRow | None] = (child_run_id(run, step, attempt), None)
    lives = await _lives(ns, p, run)
    for life in range(MAX_LIVES):
        child = child_run_id(run, step, attempt, life)
        row = (await read_runs(ns, p, [child]))[0]
        if row is not None:
            newest = (child, row)
        elif life >= lives:
            break
    return newest


async def _lives(ns: Namespace, p: int, run: str) -> int:
    """Returns how often a run was retried."""
    return int(await ns.read("HGET", ns.keys.run(p, run), "lives", p=p) or 0)
