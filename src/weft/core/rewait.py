"""Steps that wait for something from outside, told by events: for what, since when, and what people have said. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import msgspec

from weft.core.approvals import Note, State, Vote
from weft.core.fold import Logged, read_facts

#: Events that tell of people and approvals, and what an approval notes of them.
_NOTES = {"approval_delegated": "delegated", "approval_reminded": "reminded", "approval_escalated": "escalated"}


@dataclass(slots=True)
class Waiting:
    """A step that waits: `signal:<name>` or `approval`."""

    kind: str
    at_ms: int
    #: Of an approval: who may decide, what was said so far, and how often it changed.
    approvers: list[str] = field(default_factory=list)
    votes: list[Vote] = field(default_factory=list)
    notes: list[Note] = field(default_factory=list)
    rev: int = 1

    @property
    def state(self) -> State:
        return State(self.approvers, self.votes, self.notes)


def follow_waits(events: Iterable[Logged]) -> dict[str, Waiting]:
    """Returns the steps that were ever let wait, by name, in that order; of one that waited again, as it does now."""
    found: dict[str, Waiting] = {}
    for event in events:
        if event.type == "step_waiting":
            facts = read_facts(event.facts)
            told = msgspec.json.decode(event.payload) if event.payload else {}
            found.pop(
                facts["step"], None
            )  # who waits again stands at the end of the line, and nobody has said anything
            found[facts["step"]] = Waiting(facts["waits"], event.at_ms, list(told.get("approvers", ())))
        elif event.type.startswith("approval_"):
            waiting = found.get(read_facts(event.facts)["step"])
            if waiting is not None:
                _change(waiting, event, msgspec.json.decode(event.payload))
    return found


def _change(waiting: Waiting, event: Logged, told: dict[str, Any]) -> None:
    waiting.rev += 1
    request = told.get("request", "")
    at_ms = round(datetime.fromisoformat(told["at"]).timestamp() * 1000) if "at" in told else event.at_ms
    if event.type == "approval_voted":
        vote = Vote(told["decision"], told["by"], at_ms, told["comment"], told["form"], told["via"], request)
        waiting.votes = [*waiting.votes, vote]
    elif event.type in _NOTES:
        to, by = told["to"], told.get("by", "")
        note = Note(_NOTES[event.type], at_ms, by, to, told.get("comment", ""), request)
        waiting.notes = [*waiting.notes, note]
        kept = [name for name in waiting.approvers if event.type != "approval_delegated" or name != by]
        if event.type != "approval_reminded":
            waiting.approvers = kept + [name for name in to if name not in kept]
