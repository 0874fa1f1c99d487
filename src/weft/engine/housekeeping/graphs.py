"""What the timer service does for graph runs: puts away what an ended run left, and goes on behind steps that others ended."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence

from weft.core.effects import CHUNK, run_of
from weft.core.graph.compile import Plan
from weft.core.model import VALUE_DECODER, Outcome, Token
from weft.core.routing import step_name
from weft.engine.closing import end_open_steps
from weft.engine.graphs import Follower, commit_nodes, definition_of
from weft.engine.steps import keep_failed_ms
from weft.errors import NotFound
from weft.store.ended import MapKeys, put_away_graph
from weft.store.graphs import read_map, read_whole_context
from weft.store.namespace import Namespace
from weft.store.pauses import resume_run
from weft.store.runs import RunRow, read_runs
from weft.store.timers import drop_timers
from weft.telemetry import get_logger

log = get_logger("weft.housekeeping")

#: Iterations of one map that are looked for.
MAX_ITERATIONS = 1_000


async def tend(ns: Namespace, p: int, ended: Sequence[str], orphans: Sequence[str], *, by: str) -> None:
    """Looks after graph runs that have ended, and after steps whose run is to be told of their end."""
    for run, row in zip(ended, await read_runs(ns, p, ended), strict=True):
        if row is None:
            await drop_timers(ns, p, [f"close:{run}"])
        else:
            await _close(ns, p, row, by=by)
    for id, row in zip(orphans, await read_runs(ns, p, orphans), strict=True):
        if row is None or row.open:
            await drop_timers(ns, p, [f"route:{id}"])
        else:
            await _go_on(ns, p, row, by=by)


async def _close(ns: Namespace, p: int, row: RunRow, *, by: str) -> None:
    run = row.id
    published = await definition_of(ns, p, row.text("def"))
    if row.open:
        return await drop_timers(ns, p, [f"close:{run}"])
    if not await end_open_steps(ns, p, run, by=by, until_ms=row.number("ended", 0)):
        return  # the timer is still due: the next round goes on
    if "paused" in row.fields:
        await resume_run(ns, p, run, by=by)
    blobs = {row.spec.blob}
    for given in (await read_whole_context(ns, p, run)).values():
        if given.status == "completed":
            blobs.add(VALUE_DECODER.decode(given.value).blob)
    if "result" in row.fields:
        blobs.add(VALUE_DECODER.decode(row.fields["result"]).blob)
    maps = [id for id in published.plan.spec.nodes if published.plan.node(id).is_map]
    left = await map_keys(ns, p, run, published.plan, maps)
    keep_ms = keep_failed_ms(row.spec) if row.text("status") == "failed" else row.spec.keep_ms
    await put_away_graph(ns, p, row, blobs=sorted(blobs - {""}), maps=left, keep_ms=keep_ms)


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


async def _go_on(ns: Namespace, p: int, row: RunRow, *, by: str) -> None:
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
    outcome = Outcome(token, row.text("status"), row.fields["error"], 0, row.number("started", 0))
    try:
        end = await Follower(ns, p).after(outcome)
    except NotFound:
        await drop_timers(ns, p, [f"route:{row.id}"])
        return
    (word,) = await commit_nodes(ns, p, [end], session=by)
    if word not in ("ok", "again"):
        await drop_timers(ns, p, [f"route:{row.id}"])
        log.debug("the end of a step changed nothing", step=row.id, run=run_of(row.id), why=word)
