"""Reads a definition from its document, plain dicts and lists, into the model. Notes all that is wrong with single values.

What can be read is read, also next to what cannot: so one look finds the problems of all nodes, and those of the graph.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from weft.core.expressions import check_node_id
from weft.core.graph import kinds
from weft.core.graph.fields import FIELDS, NEEDS, OF_RETRIES, OTHER_WORDS, OWN_RETRIES, REQUIRED
from weft.core.graph.model import MAX_NODES, TYPE_ALIASES, TYPES, GraphSpec, NodeSpec
from weft.core.graph.problems import Path, Problems, show, similar
from weft.errors import WeftError

_GRAPH_FIELDS: dict[str, kinds.Read] = {
    "name": kinds.name,
    "version": kinds.text,
    "input": kinds.mapping,
    "output": kinds.template,
}

#: Fields of the JSON form that are words of Python, and what they are called in the model.
_PYTHON = {"with": "with_", "while": "while_"}

#: What is missing -> the code and the reason, where a bare "needs x" would not help.
_MISSING = {
    ("branch", "default"): (
        "branch_without_default",
        "needs a default: where to go when no case is true",
    ),
    ("loop", "max_iterations"): (
        "loop_without_bound",
        "needs max_iterations: how often its body may be executed in all",
    ),
}


def read_document(document: Any, problems: Problems) -> GraphSpec | None:
    """Returns a definition with everything that could be read; None when there is nothing to look at."""
    if not isinstance(document, Mapping):
        problems.add("not_a_graph", f"a graph is a mapping with name and nodes, not {show(document)}")
        return None
    values: dict[str, Any] = {}
    for field, value in document.items():
        if field in _GRAPH_FIELDS:
            values[field] = None if value is None else _GRAPH_FIELDS[field](value, (field,), problems)
        elif field != "nodes":
            hint = similar(field, [*_GRAPH_FIELDS, "nodes"]) or f"; there are {', '.join(_GRAPH_FIELDS)}, nodes"
            problems.add("unknown_field", f"a graph has no field {show(field)}{hint}", (field,), at_key=True)
    if document.get("name") is None:
        problems.add("missing_field", "a graph needs a name")
    nodes = document.get("nodes")
    if not isinstance(nodes, Mapping) or not nodes:
        said = "it has none" if nodes is None or nodes == {} else f"not {show(nodes)}"
        problems.add("no_nodes", f"a graph needs nodes, a mapping of node ids: {said}", ("nodes",))
        nodes = {}
    if len(nodes) > MAX_NODES:
        problems.add("too_large", f"{len(nodes):,} nodes are too many: at most {MAX_NODES:,}", ("nodes",))
        return None
    read = {}
    for id, node in nodes.items():
        if problems.full:
            return None
        check_id(id, problems)
        read[str(id)] = read_node(str(id), node, problems)
    return GraphSpec(
        name=values.get("name") or "",
        version=values.get("version"),
        input=values.get("input"),
        output=values.get("output"),
        nodes=read,
    )


def check_id(id: Any, problems: Problems) -> None:
    """Notes what is wrong with a node's id."""
    try:
        if not isinstance(id, str):
            raise WeftError(f"a node id is a text, not {show(id)}: write it in quotes")
        check_node_id(id)
    except WeftError as error:
        problems.add("bad_node_id", error.message, ("nodes", str(id)), at_key=True)


def read_node(id: str, node: Any, problems: Problems) -> NodeSpec:
    """Returns one node with everything that could be read."""
    path: Path = ("nodes", id)
    if not isinstance(node, Mapping):
        problems.add("bad_node", f"node {id} must be a mapping with a type, not {show(node)}", path)
        return NodeSpec(type="")
    given = node.get("type")
    type = TYPE_ALIASES.get(given, given) if isinstance(given, str) else given
    if not isinstance(type, str) or type not in TYPES:
        _refuse_type(id, given, problems)
        type = ""
    values: dict[str, Any] = {}
    table = FIELDS[type or "transform"]
    for field, value in node.items():
        if field == "type" or value is None:
            continue
        if field in table:
            values[_PYTHON.get(field) or field] = table[field](value, (*path, field), problems)
        elif type:
            _refuse_field(id, type, field, problems)
    if type:
        _check_together(id, type, node, problems)
    return NodeSpec(type=type, **{name: value for name, value in values.items() if value is not None})


