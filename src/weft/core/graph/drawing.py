"""Draws a graph as text: chains go down, what may happen side by side is set in, and joins come back to the left."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from weft.core.graph.compile import Plan
from weft.core.graph.model import NodeSpec

#: Nodes up to which a graph is drawn with its branches; larger ones are listed in order.
MAX_DRAWN = 1_000
#: Characters of an expression or value that a line shows.
SHOWN_CHARS = 60


def draw(plan: Plan) -> str:
    """Returns a graph as lines of text: its nodes in order, each with its type and what it does."""
    spec = plan.spec
    n = len(plan)
    head = " ".join(word for word in (spec.name, spec.version) if word)
    lines = lay_out(plan)
    width = max(len(lead) + len(id) for lead, id in lines)
    types = max(len(spec.nodes[id].type) for _, id in lines)
    drawn = []
    for lead, id in lines:
        node = plan.node(id)
        words = [describe(node.spec), *conditions(node.spec)]
        if len(node.predecessors) > 1 or (node.predecessors and n > MAX_DRAWN):
            words.append(f"after {', '.join(node.predecessors)}")
        name = f"{lead}{id}".ljust(width)
        drawn.append(f"{name}  {node.type.ljust(types)}  {'; '.join(word for word in words if word)}".rstrip())
    if spec.output is not None:
        drawn += ["", f"output  {short(spec.output)}"]
    return "\n".join([f"{head}  {n} {'node' if n == 1 else 'nodes'}", "", *drawn])


def describe(node: NodeSpec) -> str:
    """Returns what a node does, in a few words."""
    words = {
        "task": node.call,
        "http": f"{node.method or 'GET'} {short(node.url)}",
        "agent": node.agent,
        "approval": f"by {node.quorum or 1} of {', '.join(node.approvers or ['anyone'])}",
        "branch": ", ".join(
            [*(f"to {case['to']} when {short(case['when'])}" for case in node.cases or ()), f"else {node.default}"]
        ),
        "loop": f"back to {node.to} while {short(node.while_)}, {node.max_iterations} times at most",
        "gather": f"by {short(node.group_by)}" if node.group_by else "",
        "subgraph": " ".join(word for word in (node.graph, node.version) if word),
        "wait": f"for signal {node.signal}" if node.signal else f"for {node.duration}",
        "transform": short(node.value),
    }
    return words[node.type] or ""


def conditions(node: NodeSpec) -> list[str]:
    """Returns what decides whether, and how often, a node is executed."""
    found = []
    if node.map is not None:
        found.append(f"for each of {short(node.map)}" + (f" if {short(node.filter)}" if node.filter else ""))
    if node.when is not None:
        found.append(f"when {short(node.when)}")
    if node.join not in (None, "all"):
        found.append(f"join {node.join}")
    if node.on_error not in (None, "fail"):
        found.append(f"on error {node.on_error}")
    return found


def short(value: object) -> str:
    """Returns a value on one line, cut."""
    given = value if isinstance(value, str) else msgspec.json.encode(value, enc_hook=str).decode()
    text = " ".join(given.split())
    return text if len(text) <= SHOWN_CHARS else text[: SHOWN_CHARS - 1] + "…"


def lay_out(plan: Plan) -> list[tuple[str, str]]:
    """Returns the nodes in the order they are drawn, each with the lines left of it."""
    return list(_lines(plan)) if len(plan) <= MAX_DRAWN else [("", id) for id in plan.order]


def _lines(plan: Plan) -> Iterator[tuple[str, str]]:
    """Yields each node with the lines left of it.

    A node stands below its dominator, the last node that every way to it passes. What follows only that one is set in when
    it is not alone; what joins several ways comes after them, not set in.
    """
    children: dict[str | None, list[str]] = {}
    for id, above in _dominators(plan).items():
        children.setdefault(above, []).append(id)
    # Depth first, with a stack: chains may be long.
    stack: list[tuple[str, str, str]] = []

    def push(above: str | None, lead: str) -> None:
        below = children.get(above, [])
        aside = [id for id in below if len(plan.node(id).predecessors) <= 1]
        joins = [id for id in below if len(plan.node(id).predecessors) > 1]
        if len(below) == 1:
            aside, joins = [], below
        stack.extend((id, lead, lead) for id in reversed(joins))
        for i, id in reversed(list(enumerate(aside))):
            last = i == len(aside) - 1
            stack.append((id, lead + ("└─ " if last else "├─ "), lead + ("   " if last else "│  ")))

    push(None, "")
    while stack:
        id, first, rest = stack.pop()
        yield first, id
        push(id, rest)


def _dominators(plan: Plan) -> dict[str, str | None]:
    """Returns the immediate dominator of every node, None for what follows nothing in common."""
    above: dict[str, str | None] = {}
    depth: dict[str | None, int] = {None: 0}
    for id in plan.order:
        common: str | None = None
        for i, other in enumerate(plan.node(id).predecessors):
            common = other if i == 0 else _meet(common, other, above, depth)
        above[id] = common
        depth[id] = depth[common] + 1
    return above


def _meet(a: str | None, b: str | None, above: dict[str, str | None], depth: dict[str | None, int]) -> str | None:
    while a != b:
        if depth[a] >= depth[b]:
            a = above[a] if a is not None else None
        else:
            b = above[b] if b is not None else None
    return a
