"""Changes of a definition while a run follows it: RFC 6902 operations, what they mean, and what they may not touch. Pure.

Only nodes can be changed, and of them only those that have not begun: what has started keeps its identity, and what a run
returns is fixed by the definition it started with.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jsonpatch
import msgspec
from jsonpointer import JsonPointerException, resolve_pointer

from weft.core.graph.compile import Plan
from weft.core.graph.model import MAX_BYTES, GraphSpec
from weft.core.graph.problems import similar
from weft.core.routing import Iterations, Job
from weft.errors import Conflict, InvalidArguments, PatchLimit, PayloadTooLarge

#: Operations of one patch, bytes of their JSON, and nodes they add, change or remove.
MAX_OPERATIONS, MAX_PATCH_BYTES, MAX_TOUCHED = 200, 256 * 1024, 256
#: Operations that RFC 6902 knows, and the members each must have besides `path`.
_MEMBERS = {"add": "value", "replace": "value", "test": "value", "move": "from", "copy": "from", "remove": ""}
#: How a node's end is told to those that follow it.
_MARKS = {"completed": "+", "failed": "!", "skipped": "-"}

_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class Ended:
    """A node that has ended: how, in which iteration, and for a branch what it chose."""

    status: str
    iterations: Iterations = ()
    chosen: Any = None


@dataclass(frozen=True, slots=True)
class Change:
    """What differs between two definitions."""

    added: tuple[str, ...]
    removed: tuple[str, ...]
    changed: tuple[str, ...]
    #: Nodes of the new one that follow others than before, or need others of them: they are looked at again.
    rerouted: tuple[str, ...]

    @property
    def touched(self) -> frozenset[str]:
        """Nodes that must not have begun."""
        return frozenset((*self.added, *self.removed, *self.changed, *self.rerouted))


@dataclass(frozen=True, slots=True)
class StepLimits:
    """How much of a run steps may change: an agent that patches is not to grow its run without bounds."""

    #: Nodes that one patch may touch, patches of one run, and its nodes of type `agent`.
    nodes: int
    patches: int
    agents: int


def check_step(change: Change, old: GraphSpec, new: GraphSpec, *, step: str, made: int, limits: StepLimits) -> None:
    """Raises PatchLimit for a patch that a step may not make; `made`: how many steps have made of that run before."""
    if made >= limits.patches:
        raise PatchLimit(
            f"steps have patched this run {made} times, and {limits.patches} are allowed (WEFT_AGENT_PATCHES): step {step}"
            " cannot patch it any more; a person can",
            limit=limits.patches,
            count=made,
            setting="WEFT_AGENT_PATCHES",
        )
    if len(change.touched) > limits.nodes:
        raise PatchLimit(
            f"this patch of step {step} touches {len(change.touched)} nodes; {limits.nodes} are allowed in one patch by a step"
            " (WEFT_AGENT_PATCH_NODES): make a smaller one, a map instead of many nodes, or have a person make it",
            limit=limits.nodes,
            count=len(change.touched),
            setting="WEFT_AGENT_PATCH_NODES",
        )
    before, after = count_agents(old), count_agents(new)
    # What people gave it may be more; a step must not add to that.
    if after > limits.agents and after > before:
        raise PatchLimit(
            f"with this patch of step {step} the run would have {after} nodes of type agent; {limits.agents} are allowed"
            " (WEFT_AGENT_NODES): use those it has, or have a person add one",
            limit=limits.agents,
            count=after,
            setting="WEFT_AGENT_NODES",
        )


def count_agents(spec: GraphSpec) -> int:
    """Counts the nodes of a definition that are agents."""
    return sum(node.type == "agent" for node in spec.nodes.values())


def check_operations(operations: Any) -> list[dict[str, Any]]:
    """Returns the operations of a patch; raises InvalidArguments or PayloadTooLarge for what is none."""
    if not isinstance(operations, (list, tuple)) or not operations:
        raise InvalidArguments("a patch is a list of operations, such as [{'op': 'remove', 'path': '/nodes/email'}]")
    if len(operations) > MAX_OPERATIONS:
        raise PayloadTooLarge(f"a patch has {len(operations)} operations; {MAX_OPERATIONS} are allowed: make several")
    for i, operation in enumerate(operations):
        _check_operation(i, operation)
    try:
        size = len(_encode(operations))
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidArguments(f"a patch is plain JSON: {error}") from None
    if size > MAX_PATCH_BYTES:
        raise PayloadTooLarge(f"a patch has {size} bytes; {MAX_PATCH_BYTES} are allowed: make several")
    return list(operations)


def _check_operation(i: int, operation: Any) -> None:
    where = f"operation {i + 1}"
    if not isinstance(operation, Mapping) or operation.get("op") not in _MEMBERS:
        raise InvalidArguments(
            f"{where}: an object with `op` is needed, one of {', '.join(_MEMBERS)}; not {operation!r:.80}"
        )
    op, wanted = operation["op"], _MEMBERS[operation["op"]]
    if wanted and wanted not in operation:
        raise InvalidArguments(f"{where}: {op} needs `{wanted}`")
    for name in ("path", "from") if wanted == "from" else ("path",):
        pointer = operation.get(name)
        if not isinstance(pointer, str):
            raise InvalidArguments(f"{where}: {op} needs `{name}`, a JSON pointer such as /nodes/email")
        is_node = pointer.startswith("/nodes/") and len(pointer) > len("/nodes/")
        if not is_node and op != "test":
            raise InvalidArguments(
                f"{where}: {name} {pointer!r:.80} is no part of a node: only what is under /nodes/<id> can be patched. The"
                " name, version, input and output of a run are those of the definition it started with"
            )


def apply_operations(document: dict[str, Any], operations: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Returns a definition with a patch applied. One operation at a time: a few `copy` would make it grow without bounds."""
    for i, operation in enumerate(operations):
        try:
            document = jsonpatch.apply_patch(document, [dict(operation)])
        except (jsonpatch.JsonPatchException, JsonPointerException, TypeError, KeyError, IndexError) as error:
            why = _missing(document, operation)
            where = f"operation {i + 1}: {operation['op']} {operation['path']!s:.200}"
            if operation["op"] == "test":
                there = why or f"it is {_shown(resolve_pointer(document, operation['path']))}"
                unlike = "" if why else f", not {_shown(operation['value'])}"
                raise Conflict(f"{where}: {there}{unlike}") from None
            raise InvalidArguments(f"{where}: {why or format(str(error), '.200')}") from None
        if operation["op"] == "copy":
            size = len(_encode(document))
            if size > MAX_BYTES:
                raise PayloadTooLarge(
                    f"operation {i + 1}: the definition grows to {size} bytes; {MAX_BYTES} are allowed"
                )
    return document


