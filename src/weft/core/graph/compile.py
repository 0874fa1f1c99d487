"""Turns a valid definition into a plan: everything the engine looks up while a run goes on, one node at a time.

A plan is rebuilt from its JSON in every worker, so it must be quick to make: edges are worked out at once, everything about
a single node (its expressions, its numbers) at its first use. Nothing is checked again: only valid definitions are stored.
"""

from __future__ import annotations

from collections import OrderedDict
from functools import cached_property
from typing import Any, NamedTuple

from weft.clock import parse_duration_ms, parse_rate
from weft.core.expressions import Condition, Expression
from weft.core.graph.arguments import Source, TaskShape, bind
from weft.core.graph.kinds import GatherRule, parse_gather
from weft.core.graph.model import GraphSpec, NodeSpec, address_of, from_json
from weft.core.graph.problems import Problems
from weft.core.graph.topology import Loop, Topology, targets_of
from weft.core.graph.uses import uses_of
from weft.core.templates import Template

#: Plans that a process keeps.
MAX_PLANS = 256


class Result(NamedTuple):
    """What a run returns: the filled-in `output`, else the output of `node`, else a map of the outputs of `nodes`."""

    output: Template | None = None
    node: str | None = None
    nodes: tuple[str, ...] = ()


class NodePlan:
    """One node, ready for the engine. Cheap to make; what is costly is made at its first use and kept."""

    def __init__(self, id: str, spec: NodeSpec, topology: Topology) -> None:
        self.id, self.spec, self.type = id, spec, spec.type
        #: Nodes it follows, and nodes that follow it; the way back of a loop is not among them.
        self._topology = topology
        self.predecessors: tuple[str, ...] = topology.before[id]
        self.successors: tuple[str, ...] = topology.behind[id]
        #: Loops around it, the outermost first; a loop node is in its own body.
        self.loops: tuple[str, ...] = topology.around.get(id, ())
        #: For a loop node: where it goes back to and what is executed anew.
        self.loop: Loop | None = topology.loops.get(id)
        #: For a branch: the nodes it may choose.
        self.targets: tuple[str, ...] = tuple(targets_of(spec))

    @property
    def need(self) -> int:
        """How many predecessors must have arrived: all of them by default. A skipped one arrives too."""
        join = self.spec.join
        return 1 if join == "any" else join if isinstance(join, int) else len(self.predecessors)

    @property
    def is_map(self) -> bool:
        return self.spec.map is not None

    @property
    def on_error(self) -> str:
        return self.spec.on_error or "fail"

    # --- expressions ------------------------------------------------------------------------------

    @cached_property
    def when(self) -> Condition | None:
        return _condition(self.spec.when)

    @cached_property
    def cases(self) -> tuple[tuple[Condition, str], ...]:
        """The cases of a branch, in order; `spec.default` when none is true."""
        return tuple((Condition(case["when"]), case["to"]) for case in self.spec.cases or ())

    @cached_property
    def while_(self) -> Condition | None:
        return _condition(self.spec.while_)

    @cached_property
    def map(self) -> Expression | None:
        return _expression(self.spec.map)

    @cached_property
    def filter(self) -> Condition | None:
        return _condition(self.spec.filter)

    @cached_property
    def group_by(self) -> Expression | None:
        return _expression(self.spec.group_by)

    def template(self, field: str) -> Template | None:
        """Returns a field that is filled in ("with", "url", "json", "prompt", "value", …); None when it is not given.

        `cache.key` and `compensate.with` are named like this.
        """
        found = self._templates.get(field)
        if found is None:
            value = _value_of(self.spec, field)
            if value is None:
                return None
            found = self._templates[field] = Template(value)
        return found

    @cached_property
    def _templates(self) -> dict[str, Template]:
        return {}

    @cached_property
    def reads(self) -> frozenset[str]:
        """The nodes whose output, status or error its expressions and templates name.

        Arguments that are found by their name are not among them: `Plan.binding` tells those.
        """
        texts = [use.kind(use.value) for use in uses_of(self.spec)]
        whole = self._topology.seen(self.id) if any(text.whole for text in texts) else ()
        return frozenset([*(node for text in texts for node in text.nodes), *whole])

    @cached_property
    def reads_input(self) -> bool:
        """Whether its expressions and templates name the run's input."""
        return any("input" in use.kind(use.value).names for use in uses_of(self.spec))

    # --- numbers ----------------------------------------------------------------------------------

    @cached_property
    def gather(self) -> GatherRule:
        """When a map is done."""
        return parse_gather(self.spec.gather or "all")

    def duration_ms(self, field: str) -> int | None:
        """Returns a length of time in milliseconds: timeout, retry_delay, max_delay, hedge, duration, cache.ttl; or None."""
        value = _value_of(self.spec, field)
        return None if value is None else parse_duration_ms(value, what=field)

    @property
    def rate(self) -> tuple[int, int] | None:
        """How many may start in how many milliseconds."""
        return None if self.spec.rate_limit is None else parse_rate(self.spec.rate_limit, what="rate_limit")


