"""Says why a run does not go on: the one constraint that binds it, from the gate's own data.

Order of binding: what has ended or runs waits for nothing; a timer comes before everything else; then what an operator
shut; then a missing worker; then limits, the one in whose line it stands first; then the others in front of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec

from weft.clock import format_duration, format_rate
from weft.core.effects import run_of
from weft.core.gates import Controls, cost_gate, gate_name, gate_parts, is_too_dear, needed
from weft.core.model import ROUTES, Limit, RunInfo, RunStatus
from weft.engine.engine import Engine
from weft.engine.gates import struck
from weft.engine.runs import describe, find
from weft.engine.waiters import explain_wait
from weft.ids import partition_of
from weft.store.controls import read_controls
from weft.store.gates import NEVER, read_gate, read_heads, read_rate
from weft.store.queues import read_ahead
from weft.store.runs import RunRow, read_held_ms, read_holders, read_runs
from weft.store.sessions import read_sessions
from weft.store.timers import read_now

#: Holders of a full gate that are named.
SHOWN_HOLDERS = 5
#: What is said of a run that a worker handed back because nobody can do it.
RESTS = "; it rests until one registers"


class Explanation(msgspec.Struct, frozen=True, omit_defaults=True):
    """Why a run does not go on: a reason for programs, a sentence for people, and the facts both rest on."""

    run_id: str
    status: RunStatus
    reason: str
    text: str
    queue: str = ""
    gate: str = ""
    holders: list[str] = []
    limit: str = ""
    waiting: int = 0
    until: datetime | None = None
    since: datetime | None = None
    by: str = ""
    #: The step of a graph run that the rest is about, how many are open, and the reasons of the first of them, one by one.
    step: str = ""
    open_steps: int = 0
    steps: list[Explanation] = []

    def __str__(self) -> str:
        return self.text


async def explain(engine: Engine, run: str) -> Explanation:
    """Returns why a run of a task does not go on."""
    return await explain_row(engine, partition_of(run), await find(engine, run))


async def explain_pause(engine: Engine, p: int, row: RunRow) -> tuple[str, dict[str, Any]] | None:
    """Returns since when and by whom a run is paused, as a sentence and as facts; None when it is not."""
    paused = (await read_controls(engine.ns, p)).paused_run(row.id)
    return None if paused is None else (f"the run is paused {_decided(paused)}", _facts(paused))


async def explain_row(engine: Engine, p: int, row: RunRow) -> Explanation:
    """Returns why a run of a task, or an open step of a graph run, does not go on."""
    holder = (await read_holders(engine.ns, p, [row])).get(row.id, "")
    info = describe(row, holder)
    now_ms = await read_now(engine.ns, p)
    if info.status.finished:
        return _finished(info)
    if row.waits:
        return _make(msgspec.structs.replace(info, status=RunStatus.WAITING), *await explain_wait(engine.ns, p, row))
    if holder:
        held_ms = await read_held_ms(engine.ns, p, row)
        return await _running(engine, p, info, holder, info.started_at or _time(now_ms - held_ms))
    # A timer that is due, or only delays a hand-back, is not the reason: look for what the run waits for after it.
    due_ms = row.due_ms
    if due_ms is not None and due_ms > now_ms and not _handed_back(row):
        return _delayed(info, due_ms, now_ms)
    controls = await read_controls(engine.ns, p)
    shut = await _shut(engine, p, row, info, controls)
    if shut is not None:
        return shut
    alone = await _without_worker(engine, p, info)
    if alone is not None:
        return msgspec.structs.replace(alone, text=alone.text + RESTS) if _handed_back(row) and row.due_ms else alone
    if due_ms is not None and _handed_back(row):
        return _make(
            info, "queued", "a worker that cannot do it handed it back; it is offered to others within seconds"
        )
    if due_ms is not None:
        return _delayed(info, due_ms, now_ms)
    if row.line:
        return await _limited(engine, p, row, info, controls, now_ms)
    if info.queue == ROUTES:
        return _make(info, "deciding", "the next free worker decides what follows")
    ahead = await read_ahead(engine.ns, p, info.queue, info.priority, row.token)
    steps = f"1 step of queue {info.queue} comes" if ahead == 1 else f"{ahead:,} steps of queue {info.queue} come"
    text = f"{steps} first" if ahead else "next in its queue"
    return _make(info, "queued", text, waiting=ahead)


def _make(info: RunInfo, reason: str, text: str, **facts: Any) -> Explanation:
    return Explanation(info.id, info.status, reason, text, queue=info.queue, **facts)


def _finished(info: RunInfo) -> Explanation:
    text = f"{info.status} at {_clock(info.finished_at)}"
    if info.error:
        text += (
            f": {info.error['type']}: {info.error['message']}" if info.error["message"] else f": {info.error['type']}"
        )
    return _make(info, "finished", text, since=info.finished_at)


async def _running(engine: Engine, p: int, info: RunInfo, holder: str, since: datetime) -> Explanation:
    text = f"running on worker {holder} since {_clock(since)}, attempt {info.attempt}"
    _, alive = (await read_sessions(engine.ns, p)).get(holder, (None, False))
    if not alive:
        text += "; that worker is silent, and its steps go to others when it has been for a whole lease"
    return _make(info, "running", text, since=since, by=holder)


def _handed_back(row: RunRow) -> bool:
    """Tells whether its timer was set by a worker that does not know the task: such a run is offered again soon."""
    return row.delivery > 1 and row.text("status") != RunStatus.WAITING and not row.text("promised")


def _delayed(info: RunInfo, due_ms: int, now_ms: int) -> Explanation:
    until = _time(due_ms)
    left = f"in {format_duration(due_ms - now_ms)}" if due_ms > now_ms else "and goes on with the next look at timers"
    if info.attempt > 1 and info.error:
        text = (
            f"attempt {info.attempt} is due at {_clock(until)}, {left}; the last one failed with {info.error['type']}"
        )
        return _make(info, "retrying", text, until=until)
    return _make(info, "delayed", f"delayed until {_clock(until)}, {left}", until=until)


async def _shut(engine: Engine, p: int, row: RunRow, info: RunInfo, controls: Controls) -> Explanation | None:
    """What an operator decided."""
    for strike in await struck(engine.ns, p, row.id, row.spec, controls):
        entry = controls.entries[f"strike:{strike}"]
        where = ", ".join(f"{name}={value}" for name, value in entry.get("where", {}).items())
        what = f"task {info.name}" + (f" with {where}" if where else "")
        return _make(
            info, "struck", f"{what} is struck {_decided(entry)}", gate=gate_name("strike", strike), **_facts(entry)
        )
    for reason, what, paused in (
        ("run_paused", "the run", controls.paused_run(run_of(row.id))),
        ("task_paused", f"task {info.name}", controls.paused_task(info.name)),
        ("queue_paused", f"queue {info.queue}", controls.paused_queue(info.queue)),
    ):
        if paused is not None:
            return _make(info, reason, f"{what} is paused {_decided(paused)}", **_facts(paused))
    return None


async def _without_worker(engine: Engine, p: int, info: RunInfo) -> Explanation | None:
    alive = [about for about, living in (await read_sessions(engine.ns, p)).values() if living]
    if info.queue == ROUTES:
        return None if alive else _make(info, "no_worker", "no worker is alive to decide what follows")
    serving = [about for about in alive if info.queue in about.queues]
    if not serving:
        return _make(info, "no_worker", f"no live worker serves queue {info.queue}")
    # Every worker knows the built-in steps that call no task, such as `$http`.
    if not info.name.startswith("$") and not any(info.name in about.tasks for about in serving):
        return _make(info, "no_worker", f"no live worker of queue {info.queue} knows task {info.name}")
    return None


async def _limited(engine: Engine, p: int, row: RunRow, info: RunInfo, controls: Controls, now_ms: int) -> Explanation:
    limits = needed(row.spec, controls)
    # The gate it stands at first: another may be full as well, but that is not what it waits for.
    for limit in sorted(limits, key=lambda limit: limit.gate != row.line):
        if limit.gate == cost_gate(row.spec.name):
            return _rate(info, next(each for each in limits if is_too_dear(each)), 0, NEVER, now_ms)
        if limit.window_ms:
            first, own = row.id, limit
            used, opens_ms = await read_rate(engine.ns, p, own, now_ms)
            if not opens_ms and limit.gate == row.line:
                first, own = await _first_of(engine, p, row.id, limit, controls)
                used, opens_ms = await read_rate(engine.ns, p, own, now_ms)
            if opens_ms:
                return _rate(info, own, used, opens_ms, now_ms, first)
        else:
            count, holders, waiting = await read_gate(engine.ns, p, limit.gate, shown=SHOWN_HOLDERS)
            if count >= limit.n:
                return _full(info, limit, count, holders, waiting)
    text = f"nothing holds it back any more at {_name(row.line)}: it is let through with the next look"
    return _make(info, "admitting", text, gate=row.line)


async def _first_of(engine: Engine, p: int, run: str, limit: Limit, controls: Controls) -> tuple[str, Limit]:
    """Returns who stands first in the line of a rate, and what that one needs of it: it may cost more than who asks."""
    (heads,) = await read_heads(engine.ns, p, [limit.gate], limit=1)
    first = heads[0] if heads else run
    row = (await read_runs(engine.ns, p, [first]))[0] if first != run else None
    own = needed(row.spec, controls) if row is not None else []
    return next(((first, each) for each in own if each.gate == limit.gate), (run, limit))


def _full(info: RunInfo, limit: Limit, count: int, holders: Sequence[str], waiting: int) -> Explanation:
    more = f" and {count - len(holders)} more" if count > len(holders) else ""
    text = f"{_name(limit.gate)} is full ({count} of {limit.n}): held by {', '.join(holders)}{more}"
    return _make(info, "concurrency", text, gate=limit.gate, holders=list(holders), limit=str(limit.n), waiting=waiting)


def _rate(info: RunInfo, limit: Limit, used: int, opens_ms: int, now_ms: int, first: str = "") -> Explanation:
    rate = format_rate(limit.n, limit.window_ms)
    if limit.cost > limit.n:  # an operator lowered the rate below what this call costs
        text = f"{_name(limit.gate)} ({rate}) never lets a call through that costs {limit.cost}: raise it, or cancel the run"
        return _make(info, "rate", text, gate=limit.gate, limit=rate)
    if opens_ms == NEVER:
        text = f"{_name(limit.gate)} ({rate}) is spoken for by steps that were let through and have not begun"
        return _make(info, "rate", text, gate=limit.gate, limit=rate)
    text = f"{_name(limit.gate)} ({rate}, {used} used) resets in {max(opens_ms - now_ms, 0) / 1000:.1f} s"
    if first not in ("", info.id):
        text += f" for run {first}, which costs {limit.cost} and comes first"
    return _make(info, "rate", text, gate=limit.gate, limit=rate, until=_time(opens_ms))


def _name(gate: str) -> str:
    kind, *names = gate_parts(gate)
    if kind == "key":
        return f"concurrency key {names[1]} of task {names[0]}"
    if kind == "task":
        return f"the concurrency of task {names[0]}"
    if kind == "queue":
        return f"the concurrency of queue {names[0]}"
    if kind == "queuerate":
        return f"the rate limit of queue {names[0]}"
    if kind == "rate":
        return f"the rate limit of task {names[0]}" + (f" for key {names[1]}" if len(names) > 1 else "")
    if kind == "run":
        return f"the pause of run {names[0]}"
    if kind == "cost":
        return f"the rate limit of task {names[0]}, by its cost"
    if kind == "pause":
        return f"the pause of task {names[0]}"
    return f"strike {names[0]}"


def _facts(entry: dict[str, Any]) -> dict[str, Any]:
    return {"since": _time(entry["at_ms"]), "by": entry.get("by", "")}


def _decided(entry: dict[str, Any]) -> str:
    why = f" ({entry['reason']})" if entry.get("reason") else ""
    return f"since {_clock(_time(entry['at_ms']))} by {entry.get('by') or 'unknown'}{why}"


def _clock(at: datetime | None) -> str:
    """Times as people read them: the day only when it is another one."""
    if at is None:
        return "?"
    return at.strftime("%H:%M:%S" if at.date() == datetime.now(UTC).date() else "%Y-%m-%d %H:%M:%S") + " UTC"


def _time(ms: int) -> datetime:
    return datetime.fromtimestamp(ms / 1000, UTC)
