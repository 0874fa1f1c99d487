"""Steps that wait for something from outside, in Redis: park, signal, expire. One function per script, same verb and noun."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from weft.core.effects import run_of
from weft.core.model import ROUTES, Token
from weft.store.keys import GROUP, TIMER_WAKE
from weft.store.lone import unfold_tokens
from weft.store.namespace import Namespace
from weft.store.records import ROUTE_PRIORITY
from weft.store.runs import RunRow
from weft.store.scripts import Arg

#: Signals of one name that a run keeps until a step waits for them.
MAX_KEPT = 256
#: Calls that a run remembers, so that a repeated one is known.
MAX_REMEMBERED = 1_000

#: What a timer of a step that waits begins with; its id follows.
MEMBER = "wait:"


async def park_step(
    ns: Namespace,
    p: int,
    token: Token,
    *,
    kind: str,
    by: str,
    wait_ms: int = 0,
    told: bytes = b"",
    record: Mapping[str, Arg] | None = None,
) -> str:
    """Lets a claimed step wait; returns a word (see park_step.lua). `record`: what an approval keeps."""
    await unfold_tokens(ns, p, [token])
    keys, run = ns.keys, run_of(token.run)
    reply = await ns.call(
        "park_step",
        p,
        {
            "log": keys.log(p),
            "timers": keys.timers(p),
            "wake": keys.wake(p, TIMER_WAKE),
            "wf.tasks": keys.tasks(p, token.spec.queue, token.spec.priority),
            "run": [keys.run(p, run), keys.run(p, token.run)],
            "signals": [keys.signals(p, run)] if record is None else [],
            "approval": [] if record is None else [keys.approval(p, token.run)],
            "pending_approvals": [] if record is None else [keys.pending_approvals(p)],
        },
        {"by": by, "group": GROUP, "ledger": token.ledger, "kind": kind, "wait_ms": wait_ms, "told": told},
        list((record or {}).items()),
    )
    return str(reply.decode())


async def signal_run(
    ns: Namespace, p: int, run: str, *, name: str, value: bytes, step: str, request: str, by: str
) -> str:
    """Gives a run a signal; returns words (see signal_run.lua). `step`: the one that was seen waiting, or empty."""
    keys = ns.keys
    reply = await ns.call(
        "signal_run",
        p,
        {
            "log": keys.log(p),
            "signals": keys.signals(p, run),
            "run": [keys.run(p, run), *([keys.run(p, f"{run}/{step}")] if step else [])],
            **_token_keys(ns, p),
        },
        {
            "by": by,
            "name": name,
            "value": value,
            "step": step,
            "request": request,
            "most": MAX_KEPT,
            "remembered": MAX_REMEMBERED,
        },
    )
    return str(reply.decode())


async def expire_wait(ns: Namespace, p: int, id: str) -> str:
    """Ends the waiting of a step whose signal did not come in time; returns a word."""
    keys, run = ns.keys, run_of(id)
    reply = await ns.call(
        "expire_wait",
        p,
        {
            "signals": keys.signals(p, run),
            "run": [keys.run(p, run), keys.run(p, id)],
            **_token_keys(ns, p),
        },
    )
    return str(reply.decode())


def _token_keys(ns: Namespace, p: int) -> dict[str, str]:
    """Returns the keys that a step needs which gets its token back."""
    keys = ns.keys
    return {
        "timers": keys.timers(p),
        "queues": keys.queues(p),
        "wake": keys.wake(p, ROUTES),
        "wf.tasks": keys.tasks(p, ROUTES, ROUTE_PRIORITY),
    }


async def read_given(ns: Namespace, p: int, id: str) -> bytes | None:
    """Returns what a step that waited was given; None while it was given nothing."""
    given = await ns.read("HGET", ns.keys.run(p, id), "given", p=p)
    return None if given is None else bytes(given)


async def rearm_waits(ns: Namespace, p: int, rows: Sequence[RunRow]) -> None:
    """Sets the timers of waiting steps again that have vanished."""
    waiting = [row for row in rows if row.waits]
    due = await ns.read_many([("HGET", ns.keys.run(p, row.id), "due") for row in waiting], p=p)
    armed = [
        (row, ("ZADD", ns.keys.timers(p), "NX", int(moment), f"{MEMBER}{row.id}"))
        for row, moment in zip(waiting, due, strict=True)
        if moment is not None and not isinstance(moment, Exception)
    ]
    added = await ns.read_many([command for _, command in armed], p=p)
    anew = [row for (row, _), n in zip(armed, added, strict=True) if n == 1]
    # A step that was given something meanwhile, or ended, removed its timer before it was set here; one that is given something
    # from now on removes it afterwards.
    opened = await ns.read_many([("HGET", ns.keys.run(p, row.id), "open") for row in anew], p=p)
    over = [
        f"{MEMBER}{row.id}"
        for row, open in zip(anew, opened, strict=True)
        if open is None or (isinstance(open, bytes) and b":?" not in open)
    ]
    if over:
        await ns.read("ZREM", ns.keys.timers(p), *over, p=p)


async def read_parked(ns: Namespace, p: int, runs: Sequence[str]) -> list[bool]:
    """Tells of graph runs with waiting steps whether all their open steps wait for something from outside."""
    commands: list[tuple[Arg, ...]] = []
    for run in runs:
        commands += [("HGET", ns.keys.run(p, run), "parked"), ("HLEN", ns.keys.ledger(p, run))]
    replies = await ns.read_many(commands, p=p)
    return [int(parked or 0) >= open_steps > 0 for parked, open_steps in zip(replies[::2], replies[1::2], strict=True)]
