"""Turns what stands in the log into events that people read."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import msgspec

from weft.codec import decode_plain
from weft.core.flow import RENEWAL_DECODER, read_entries
from weft.core.fold import read_fact
from weft.core.model import ERROR_DECODER, SPEC_DECODER, VALUE_DECODER, Event
from weft.store.log import RawEvent

#: Events that carry an error.
FAILURES = frozenset(
    (
        *("failed", "failing", "cancelled", "retrying", "node_failed"),
        *("step_failed", "step_cancelled", "step_retrying", "step_yielded"),
        *("cancelling", "overdue", "history_full", "child_failed", "child_cancelled", "update_failed"),
    )
)


#: Events that carry a value.
VALUES = frozenset(
    (
        *("completed", "step_completed", "step_cached", "node_completed", "node_errors"),
        *("child_completed", "update_completed"),
    )
)


def event_of(raw: RawEvent) -> Event:
    """Returns an event as people read it."""
    data: dict[str, Any] = {key: int(value) if value.isdigit() else value for key, value in raw.facts.items()}
    step = str(data.pop("step", ""))
    for name in ("trace", "request", "carried", "kept"):
        data.pop(name, None)  # for whoever rebuilds a run
    if "opened" in data:
        data["opened"] = str(data["opened"]).split(" ")
        data.pop("asks", None)  # of the one that was opened: for whoever rebuilds a run, too
    if raw.type in ("queued", "debounced"):
        data.pop("same", None)
        spec = SPEC_DECODER.decode(raw.payload)
        data |= {"name": spec.name, "queue": spec.queue, "priority": spec.priority}
        data["input"] = {"blob": spec.blob} if spec.blob else decode_plain(spec.input) if spec.input else {}
    elif raw.type in VALUES:
        value = VALUE_DECODER.decode(raw.payload)
        data["result"] = {"blob": value.blob, "size": value.size} if value.blob else decode_plain(value.inline)
    elif raw.type in ("patched", "retried"):
        data |= msgspec.json.decode(raw.payload)
    elif raw.type == "progress":
        fraction, _, message = raw.payload.decode().partition(" ")
        data |= {"progress": float(fraction), "message": message}
    elif raw.type in FAILURES:
        data["error"] = error_dict(raw.payload)
    elif raw.type in _OF_FLOWS:
        data |= _OF_FLOWS[raw.type](raw)
    elif raw.type == "step_waiting" or raw.type.startswith("approval_"):
        data |= msgspec.json.decode(raw.payload) if raw.payload else {}
        data.pop("request", None)
    elif raw.payload:
        data["reason"] = raw.payload.decode(errors="replace")
    if raw.type.startswith("update_") and "id" in raw.facts:
        data["id"] = read_fact(raw.facts["id"])
    data["by"] = raw.by
    return Event(raw.run, raw.seq, raw.type, datetime.fromtimestamp(raw.at_ms / 1000, UTC), step, data)


def _continued(raw: RawEvent) -> dict[str, Any]:
    asked = RENEWAL_DECODER.decode(raw.payload).input
    return {"input": {"blob": asked.blob} if asked.blob else decode_plain(asked.inline) if asked.inline else {}}


#: What events of workflow runs carry, and of graph runs that are given signals.
_OF_FLOWS: dict[str, Callable[[RawEvent], dict[str, Any]]] = {
    "continued": _continued,
    "signalled": lambda raw: {"value": decode_plain(raw.payload)},
    "update_received": lambda raw: {"value": decode_plain(raw.payload)},
    "state_changed": lambda raw: {"state": decode_plain(raw.payload)},
    "inherited": lambda raw: {"entries": len(read_entries(raw.payload))},
}


def error_dict(packed: bytes) -> dict[str, Any]:
    return dict(msgspec.to_builtins(ERROR_DECODER.decode(packed)))