def _refuse_type(id: str, given: Any, problems: Problems) -> None:
    path: Path = ("nodes", id, "type")
    known = [*TYPES, *TYPE_ALIASES]
    if given is None:
        problems.add("missing_field", f"node {id} needs a type: one of {', '.join(TYPES)}", path[:2], at_key=True)
    else:
        hint = similar(given, known) or f"; there are {', '.join(TYPES)}"
        problems.add("unknown_type", f"there is no node type {show(given)}{hint}", path)


def _refuse_field(id: str, type: str, field: Any, problems: Problems) -> None:
    path: Path = ("nodes", id, str(field))
    table = FIELDS[type]
    other = OTHER_WORDS.get(field) if isinstance(field, str) else None
    if other in table:
        problems.add("unknown_field", f"node {id} has no field {show(field)}: it is called {other}", path, at_key=True)
        return
    owners = [owner for owner, fields in FIELDS.items() if field in fields]
    hint = similar(field, table)
    if not hint and owners:
        hint = f": it goes with {', '.join(owners)}"
    problems.add(
        "unknown_field",
        f"{type} nodes have no field {show(field)}{hint or '; there are ' + ', '.join(table)}",
        path,
        at_key=True,
    )


def _check_together(id: str, type: str, node: Mapping[str, Any], problems: Problems) -> None:
    """Notes fields that are missing, that do nothing without another, or that contradict each other."""
    path: Path = ("nodes", id)
    has = {field for field, value in node.items() if value is not None}
    for field in REQUIRED.get(type, ()):
        if field not in has:
            code, reason = _MISSING.get((type, field), ("missing_field", f"needs {field}"))
            problems.add(code, f"{type} {id} {reason}", path, at_key=True)
    needs = NEEDS | dict.fromkeys(OF_RETRIES, "retries") if type in OWN_RETRIES else NEEDS
    for field, needed in needs.items():
        if field in has and field in FIELDS[type] and needed not in has:
            problems.add("needs_field", f"{field} does nothing without {needed}", (*path, field), at_key=True)
    if "concurrency_key" in has and not has & {"concurrency", "concurrency_per_key"}:
        problems.add(
            "needs_field",
            "concurrency_key does nothing without concurrency_per_key or concurrency",
            (*path, "concurrency_key"),
            at_key=True,
        )
    if type == "wait" and len(has & {"signal", "duration"}) != 1:
        problems.add("bad_wait", f"wait {id} needs either signal or duration", path, at_key=True)
    if type == "wait" and "timeout" in has and "signal" not in has:
        problems.add("needs_field", "timeout does nothing without signal", (*path, "timeout"), at_key=True)
    if type == "http":
        _check_body(id, node, has, problems)
    if type == "approval":
        _check_quorum(id, node, problems)


def _check_body(id: str, node: Mapping[str, Any], has: set[str], problems: Problems) -> None:
    bodies = [field for field in ("json", "form", "body") if field in has]
    if len(bodies) > 1:
        said = f"http {id} has {' and '.join(bodies)}: a request has one body"
        problems.add("too_many_bodies", said, ("nodes", id, bodies[1]), at_key=True)
    elif bodies and node.get("method", "GET") in ("GET", "HEAD"):
        method = node.get("method", "GET")
        problems.add(
            "body_without_method",
            f"http {id} has a body, but its method is {method}: say method: POST, PUT or PATCH",
            ("nodes", id, bodies[0]),
            at_key=True,
        )


def _check_quorum(id: str, node: Mapping[str, Any], problems: Problems) -> None:
    quorum = node.get("quorum")
    if isinstance(quorum, int) and quorum > 1 and not node.get("approvers"):
        problems.add("needs_field", f"a quorum of {quorum} needs approvers", ("nodes", id, "quorum"), at_key=True)
