"""Where a node uses expressions and templates, and what each of them may name."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from weft.core.expressions import Condition, Expression
from weft.core.graph.model import NodeSpec
from weft.core.graph.problems import Path
from weft.core.templates import Template


class Use(NamedTuple):
    """One expression or template of a node."""

    path: Path
    value: Any
    #: Condition or Expression, which take bare CEL, or Template, a value with `${…}` in it.
    kind: type[Expression] | type[Template] = Template
    #: Whether it is looked at for every item, and may name `item` and `index`.
    per_item: bool = False
    #: Whether the node has its output by then, and may name itself.
    afterwards: bool = False


#: Fields that are templates; all of a mapped node are filled in for every item.
TEMPLATES = (
    "with_ url headers query json form body idempotency_key prompt session title show approvers value concurrency_key"
    " rate_key rate_cost duration"
).split()


def uses_of(node: NodeSpec) -> Iterator[Use]:
    """Yields what a node evaluates: conditions first, then the texts and values it fills in."""
    if node.when is not None:
        yield Use(("when",), node.when, Condition)
    for i, case in enumerate(node.cases or ()):
        yield Use(("cases", i, "when"), case["when"], Condition)
    if node.while_ is not None:
        yield Use(("while",), node.while_, Condition)
    if node.map is not None:
        yield Use(("map",), node.map, Expression)
    if node.filter is not None:
        yield Use(("filter",), node.filter, Condition, per_item=True)
    if node.group_by is not None:
        yield Use(("group_by",), node.group_by, Expression, per_item=True)
    mapped = node.map is not None
    for field in TEMPLATES:
        value = getattr(node, field)
        if value is not None and not isinstance(value, (int, float)):
            yield Use((field.rstrip("_"),), value, per_item=mapped)
    if node.escalate is not None and "to" in node.escalate:
        yield Use(("escalate", "to"), node.escalate["to"])
    if node.cache is not None and "key" in node.cache:
        yield Use(("cache", "key"), node.cache["key"], per_item=mapped)
    if node.compensate is not None and "with" in node.compensate:
        yield Use(("compensate", "with"), node.compensate["with"], per_item=mapped, afterwards=True)


def texts_in(value: Any, path: Path) -> Iterator[tuple[Path, str]]:
    """Yields the texts of a template that hold `${…}`, each with its path. Walks without recursion."""
    line: list[tuple[Path, Any]] = [(path, value)]
    while line:
        at, item = line.pop()
        if isinstance(item, str):
            if "${" in item:
                yield at, item
        elif isinstance(item, dict):
            line.extend(((*at, key), part) for key, part in item.items())
        elif isinstance(item, (list, tuple)):
            line.extend(((*at, i), part) for i, part in enumerate(item))
