"""Gates in Redis: limits as scripts see them, and letting the heads of lines through."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from weft.core.model import Limit, Token
from weft.store.keys import GROUP, TIMER_WAKE
from weft.store.lone import unfold_tokens
from weft.store.namespace import Namespace
from weft.store.numbers import GateKeys, Numbers
from weft.store.scripts import Arg
from weft.store.steps import Head

#: Stands for a moment that time alone does not bring.
NEVER = -1
#: Stands in a gate for whoever has the slot that is handed on; lib/heirs.lua writes it.
HANDED = b">"
#: Grains a rate's window is counted in; lib/gates.lua has the same number.
GRAINS = 50


async def read_admissible(ns: Namespace, p: int) -> list[str]:
    """Returns the gates whose lines are to be looked at."""
    return [gate.decode() for gate in await ns.read("SMEMBERS", ns.keys.admit(p), p=p)]


async def read_lines(ns: Namespace, p: int) -> list[str]:
    """Returns the gates that have somebody waiting."""
    return [gate.decode() for gate in await ns.read("SMEMBERS", ns.keys.lines(p), p=p)]


async def read_heads(ns: Namespace, p: int, gates: Sequence[str], *, limit: int) -> list[list[str]]:
    """Returns the runs at the front of each gate's line."""
    replies = await ns.read_many([("ZRANGE", ns.keys.line(p, gate), 0, limit - 1) for gate in gates], p=p)
    return [[run.decode() for run in reply] if isinstance(reply, list) else [] for reply in replies]


async def read_many_heads(ns: Namespace, p: int, wanted: Mapping[str, int]) -> dict[str, list[str]]:
    """Returns so many runs at the front of each gate's line."""
    replies = await ns.read_many([("ZRANGE", ns.keys.line(p, gate), 0, n - 1) for gate, n in wanted.items()], p=p)
    return {
        gate: [run.decode() for run in reply]
        for gate, reply in zip(wanted, replies, strict=True)
        if isinstance(reply, list)
    }


async def read_holders_of(ns: Namespace, p: int, gate: str, *, limit: int) -> list[str]:
    """Returns runs that hold a slot of a gate, the oldest first; `>` for a slot that was handed on to nobody knows whom."""
    members, heir = await ns.read_many(
        [("ZRANGE", ns.keys.gate(p, gate), 0, limit - 1), ("HGET", ns.keys.heirs(p), gate)], p=p
    )
    return _named(members, heir)


async def admit_steps(
    ns: Namespace, p: int, gates: Sequence[str], heads: Sequence[Head]
) -> tuple[list[str], list[str]]:
    """Lets heads through where there is room; returns a word per head, and the gates that are to be looked at again."""
    keys, places = ns.keys, GateKeys(ns.keys, p)
    for gate in gates:
        places.line(gate)
    wakes, tasks = Numbers({keys.wake(p, TIMER_WAKE): 1}), Numbers()
    items: list[tuple[Arg, ...]] = []
    for head in heads:
        spec = head.row.spec
        items.append(
            (
                tasks.of(keys.tasks(p, spec.queue, spec.priority)),
                wakes.of(keys.wake(p, spec.queue)),
                places.line(head.gate),
                places.refs(head.limits),
                spec.priority,
                spec.fair,
            )
        )
    turns_of = " ".join([str(places.turns(gate)) for gate in gates])
    reply = await ns.call(
        "admit_steps",
        p,
        {
            "timers": keys.timers(p),
            "lines": keys.lines(p),
            "admit": keys.admit(p),
            "wake": wakes,
            "wf.tasks": tasks,
            "run": [keys.run(p, head.row.id) for head in heads],
            **places.families(),
        },
        {"controls": ns.controls[p].version, "looked": len(gates), "turns_of": turns_of},
        items,
    )
    words = [word.decode() for word in reply]
    n = len(heads)
    return words[:n], [gate for gate, word in zip(gates, words[n:], strict=True) if word == "more"]


