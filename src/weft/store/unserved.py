"""Runs that no live worker can do, in Redis: they rest, and are found by what they need of a worker."""

from __future__ import annotations

from collections.abc import Sequence

from weft.core.flow import is_flow
from weft.core.gates import is_kept_waiting
from weft.core.model import Token
from weft.store.keys import GROUP, TIMER_WAKE
from weft.store.lone import unfold_tokens
from weft.store.namespace import Namespace
from weft.store.numbers import GateKeys

#: Milliseconds after which a run that rests is offered again all the same, should the index have lost it.
REST_MS = 3_600_000


async def rest_step(ns: Namespace, token: Token, *, needs: str, reason: str, started_ms: int, by: str) -> str:
    """Hands a claimed step back to rest; returns a word (see rest_step.lua)."""
    keys, p, gates = ns.keys, token.partition, GateKeys(ns.keys, token.partition)
    await unfold_tokens(ns, p, [token])
    held = token.gates.split(" ") if token.gates else []
    kept = " ".join(gate for gate in held if is_flow(token.spec) and is_kept_waiting(gate))
    refs, kept_refs = gates.held(" ".join(gate for gate in held if gate not in kept.split(" "))), gates.held(kept)
    reply = await ns.call(
        "rest_step",
        p,
        {
            "log": keys.log(p),
            "timers": keys.timers(p),
            "lines": keys.lines(p),
            "admit": keys.admit(p),
            "unserved": keys.unserved(p),
            "wake": keys.wake(p, TIMER_WAKE),
            "wf.tasks": keys.tasks(p, token.spec.queue, token.spec.priority),
            "run": keys.run(p, token.run),
            **gates.families(),
        },
        {
            "by": by,
            "group": GROUP,
            "ledger": token.ledger,
            "refs": refs,
            "kept": kept,
            "kept_refs": kept_refs,
            "needs": needs,
            "rest_ms": REST_MS,
            "started_ms": started_ms,
            "reason": reason,
        },
    )
    return str(reply.decode())


async def rouse_runs(ns: Namespace, p: int, members: Sequence[str]) -> list[str]:
    """Lets runs go on that the index names; returns a word for each (see rouse_runs.lua)."""
    if not members:
        return []
    keys, parts = ns.keys, [member.split(" ") for member in members]
    reply = await ns.call(
        "rouse_runs",
        p,
        {
            "timers": keys.timers(p),
            "unserved": keys.unserved(p),
            "wake": keys.wake(p, TIMER_WAKE),
            "run": [keys.run(p, run) for *_, run in parts],
        },
        {},
        [(member, delivery) for member, (*_, delivery, _) in zip(members, parts, strict=True)],
    )
    return [word.decode() for word in reply]


async def read_needs(ns: Namespace, p: int, after: str) -> str:
    """Returns the first of what is needed behind that; empty: there is nothing more."""
    start = f"({after} \x7f" if after else "-"
    found = await ns.read("ZRANGEBYLEX", ns.keys.unserved(p), start, "+", "LIMIT", 0, 1, p=p)
    return " ".join(found[0].decode().split(" ")[:3]) if found else ""


async def read_unserved(ns: Namespace, p: int, needs: str, *, after: str = "", limit: int) -> list[str]:
    """Returns members of the index that need that, behind one of them; empty `needs`: all."""
    start = f"({after}" if after else f"[{needs} " if needs else "-"
    stop = f"[{needs} \x7f" if needs else "+"
    found = await ns.read("ZRANGEBYLEX", ns.keys.unserved(p), start, stop, "LIMIT", 0, limit, p=p)
    return [member.decode() for member in found]


async def count_unserved(ns: Namespace, p: int, needs: str) -> int:
    return int(await ns.read("ZLEXCOUNT", ns.keys.unserved(p), f"[{needs} ", f"[{needs} \x7f", p=p))


async def drop_unserved(ns: Namespace, p: int, members: Sequence[str]) -> list[str]:
    """Forgets those of the members whose runs do not rest any more, and returns them."""
    parts = [member.split(" ") for member in members]
    replies = await ns.read_many([("HGET", ns.keys.run(p, run), "open") for *_, run in parts], p=p)
    gone = [
        member
        for member, (*_, delivery, _), open in zip(members, parts, replies, strict=True)
        if not isinstance(open, bytes) or not open.startswith(f"{delivery}:@".encode())
    ]
    if gone:
        await ns.read("ZREM", ns.keys.unserved(p), *gone, p=p)
    return gone
