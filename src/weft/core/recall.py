"""What nodes gave in the iteration before, for nodes of a loop that read it and run anew. Pure.

The context of a run has one outcome per node, the last. What runs anew in an iteration must see what it saw there, which the
history has.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol

from weft.core.effects import ERRORS, UNDOES, Mark
from weft.core.published import Published
from weft.core.redo import Redo, behind
from weft.core.regrow import ENDINGS
from weft.core.routing import parse_step
from weft.core.scope import Iterations


class Told(Protocol):
    """An event of the run's history."""

    @property
    def type(self) -> str: ...
    @property
    def facts(self) -> Mapping[str, str]: ...
    @property
    def payload(self) -> bytes: ...


def read_before(published: Published, redo: Redo) -> dict[str, Iterations]:
    """Returns the nodes that are read before they run anew, each with the iteration before which the wanted outcome was.

    A node of a loop may read itself, and those behind it: it sees the iteration before.
    """
    plan, found = published.plan, dict[str, Iterations]()
    for id in redo.again if redo.replaced else ():
        if plan.node(id).loops and (names := published.reads_of(id) & redo.replaced.keys()):
            found |= {name: redo.replaced[name] for name in names & behind(plan, {id})}
    return found


def recall(published: Published, wanted: Mapping[str, Iterations], events: Iterable[Told]) -> dict[str, Mark]:
    """Returns what nodes came to last before an iteration, by the name under which the context has it."""
    found: dict[str, Mark] = {}
    for event in events:
        step = event.facts.get("step", "")
        if event.type not in ENDINGS or "#" in step or step.endswith(UNDOES):
            continue
        id, iterations = parse_step(published.plan, step)
        if id in wanted and iterations[: len(wanted[id])] < wanted[id]:
            name = id + ERRORS if event.type == "node_errors" else id
            cached = event.type == "step_cached"
            found[name] = Mark(name, step, ENDINGS[event.type], event.payload, cached=cached)
    return found
