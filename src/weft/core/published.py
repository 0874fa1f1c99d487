"""A stored definition, ready to be followed: what its nodes read, what their steps are asked, what follows at once. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import msgspec

from weft.codec import encode_stored
from weft.core.effects import UNDOES, Open
from weft.core.failing import goes_on
from weft.core.graph.compile import NodePlan, Plan
from weft.core.graph.model import GraphSpec
from weft.core.model import SPEC_ENCODER, Limit, RunSpec
from weft.core.scope import Iterations

#: Types of nodes that end on the way, without a worker.
INLINE = frozenset({"transform", "branch", "loop", "gather"})
#: Types of nodes whose expressions and arguments tell all they read; of others the input is taken to be read.
_KNOWN_READS = INLINE | {"task", "wait"}


@dataclass(slots=True, frozen=True)
class Job:
    """Something a router has still to do: `enter` a node, `skip` it, `reach` it, or go on behind one that `ended`."""

    what: str
    id: str
    iterations: Iterations = ()
    #: How it ended: `+` completed, `!` failed, `-` skipped; for `reach`, who comes and as what: `fetch+`.
    mark: str = "+"


class StepBase(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a node's task brings with it: its own options, and where its arguments come from."""

    spec: RunSpec
    #: Parameter -> `=<name>` (a reserved name or a node), `.<field>` (of the input), `?<field>` (of the input, if it is there).
    bound: dict[str, str] = {}
    limits: list[Limit] = []
    #: Digest of the definition that a subgraph runs.
    child: str = ""


class Bundle(msgspec.Struct, frozen=True):
    """A definition as it is stored: the graph, and what its tasks looked like when the run was started."""

    graph: GraphSpec
    steps: dict[str, StepBase]


class Asked:
    """What the steps of a node are asked, all but their input. Only for nodes whose limits are the same for every step."""

    def __init__(self, spec: RunSpec) -> None:
        self.spec = spec
        # The input is a field of its own in the packed map, so what stands around it can be kept.
        whole = SPEC_ENCODER.encode(msgspec.structs.replace(spec, input=b"\x01"))
        self._head, _, self._tail = whole.partition(b"\xa1i\xc4\x01\x01")
        self._head += b"\xa1i"

    def open(self, step: str, input: bytes) -> Open:
        n = len(input)
        size = (
            b"\xc4%c" % n
            if n < 256
            else b"\xc5" + n.to_bytes(2, "big")
            if n < 65536
            else b"\xc6" + n.to_bytes(4, "big")
        )
        return Open(step, self.spec, "0", b"".join((self._head, size, input, self._tail)))


class Behind(NamedTuple):
    """What is looked at behind a node: outputs of other nodes, and whether the run's input is."""

    reads: frozenset[str]
    input: bool


class Way(NamedTuple):
    """Where it goes on behind a node when nothing is to be decided, and how, where that is alike in every run without tags."""

    ahead: NodePlan
    opens: Open | None


