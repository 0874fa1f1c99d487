"""What the timer service does for graph runs: puts away what an ended run left, and goes on behind steps that others ended."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence

import msgspec

from weft.core.effects import CHUNK, run_of, step_id
from weft.core.model import VALUE_DECODER, ErrorRecord, Outcome, Token
from weft.engine.graphs import Follower, commit_nodes, definition_of
from weft.engine.steps import keep_failed_ms
from weft.errors import NotFound
from weft.store.graphs import put_away, read_map, read_open_steps, read_results, read_whole_context
from weft.store.namespace import Namespace
from weft.store.reads import Reads
from weft.store.runs import RunRow, end_run, read_runs
from weft.store.timers import drop_timers
from weft.telemetry import get_logger

log = get_logger("weft.housekeeping")

#: Ended runs that are put away together.
CLOSE_BATCH = 64
#: Steps of one ended run that are ended in one round.
END_BATCH = 200
#: Milliseconds that an ended step is remembered, so that whoever held it is told what became of it.
STEP_KEEP_MS = 60_000

_ENDED = msgspec.msgpack.encode(ErrorRecord("RunCancelled", "its run has ended", code="run_cancelled"))


async def tend(ns: Namespace, p: int, ended: Sequence[str], orphans: Sequence[str], *, by: str) -> None:
    """Looks after graph runs that have ended, and after steps whose run is to be told of their end."""
    # Many end at the same time, and each takes a few small reads: they share their round trips.
    reads = Reads(ns, p)
    for at in range(0, len(ended), CLOSE_BATCH):
        some = ended[at : at + CLOSE_BATCH]
        rows = await read_runs(ns, p, some)
        if gone := [f"close:{run}" for run, row in zip(some, rows, strict=True) if row is None]:
            await drop_timers(ns, p, gone)
        await asyncio.gather(*[_close(ns, reads, p, row, by=by) for row in rows if row is not None])
    for id, row in zip(orphans, await read_runs(ns, p, orphans), strict=True):
        if row is None or row.open:
            await drop_timers(ns, p, [f"route:{id}"])
        else:
            await _go_on(ns, p, row, by=by)


async def _close(ns: Namespace, reads: Reads, p: int, row: RunRow, *, by: str) -> None:
    run, keys = row.id, ns.keys
    published = await definition_of(ns, p, row.text("def"))
    left = END_BATCH
    aside: list[str] = [keys.context(p, run), keys.arrivals(p, run), keys.tasklog(p, run)]
    for step in await read_open_steps(reads, p, run):
        ids = [step_id(run, step)]
        map_row = await read_map(ns, p, run, step)
        if map_row is not None:
            results = await read_results(ns, p, run, step, map_row.n)
            ids += [step_id(run, f"{step}#{i}") for i in range(map_row.at) if i not in results]
        left -= await _end_steps(ns, p, ids[: max(0, left)], by=by)
        if left <= 0:
            return  # the timer is still due: the next round goes on
    given_by = await read_whole_context(reads, p, run)
    for id, given in given_by.items():
        if given.status == "completed":
            value = VALUE_DECODER.decode(given.value)
            if value.blob:
                aside.append(keys.blob(p, run, value.blob))
        if id in published.plan and published.plan.node(id).is_map:
            aside += await _map_keys(ns, p, run, given.step)
    for id in published.plan.spec.nodes:
        if id not in given_by and published.plan.node(id).is_map:
            aside += await _map_keys(ns, p, run, id)
    failed = row.text("status") == "failed"
    keep_ms = keep_failed_ms(row.spec) if failed else row.spec.keep_ms
    if row.spec.blob:
        aside.append(keys.blob(p, run, row.spec.blob))
    if "result" in row.fields and (blob := VALUE_DECODER.decode(row.fields["result"]).blob):
        aside.append(keys.blob(p, run, blob))
    await put_away(reads, p, run, aside, keep_ms=keep_ms)


async def _map_keys(ns: Namespace, p: int, run: str, step: str) -> list[str]:
    row = await read_map(ns, p, run, step)
    n = row.n if row is not None else 0
    chunks = range((n + CHUNK - 1) // CHUNK)
    return [
        ns.keys.map(p, run, step),
        ns.keys.items(p, run, step),
        *(ns.keys.results(p, run, step, chunk) for chunk in chunks),
    ]


async def _end_steps(ns: Namespace, p: int, ids: Sequence[str], *, by: str) -> int:
    for row in await read_runs(ns, p, ids):
        if row is not None and row.open:
            with contextlib.suppress(NotFound):
                await end_run(ns, p, row, kind="cancelled", value=_ENDED, keep_ms=STEP_KEEP_MS, by=by)
    return len(ids)


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
