"""Folds the events of a graph run into how it stands: what a cold store has when everything else is lost."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import msgspec

from weft.store.log import RawEvent

#: Events that tell of the end of a node, and the status they tell of.
ENDS = {
    "step_completed": "completed",
    "step_failed": "failed",
    "step_cached": "completed",
    "node_completed": "completed",
    "node_failed": "failed",
    "node_skipped": "skipped",
    "node_errors": "completed",
}
TERMINAL = ("completed", "failed", "cancelled")


@dataclass
class Stand:
    """How a graph run stands."""

    #: Node (or `<node>*`, the errors of a map's items; or `<step>!`, a compensation) -> status, step, value.
    given: dict[str, tuple[str, str, bytes]] = field(default_factory=dict)
    #: Map -> index -> status, value.
    items: dict[str, dict[int, tuple[str, bytes]]] = field(default_factory=dict)
    open: set[str] = field(default_factory=set)
    status: str | None = None
    #: The result or the error of one that has ended.
    value: bytes = b""
    failing: bytes | None = None
    definition: str = ""


def fold(events: Iterable[RawEvent]) -> Stand:
    """Returns how a run stands after these events."""
    stand = Stand()
    for event in events:
        _take(stand, event)
    return stand


def _take(stand: Stand, event: RawEvent) -> None:
    step = event.facts.get("step", "")
    if event.type in ENDS:
        _end(stand, event.type, step, event.payload)
    if event.type == "patched":
        record = msgspec.json.decode(event.payload)
        stand.definition = record["definition"]
        stand.open -= set(record["withdrawn"])
    elif event.type == "retried":
        again = set(msgspec.json.decode(event.payload)["again"])
        stand.given = {name: one for name, one in stand.given.items() if name.removesuffix("*") not in again}
        stand.items = {step: one for step, one in stand.items.items() if node_of(step) not in again}
        stand.status, stand.value, stand.failing = None, b"", None
    elif event.type == "failing":
        stand.failing = event.payload
    elif event.type in TERMINAL:
        stand.status, stand.value = event.type, event.payload
        stand.open.clear()  # what was open is ended with its run
    if event.type == "routed" or event.type in ENDS:
        stand.open.discard(step)
        if step.endswith("="):
            # The map is put together: it is over, and so is the wait for its deadline.
            stand.open -= {step[:-1], step[:-1] + "@"}
    stand.open |= set(event.facts.get("opened", "").split())


def _end(stand: Stand, kind: str, step: str, value: bytes) -> None:
    status = ENDS[kind]
    if "#" in step and not step.endswith("!"):
        name, _, index = step.partition("#")
        stand.items.setdefault(name, {})[int(index)] = (status, value)
        return
    node = step if step.endswith("!") else node_of(step) + ("*" if kind == "node_errors" else "")
    stand.given[node] = (status, step, value)


def node_of(step: str) -> str:
    """Returns the node that a step is of."""
    return step.partition("#")[0].partition("~")[0]
