"""Steps that wait for something from outside: a signal, or people. What their node gives when it has come. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from weft.clock import format_duration, parse_duration_ms
from weft.codec import decode_plain, encode_plain
from weft.core.graph.compile import NodePlan
from weft.core.model import ROUTES, ErrorRecord, RunSpec
from weft.errors import InvalidArguments

#: The task names of steps that wait for a signal, and for people. `$` cannot stand in a name users choose.
SIGNAL, APPROVAL = "$signal", "$approval"
WAITS = frozenset({SIGNAL, APPROVAL})

#: Bytes that an approval may show.
MAX_ASKED = 256 * 1024
#: Characters of a person's or role's name.
MAX_NAME = 200
#: People and roles that one approval names.
MAX_PEOPLE = 1_000
#: What a step is given whose time was over.
LATE = b"-"


class Ended(NamedTuple):
    """How a node ends that waited: completed with a value, failed with an error, or skipped."""

    kind: str
    value: Any = None
    error: ErrorRecord | None = None


def waiting_spec(node: NodePlan, view: Mapping[str, Any], definition: str) -> RunSpec:
    """Returns what a step is asked that a worker lets wait: for what, how long, and what people are shown."""
    if node.type == "wait":
        name, asked = SIGNAL, {"signal": node.spec.signal, "timeout_ms": node.duration_ms("timeout") or 0}
    else:
        name, asked = APPROVAL, approval_of(node, view)
    data = encode_plain(asked, what=f"what node {node.id} asks for")
    if len(data) > MAX_ASKED:
        raise InvalidArguments(
            f"node {node.id} shows {len(data)} bytes, at most {MAX_ASKED}: show where it is instead", node=node.id
        )
    return RunSpec(name, queue=ROUTES, definition=definition, input=data)


def approval_of(node: NodePlan, view: Mapping[str, Any]) -> dict[str, Any]:
    """Returns what an approval asks for, with what it shows filled in."""
    spec, title, show = node.spec, node.template("title"), node.template("show")
    escalate = spec.escalate or {}
    told = None if title is None else title.evaluate(view)
    return {
        "title": told if isinstance(told, str) else "" if told is None else msgspec.json.encode(told).decode(),
        "show": None if show is None else show.evaluate(view),
        "approvers": _people(node, "approvers", view),
        "quorum": spec.quorum or 1,
        "form": spec.form,
        "timeout_ms": node.duration_ms("timeout") or 0,
        "on_timeout": spec.on_timeout or "fail",
        "reminders_ms": [parse_duration_ms(one, what="reminders") for one in spec.reminders or ()],
        "escalate_ms": parse_duration_ms(escalate["after"], what="escalate") if escalate else 0,
        "escalate_to": _people(node, "escalate.to", view),
    }


def _people(node: NodePlan, field: str, view: Mapping[str, Any]) -> list[str]:
    """Returns people and roles, each once; one expression may give several. Raises InvalidArguments where it gives none.

    Nobody must not come to mean anybody, which is what an approval without approvers means.
    """
    template = node.template(field)
    if template is None:
        return []
    found: list[str] = []
    for given in template.evaluate(view):
        for one in given if isinstance(given, list) else [given]:
            if not isinstance(one, str) or not one.strip() or len(one) > MAX_NAME or not one.isprintable():
                wanted = f"a person or role is a text of 1 to {MAX_NAME} printable characters"
                raise InvalidArguments(f"node {node.id}: {field} gave {one!r:.100}; {wanted}", node=node.id)
            if one not in found:
                found.append(one)
    if not 0 < len(found) <= MAX_PEOPLE:
        raise InvalidArguments(
            f"node {node.id}: {field} gave {len(found)} people and roles; 1 to {MAX_PEOPLE} are asked", node=node.id
        )
    return found


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