class Published:
    """A stored definition, ready to be followed."""

    def __init__(self, bundle: Bundle, address: str) -> None:
        self.plan, self.steps, self.address = Plan(bundle.graph, address), bundle.steps, address
        #: Whether there is anything to undo when a run fails.
        self.undoes = any(id.endswith(UNDOES) for id in bundle.steps)
        self._behind: dict[str, Behind] = {}
        self._asked: dict[str, Asked | None] = {}
        self._next: dict[str, NodePlan | None] = {}
        self._fixed: dict[str, Open | None] = {}
        self._ways: dict[str, Way | None] = {}

    @cached_property
    def plain(self) -> bool:
        """Whether its runs leave nothing behind but their own keys.

        What maps, approvals, signals, subgraphs and compensations leave is put away by whoever closes a run.
        """
        return not self.undoes and all(
            node.type in _KNOWN_READS
            and (node.map, node.signal, node.cache) == (None, None, None)
            and node.on_error != "dead_letter"
            for node in self.plan.spec.nodes.values()
        )

    @cached_property
    def waits_for_all(self) -> bool:
        """Whether every join waits for all: what stands before a node has ended when it begins."""
        return all(node.join in (None, "all") for node in self.plan.spec.nodes.values())

    def reads_of(self, id: str) -> frozenset[str]:
        """Returns the nodes that one node reads when it is entered."""
        base = self.steps.get(id)
        bound = [text[1:] for text in base.bound.values() if text[0] == "="] if base else []
        node = self.plan.node(id)
        gathered = node.predecessors if node.type == "gather" else ()
        whole = self.plan.topology.seen(id) if "status" in bound or "errors" in bound else ()
        return node.reads | {name for name in bound if name in self.plan} | set(gathered) | set(whole)

    def reads_behind(self, id: str) -> frozenset[str]:
        """Returns the nodes whose outputs are looked at when a node has ended, besides its own."""
        return self.behind(id).reads

    def behind(self, id: str) -> Behind:
        """Returns what is looked at when a node has ended, besides its own output."""
        found = self._behind.get(id)
        if found is None:
            entered = list(self._walk([id]))
            reads = frozenset(name for other in entered for name in self.reads_of(other)) - {id}
            found = self._behind[id] = Behind(reads, any(self._reads_input(other) for other in entered))
        return found

    def _reads_input(self, id: str) -> bool:
        node, base = self.plan.node(id), self.steps.get(id)
        if node.type not in _KNOWN_READS or node.reads_input:
            return True
        return base is not None and any(source[0] != "=" or source == "=input" for source in base.bound.values())

    def asked(self, node: NodePlan, tags: Mapping[str, str]) -> Asked | None:
        """Returns what all steps of a node are asked alike in runs with these tags; None when more depends on what is known."""
        if node.id not in self._asked:
            spec, base = node.spec, self.steps.get(node.id)
            keyed = spec.concurrency_key is not None or spec.concurrency or node.rate is not None
            fixed = base is not None and node.type == "task" and not keyed and spec.cache is None
            self._asked[node.id] = (
                Asked(msgspec.structs.replace(base.spec, limits=base.limits, definition=self.address))
                if fixed and base is not None
                else None
            )
        found = self._asked[node.id]
        if not tags or found is None:
            return found
        return Asked(msgspec.structs.replace(found.spec, tags={**found.spec.tags, **tags}))

    def straight(self, id: str) -> NodePlan | None:
        """Returns the one node that follows another when nothing is to be decided: a task that reads nothing but its output."""
        if id not in self._next:
            self._next[id] = self._straight(self.plan.node(id))
        return self._next[id]

    def _straight(self, node: NodePlan) -> NodePlan | None:
        if (
            len(node.successors) != 1
            or node.loops
            or node.loop
            or node.targets
            or self.behind(node.id) != Behind(frozenset(), False)
        ):
            return None
        ahead = self.plan.node(node.successors[0])
        template = ahead.template("with") if ahead.type == "task" else None
        names = (
            (template.names if template else frozenset()) | {s[1:] for s in self.steps[ahead.id].bound.values()}
            if ahead.type == "task"
            else None
        )
        plain = len(ahead.predecessors) == 1 and not ahead.loops and not ahead.is_map and ahead.when is None
        return ahead if plain and names is not None and names <= {node.id} and self.asked(ahead, {}) else None

    def way(self, id: str) -> Way | None:
        """Returns where it goes on behind a node that has no tags of its own; None where that is to be decided."""
        if id not in self._ways:
            if id not in self.plan:
                return None  # an iteration, a compensation: there is no end of such names
            ahead = self.straight(id)
            known = ahead is not None and not self.steps[id].spec.tags
            self._ways[id] = Way(ahead, self.fixed(ahead)) if ahead is not None and known else None
        return self._ways[id]

    @cached_property
    def leading(self) -> frozenset[str]:
        """The nodes that a run passes one by one from its beginning: while it is at one of them, nothing else is open."""
        found: set[str] = set()
        line = list(self.plan.entries) if len(self.plan.entries) == 1 else []
        while line:
            node = self.plan.node(line.pop())
            base = self.steps.get(node.id)
            if base is None or base.limits or node.is_map or self.asked(node, {}) is None or node.id in found:
                break
            found.add(node.id)
            ahead = self.straight(node.id)
            line += [ahead.id] if ahead is not None else []
        return frozenset(found)

    def fixed(self, ahead: NodePlan) -> Open | None:
        """Returns how a node opens that follows straight and is given nothing: alike in every run without tags; else None."""
        if ahead.id not in self._fixed:
            given = ahead.template("with") is not None or bool(self.steps[ahead.id].bound)
            self._fixed[ahead.id] = None if given else go_straight(self, ahead, "", None, {})
        return self._fixed[ahead.id]

    def reads_at_start(self) -> set[str]:
        """Returns the nodes that are looked at when a run begins."""
        return self.reads_for(Job("enter", id) for id in self.plan.entries)

    def reads_for(self, jobs: Iterable[Job]) -> set[str]:
        """Returns the nodes whose outputs a router needs that goes on with these."""
        found: set[str] = set()
        for job in jobs:
            if job.id not in self.plan:
                continue
            # What has ended is read by what follows it.
            found |= self.reads_of(job.id) if job.what in ("enter", "reach") else {job.id}
            found |= self.reads_behind(job.id)
        return found

    def _walk(self, ends: Sequence[str]) -> Iterable[str]:
        """Goes from ended nodes through everything that may end on the way; yields what is entered."""
        # A loop may lead back to where it began, which is then entered anew.
        line, seen = list(ends), set[str]()
        while line:
            node = self.plan.node(line.pop())
            ahead = [*node.successors, *([node.loop.to] if node.loop else [])]
            for other in ahead:
                if other in seen:
                    continue
                seen.add(other)
                ahead_node = self.plan.node(other)
                # A join is told who has come, and decides by a step of its own, which reads what it needs then. Within a loop
                # it may have one predecessor only, from the second iteration on.
                if len(ahead_node.predecessors) > 1 and not ahead_node.loops:
                    continue
                yield other
                # An empty map ends on the way too; so does a node whose output is kept, or that cannot be asked and may fail.
                passes = ahead_node.is_map or goes_on(ahead_node) or ahead_node.spec.cache is not None
                if ahead_node.type in INLINE or passes:
                    line.append(other)


def go_straight(published: Published, ahead: NodePlan, before: str, value: Any, tags: Mapping[str, str]) -> Open:
    """Opens the one step behind another, where `Published.straight` says that nothing is to be decided."""
    template = ahead.template("with")
    found: dict[str, Any] = dict(template.evaluate({before: value})) if template is not None else {}
    for name in published.steps[ahead.id].bound:
        found[name] = value
    asked = published.asked(ahead, tags)
    assert asked is not None
    opens = asked.open(ahead.id, encode_stored(found, what=f"the arguments of node {ahead.id}"))
    opens.straight = True
    return opens
