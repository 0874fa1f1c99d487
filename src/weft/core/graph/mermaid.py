"""Draws a graph as Mermaid text, which GitHub, editors and wikis show as a picture."""

from __future__ import annotations

from weft.core.graph.compile import NodePlan, Plan
from weft.core.graph.drawing import conditions, describe, short

#: Node type -> what stands around its label; other types are boxes.
_SHAPES = {
    "approval": ("[/", "/]"),
    "branch": ("{", "}"),
    "loop": ("{{", "}}"),
    "gather": ("[\\", "/]"),
    "subgraph": ("[[", "]]"),
    "wait": ("([", "])"),
    "transform": ("(", ")"),
}


def to_mermaid(plan: Plan) -> str:
    """Returns a graph as a Mermaid flowchart. Nodes are numbered, as some words cannot be ids there."""
    number = {id: f"n{i}" for i, id in enumerate(plan.order)}
    lines = ["flowchart TD"]
    for id, short_id in number.items():
        node = plan.node(id)
        left, right = _SHAPES.get(node.type, ("[", "]"))
        lines.append(f'  {short_id}{left}"{_label(node)}"{right}')
    for id, short_id in number.items():
        node = plan.node(id)
        for other in node.successors:
            lines.append(f"  {short_id} -->{_edge_label(node, other)} {number[other]}")
        if node.loop is not None:
            lines.append(f'  {short_id} -.->|"{_escape(f"while {short(node.spec.while_)}")}"| {number[node.loop.to]}')
    return "\n".join(lines) + "\n"


def _label(node: NodePlan) -> str:
    said = [describe(node.spec), *conditions(node.spec)] if node.type != "branch" else []
    return "<br/>".join([f"<b>{node.id}</b> {node.type}", *(_escape(word) for word in said if word)])


def _edge_label(node: NodePlan, other: str) -> str:
    if node.type != "branch":
        return ""
    words = [short(case["when"]) for case in node.spec.cases or () if case["to"] == other]
    words += ["else"] if other == node.spec.default else []
    return f'|"{_escape(" or ".join(words))}"|'


def _escape(text: str) -> str:
    """Returns text that Mermaid shows as it is: entities for everything that means something to it or to HTML."""
    for char, entity in (("#", "#35;"), ("&", "#38;"), ('"', "#quot;"), ("<", "#lt;"), (">", "#gt;"), ("`", "#96;")):
        text = text.replace(char, entity)
    return text
