"""Looks at maps whose node says `hedge`: items that have run for that long are started a second time, and who loses is ended.

One timer per map, `hedge:<run>/<step>`, is there as long as the map is open: whoever dies in between leaves it due.
"""

from __future__ import annotations

from collections.abc import Sequence

from weft.core.effects import COPY, ROUTE, run_of, step_of
from weft.core.hedging import LOOK_MS, Item, choose
from weft.core.routing import parse_step
from weft.engine.closing import end_steps, open_items
from weft.engine.definitions import definition_of
from weft.errors import NotFound, Unavailable
from weft.store.controls import informed
from weft.store.graphs import read_map
from weft.store.hedges import hedge_items, read_running_ms
from weft.store.namespace import Namespace
from weft.store.runs import RunRow, read_runs
from weft.store.timers import delay_timer, drop_timers, read_now
from weft.telemetry import get_logger

log = get_logger("weft.housekeeping")

#: Items that one script call starts a second time.
HEDGE_BATCH = 100


async def watch_maps(ns: Namespace, p: int, maps: Sequence[str], *, by: str, seen_ms: int) -> None:
    """Starts what takes too long in these maps a second time."""
    for id, row in zip(maps, await read_runs(ns, p, [run_of(id) for id in maps]), strict=True):
        try:
            wait_ms = await _watch(ns, p, row, step_of(id), by=by) if row is not None and row.open else None
        except NotFound as error:
            log.warning("a map cannot be looked after", map=id, error=error)
            wait_ms = None
        if wait_ms is None:
            await drop_timers(ns, p, [f"hedge:{id}"], seen_ms=seen_ms)
        else:
            await delay_timer(ns, p, f"hedge:{id}", wait_ms)


async def stop_outrun(ns: Namespace, p: int, ids: Sequence[str], *, by: str, seen_ms: int) -> None:
    """Ends steps that somebody else was quicker with."""
    if ids:
        await end_steps(ns, p, ids, by=by)
        await drop_timers(ns, p, [f"stop:{id}" for id in ids], seen_ms=seen_ms)


async def _watch(ns: Namespace, p: int, run: RunRow, step: str, *, by: str) -> int | None:
    """Looks at one map; returns in how many milliseconds to look again, or None when it is over."""
    plan = (await definition_of(ns, p, run.text("def"))).plan
    id, _ = parse_step(plan, step)
    hedge_ms = plan.node(id).duration_ms("hedge") if id in plan else None
    row = await read_map(ns, p, run.id, step)
    if not hedge_ms or row is None or row.over or "failing" in run.fields:
        return None
    if "paused" in run.fields or row.at < row.n:
        # While items wait to be opened, the room that `max_parallel` leaves belongs to them.
        return max(hedge_ms, LOOK_MS)
    ids = [one for one in await open_items(ns, p, run.id, step) if not one.endswith(COPY)]
    # A step that only reports a failure takes no time: nothing to hedge.
    found = [one for one in await read_runs(ns, p, ids) if one is not None and one.open and one.spec.name != ROUTE]
    running, now = await read_running_ms(ns, p, found), await read_now(ns, p)
    items = [
        Item(one.id, running.get(one.id), max(0, (one.due_ms or 0) - now), "copied" in one.fields) for one in found
    ]
    chosen, wait_ms = choose(items, hedge_ms, row.most)
    rows = {one.id: one for one in found}
    for at in range(0, len(chosen), HEDGE_BATCH):
        some = [rows[one] for one in chosen[at : at + HEDGE_BATCH]]
        try:
            await informed(ns, p, lambda some=some: hedge_items(ns, p, step, some, by=by))  # type: ignore[misc]
        except Unavailable as error:
            # A full server takes nothing new. What runs goes on, and so do the other timers.
            log.warning("items cannot be started a second time now", run=run.id, step=step, error=error)
            return max(hedge_ms, LOOK_MS)
    return wait_ms
