"""Ticks: what the timer service does about schedules that are due. Read, decide, and move on in one script.

Any number of schedulers may do this at once. What each decides holds only for the revision it read, and starting the runs
is part of the same script: one that slept in between finds the schedule moved on, and changes nothing.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterator, Sequence

import msgspec

from weft.core.model import ErrorRecord
from weft.core.schedule import Plan, ScheduleSpec, plan
from weft.engine.schedules import superseded, tick_run
from weft.errors import Broken, NotFound, UserError
from weft.store.controls import informed
from weft.store.namespace import Namespace
from weft.store.runs import NewRun, RunRow, end_run, read_ledgers
from weft.store.schedules import Move, ScheduleRow, postpone_schedule, put_schedule, read_schedules, tick_schedules
from weft.telemetry import get_logger

log = get_logger("weft.schedules")

#: Runs started by one script call.
START_BATCH = 256
#: Milliseconds until a schedule that cannot be judged is looked at again.
BROKEN_MS = 60_000

Step = tuple[Move, list[NewRun]]


async def fire_schedules(ns: Namespace, p: int, names: Sequence[str], *, now_ms: int, by: str) -> None:
    """Decides about schedules whose timer is due, and starts what there is to start."""
    rows = dict(zip(names, await read_schedules(ns, p, names), strict=True))
    previous = {run.id: run for run in await read_ledgers(ns, p, [row.run for row in rows.values() if row and row.run])}
    steps: list[Step] = []
    for name, row in rows.items():
        async with _alone(ns, p, name, now_ms):
            if row is None or row.paused or row.moment("next") is None:
                # At the revision that was read, like all else: it may have been resumed or created since.
                await put_schedule(ns, p, name, rev=row.rev if row else "0", due_ms=None, fields={})
            else:
                steps.append(await _decide(ns, p, row, previous.get(row.run), now_ms, by))
    for batch in _batches(steps):
        try:
            await _tick(ns, p, batch, by)
        except Broken:
            for step in batch:
                async with _alone(ns, p, step[0].name, now_ms):
                    await _tick(ns, p, [step], by)


@contextlib.asynccontextmanager
async def _alone(ns: Namespace, p: int, name: str, now_ms: int) -> AsyncIterator[None]:
    """Puts off a schedule that cannot be judged or moved: it must not keep the others, and all other timers, waiting."""
    try:
        yield
    except (Broken, UserError, ValueError, OverflowError) as error:
        log.error("a schedule is broken; it is looked at again in a minute", schedule=name, error=repr(error))
        await postpone_schedule(ns, p, name, now_ms + BROKEN_MS)


async def _decide(ns: Namespace, p: int, row: ScheduleRow, previous: RunRow | None, now_ms: int, by: str) -> Step:
    spec, next_ms = row.spec, row.moment("next") or 0
    if next_ms > now_ms:
        # The timer came before its tick: set right, nothing decided.
        keeps = frozenset({"next", "last", "run", "skipped", "waits"})
        return Move(row.name, row.rev, timer_ms=next_ms, keeps=keeps), []
    is_open = previous is not None and previous.open
    decided = plan(spec, next_ms=next_ms, now_ms=now_ms, previous_open=is_open, waits_ms=row.moment("waits"))
    if decided.cancels and previous is not None:
        # Before the successor is started. A crash in between leaves the tick due, and the next look starts it.
        await _cancel(ns, p, previous, row.name, by)
    return _step(p, row, spec, decided)


def _step(p: int, row: ScheduleRow, spec: ScheduleSpec, decided: Plan) -> Step:
    made = [tick_run(p, row.name, spec, tick) for tick in decided.fire]
    keeps = set[str]()
    if not made:
        keeps |= {"last", "run"}
    if decided.skipped_ms is None:
        keeps.add("skipped")
    move = Move(
        row.name,
        row.rev,
        next_ms=decided.next_ms,
        timer_ms=decided.look_ms or decided.next_ms,
        last_ms=decided.fire[-1] if made else None,
        run=made[-1].id if made else None,
        skipped_ms=decided.skipped_ms,
        waits_ms=decided.waits_ms,
        keeps=frozenset(keeps),
    )
    return move, made


def _batches(steps: list[Step]) -> Iterator[list[Step]]:
    """Groups steps so that no script call starts too many runs."""
    batch: list[Step] = []
    n = 0
    for step in steps:
        if batch and n + len(step[1]) > START_BATCH:
            yield batch
            batch, n = [], 0
        batch.append(step)
        n += len(step[1])
    if batch:
        yield batch


async def _tick(ns: Namespace, p: int, steps: list[Step], by: str) -> None:
    moves, runs = [move for move, _ in steps], [run for _, made in steps for run in made]
    stale = await informed(ns, p, lambda: tick_schedules(ns, p, moves, runs, by=by))
    if stale:
        # Others changed these meanwhile: if they are still due, the next look meets them again.
        rest = [step for number, step in enumerate(steps) if number not in stale]
        if rest:
            await _tick(ns, p, rest, by)


async def _cancel(ns: Namespace, p: int, previous: RunRow, name: str, by: str) -> None:
    value = msgspec.msgpack.encode(ErrorRecord("RunCancelled", superseded(name), code="run_cancelled"))
    rows = [previous]
    with contextlib.suppress(NotFound):
        while rows:
            keep_ms = rows[0].spec.keep_ms
            status, _ = await end_run(ns, p, rows[0], kind="cancelled", value=value, keep_ms=keep_ms, by=by)
            if status != "again":
                return
            rows = await read_ledgers(ns, p, [previous.id])  # it went through a gate since it was read
