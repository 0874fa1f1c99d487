"""Tokens that nobody holds any more: those of dead sessions are taken back, and lost ones are given out again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from weft.core.effects import ROUTE, run_of
from weft.core.flow import is_flow, is_step
from weft.core.model import RunSpec
from weft.store.keys import GROUP, TIMER_WAKE
from weft.store.lone import unfold_steps
from weft.store.namespace import Namespace
from weft.store.numbers import GateKeys, Numbers
from weft.store.runs import RunRow
from weft.store.scripts import Arg

#: Milliseconds a swept session is remembered as dead, so that it is refused when it wakes up.
TOMBSTONE_MS = 24 * 3_600_000


async def read_pending(ns: Namespace, p: int, stream: str, session: str, *, limit: int) -> list[tuple[str, str]]:
    """Lists (entry id, run id) of tokens a session holds in one stream; an entry deleted meanwhile has no run."""
    pending = await ns.read("XPENDING", stream, GROUP, "-", "+", limit, session, p=p)
    entries = [_entry_id(row) for row in pending or []]
    rows = await ns.read_many([("XRANGE", stream, entry, entry) for entry in entries], p=p)
    return [(entry, _run_of(row)) for entry, row in zip(entries, rows, strict=True)]


def _entry_id(row: Any) -> str:
    return str(row[0].decode())


def _run_of(row: Any) -> str:
    if not row or isinstance(row, Exception):
        return ""
    # Something else may have put an entry there.
    return str(row[0][1][1].decode(errors="replace"))


async def reclaim_steps(
    ns: Namespace,
    p: int,
    *,
    dead: str,
    queue: str,
    stream: str,
    held: Sequence[tuple[str, str, RunSpec, str]],
    keep_ms: Callable[[RunSpec], int],
    by: str,
    max_crashes: int,
    poison: bytes,
) -> list[str]:
    """Takes tokens (entry, run, spec, gates) of one stream from a dead session; with none, only tombstones the session.

    `keep_ms` tells how long a run is kept that turns out to be poison.
    """
    await unfold_steps(ns, p, [run for _, run, _, _ in held])
    keys, blobs, uniques, gates, above = ns.keys, Numbers(), Numbers(), GateKeys(ns.keys, p), Numbers()
    items: list[tuple[Arg, ...]] = [
        (
            entry,
            keep_ms(spec),
            blobs.of(keys.blob(p, run, spec.blob)) if spec.blob else 0,
            gates.held(names),
            uniques.of(keys.unique(p, spec.unique)) if spec.unique else 0,
            len(held) + above.of(keys.run(p, run_of(run))) if is_step(spec) and spec.name != ROUTE else 0,
            1 if is_flow(spec) else 0,
        )
        for entry, run, spec, names in held
    ]
    reply = await ns.call(
        "reclaim_steps",
        p,
        {
            "log": keys.log(p),
            "timers": keys.timers(p),
            "repair": keys.repair(p),
            "lines": keys.lines(p),
            "admit": keys.admit(p),
            "dlq": keys.dlq(p),
            "session": keys.session(p, dead),
            "wake": [keys.wake(p, queue), keys.wake(p, TIMER_WAKE)],
            "wf.tasks": [stream],
            "run": [*(keys.run(p, run) for _, run, _, _ in held), *above],
            "blob": blobs,
            "unique": uniques,
            "tasklog": [keys.tasklog(p, run) for _, run, _, _ in held],
            **gates.families(),
        },
        {
            "by": by,
            "group": GROUP,
            "consumer": dead,
            "tombstone_ms": TOMBSTONE_MS,
            "max_crashes": max_crashes,
            "poison": poison,
        },
        items,
    )
    return [word.decode() for word in reply]


async def read_lost(
    ns: Namespace, p: int, rows: Sequence[RunRow], *, holders: dict[str, set[str]] | None = None
) -> list[RunRow]:
    """Returns the open runs that seem to have neither token nor timer. A guess: the script verifies each again.

    `holders` gets the sessions that hold tokens of the others, with the queues of these.
    """
    commands: list[tuple[Arg, ...]] = []
    # Its steps stand for a graph run, and nothing stands for a step that waits for something from outside; see store/waits.
    rows = [row for row in rows if not row.is_graph and not row.waits]
    for row in rows:
        stream = ns.keys.tasks(p, row.spec.queue, row.spec.priority)
        if row.line:
            commands.append(("ZSCORE", ns.keys.line(p, row.line), row.id))
            commands.append(("EXISTS", stream))
        elif row.token:
            commands.append(("XRANGE", stream, row.token, row.token))
            commands.append(("XPENDING", stream, GROUP, row.token, row.token, 1))
        else:
            commands.append(("ZSCORE", ns.keys.timers(p), f"open:{row.id}"))
            commands.append(("EXISTS", stream))
    replies = await ns.read_many(commands, p=p)
    lost = []
    for i, row in enumerate(rows):
        first, second = replies[2 * i], replies[2 * i + 1]
        if row.token:
            if isinstance(first, Exception) or not first or isinstance(second, Exception) or not second:
                lost.append(row)
            elif holders is not None:
                holders.setdefault(second[0][1].decode(), set()).add(row.spec.queue)
        elif first is None:
            lost.append(row)
    return lost


async def emit_lost_steps(ns: Namespace, p: int, rows: Sequence[RunRow], *, by: str) -> list[str]:
    """Gives lost runs their token or timer back; returns a word per run (see emit_lost_steps.lua)."""
    await unfold_steps(ns, p, [row.id for row in rows if row.is_lone])
    keys, gates = ns.keys, GateKeys(ns.keys, p)
    wakes, tasks = Numbers({keys.wake(p, TIMER_WAKE): 1}), Numbers()
    items: list[tuple[Arg, ...]] = [
        (
            tasks.of(keys.tasks(p, row.spec.queue, row.spec.priority)),
            wakes.of(keys.wake(p, row.spec.queue)),
            row.text("open"),
            gates.line(row.line) if row.line else 0,
            row.spec.priority,
            row.text("gates"),
            gates.held(row.text("gates")),
        )
        for row in rows
    ]
    reply = await ns.call(
        "emit_lost_steps",
        p,
        {
            "log": keys.log(p),
            "timers": keys.timers(p),
            "lines": keys.lines(p),
            "admit": keys.admit(p),
            "wake": wakes,
            "wf.tasks": tasks,
            "run": [keys.run(p, row.id) for row in rows],
            **gates.families(),
        },
        {"by": by, "group": GROUP},
        items,
    )
    return [word.decode() for word in reply]
