"""The shape of a graph: edges, order, cycles, loops, ancestors. Linear in nodes and edges, and without recursion.

Edges are those of `after` and those from a branch to its targets. The way back of a loop is not an edge: without it a graph
has no cycles.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import compress
from typing import Any

from weft.core.graph.model import NodeSpec

#: The digits of a binary number as the bytes 0 and 1.
_DIGITS = bytes.maketrans(b"01", b"\0\1")


def targets_of(node: NodeSpec) -> list[str]:
    """Returns the nodes a branch may choose, each once, in the order in which they are written; none for other types."""
    if node.type != "branch":
        return []
    targets = [case["to"] for case in node.cases or ()]
    return list(dict.fromkeys([*targets, node.default] if node.default else targets))


@dataclass(frozen=True)
class Loop:
    """A loop: the node that decides, where it goes back to, and all nodes that are executed anew (both included)."""

    id: str
    to: str
    body: frozenset[str]


class Topology:
    """The edges of a graph. Names that are no nodes are left out: whoever validates has told of them."""

    def __init__(self, nodes: Mapping[str, NodeSpec]) -> None:
        self.nodes = nodes
        before: dict[str, dict[str, None]] = {id: {} for id in nodes}
        for id, node in nodes.items():
            for other in node.after or ():
                if other in nodes:
                    before[id][other] = None
        for id, node in nodes.items():
            for target in targets_of(node):
                if target in nodes:
                    before[target][id] = None
        #: Node -> the nodes it follows, in the order in which they are written; and the nodes that follow it.
        self.before: dict[str, tuple[str, ...]] = {id: tuple(others) for id, others in before.items()}
        behind: dict[str, list[str]] = {id: [] for id in nodes}
        for id, others in self.before.items():
            for other in others:
                behind[other].append(id)
        self.behind: dict[str, tuple[str, ...]] = {id: tuple(others) for id, others in behind.items()}

    @cached_property
    def n_edges(self) -> int:
        return sum(map(len, self.before.values()))

    @cached_property
    def entries(self) -> tuple[str, ...]:
        """Nodes that follow none."""
        return tuple(id for id, others in self.before.items() if not others)

    @cached_property
    def terminals(self) -> tuple[str, ...]:
        """Nodes that none follows."""
        return tuple(id for id, others in self.behind.items() if not others)

    @cached_property
    def order(self) -> tuple[str, ...]:
        """All nodes, each behind those it follows. Nodes on a cycle, and those behind one, are missing."""
        open = {id: len(others) for id, others in self.before.items()}
        ready = deque(self.entries)
        found: list[str] = []
        while ready:
            id = ready.popleft()
            found.append(id)
            for other in self.behind[id]:
                open[other] -= 1
                if not open[other]:
                    ready.append(other)
        return tuple(found)

    @cached_property
    def order_set(self) -> frozenset[str]:
        """All nodes that have a place in the order."""
        return frozenset(self.order)

    def cycles(self) -> list[tuple[str, ...]]:
        """Returns cycles, such that every node on a cycle is on one that is told, or is tied to one by another cycle."""
        left = set(self.nodes.keys() - self.order_set)
        # What is only behind a cycle falls away from the other end.
        open = {id: sum(other in left for other in self.behind[id]) for id in left}
        ends = deque(id for id, n in open.items() if not n)
        while ends:
            id = ends.popleft()
            left.discard(id)
            for other in self.before[id]:
                if other in open and other in left:
                    open[other] -= 1
                    if not open[other]:
                        ends.append(other)
        place = {id: n for n, id in enumerate(self.nodes)}
        found = []
        told: set[str] = set()
        for start in self.nodes:
            if start in left and start not in told:
                # Every node left has a predecessor that is left: walking back must meet itself.
                trail: dict[str, int] = {}
                id = start
                while id not in trail and id not in told:
                    trail[id] = len(trail)
                    id = next(other for other in self.before[id] if other in left)
                if id in trail:
                    cycle = list(reversed(list(trail)[trail[id] :]))
                    # Told from the node that is written first.
                    first = cycle.index(min(cycle, key=place.__getitem__))
                    found.append((*cycle[first:], *cycle[:first]))
                told |= trail.keys()
        return found

    @cached_property
    def loops(self) -> dict[str, Loop]:
        """Loops by the id of their node. Those whose target is not before them have an empty body."""
        return {
            id: Loop(id, node.to, frozenset(self._members(self._body(id, node.to)))) for id, node in self._loop_nodes()
        }

    @cached_property
    def loop_depth(self) -> int:
        """How many loops are inside each other at most."""
        loops = [(self._bit[id], self._body(id, node.to)) for id, node in self._loop_nodes()]
        return max((sum(bit & body != 0 for _, body in loops) for bit, _ in loops), default=0)

    def _loop_nodes(self) -> Iterator[tuple[str, Any]]:
        """Yields the loop nodes that go back to a node there is."""
        for id, node in self.nodes.items():
            if node.type == "loop" and node.to in self.nodes:
                yield id, node

    def _body(self, id: str, to: str) -> int:
        """Returns the bits of all nodes on a way from the target of a loop to its node."""
        if not self._ancestors.get(id, 0) & self._bit[to]:
            return 0
        up_to = self._ancestors[id] | self._bit[id]
        return up_to & (self._descendants[to] | self._bit[to])

    def reach(self, start: Iterable[str], edges: Mapping[str, tuple[str, ...]]) -> set[str]:
        """Returns what can be reached along edges, the start included."""
        found = set(start)
        line = list(found)
        while line:
            for other in edges[line.pop()]:
                if other not in found:
                    found.add(other)
                    line.append(other)
        return found

    @cached_property
    def around(self) -> dict[str, tuple[str, ...]]:
        """Node -> the loops whose body it is in, the outermost first. Nodes outside of all loops are missing."""
        found: dict[str, list[str]] = {}
        for loop in sorted(self.loops.values(), key=lambda loop: -len(loop.body)):
            for id in loop.body:
                found.setdefault(id, []).append(loop.id)
        return {id: tuple(loops) for id, loops in found.items()}

    def sees(self, id: str, other: str) -> bool:
        """Tells whether a node may read another's output: one before it, or one of the same loop, of the iteration before."""
        bit = self._bit.get(other)
        if bit is None:
            return False
        if self._ancestors.get(id, 0) & bit:
            return True
        return any(other in self.loops[loop].body for loop in self.around.get(id, ())[:1])

    def seen(self, id: str) -> list[str]:
        """Returns all nodes whose output a node may read."""
        bits = self._ancestors.get(id, 0)
        for loop in self.around.get(id, ())[:1]:
            bits |= self._body(loop, self.loops[loop].to)
        return list(self._members(bits))

    # Whole sets in single numbers, a bit for each node: thousands of nodes take milliseconds.

    @cached_property
    def _ids(self) -> tuple[str, ...]:
        return tuple(self.nodes)

    @cached_property
    def _bit(self) -> dict[str, int]:
        return {id: 1 << n for n, id in enumerate(self._ids)}

    @cached_property
    def _ancestors(self) -> dict[str, int]:
        return self._closure(self.order, self.before)

    @cached_property
    def _descendants(self) -> dict[str, int]:
        return self._closure(reversed(self.order), self.behind)

    def _closure(self, order: Iterable[str], edges: Mapping[str, tuple[str, ...]]) -> dict[str, int]:
        found: dict[str, int] = {}
        for id in order:
            bits = 0
            for other in edges[id]:
                # Nodes behind a cycle have no place in the order.
                bits |= found.get(other, 0) | self._bit[other]
            found[id] = bits
        return found

    def _members(self, bits: int) -> Iterator[str]:
        # Written out, lowest bit first, the digits pick the nodes: in C, however many there are.
        return compress(self._ids, f"{bits:b}"[::-1].encode().translate(_DIGITS))
