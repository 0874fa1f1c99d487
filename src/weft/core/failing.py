"""What follows a failure in a graph run: it goes on, it fails, or it undoes first what it did. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from weft.core.cel.program import BY_NODE, WHOLE
from weft.core.effects import UNDO, Effect, Fail, Failing, Open, route_spec
from weft.core.graph.compile import NodePlan
from weft.core.model import ERROR_DECODER, ErrorRecord, RunSpec
from weft.errors import InvalidArguments, WeftError

if TYPE_CHECKING:
    from weft.core.published import Published, StepBase


def goes_on(node: NodePlan) -> bool:
    """Tells whether a run goes on behind this node when it has failed."""
    return node.on_error in ("continue", "dead_letter")


def item_fails_run(node: NodePlan) -> bool:
    """Tells whether one failed item of a map fails the run: where all are waited for, and none may fail."""
    return not goes_on(node) and node.gather.kind in ("all", "deadline")


def fail_effects(published: Published, error: bytes) -> list[Effect]:
    """Returns how a run fails: at once, or when what it has done is undone."""
    if not published.undoes:
        return [Fail(error)]
    return [Failing(error), Open(UNDO, route_spec(published.address))]


def letter_spec(spec: RunSpec) -> RunSpec:
    """Returns what a dead letter of a step keeps: its replay is a run of its own, and follows no graph."""
    return msgspec.structs.replace(spec, definition="", memo="")


def bound_values(what: str, base: StepBase, view: Mapping[str, Any], input: Any) -> dict[str, Any]:
    """Returns the arguments that are found by their name: among the names in view, and the fields of the input."""
    found: dict[str, Any] = {}
    for name, source in base.bound.items():
        if source[0] == "=":
            whole = source[1:] + WHOLE if source[1:] in BY_NODE else source[1:]
            found[name] = view.get(whole)
        elif isinstance(input, dict) and source[1:] in input:
            found[name] = input[source[1:]]
        elif source[0] == ".":
            raise InvalidArguments(
                f"{what}: its parameter {name} is a field of the run's input, which has none of that name",
                argument=name,
            )
    return found


def record_of(error: WeftError) -> ErrorRecord:
    return ErrorRecord(type(error).__name__, str(error), code=error.code)


def exhausted(node: NodePlan) -> ErrorRecord:
    text = f"loop {node.id} still wanted to go on after {node.spec.max_iterations} iterations"
    return ErrorRecord("LoopExhausted", text, code="loop_exhausted")


def item_failure(value: bytes, step: str) -> bytes:
    """Returns the error of a run that fails because an item of a map did."""
    record = ERROR_DECODER.decode(value)
    return msgspec.msgpack.encode(msgspec.structs.replace(record, message=f"{step}: {record.message}"))
