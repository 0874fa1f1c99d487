"""Checks a whole definition and reports all its problems at once. Linear algorithms, no recursion."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from weft.clock import parse_duration_ms, parse_rate
from weft.core.graph.arguments import FindShape, bind
from weft.core.graph.fields import OWN_RETRIES
from weft.core.graph.model import (
    MAX_BYTES,
    MAX_EDGES,
    MAX_LOOP_DEPTH,
    MAX_LOOPS,
    GraphSpec,
    NodeSpec,
    to_json,
)
from weft.core.graph.parse import read_document
from weft.core.graph.problems import Path, Problem, Problems, show, similar
from weft.core.graph.schema import check_schema
from weft.core.graph.scope import check_expressions
from weft.core.graph.topology import Topology, targets_of
from weft.core.graph.yaml import read_yaml
from weft.core.model import RunSpec
from weft.core.retry import delay_problem
from weft.errors import InvalidGraph

#: Nodes of a cycle or a body that a message names.
SHOWN_NODES = 10
#: Options that mean one call of a task, which a subgraph is not.
NOT_OF_SUBGRAPHS = (
    *("queue", "priority", "cache", "hedge", "concurrency", "concurrency_key", "concurrency_per_key"),
    *("rate_limit", "rate_key", "rate_cost"),
)
#: Node types that make a call, which a dead letter keeps.
LETTERS = ("task", "http", "agent")


class Checked(msgspec.Struct, frozen=True):
    """A definition that was looked at: without problems it is valid. `spec` is None when there was nothing to read."""

    spec: GraphSpec | None
    problems: list[Problem]

    def valid(self) -> GraphSpec:
        """Returns the definition; raises InvalidGraph, with all problems, when it has some."""
        if self.spec is None or self.problems:
            raise invalid(self.spec.name if self.spec else "", self.problems)
        return self.spec


def invalid(name: str, problems: list[Problem], file: str = "") -> InvalidGraph:
    """Returns the error that tells all problems of a definition."""
    where = " ".join(word for word in ("graph", name, f"in {file}" if file else "") if word)
    many = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
    lines = "".join(f"\n  {problem}" for problem in problems)
    return InvalidGraph(f"{where} has {many}:{lines}", problems=msgspec.to_builtins(problems))


#: Notes further problems of a definition that has been looked at.
More = Callable[[GraphSpec, Topology, Problems], None]


def check_text(text: str, find_shape: FindShape | None = None, more: More | None = None) -> list[Checked]:
    """Checks every definition of a YAML file."""
    checked = [_check(document.value, document.problems, find_shape, more) for document in read_yaml(text)]
    seen: set[str] = set()
    for i, one in enumerate(checked):
        if one.spec and one.spec.name and one.spec.name in seen:
            twice = Problem("duplicate_graph", f"graph {one.spec.name} is there twice in this file")
            checked[i] = Checked(one.spec, [twice, *one.problems])
        elif one.spec:
            seen.add(one.spec.name)
    return checked


def check_document(document: Any, find_shape: FindShape | None = None, more: More | None = None) -> Checked:
    """Checks a definition given as plain dicts and lists."""
    return _check(document, Problems(), find_shape, more)


def _check(document: Any, problems: Problems, find_shape: FindShape | None, more: More | None) -> Checked:
    if document is None and problems.found:
        return Checked(None, problems.sorted())
    spec = read_document(document, problems)
    if spec is not None:
        _check_spec(spec, problems, find_shape, more)
    return Checked(spec, problems.sorted())


def _check_spec(spec: GraphSpec, problems: Problems, find_shape: FindShape | None, more: More | None) -> None:
    for id, node in spec.nodes.items():
        _check_references(id, node, spec, problems)
    topology = Topology(spec.nodes)
    if not _check_size(spec, topology, problems):
        return
    for id, node in spec.nodes.items():
        _check_join(id, node, topology, problems)
        _check_never(id, node, problems)
        _check_calls(id, node, spec.name, problems)
        if node.type == "approval":
            check_schema(node.form, problems, ("nodes", id, "form"))
    _check_reach(topology, problems)
    _check_branches(topology, problems)
    _check_loops(topology, problems)
    _check_compensation(spec, problems)
    check_schema(spec.input, problems)
    check_expressions(spec, topology, problems)
    if find_shape is not None:
        for id, node in spec.nodes.items():
            shape = find_shape(node.call) if node.call else None
            # An argument that nothing provides because of a cycle is not worth a word.
            if shape is not None and id in topology.order_set:
                bind(id, spec, topology, shape, problems)
    if more is not None:
        more(spec, topology, problems)


def _check_size(spec: GraphSpec, topology: Topology, problems: Problems) -> bool:
    n_loops = sum(node.type == "loop" for node in spec.nodes.values())
    for n, most, what in (
        (topology.n_edges, MAX_EDGES, "edges"),
        (n_loops, MAX_LOOPS, "loops"),
        (topology.loop_depth if n_loops <= MAX_LOOPS else 0, MAX_LOOP_DEPTH, "loops inside each other"),
        # What has problems may have no JSON form, and is refused anyway.
        (0 if problems.found else len(to_json(spec)), MAX_BYTES, "bytes of JSON"),
    ):
        if n > most:
            problems.add("too_large", f"{n:,} {what} are too many: at most {most:,}", ("nodes",))
            return False
    return True


def _check_references(id: str, node: NodeSpec, spec: GraphSpec, problems: Problems) -> None:
    """Every node that is named exists, and is another one."""
    path: Path = ("nodes", id)
    named: list[tuple[Path, str]] = [((*path, "after", i), other) for i, other in enumerate(node.after or ())]
    named += [((*path, "cases", i, "to"), case["to"]) for i, case in enumerate(node.cases or ())]
    named += [((*path, field), value) for field in ("default", "to") if (value := getattr(node, field))]
    for at, other in named:
        if problems.full:
            return
        if other not in spec.nodes:
            problems.add("unknown_node", f"there is no node {show(other)}{similar(other, spec.nodes)}", at)
        elif other == id:
            problems.add("cycle", f"{node.type} {id} names itself in {at[2]}", at)
    seen: set[str] = set()
    for i, other in enumerate(node.after or ()):
        if other in seen:
            problems.add("duplicate_predecessor", f"{id} names {other} twice in after", ("nodes", id, "after", i))
        seen.add(other)


def _check_join(id: str, node: NodeSpec, topology: Topology, problems: Problems) -> None:
    n = len(topology.before[id])
    path: Path = ("nodes", id, "join")
    if isinstance(node.join, int) and node.join > n:
        problems.add("bad_join", f"join: {node.join}, but {id} follows only {n} {'node' if n == 1 else 'nodes'}", path)
    elif node.join is not None and not n:
        problems.add("bad_join", f"join does nothing: {id} follows no node", path)


def _check_never(id: str, node: NodeSpec, problems: Problems) -> None:
    """Notes what would never happen: it comes too late, or cannot pass."""
    path: Path = ("nodes", id)
    if node.timeout is not None:
        late = parse_duration_ms(node.timeout, what="timeout")
        times: list[tuple[Path, Any]] = [(("reminders", i), one) for i, one in enumerate(node.reminders or ())]
        times += [(("hedge",), node.hedge), (("escalate", "after"), (node.escalate or {}).get("after"))]
        for at, value in times:
            if value is not None and parse_duration_ms(value, what="") >= late:
                problems.add(
                    "never_happens", f"{at[0]} after {value} never comes: timeout is {node.timeout}", (*path, *at)
                )
    if node.hedge is not None and node.max_parallel == 1:
        message = "with max_parallel: 1 no item is ever run a second time beside itself: allow 2, or leave hedge out"
        problems.add("never_happens", message, (*path, "hedge"))
    if node.rate_limit is not None and isinstance(node.rate_cost, int):
        n, _ = parse_rate(node.rate_limit, what="rate_limit")
        if node.rate_cost > n:
            message = f"a cost of {node.rate_cost} never passes a rate_limit of {node.rate_limit}"
            problems.add("never_happens", message, (*path, "rate_cost"))


def _check_calls(id: str, node: NodeSpec, graph: str, problems: Problems) -> None:
    """Notes what does not go with how a node calls what it runs, or with whether it calls anything at all."""
    path: Path = ("nodes", id)
    if node.on_error == "dead_letter" and node.type not in LETTERS:
        message = (
            f"on_error: dead_letter keeps a call that can be made again, and {_article(node.type)} makes none: use continue,"
            " or fail"
        )
        problems.add("bad_value", message, (*path, "on_error"))
    if node.type == "subgraph":
        if node.graph and node.graph == graph:
            message = f"graph {graph} would run within itself: only a loop node goes back"
            problems.add("cycle", message, (*path, "graph"))
        for option in NOT_OF_SUBGRAPHS:
            if getattr(node, option) is not None:
                message = f"a subgraph has no {option}: give it to nodes of graph {node.graph}"
                problems.add("bad_value", message, (*path, option))
    _check_delays(node, path, problems)


def _check_delays(node: NodeSpec, path: Path, problems: Problems) -> None:
    """Notes a `retry_delay` that no back-off reaches. Where the task has the other of the two, an app has to be asked."""
    if node.retry_delay is None or (node.max_delay is None and node.type not in OWN_RETRIES):
        return
    longest = RunSpec("").max_delay_ms if node.max_delay is None else parse_duration_ms(node.max_delay, what="")
    message = delay_problem(parse_duration_ms(node.retry_delay, what=""), longest)
    if message:
        problems.add("never_happens", message, (*path, "retry_delay"))


def _article(type: str) -> str:
    return f"{'an' if type[0] in 'aeiou' else 'a'} {type}"


def _check_reach(topology: Topology, problems: Problems) -> None:
    if topology.nodes and not topology.entries:
        problems.add("no_entry", "no node can begin: each follows another one", ("nodes",), at_key=True)
    cycles = topology.cycles()
    for cycle in cycles:
        if len(cycle) == 1:
            continue  # it names itself, which is told already
        names = " -> ".join([*cycle[:SHOWN_NODES], *(["…"] if len(cycle) > SHOWN_NODES else []), cycle[0]])
        problems.add(
            "cycle",
            f"these nodes follow each other in a circle: {names}. Only a loop node goes back",
            ("nodes", cycle[0]),
            at_key=True,
        )
    on_cycle = {id for cycle in cycles for id in cycle}
    for id in topology.nodes:
        if id not in topology.order_set and id not in on_cycle:
            problems.add("unreachable", f"{id} is never reached: it is behind a circle", ("nodes", id), at_key=True)


def _check_branches(topology: Topology, problems: Problems) -> None:
    for id, node in topology.nodes.items():
        for i, other in enumerate(node.after or ()):
            branch = topology.nodes.get(other)
            if branch is not None and branch.type == "branch" and id not in targets_of(branch):
                problems.add(
                    "unreachable",
                    f"{id} follows branch {other}, which never chooses it: name it in a case or as default of {other}",
                    ("nodes", id, "after", i),
                )


def _check_loops(topology: Topology, problems: Problems) -> None:
    for loop in topology.loops.values():
        path: Path = ("nodes", loop.id, "to")
        if problems.full:
            return
        if loop.id not in topology.order_set or loop.id == loop.to:
            continue
        if not loop.body:
            problems.add("loop_target", f"loop {loop.id} goes back to {loop.to}, which is not before it", path)
            continue
        for id in sorted(loop.body):
            if id != loop.id:
                _check_exits(id, loop.id, loop.body, topology, problems)
            if id != loop.to:
                for other in topology.before[id]:
                    if other not in loop.body:
                        problems.add(
                            "loop_entered",
                            f"{id} is in the body of loop {loop.id} and follows {other} outside of it: a body is entered at"
                            f" {loop.to} only, so put {other} before {loop.to}",
                            ("nodes", id),
                            at_key=True,
                        )


def _check_exits(id: str, loop: str, body: frozenset[str], topology: Topology, problems: Problems) -> None:
    back = topology.nodes[id].to if topology.nodes[id].type == "loop" else None
    for other in (*topology.behind[id], *([back] if back in topology.nodes else [])):
        if other not in body:
            problems.add(
                "loop_left",
                f"the body of loop {loop} is left by {id} -> {other}: it may be left through {loop} only, so let {other}"
                f" follow {loop}",
                ("nodes", str(other)),
                at_key=True,
            )


def _check_compensation(spec: GraphSpec, problems: Problems) -> None:
    if any(node.compensate is not None for node in spec.nodes.values()):
        return
    for id, node in spec.nodes.items():
        if node.on_error == "compensate":
            message = "on_error: compensate does nothing: no node says how to compensate it"
            problems.add("needs_field", message, ("nodes", id, "on_error"))
