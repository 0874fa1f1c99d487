"""The short way to commit tasks: attempts that have completed at once and leave nothing but a small result and slots.

That is what nearly every attempt does. What turns out to be otherwise in the server is committed by commit_steps.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import msgspec

from weft.core.model import Outcome
from weft.store.forms import Form
from weft.store.heirs import Heirs, Parts
from weft.store.keys import GROUP, TIMER_WAKE
from weft.store.namespace import Namespace
from weft.store.numbers import GateKeys, Numbers
from weft.store.scripts import Arg, load

_pack = msgspec.msgpack.Encoder().encode


def is_bare(outcome: Outcome) -> bool:
    """Tells whether an attempt left nothing but a small result, and slots, if it has any."""
    token = outcome.token
    spec = token.spec
    return not (
        outcome.kind != "completed"
        or token.delivery != 1
        or outcome.lines is not None
        or outcome.blob
        or spec.blob
        or spec.unique
    )


async def commit_bare(
    ns: Namespace, p: int, outcomes: Sequence[Outcome], *, session: str, caller: Any = None
) -> tuple[list[str], bool]:
    """Commits bare outcomes in one call.

    Returns a word per outcome (see commit_bare.lua), and whether somebody waits at a gate they left.
    """
    if len(outcomes) == 1 and not outcomes[0].token.gates:
        return [await _commit_one(ns, p, outcomes[0], session=session, caller=caller)], False
    keys, n = ns.keys, len(outcomes)
    run_at, tasks, wakes = keys.run(p, ""), Numbers(), Numbers({keys.wake(p, TIMER_WAKE): 1})
    gates, heirs, held = GateKeys(keys, p), Heirs(ns, p, n, outcomes), False
    refs: list[str | Parts] = []
    ways: dict[tuple[str, int, int], int] = {}
    bodies: dict[bytes, int] = {}
    facts: list[str | int] = []
    for outcome in outcomes:
        token = outcome.token
        spec = token.spec
        facts += (
            token.entry,
            str(outcome.started_ms),
            bodies.setdefault(outcome.value, len(bodies) + 1),
            ways.setdefault((spec.queue, spec.priority, outcome.after_ms), len(ways) + 1),
        )
        if token.gates:
            held = True
            refs.append(heirs.parts(token, gates))
        else:
            refs.append("")
    rows = [
        (tasks.of(keys.tasks(p, queue, priority)), str(keep_ms), wakes.of(keys.wake(p, queue)))
        for queue, priority, keep_ms in ways
    ]
    reply = await ns.call(
        "commit_bare",
        p,
        {
            "log": keys.log(p),
            "timers": keys.timers(p),
            "lines": keys.lines(p),
            "admit": keys.admit(p),
            "wake": wakes,
            "wf.tasks": tasks,
            "run": [*[run_at + outcome.token.run for outcome in outcomes], *heirs],
            **gates.families(),
        },
        {
            "controls": ns.controls[p].version,
            "by": session,
            "group": GROUP,
            "packed": _pack((facts, rows, refs if held else ())),
        },
        [(body,) for body in bodies],
        caller=caller,
    )
    if reply == b"ok":
        return ["ok"] * n, False
    return [word.decode() for word in reply[:n]], len(reply) > n


async def _commit_one(ns: Namespace, p: int, outcome: Outcome, *, session: str, caller: Any) -> str:
    """The same for one, which is what a worker without load commits; see commit_step.lua."""
    script, token, spec = load("commit_step"), outcome.token, outcome.token.spec

    def make() -> Form:
        keys = ns.keys
        families: dict[str, str | Collection[str]] = {
            "log": keys.log(p),
            "wf.tasks": keys.tasks(p, spec.queue, spec.priority),
            "run": "blank key",
        }
        names = ("run", "ledger", "token", "keep_ms", "started_ms", "value")
        blanks: dict[str, Arg] = {name: f"blank {name}" for name in names}
        return Form(
            ns.pack(script, p, families, {"by": session, "group": GROUP, **blanks}, ()), ["blank key", *blanks.values()]
        )

    def pack() -> list[Arg]:
        form = ns.forms.of(("commit", p, ns.epochs[p], session, spec.queue, spec.priority), make)
        run, after_ms = token.run, outcome.after_ms
        return form.fill(
            ns.keys.run(p, run), run, token.ledger, token.entry, after_ms, outcome.started_ms, outcome.value
        )

    word = await ns.send(script, pack, caller=caller)
    return str(word.decode())
