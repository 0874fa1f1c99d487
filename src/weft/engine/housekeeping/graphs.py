"""What the timer service does for graph runs: puts away what an ended run left, and goes on behind steps that others ended."""

from __future__ import annotations

from collections.abc import Sequence

from weft.core.effects import CHUNK, ENDS, run_of, step_id, step_of
from weft.core.model import VALUE_DECODER, Outcome, Token
from weft.engine.closing import end_steps, open_ids, open_items
from weft.engine.graphs import Follower, commit_nodes, definition_of
from weft.engine.steps import keep_failed_ms
from weft.engine.subgraphs import tell_parent
from weft.errors import NotFound
from weft.store.graphs import put_away, read_left, read_map
from weft.store.namespace import Namespace
from weft.store.runs import RunRow, read_runs
from weft.store.timers import delay_timer, drop_timers
from weft.telemetry import get_logger

log = get_logger("weft.housekeeping")

#: Steps of one ended run that are ended in one round.
END_BATCH = 200
#: Milliseconds before a parent that a worker has in hand is told again.
TELL_AGAIN_MS = 50


async def shut_maps(ns: Namespace, p: int, maps: Sequence[str], *, by: str) -> None:
    """Ends what is still open of maps that are over: items nobody waits for, and the step that waits for a deadline."""
    for id in maps:
        run, step = run_of(id), step_of(id)
        ids = [*await open_items(ns, p, run, step), step_id(run, step + ENDS)]
        if await end_steps(ns, p, ids, by=by, most=END_BATCH) < END_BATCH:
            await drop_timers(ns, p, [f"shut:{id}"])


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
    run, keys = row.id, ns.keys
    published = await definition_of(ns, p, row.text("def"))
    aside: list[str] = [keys.context(p, run), keys.arrivals(p, run), keys.tasklog(p, run), keys.undo(p, run)]
    left = END_BATCH
    async for ids in open_ids(ns, p, run):
        left -= await end_steps(ns, p, ids, by=by, most=left)
        if left <= 0:
            return  # the timer is still due: the next round goes on
    if not await tell_parent(ns, p, row, by=by):
        await delay_timer(ns, p, f"close:{run}", TELL_AGAIN_MS)
        return
    digests, maps = await read_left(ns, p, run)
    aside += [keys.blob(p, run, digest) for digest in digests]
    # Also items that were staged for a map that never began.
    for step in {*maps, *(id for id in published.plan.spec.nodes if published.plan.node(id).is_map)}:
        aside += await _map_keys(ns, p, run, step)
    failed = row.text("status") == "failed"
    keep_ms = keep_failed_ms(row.spec) if failed else row.spec.keep_ms
    if row.spec.blob:
        aside.append(keys.blob(p, run, row.spec.blob))
    if "result" in row.fields and (blob := VALUE_DECODER.decode(row.fields["result"]).blob):
        aside.append(keys.blob(p, run, blob))
    await put_away(ns, p, run, aside, keep_ms=keep_ms)


async def _map_keys(ns: Namespace, p: int, run: str, step: str) -> list[str]:
    row = await read_map(ns, p, run, step)
    n = row.n if row is not None else 0
    chunks = range((n + CHUNK - 1) // CHUNK)
    return [
        ns.keys.map(p, run, step),
        ns.keys.items(p, run, step),
        *(ns.keys.results(p, run, step, chunk) for chunk in chunks),
    ]


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
