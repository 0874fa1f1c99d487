"""What is known of a graph run, and the names that expressions see of it. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from weft.core.graph.compile import Plan

#: Iterations of the loops around a node, the outermost first.
Iterations = tuple[int, ...]


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

    def view(self, plan: Plan, iterations: Iterations, **extra: Any) -> Mapping[str, Any]:
        """Returns the names an expression may use. What has not ended, or was skipped, is null."""
        return View(self, {"iteration": iterations[-1] if iterations else 0, **extra})


class View(dict[str, Any]):
    """Names by need: a large graph has thousands of nodes, and an expression names two.

    A node that nobody looked for is missing rather than null: what was forgotten must not pass for what was skipped.
    """

    def __init__(self, scope: Scope, extra: dict[str, Any]) -> None:
        nulls = dict.fromkeys((*scope.names, *scope.status))
        super().__init__(nulls | scope.values | extra)
        self |= {"input": scope.input, "status": nulls | scope.status, "errors": nulls | scope.errors}
