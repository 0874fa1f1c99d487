"""What the timer service does for graph runs: puts away what an ended run left, and goes on behind steps that others ended."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterable, Sequence

from weft.core.effects import CHUNK, ENDS, run_of, step_id, step_of
from weft.core.graph.compile import Plan
from weft.core.model import Outcome, Token
from weft.core.routing import step_name
from weft.engine.closing import END_BATCH, STEP_KEEP_MS, end_open_steps, end_steps, open_items
from weft.engine.graphs import Follower, commit_nodes
from weft.engine.housekeeping.flows import close_flows, end_poisoned_call
from weft.engine.steps import keep_failed_ms
from weft.engine.subgraphs import tell_parent
from weft.errors import NotFound
from weft.store.approvals import close_approvals
from weft.store.ended import MapKeys, put_away_graph
from weft.store.graphs import expire, put_away, read_belongings, read_map, read_open_steps
from weft.store.namespace import Namespace
from weft.store.pauses import resume_run
from weft.store.runs import RunRow, read_runs
from weft.store.timers import delay_timer, drop_timers
from weft.telemetry import get_logger

log = get_logger("weft.housekeeping")

#: Ended runs that are put away together.
CLOSE_BATCH = 64
#: Iterations of one map that are looked for.
MAX_ITERATIONS = 1_000
#: Milliseconds before a parent that a worker has in hand is told again.
TELL_AGAIN_MS = 50


async def shut_maps(ns: Namespace, p: int, maps: Sequence[str], *, by: str, seen_ms: int) -> None:
    """Ends what is still open of maps that are over: items nobody waits for, and the step that waits for a deadline."""
    for id in maps:
        run, step = run_of(id), step_of(id)
        ids = [*await open_items(ns, p, run, step), step_id(run, step + ENDS)]
        if await end_steps(ns, p, ids, by=by, most=END_BATCH) < END_BATCH:
            await drop_timers(ns, p, [f"shut:{id}"], seen_ms=seen_ms)


async def tend(ns: Namespace, p: int, ended: Sequence[str], orphans: Sequence[str], *, by: str, seen_ms: int) -> None:
    """Looks after graph runs that have ended, and after steps whose run is to be told of their end."""
    found = list(zip(ended, await read_runs(ns, p, ended), strict=True))
    flows = [row for _, row in found if row is not None and row.spec.flow]
    if flows:
        await close_flows(ns, p, flows, by=by, seen_ms=seen_ms)
    # Many end at the same time, and each takes a few small calls: they share their round trips.
    others = [(run, row) for run, row in found if row is None or not row.spec.flow]
    for at in range(0, len(others), CLOSE_BATCH):
        some = others[at : at + CLOSE_BATCH]
        work = [_put_away(ns, p, run, row, by=by, seen_ms=seen_ms) for run, row in some]
        for wrong in await asyncio.gather(*work, return_exceptions=True):
            if wrong is not None:
                raise wrong
    for id, row in zip(orphans, await read_runs(ns, p, orphans), strict=True):
        if row is None or row.open:
            await drop_timers(ns, p, [f"route:{id}"], seen_ms=seen_ms)
        else:
            await _go_on(ns, p, row, by=by, seen_ms=seen_ms)


async def _put_away(ns: Namespace, p: int, run: str, row: RunRow | None, *, by: str, seen_ms: int) -> None:
    if row is None:
        return await _forget(ns, p, run, by=by)
    return await _close(ns, p, row, by=by, seen_ms=seen_ms)


async def _close(ns: Namespace, p: int, row: RunRow, *, by: str, seen_ms: int) -> None:
    """Ends what an ended run left open, then lets all that it has expire with it."""
    run, keys = row.id, ns.keys
    if row.open:
        return await drop_timers(ns, p, [f"close:{run}"], seen_ms=seen_ms)
    if not await end_open_steps(ns, p, run, by=by, until_ms=row.number("ended", 0)):
        return None  # the timer is still due: the next round goes on
    if "paused" in row.fields:
        await resume_run(ns, p, run, by=by, ended=True)
    if not await tell_parent(ns, p, row, by=by):
        return await delay_timer(ns, p, f"close:{run}", TELL_AGAIN_MS)
    maps, blobs, left = MapKeys(), {row.spec.blob}, END_BATCH
    steps: list[str] = []
    async for members in read_belongings(ns, p, run):
        for member in members:
            what, name, *n = member.split(" ")
            if what == "blob":
                blobs.add(name)
                continue
            left -= await _end_items(ns, p, run, name, left, by=by)
            steps.append(name)
            maps.maps.append(keys.map(p, run, name))
            maps.items.append(keys.items(p, run, name))
            maps.results += [keys.results(p, run, name, i) for i in range((int(n[0]) + CHUNK - 1) // CHUNK)]
        if left <= 0:
            return None
    keep_ms = keep_failed_ms(row.spec) if row.text("status") == "failed" else row.spec.keep_ms
    approvals = row.text("approvals").split()
    await close_approvals(ns, p, run, approvals, seq=row.number("seq", 1))
    blobs.discard("")
    timers = [f"hedge:{step_id(run, step)}" for step in steps]
    await put_away_graph(
        ns, p, row, blobs=sorted(blobs), maps=maps, approvals=approvals, timers=timers, keep_ms=keep_ms
    )
    return None


async def _forget(ns: Namespace, p: int, run: str, *, by: str) -> None:
    """Ends what was open of a run that expired before anybody closed it: no worker was there for as long as it was kept."""
    keys = ns.keys
    steps = list(await read_open_steps(ns, p, run))
    await end_steps(ns, p, [step_id(run, step) for step in steps], by=by)
    await close_approvals(ns, p, run, steps)
    aside = [keys.context(p, run), keys.arrivals(p, run), keys.belongings(p, run), keys.signals(p, run)]
    aside += [keys.journal(p, run), keys.mail(p, run), keys.updates(p, run)]
    aside += [keys.undo(p, run), *(keys.approval(p, step_id(run, step)) for step in steps)]
    await expire(ns, p, aside, keep_ms=STEP_KEEP_MS)
    await put_away(ns, p, run)


async def _end_items(ns: Namespace, p: int, run: str, step: str, most: int, *, by: str) -> int:
    """Ends items of a map that nobody waits for."""
    row = await read_map(ns, p, run, step)
    if row is None or not row.left:
        return 0
    return await end_steps(ns, p, await open_items(ns, p, run, step), by=by, most=max(0, most))


async def map_keys(ns: Namespace, p: int, run: str, plan: Plan, ids: Iterable[str]) -> MapKeys:
    """Returns the keys of maps, of all their iterations."""
    found, keys = MapKeys(), ns.keys
    for id in ids:
        sizes = [range(plan.spec.nodes[loop].max_iterations or 1) for loop in plan.node(id).loops]
        for iterations in itertools.islice(itertools.product(*sizes), MAX_ITERATIONS):
            step = step_name(id, iterations)
            row = await read_map(ns, p, run, step)
            found.items.append(keys.items(p, run, step))
            if row is not None:
                found.maps.append(keys.map(p, run, step))
                found.results += [keys.results(p, run, step, chunk) for chunk in range((row.n + CHUNK - 1) // CHUNK)]
    return found


async def _go_on(ns: Namespace, p: int, row: RunRow, *, by: str, seen_ms: int) -> None:
    """Does what follows a step that somebody else ended, such as poison by the sweeper."""
    delivery, _, entry = row.text("open").removeprefix("=").partition(":")
    token = Token(
        p,
        ns.epoch(p),
        row.id,
        entry,
        int(delivery),
        row.number("attempt", 1),
        row.spec,
        row.number("started", 0),
        closed=True,
    )
    if row.spec.flow:
        return await end_poisoned_call(ns, p, row, token, by=by, seen_ms=seen_ms)
    outcome = Outcome(token, row.text("status"), row.fields["error"], 0, row.number("started", 0))
    try:
        end = await Follower(ns, p).after(outcome)
    except NotFound:
        await drop_timers(ns, p, [f"route:{row.id}"], seen_ms=seen_ms)
        return
    (word,) = await commit_nodes(ns, p, [end], session=by)
    if word not in ("ok", "again"):
        await drop_timers(ns, p, [f"route:{row.id}"], seen_ms=seen_ms)
        log.debug("the end of a step changed nothing", step=row.id, run=run_of(row.id), why=word)