async def hold_steps(
    ns: Namespace, p: int, stopped: Sequence[tuple[Token, Sequence[Limit]]], *, session: str
) -> list[str]:
    """Takes claimed steps (token, limits still to pass) through gates; returns a word per step (see hold_steps.lua)."""
    await unfold_tokens(ns, p, [token for token, _ in stopped])
    keys, places, tasks = ns.keys, GateKeys(ns.keys, p), Numbers()
    items: list[tuple[Arg, ...]] = [
        (
            tasks.of(keys.tasks(p, token.spec.queue, token.spec.priority)),
            token.ledger,
            places.refs(limits, token.gates.split(" ")),
            places.held(token.gates),
            token.spec.priority,
            token.spec.fair,
        )
        for token, limits in stopped
    ]
    reply = await ns.call(
        "hold_steps",
        p,
        {
            "session": keys.session(p, session),
            "log": keys.log(p),
            "timers": keys.timers(p),
            "lines": keys.lines(p),
            "admit": keys.admit(p),
            "wake": [keys.wake(p, TIMER_WAKE)],
            "wf.tasks": tasks,
            "run": [keys.run(p, token.run) for token, _ in stopped],
            **places.families(),
        },
        {"controls": ns.controls[p].version, "by": session, "group": GROUP},
        items,
    )
    return [word.decode() for word in reply]


async def mark_gates(ns: Namespace, p: int, gates: Sequence[str], *, timers: bool = False) -> None:
    """Has the lines of some gates looked at; with `timers`, because their time has come."""
    if not gates:
        return
    commands: list[tuple[Arg, ...]] = [("SADD", ns.keys.admit(p), *gates)]
    if timers:
        commands.append(("ZREM", ns.keys.timers(p), *[f"gate:{gate}" for gate in gates]))
    await ns.read_many(commands, p=p)


async def drop_waiting(ns: Namespace, p: int, gate: str, runs: Sequence[str]) -> None:
    """Takes runs that no longer exist out of a line."""
    if runs:
        await ns.read("ZREM", ns.keys.line(p, gate), *runs, p=p)


async def drop_holders(ns: Namespace, p: int, gate: str, runs: Sequence[str]) -> None:
    """Takes slots from runs that no longer have them."""
    if runs:
        keys = {"heirs": ns.keys.heirs(p), "gate": ns.keys.gate(p, gate)}
        await ns.call("drop_holders", p, keys, {"name": gate}, [(run,) for run in runs])


async def read_gate(ns: Namespace, p: int, gate: str, *, shown: int) -> tuple[int, list[str], int]:
    """Returns how many hold a slot of a gate, some of them (the oldest first), and how many wait."""
    count, holders, waiting, heir = await ns.read_many(
        [
            ("ZCARD", ns.keys.gate(p, gate)),
            ("ZRANGE", ns.keys.gate(p, gate), 0, shown - 1),
            ("ZCARD", ns.keys.line(p, gate)),
            ("HGET", ns.keys.heirs(p), gate),
        ],
        p=p,
    )
    return int(count), _named(holders, heir), int(waiting)


def _named(members: Sequence[bytes], heir: bytes | None) -> list[str]:
    """Returns who holds the slots of a gate: the heir has the one that was handed on."""
    return [(heir if heir and member == HANDED else member).decode() for member in members]


async def read_rate(ns: Namespace, p: int, limit: Limit, now_ms: int) -> tuple[int, int]:
    """Returns how many units of a rate are used, and when one more call of this cost may pass (0: now, NEVER: not by time)."""
    flat = await ns.read("HGETALL", ns.keys.ratelimit(p, limit.gate), p=p)
    grain = max(1, limit.window_ms // GRAINS)
    pairs = [(name.decode(), int(n)) for name, n in zip(flat[::2], flat[1::2], strict=True)]
    # What was let through and has not begun is spoken for.
    reserved = sum(n for name, n in pairs if name.startswith("@"))
    spent = [((int(at) + 1) * grain + limit.window_ms, n) for at, n in pairs if not at.startswith("@")]
    live = sorted((ends, n) for ends, n in spent if ends > now_ms)
    used = left = reserved + sum(n for _, n in live)
    if used + limit.cost <= limit.n:
        return used, 0
    for ends, n in live:
        left -= n
        if left + limit.cost <= limit.n:
            return used, ends
    return used, NEVER