def _missing(document: Any, operation: Mapping[str, Any]) -> str:
    """Returns which part of its pointers an operation does not find, and what is there instead; nothing if it finds all."""
    pointers = [(operation["from"], False)] if "from" in operation else []
    for pointer, makes_last in (*pointers, (operation["path"], operation["op"] in ("add", "move", "copy"))):
        place, at = document, ""
        parts = [part.replace("~1", "/").replace("~0", "~") for part in pointer.split("/")[1:]]
        for part in parts[:-1] if makes_last else parts:
            if isinstance(place, dict) and part in place:
                place = place[part]
            elif isinstance(place, list) and part.isdigit() and int(part) < len(place):
                place = place[int(part)]
            else:
                return f"there is no {at}/{part:.60}{_there(place, at, part)}"
            at += f"/{part}"
    return ""


def _there(place: Any, at: str, part: str) -> str:
    if isinstance(place, list):
        return f": {at} has {len(place)} elements, from 0 on"
    if not isinstance(place, dict):
        return f": {at} is {_shown(place)}"
    names = ", ".join(list(place)[:20]) + (", …" if len(place) > 20 else "")
    return similar(part, place) or f": {at or 'the definition'} has {names}"


def _shown(value: Any) -> str:
    text = _encode(value).decode()
    return text if len(text) <= 100 else text[:99] + "…"


def difference(before: Any, after: Any) -> list[dict[str, Any]]:
    """Returns the operations that turn one definition into another."""
    found: list[dict[str, Any]] = jsonpatch.make_patch(before, after).patch
    return found


def compare(old: Plan, new: Plan) -> Change:
    """Returns what differs between two definitions; raises PayloadTooLarge when that is too much for one patch."""
    before, after = old.spec.nodes, new.spec.nodes
    both = [id for id in after if id in before]
    change = Change(
        added=tuple(id for id in after if id not in before),
        removed=tuple(id for id in before if id not in after),
        changed=tuple(id for id in both if before[id] != after[id]),
        rerouted=tuple(
            id
            for id in both
            if set(old.node(id).predecessors) != set(new.node(id).predecessors) or before[id].join != after[id].join
        ),
    )
    if len(change.touched) > MAX_TOUCHED:
        raise PayloadTooLarge(f"the patch touches {len(change.touched)} nodes; {MAX_TOUCHED} are allowed: make several")
    return change


def check_begun(change: Change, old: Plan, new: Plan, begun: Collection[str]) -> None:
    """Raises Conflict for a change of what has begun: a node, or the body of a loop."""
    for id in sorted(change.touched):
        if id in begun:
            what = "removed" if id in change.removed else "changed"
            raise Conflict(
                f"node {id} has begun, so it cannot be {what}: what has started stays as it is. Add a node behind it, or cancel"
                " the run",
                node=id,
            )
        for plan in (old, new):
            if id not in plan:
                continue
            for loop in plan.node(id).loops:
                started = sorted(plan.loops[loop].body & set(begun))
                if started:
                    raise Conflict(
                        f"node {id} is in the body of loop {loop}, which has begun ({', '.join(started[:3])}): the body of a"
                        " loop can only be changed before its first node begins",
                        node=id,
                        loop=loop,
                    )


def jobs_for(plan: Plan, nodes: Iterable[str], ended: Mapping[str, Ended]) -> list[Job]:
    """Returns what is to be done about nodes that have not begun: everybody who has ended before them reaches them again."""
    jobs: list[Job] = []
    for id in nodes:
        node = plan.node(id)
        if not node.predecessors:
            jobs.append(Job("enter", id, (0,) * len(node.loops)))
        for before in node.predecessors:
            end = ended.get(before)
            if end is not None:
                jobs.append(Job("reach", id, end.iterations, before + _mark(plan, before, id, end)))
    return jobs


def _mark(plan: Plan, before: str, id: str, end: Ended) -> str:
    """Returns how the end of one node looks to another; a branch is a skip to all that it did not choose."""
    if id in plan.node(before).targets and not (end.status == "completed" and end.chosen == id):
        return "-"
    return _MARKS[end.status]
