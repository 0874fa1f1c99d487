"""Passes the pause of a graph run on to the runs that its steps have started, and lets them go on with it.

Each script looks at the run above once more, so whoever is late changes nothing. A timer, `hold:<run>`, stands until all is
passed on: whoever paused the run may die before.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Sequence

from weft.core.effects import SUBGRAPH, run_of, step_of
from weft.engine.children import newest_child
from weft.engine.closing import open_ids
from weft.engine.definitions import definition_of
from weft.errors import Conflict, NotFound
from weft.store.namespace import Namespace
from weft.store.pauses import pause_run, resume_run
from weft.store.runs import RunRow, read_runs
from weft.store.timers import drop_timers
from weft.telemetry import get_logger

log = get_logger("weft.housekeeping")


async def has_children(ns: Namespace, p: int, row: RunRow) -> bool:
    """Tells whether steps of a run may start others."""
    try:
        published = await definition_of(ns, p, row.text("def"))
    except NotFound:
        return False
    return any(base.child for base in published.steps.values())


async def spread(ns: Namespace, p: int, run: str) -> None:
    """Pauses the children of a run that is paused, and theirs; lets those go on that were paused with one that is not."""
    (row,) = await read_runs(ns, p, [run])
    if row is None or not row.open or not await has_children(ns, p, row):
        return
    async for child in _children(ns, p, run):
        await (follow_pause(ns, p, child, row) if "paused" in row.fields else _let_go(ns, p, child, run))
        # Whoever was quicker with the child may not have come to its children yet: what is told here shall hold for all.
        await spread(ns, p, child.id)


async def follow_pause(ns: Namespace, p: int, child: RunRow, above: RunRow) -> None:
    """Pauses a child of a run that is paused."""
    await pause_run(
        ns,
        p,
        child.id,
        by=f"run {above.id}",
        reason=f"run {above.id} is paused",
        at_ms=int(time.time() * 1000),
        spreads=await has_children(ns, p, child),
        above=above.id,
    )


async def pass_on(ns: Namespace, p: int, runs: Sequence[str], *, seen_ms: int) -> None:
    """Passes on what others may not have finished passing on."""
    for run in runs:
        seen = None
        # The timer may be set anew while this goes on, by a pause or a resume whose caller died: then it goes on.
        while seen != (seen := await _paused(ns, p, run)):
            try:
                await spread(ns, p, run)
            except Conflict as error:
                log.warning("a pause cannot be passed on to all children", run=run, error=error)
            await drop_timers(ns, p, [f"hold:{run}"], seen_ms=seen_ms)


async def _paused(ns: Namespace, p: int, run: str) -> str:
    (row,) = await read_runs(ns, p, [run])
    return "" if row is None else row.text("paused")


async def _let_go(ns: Namespace, p: int, child: RunRow, above: str) -> None:
    await resume_run(ns, p, child.id, by=f"run {above}", spreads=await has_children(ns, p, child), above=above)


async def _children(ns: Namespace, p: int, run: str) -> AsyncIterator[RunRow]:
    """Yields the open runs that open steps of a run have started."""
    async for ids in open_ids(ns, p, run):
        for row in await read_runs(ns, p, ids):
            if row is None or not row.open or row.spec.name != SUBGRAPH:
                continue
            _, child = await newest_child(ns, p, run_of(row.id), step_of(row.id), row.number("attempt", 1))
            if child is not None and child.open:
                yield child
