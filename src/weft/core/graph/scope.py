"""Checks the expressions and templates of a definition: that each can be read, and that what it names is there by then."""

from __future__ import annotations

import re
from collections.abc import Callable

from weft.core.graph.model import ITEM_NAMES, RESERVED_NAMES, GraphSpec
from weft.core.graph.problems import Path, Problems, similar
from weft.core.graph.topology import Topology
from weft.core.graph.uses import Use, texts_in, uses_of
from weft.core.templates import Template
from weft.errors import InvalidExpression

#: Tells what is wrong with a name, as code and sentence; None when it may be used.
CheckName = Callable[[str], tuple[str, str] | None]


def check_expressions(spec: GraphSpec, topology: Topology, problems: Problems) -> None:
    """Notes every expression that cannot be read or names what it cannot know."""
    for id, node in spec.nodes.items():
        if problems.full:
            return
        for use in uses_of(node):
            _check_use(("nodes", id, *use.path), use, _names_of_node(id, topology, use), problems)
    if spec.output is not None:
        _check_use(("output",), Use((), spec.output), _names_of_output(spec), problems)


def _check_use(path: Path, use: Use, check_name: CheckName, problems: Problems) -> None:
    texts = list(texts_in(use.value, path)) if use.kind is Template else [(path, use.value)]
    sound = True
    for at, text in texts:
        try:
            found = use.kind(text)
        except InvalidExpression as error:
            problems.add("bad_expression", error.message, at, offset=error.facts.get("offset"))
            sound = False
            continue
        for name in sorted(found.names | found.nodes):
            if not problems.full and (wrong := check_name(name)):
                place = re.search(rf"\b{name}\b", text)
                problems.add(*wrong, at, offset=place.start() if place else None)
    if sound and len(texts) > 1:
        try:
            Template(use.value)
        except InvalidExpression as error:
            problems.add("bad_expression", error.message, path)


def _names_of_node(id: str, topology: Topology, use: Use) -> CheckName:
    def check(name: str) -> tuple[str, str] | None:
        if name in ITEM_NAMES:
            if use.per_item:
                return None
            return "unknown_name", f"{use.path[0]} of {id} cannot use {name}: it exists for each item of a map only"
        if name in RESERVED_NAMES or topology.sees(id, name) or (name == id and use.afterwards):
            return None
        if name == id:
            return "unknown_name", f"{use.path[0]} of {id} uses its own output, which it does not have by then"
        if name not in topology.nodes:
            return "unknown_name", _unknown(name, [*RESERVED_NAMES, *topology.seen(id)])
        if id not in topology.order_set:
            return None  # it is on a circle or behind one, where nothing is before anything
        return "not_before", f"{use.path[0]} of {id} uses {name}, which is not before {id}: add it to after"

    return check


def _names_of_output(spec: GraphSpec) -> CheckName:
    known = [name for name in RESERVED_NAMES if name not in ITEM_NAMES]

    def check(name: str) -> tuple[str, str] | None:
        return None if name in spec.nodes or name in known else ("unknown_name", _unknown(name, [*known, *spec.nodes]))

    return check


def _unknown(name: str, known: list[str]) -> str:
    hint = similar(name, known)
    return (
        f"there is nothing called {name}{hint}"
        if hint
        else f"there is nothing called {name}: no node, and none of " + (", ".join(RESERVED_NAMES))
    )
