"""What the timer service does for graph runs: puts away what an ended run left, and goes on behind steps that others ended."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

import msgspec

from weft.core.effects import run_of, step_id
from weft.core.model import ErrorRecord, Outcome, Token
from weft.engine.graphs import Follower, commit_nodes
from weft.engine.steps import keep_failed_ms
from weft.errors import NotFound
from weft.store.approvals import close_approvals
from weft.store.graphs import expire, keys_of, put_away, read_belongings, read_map, read_open_steps
from weft.store.namespace import Namespace
from weft.store.runs import RunRow, end_run, read_runs
from weft.store.timers import drop_timers
from weft.telemetry import get_logger

log = get_logger("weft.housekeeping")

#: Steps of one ended run that are ended in one round.
END_BATCH = 200
#: Items of a map that are looked at together.
READ_BATCH = 500
#: Milliseconds that an ended step is remembered, so that whoever held it is told what became of it.
STEP_KEEP_MS = 60_000

_ENDED = msgspec.msgpack.encode(ErrorRecord("RunCancelled", "its run has ended", code="run_cancelled"))


async def tend(ns: Namespace, p: int, ended: Sequence[str], orphans: Sequence[str], *, by: str) -> None:
    """Looks after graph runs that have ended, and after steps whose run is to be told of their end."""
    for run, row in zip(ended, await read_runs(ns, p, ended), strict=True):
        if row is None:
            await _forget(ns, p, run, by=by)
        else:
            await _close(ns, p, row, by=by)
    for id, row in zip(orphans, await read_runs(ns, p, orphans), strict=True):
        if row is None or row.open:
            await drop_timers(ns, p, [f"route:{id}"])
        else:
            await _go_on(ns, p, row, by=by)


async def _close(ns: Namespace, p: int, row: RunRow, *, by: str) -> None:
    """Ends what an ended run left open, then lets all that it has expire with it."""
    run, keys, left = row.id, ns.keys, END_BATCH
    failed = row.text("status") == "failed"
    keep_ms = keep_failed_ms(row.spec) if failed else row.spec.keep_ms
    open_steps = [step_id(run, step) for step in await read_open_steps(ns, p, run)]
    left -= await _end_steps(ns, p, open_steps, left, by=by)
    async for members in read_belongings(ns, p, run):
        for member in members:
            if member.startswith("map "):
                left -= await _end_items(ns, p, run, member.split(" ")[1], left, by=by)
            await expire(ns, p, keys_of(ns, p, run, member), keep_ms=keep_ms)
        if left <= 0:
            return  # the timer is still due: the next round goes on
    own = [keys.context(p, run), keys.arrivals(p, run), keys.belongings(p, run), keys.tasklog(p, run)]
    own.append(keys.signals(p, run))
    if row.spec.blob:
        own.append(keys.blob(p, run, row.spec.blob))
    approvals = row.text("approvals").split()
    await close_approvals(ns, p, run, approvals)
    own += [keys.approval(p, step_id(run, step)) for step in approvals]
    await expire(ns, p, own, keep_ms=keep_ms)
    if left > 0:
        await put_away(ns, p, run)


async def _forget(ns: Namespace, p: int, run: str, *, by: str) -> None:
    """Ends what was open of a run that expired before anybody closed it: no worker was there for as long as it was kept."""
    keys = ns.keys
    steps = list(await read_open_steps(ns, p, run))
    await _end_steps(ns, p, [step_id(run, step) for step in steps], len(steps), by=by)
    await close_approvals(ns, p, run, steps)
    aside = [keys.context(p, run), keys.arrivals(p, run), keys.belongings(p, run), keys.signals(p, run)]
    aside += [keys.approval(p, step_id(run, step)) for step in steps]
    await expire(ns, p, aside, keep_ms=STEP_KEEP_MS)
    await put_away(ns, p, run)


async def _end_items(ns: Namespace, p: int, run: str, step: str, most: int, *, by: str) -> int:
    """Ends items of a map that nobody waits for."""
    row = await read_map(ns, p, run, step)
    if row is None or not row.left:
        return 0
    ids = [step_id(run, f"{step}#{index}") for index in range(row.at)]
    ended = 0
    for at in range(0, len(ids), READ_BATCH):
        ended += await _end_steps(ns, p, ids[at : at + READ_BATCH], most - ended, by=by)
        if ended >= most:
            break
    return ended


async def _end_steps(ns: Namespace, p: int, ids: Sequence[str], most: int, *, by: str) -> int:
    """Ends those of some steps that are open, up to a number; returns how many."""
    ended = 0
    for row in await read_runs(ns, p, ids):
        if row is not None and row.open and ended < most:
            with contextlib.suppress(NotFound):
                await end_run(ns, p, row, kind="cancelled", value=_ENDED, keep_ms=STEP_KEEP_MS, by=by)
            ended += 1
    return ended


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
