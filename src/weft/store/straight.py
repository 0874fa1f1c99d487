"""The short way to commit steps of graph runs: one step has completed, one plain step follows, nothing else.

That is nearly every step of every chain. What turns out to be otherwise in the server is committed by commit_nodes.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import Any

import msgspec

from weft.core.effects import NodeEnd, Open
from weft.core.gates import needed
from weft.core.model import SPEC_ENCODER, RunSpec
from weft.store.keys import GROUP
from weft.store.lone import is_node, stands_alone
from weft.store.namespace import Namespace
from weft.store.numbers import Numbers

_pack = msgspec.msgpack.Encoder().encode


def is_straight(ns: Namespace, p: int, end: NodeEnd) -> bool:
    """Tells whether an end may go the short way."""
    if len(end.effects) != 1 or end.kind != "completed" or end.blob or end.lines is not None or end.hedged:
        return False
    ahead, token = end.effects[0], end.token
    if type(ahead) is not Open or ahead.wait != "0" or token.attempt != 1 or token.gates or token.closed:
        return False
    return is_node(end.step) and is_node(ahead.step) and not needed(ahead.spec, ns.controls[p], run=end.run)


class _Ways:
    """Which node ended and which follows, and all that steps of one definition share of that, sent once per call."""

    def __init__(self, ns: Namespace, p: int) -> None:
        self._keys, self._p = ns.keys, p
        self.ir, self.tasks, self.wakes = Numbers(), Numbers(), Numbers()
        #: What steps gave and what others are asked, each once.
        self.bodies: dict[bytes, int] = {}
        self.rows: list[tuple[str | int, ...]] = []
        self._known: dict[tuple[str, str, int, int], int] = {}

    def of(self, end: NodeEnd, ahead: Open) -> int:
        """Returns the number of an end's way. Specs that are alike are mostly one object, and no other has its id meanwhile."""
        old = end.token.spec
        key = (end.step, end.definition, id(old), id(ahead))
        found = self._known.get(key)
        if found is None:
            self.rows.append(self._row(end.step, end.definition or old.definition, old, ahead))
            found = self._known[key] = len(self.rows)
        return found

    def _row(self, step: str, definition: str, old: RunSpec, ahead: Open) -> tuple[str | int, ...]:
        keys, p, bodies, spec = self._keys, self._p, self.bodies, ahead.spec
        packed = ahead.packed or SPEC_ENCODER.encode(spec)
        return (
            step,
            self.tasks.of(keys.tasks(p, old.queue, old.priority)),
            self.ir.of(keys.ir(p, definition)),
            ahead.step,
            self.tasks.of(keys.tasks(p, spec.queue, spec.priority)),
            self.wakes.of(keys.wake(p, spec.queue)),
            spec.name if ahead.straight else "",
            bodies.setdefault(packed, len(bodies) + 1),
            int(stands_alone(ahead, len(packed))),
        )


async def commit_straight(
    ns: Namespace, p: int, ends: Sequence[NodeEnd], *, session: str, caller: Any = None
) -> list[str]:
    """Commits ends that go the short way in one call; returns a word per end (see commit_straight.lua)."""
    keys = ns.keys
    run_at, ledger_at, context_at = keys.run(p, ""), keys.ledger(p, ""), keys.context(p, "")
    graphs, ways = Numbers(), _Ways(ns, p)
    bodies = ways.bodies
    # A lone step needs fewer keys. The others come first.
    order = sorted(range(len(ends)), key=[end.alone for end in ends].__getitem__)
    runs: list[str] = []
    facts: list[str | int] = []
    ledgers = 0
    for i in order:
        end = ends[i]
        ahead, token, run = end.effects[0], end.token, end.run
        assert type(ahead) is Open, "is_straight has looked"
        if not end.alone:
            runs += (run_at + token.run, f"{run_at}{run}/{ahead.step}")
            ledgers = max(ledgers, graphs.of(run))
        facts += (
            graphs.of(run),
            token.ledger,
            str(end.started_ms),
            bodies.setdefault(end.value, len(bodies) + 1),
            ways.of(end, ahead),
        )
    reply = await ns.call(
        "commit_straight",
        p,
        {
            "log": keys.log(p),
            "queues": keys.queues(p),
            "repair": keys.repair(p),
            "ir": ways.ir,
            "wake": ways.wakes,
            "wf.tasks": ways.tasks,
            "run": [*[run_at + run for run in graphs], *runs],
            "ledger": [ledger_at + run for run in islice(graphs, ledgers)],
            "context": [context_at + run for run in graphs],
        },
        {"controls": ns.controls[p].version, "by": session, "group": GROUP, "packed": _pack((facts, ways.rows))},
        [(body,) for body in bodies],
        caller=caller,
    )
    words = [""] * len(ends)
    for i, word in zip(order, reply, strict=True):
        words[i] = word.decode()
    return words
