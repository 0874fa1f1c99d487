"""What is known of a graph run, and the names that expressions see of it. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from weft.core.cel.program import BY_NODE, WHOLE
from weft.core.graph.compile import Plan

#: Iterations of the loops around a node, the outermost first.
Iterations = tuple[int, ...]

_WHOLES = frozenset(name + WHOLE for name in BY_NODE)


@dataclass(slots=True)
class Scope:
    """What is known of a run: its input, and what its nodes gave."""

    input: Any = None
    values: dict[str, Any] = field(default_factory=dict)
    status: dict[str, str] = field(default_factory=dict)
    errors: dict[str, Any] = field(default_factory=dict)
    #: The run's own; its steps carry them too.
    tags: dict[str, str] = field(default_factory=dict)
    #: Nodes that were looked for: null where nothing was found.
    names: Collection[str] = ()

    def add(self, more: Scope) -> None:
        """Takes over what was not known."""
        self.names = {*self.names, *more.names}
        for name in more.status.keys() - self.status.keys():
            self.status[name] = more.status[name]
            for mine, given in ((self.values, more.values), (self.errors, more.errors)):
                if name in given:
                    mine[name] = given[name]

    def view(self, plan: Plan, iterations: Iterations, of: str = "", **extra: Any) -> Mapping[str, Any]:
        """Returns the names that expressions of a node may use. What has not ended, or was skipped, is null."""
        return View(self, plan, of, {"iteration": iterations[-1] if iterations else 0, **extra})


class View(Mapping[str, Any]):
    """Names by need: a large graph has thousands of nodes, and an expression names two.

    A node that nobody looked for is missing rather than null: what was forgotten must not pass for what was skipped.
    `status` and `errors` as a whole are of the nodes that are before this one, whatever else is known by chance.
    """

    __slots__ = ("_of", "_own", "_plan", "_scope")

    def __init__(self, scope: Scope, plan: Plan, of: str, extra: dict[str, Any]) -> None:
        self._scope, self._plan, self._of = scope, plan, of
        #: What comes before the nodes; `status` and `errors` are made when they are first asked for.
        self._own = {**extra, "input": scope.input}

    def __getitem__(self, name: str) -> Any:
        if name in self._own:
            return self._own[name]
        scope = self._scope
        if name in ("status", "errors"):
            told: dict[str, Any] = dict.fromkeys((*scope.names, *scope.status))
            told |= scope.status if name == "status" else scope.errors
            self._own[name] = told
            return told
        if name in _WHOLES:
            given: Mapping[str, Any] = scope.status if name == "status" + WHOLE else scope.errors
            before = self._plan.topology.seen(self._of) if self._of else self._plan.spec.nodes
            return {other: given.get(other) for other in before}
        if name in scope.values:
            return scope.values[name]
        if name in scope.status or name in scope.names:
            return None
        raise KeyError(name)

    def __contains__(self, name: object) -> bool:
        return name in _WHOLES or super().__contains__(name)

    def __iter__(self) -> Iterator[str]:
        scope = self._scope
        return iter(dict.fromkeys((*self._own, "status", "errors", *scope.values, *scope.status, *scope.names)))

    def __len__(self) -> int:
        return sum(1 for _ in self)
