"""Where the arguments of a task come from: `with`, else by name from reserved names, node outputs and input fields."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec

from weft.core.graph.model import ITEM_NAMES, RESERVED_NAMES, GraphSpec
from weft.core.graph.problems import Path, Problems, show, similar
from weft.core.graph.topology import Topology


class TaskShape(msgspec.Struct, frozen=True):
    """What a graph has to know of a task's signature."""

    #: As its author wrote it: "save(report: dict) -> str".
    text: str
    parameters: tuple[str, ...] = ()
    required: frozenset[str] = frozenset()
    #: Whether it takes arguments by any name.
    takes_any: bool = False


#: Finds a task's shape by its name; None for a task that is not known here.
FindShape = Callable[[str], TaskShape | None]


class Source(NamedTuple):
    """Where one argument comes from: `with`, `reserved` (input, item, …), `node` or `input` (a field of it)."""

    kind: str
    name: str
    #: Whether the parameter has a default, so that a missing field of the input is no error.
    optional: bool = False


def input_fields(spec: GraphSpec) -> frozenset[str] | None:
    """Returns the fields that the input is declared to have; None when it may have any."""
    schema = spec.input or {}
    properties, required = schema.get("properties"), schema.get("required")
    if not isinstance(properties, dict) and not isinstance(required, list):
        return None
    listed = [name for name in required if isinstance(name, str)] if isinstance(required, list) else []
    return frozenset([*(properties if isinstance(properties, dict) else ()), *listed])


def bind(id: str, spec: GraphSpec, topology: Topology, shape: TaskShape, problems: Problems) -> dict[str, Source]:
    """Returns where each argument of a node's task comes from, and notes what is missing, unknown or ambiguous.

    A parameter with a default is bound too when something has its name. Where the input does not declare its fields, a
    parameter that nothing else provides is taken to be one of them.
    """
    node = spec.nodes[id]
    path: Path = ("nodes", id)
    given: dict[str, Any] = node.with_ or {}
    for name in given:
        if name not in shape.parameters and not shape.takes_any:
            hint = similar(name, shape.parameters)
            problems.add(
                "unknown_argument",
                f"{shape.text} has no parameter {show(name)}{hint}",
                (*path, "with", name),
                at_key=True,
            )
    fields = input_fields(spec)
    bound = {name: Source("with", name) for name in given}
    for name in shape.parameters:
        if name in bound:
            continue
        found = [*_by_name(id, name, node.map is not None, topology), *_by_field(name, fields)]
        if len(found) > 1:
            words = " and ".join(_spell(source) for source in found)
            problems.add(
                "ambiguous_argument",
                f"parameter {name} of {shape.text} could be {words}: say which, as with: {{{name}: ${{…}}}}",
                (*path, "call"),
            )
        optional = name not in shape.required
        if found:
            bound[name] = found[0]._replace(optional=optional)
        elif fields is None and name not in RESERVED_NAMES and name not in spec.nodes:
            bound[name] = Source("input", name, optional)
        elif not optional:
            problems.add("missing_argument", _missing(id, name, spec, shape), (*path, "call"))
    return bound


def _by_name(id: str, name: str, mapped: bool, topology: Topology) -> list[Source]:
    if name in RESERVED_NAMES:
        return [Source("reserved", name)] if mapped or name not in ITEM_NAMES else []
    return [Source("node", name)] if topology.sees(id, name) else []


def _by_field(name: str, fields: frozenset[str] | None) -> list[Source]:
    return [Source("input", name)] if fields and name in fields else []


def _spell(source: Source) -> str:
    return {
        "reserved": f"the reserved name {source.name}",
        "node": f"the output of node {source.name}",
        "input": f"the input field {source.name}",
    }[source.kind]


def _missing(id: str, name: str, spec: GraphSpec, shape: TaskShape) -> str:
    said = f"nothing provides parameter {name} of {shape.text}"
    if name in ITEM_NAMES:
        return f"{said}: only a node with map has {name}"
    if name in spec.nodes:
        return f"{said}: node {name} is not before {id}; add it to after"
    return f"{said}: no node before {id} and no field of the input is called so; give it by with"
