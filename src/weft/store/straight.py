"""The short way to commit steps of graph runs: one step has completed, one plain step follows, nothing else.

That is nearly every step of every chain. What turns out to be otherwise in the server is committed by commit_nodes.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import msgspec

from weft.core.effects import NodeEnd, Open
from weft.core.gates import needed
from weft.core.model import SPEC_ENCODER
from weft.store.keys import GROUP
from weft.store.namespace import Namespace
from weft.store.numbers import Numbers

_pack = msgspec.msgpack.Encoder().encode

#: What the names of steps have that are more than a node run once: items, iterations, copies, steps that decide.
_MARKS = frozenset("#~?=+>$@!^*")


@lru_cache(4096)
def _is_node(step: str) -> bool:
    return _MARKS.isdisjoint(step)


def is_straight(ns: Namespace, p: int, end: NodeEnd) -> bool:
    """Tells whether an end may go the short way."""
    if len(end.effects) != 1 or end.kind != "completed" or end.blob or end.lines is not None or end.hedged:
        return False
    ahead, token = end.effects[0], end.token
    if type(ahead) is not Open or ahead.wait != "0" or token.attempt != 1 or token.gates or token.closed:
        return False
    return _is_node(end.step) and _is_node(ahead.step) and not needed(ahead.spec, ns.controls[p], run=end.run)


class _Places(dict[tuple[str, int], tuple[int, int]]):
    """The numbers of a queue's stream and of its wake key, by queue and priority."""

    def __init__(self, ns: Namespace, p: int) -> None:
        self._keys, self._p = ns.keys, p
        self.tasks, self.wakes = Numbers(), Numbers()

    def __missing__(self, place: tuple[str, int]) -> tuple[int, int]:
        stream, wake = self._keys.tasks(self._p, *place), self._keys.wake(self._p, place[0])
        found = self[place] = (self.tasks.of(stream), self.wakes.of(wake))
        return found


async def commit_straight(
    ns: Namespace, p: int, ends: Sequence[NodeEnd], *, session: str, caller: Any = None
) -> list[str]:
    """Commits ends that go the short way in one call; returns a word per end (see commit_straight.lua)."""
    keys = ns.keys
    run_at, ledger_at, context_at = keys.run(p, ""), keys.ledger(p, ""), keys.context(p, "")
    graphs, ir, places = Numbers(), Numbers(), _Places(ns, p)
    for end in ends:
        graphs.of(end.run)
    runs = [run_at + run for run in graphs]
    facts: list[str | int] = []
    payloads: list[tuple[bytes, bytes]] = []
    for end in ends:
        ahead, token, run = end.effects[0], end.token, end.run
        assert type(ahead) is Open, "is_straight has looked"
        spec, old = ahead.spec, token.spec
        stream, queue = places[spec.queue, spec.priority]
        runs += (run_at + token.run, f"{run_at}{run}/{ahead.step}")
        facts += (
            graphs[run],
            len(runs) - 1,
            end.step,
            places[old.queue, old.priority][0],
            token.ledger,
            str(end.started_ms),
            ir.of(keys.ir(p, end.definition or old.definition)),
            len(runs),
            ahead.step,
            stream,
            queue,
            spec.name if ahead.straight else "",
        )
        payloads.append((end.value, ahead.packed or SPEC_ENCODER.encode(spec)))
    reply = await ns.call(
        "commit_straight",
        p,
        {
            "log": keys.log(p),
            "queues": keys.queues(p),
            "repair": keys.repair(p),
            "ir": ir,
            "wake": places.wakes,
            "wf.tasks": places.tasks,
            "run": runs,
            "ledger": [ledger_at + run for run in graphs],
            "context": [context_at + run for run in graphs],
        },
        {"controls": ns.controls[p].version, "by": session, "group": GROUP, "packed": _pack(facts)},
        payloads,
        caller=caller,
    )
    return [word.decode() for word in reply]
