"""Steps that wait for something from outside: a signal, or people. What their node gives when it has come. Pure."""

from __future__ import annotations

from typing import Any, NamedTuple

from weft.clock import format_duration
from weft.codec import decode_plain
from weft.core.graph.compile import NodePlan
from weft.core.model import ErrorRecord

#: The task names of steps that wait for a signal, and for people. `$` cannot stand in a name users choose.
SIGNAL, APPROVAL = "$signal", "$approval"
WAITS = frozenset({SIGNAL, APPROVAL})

#: What a step is given whose time was over.
LATE = b"-"


class Ended(NamedTuple):
    """How a node ends that waited: completed with a value, failed with an error, or skipped."""

    kind: str
    value: Any = None
    error: ErrorRecord | None = None


def waits_for(node: NodePlan) -> str:
    """Returns what a node's step waits for, as its ledger has it."""
    return f"signal:{node.spec.signal}" if node.type == "wait" else "approval"


def conclude(node: NodePlan, given: bytes) -> Ended:
    """Returns how a node ends that was given something: `+` and a value, or `-` when its time was over."""
    if node.type == "wait":
        return _after_signal(node, given)
    return _after_approval(node, decode_plain(given[1:]))


def _after_signal(node: NodePlan, given: bytes) -> Ended:
    if given != LATE:
        return Ended("completed", decode_plain(given[1:]))
    if node.spec.on_timeout == "continue":
        return Ended("completed", None)
    text = f"signal {node.spec.signal} did not come within {format_duration(node.duration_ms('timeout') or 0)}"
    return Ended("failed", error=ErrorRecord("TimeoutError", text, code="timeout"))


def _after_approval(node: NodePlan, output: dict[str, Any]) -> Ended:
    decision = output["decision"]
    if decision == "timed_out" and (node.spec.on_timeout or "fail") == "fail":
        text = f"{node.id} was not decided within {format_duration(node.duration_ms('timeout') or 0)}"
        return Ended("failed", error=ErrorRecord("TimeoutError", text, code="timeout"))
    if decision == "rejected":
        rule = node.spec.on_reject or "fail"
        if rule == "fail":
            why = f": {output['comment']}" if output["comment"] else ""
            text = f"{node.id} was rejected by {output['by']}{why}"
            return Ended("failed", error=ErrorRecord("ApprovalRejected", text, code="approval_rejected"))
        if rule == "skip":
            return Ended("skipped")
    return Ended("completed", output)
