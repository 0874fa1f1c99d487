"""Where a graph run stands, told by its events: what its nodes gave. Pure.

Nodes that end without a worker (branches, joins, transforms, skips) are in no event: they are decided again, from the same
values. What cannot be told that way is said as a doubt, and such a run is not carried on by itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import msgspec

from weft.core.effects import UNDOES
from weft.core.fold import Logged, read_facts
from weft.core.routing import Published

#: Nodes that the event of a retry names at most.
MAX_NAMED = 100
#: Ends of steps that a run goes on from.
_ENDS = {"step_completed": "completed", "step_cached": "completed", "step_failed": "failed"}


@dataclass(frozen=True, slots=True)
class Given:
    """What a node gave: as the context has it."""

    status: str
    step: str
    attempt: int
    started_ms: int
    ended_ms: int
    value: bytes
    cached: bool = False

    def pack(self) -> bytes:
        """Returns it in the form in which the context keeps it."""
        ledger = "cached" if self.cached else "-"
        head = f"{self.status} {self.step} {self.attempt} {self.started_ms} {self.ended_ms} {ledger}\n"
        return head.encode() + self.value


@dataclass(slots=True)
class Regrown:
    """A graph run as its events tell it."""

    definition: str
    revision: int = 1
    given: dict[str, Given] = field(default_factory=dict)
    #: Why it cannot be carried on without asking anybody.
    doubts: list[str] = field(default_factory=list)


def regrow(definition: str, events: Iterable[Logged]) -> Regrown:
    """Returns where a run stands. `events` are those of the run itself, in order."""
    found, told = Regrown(definition), dict[str, str]()
    for event in events:
        facts = read_facts(event.facts)
        step = facts.get("step", "")
        if event.type in _ENDS:
            told.pop(step, None)
            if "#" in step or step.endswith(UNDOES):
                continue
            attempt, started = int(facts.get("attempt", 1)), int(facts.get("started", event.at_ms))
            cached = event.type == "step_cached"
            given = Given(_ENDS[event.type], step, attempt, started, event.at_ms, event.payload, cached)
            found.given[step.partition("~")[0]] = given
        elif event.type == "patched":
            record = msgspec.json.decode(event.payload)
            found.definition, found.revision = record["definition"], record["revision"]
        elif event.type == "retried":
            again = msgspec.json.decode(event.payload)["again"]
            found.given = {id: one for id, one in found.given.items() if id not in again}
            if len(again) >= MAX_NAMED:
                found.doubts.append("a retry of very many nodes")
        elif event.type in ("signalled", "approval_decided"):
            told[step] = "a signal" if event.type == "signalled" else "a decision"
    found.doubts += sorted({f"{what} that nobody has acted on yet" for what in told.values()})
    return found


def doubts_of(published: Published) -> Sequence[str]:
    """Returns what a definition has that events do not tell enough of."""
    plan, found = published.plan, []
    nodes = [plan.node(id) for id in plan.order]
    if any(node.is_map for node in nodes):
        found.append("a map")
    if plan.loops:
        found.append("a loop")
    if any(node.type == "subgraph" for node in nodes):
        found.append("a subgraph")
    if published.undoes:
        found.append("steps that can be undone")
    return found