class Plan:
    """A whole graph, ready for the engine. Nodes are found by their id at the same cost in a small and in a large graph."""

    def __init__(self, spec: GraphSpec, address: str | None = None) -> None:
        self.spec = spec
        #: The content address of the definition: the same definition, the same plan.
        self.address: str = address or address_of(spec)
        self.topology = Topology(spec.nodes)
        self._nodes: dict[str, NodePlan] = {}
        self._bindings: dict[tuple[str, TaskShape], dict[str, Source]] = {}

    def __contains__(self, id: object) -> bool:
        return id in self.spec.nodes

    def __len__(self) -> int:
        return len(self.spec.nodes)

    def node(self, id: str) -> NodePlan:
        """Returns one node; raises KeyError when there is none."""
        found = self._nodes.get(id)
        if found is None:
            found = self._nodes[id] = NodePlan(id, self.spec.nodes[id], self.topology)
        return found

    @property
    def entries(self) -> tuple[str, ...]:
        """Nodes that begin when the run does."""
        return self.topology.entries

    @property
    def terminals(self) -> tuple[str, ...]:
        """Nodes that none follows."""
        return self.topology.terminals

    @property
    def loops(self) -> dict[str, Loop]:
        """Loops by the id of their node."""
        return self.topology.loops

    @property
    def order(self) -> tuple[str, ...]:
        """All nodes, each behind those it follows."""
        return self.topology.order

    @cached_property
    def result(self) -> Result:
        """What a run returns."""
        if self.spec.output is not None:
            return Result(output=Template(self.spec.output))
        return Result(node=self.terminals[0]) if len(self.terminals) == 1 else Result(nodes=self.terminals)

    def binding(self, id: str, shape: TaskShape) -> dict[str, Source]:
        """Returns where each argument of a node's task comes from. What nothing provides is missing from it."""
        found = self._bindings.get((id, shape))
        if found is None:
            found = self._bindings[id, shape] = bind(id, self.spec, self.topology, shape, Problems())
        return found


class Plans:
    """Plans by content address; the ones used longest ago make room."""

    def __init__(self, most: int = MAX_PLANS) -> None:
        self._most = most
        self._kept: OrderedDict[str, Plan] = OrderedDict()

    def get(self, address: str) -> Plan | None:
        """Returns a plan that is kept; else whoever asks reads the definition and calls `make`."""
        plan = self._kept.get(address)
        if plan is not None:
            self._kept.move_to_end(address)
        return plan

    def make(self, address: str, data: bytes) -> Plan:
        """Returns the plan of a stored definition and keeps it."""
        return self.get(address) or self._keep(Plan(from_json(data), address))

    def compile(self, spec: GraphSpec) -> Plan:
        """Returns the plan of a valid definition and keeps it."""
        address = address_of(spec)
        return self.get(address) or self._keep(Plan(spec, address))

    def _keep(self, plan: Plan) -> Plan:
        self._kept[plan.address] = plan
        while len(self._kept) > self._most:
            self._kept.popitem(last=False)
        return plan


_plans = Plans()


def compile(spec: GraphSpec) -> Plan:
    """Returns the plan of a valid definition: the same object for the same definition, while it is kept."""
    return _plans.compile(spec)


def _condition(text: str | None) -> Condition | None:
    return None if text is None else Condition(text)


def _expression(text: str | None) -> Expression | None:
    return None if text is None else Expression(text)


def _value_of(spec: NodeSpec, field: str) -> Any:
    first, _, rest = field.partition(".")
    value = getattr(spec, "with_" if first == "with" else first)
    return value.get(rest) if rest and value is not None else value
