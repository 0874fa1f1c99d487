"""Timers in Redis: read what is due, then fire it with every key declared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from weft.core.gates import needed
from weft.core.model import SPEC_DECODER, RunSpec
from weft.store.heirs import refs_and_likeness
from weft.store.keys import TIMER_WAKE
from weft.store.namespace import Namespace
from weft.store.numbers import GateKeys, Numbers


async def read_timers(ns: Namespace, p: int, *, limit: int) -> tuple[int, int | None, list[str]]:
    """Returns now in ms, when the next timer to come is due, and the members that are due."""
    now, coming, *due = await ns.call("read_timers", p, {"timers": ns.keys.timers(p)}, {"limit": limit})
    return int(now), int(float(coming)) if coming else None, [member.decode() for member in due]


async def hold_timers(ns: Namespace, p: int, members: Sequence[str], until_ms: int) -> None:
    """Puts off timers that are due before a moment. Plain commands: for a partition that is closed."""
    commands = [("ZADD", ns.keys.timers(p), "XX", "GT", until_ms, member) for member in members]
    await ns.read_many(commands, p=p)


async def read_specs(ns: Namespace, p: int, runs: Sequence[str]) -> list[tuple[RunSpec, str] | None]:
    """Returns what each run is to do, and its ledger; None where there is no such run, or none that can be read."""
    replies = await ns.read_many([("HMGET", ns.keys.run(p, run), "spec", "open") for run in runs], p=p)
    pairs = [reply if isinstance(reply, list) else [None, None] for reply in replies]
    # Calls of one task without arguments are the same bytes.
    known = {packed: _spec_or_none(packed) for packed in {packed for packed, _ in pairs if packed}}
    found = [(known.get(packed), opened or b"") for packed, opened in pairs]
    return [(spec, opened.decode(errors="replace")) if spec else None for spec, opened in found]


def _spec_or_none(packed: bytes) -> RunSpec | None:
    try:
        return SPEC_DECODER.decode(packed)
    except msgspec.DecodeError:
        return None


async def fire_timers(
    ns: Namespace, p: int, runs: Sequence[tuple[str, RunSpec]], *, seen: Mapping[str, str] | None = None
) -> list[str]:
    """Emits the tokens of runs whose timer is due; returns a word per run.

    `seen` has their ledgers as they were read with what they are to do: a debounced call may have changed both since, and
    its token would go to a queue, and through limits, that are not its own any more.
    """
    keys, gates, controls = ns.keys, GateKeys(ns.keys, p), ns.controls[p]
    wakes, tasks = Numbers({keys.wake(p, TIMER_WAKE): 1}), Numbers()
    items = [
        (
            tasks.of(keys.tasks(p, spec.queue, spec.priority)),
            wakes.of(keys.wake(p, spec.queue)),
            refs_and_likeness(gates, spec, needed(spec, controls, run=run)),
            spec.priority,
            spec.fair,
            (seen or {}).get(run, ""),
        )
        for run, spec in runs
    ]
    reply = await ns.call(
        "fire_timers",
        p,
        {
            "timers": keys.timers(p),
            "queues": keys.queues(p),
            "lines": keys.lines(p),
            "admit": keys.admit(p),
            "wake": wakes,
            "wf.tasks": tasks,
            "run": [keys.run(p, run) for run, _ in runs],
            **gates.families(),
        },
        {"controls": controls.version},
        items,
    )
    return [word.decode() for word in reply]


async def drop_timers(ns: Namespace, p: int, members: Sequence[str], *, seen_ms: int) -> None:
    """Removes timers that nothing needs any more; one that was set anew since they were seen due, at `seen_ms`, stays."""
    if members:
        await ns.call(
            "drop_timers", p, {"timers": ns.keys.timers(p)}, {"seen_ms": seen_ms}, [(member,) for member in members]
        )


async def delay_timer(ns: Namespace, p: int, member: str, ms: int) -> None:
    """Puts a timer off that is still there."""
    due = await read_now(ns, p) + ms
    await ns.read("ZADD", ns.keys.timers(p), "XX", due, member, p=p)


async def set_clock(ns: Namespace, p: int, offset_ms: int) -> None:
    """Moves the partition's clock. Only tests do."""
    await ns.call("set_clock", p, {"wake": [ns.keys.wake(p, TIMER_WAKE)]}, {"clock_ms": offset_ms})


async def read_now(ns: Namespace, p: int) -> int:
    """Returns the partition's time in ms."""
    return (await read_timers(ns, p, limit=1))[0]


async def read_next_timer(ns: Namespace, p: int, *, page: int = 500) -> int | None:
    """Returns when the next timer is due, in ms; None when there is none.

    Timers of schedules do not count, nor those that look after running items: both only ever lead to the next.
    """
    at = 0
    while True:
        flat = await ns.read("ZRANGE", ns.keys.timers(p), at, at + page - 1, "WITHSCORES", p=p)
        for member, due in zip(flat[::2], flat[1::2], strict=True):
            if not member.startswith((b"cron:", b"hedge:")):
                return int(float(due))
        if len(flat) < 2 * page:
            return None
        at += page
