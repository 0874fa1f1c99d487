"""What an app must have for a graph to run: its tasks, its subgraphs, and options that go with them.

Asked of a whole definition before a run is started, and by `weft graph validate` where an app is named: all of it is told,
each with its place. Not asked when a file is loaded, since the tasks may be declared after that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from weft.clock import parse_duration_ms
from weft.core.graph.arguments import Source, bind
from weft.core.graph.model import GraphSpec, NodeSpec
from weft.core.graph.problems import Path, Problem, Problems, similar
from weft.core.graph.topology import Topology
from weft.core.model import RunSpec
from weft.core.retry import delay_problem
from weft.core.routing import HTTP
from weft.errors import DefinitionError, InvalidGraph

if TYPE_CHECKING:
    from weft.sdk.app import Weft


class Unfit(NamedTuple):
    """Why a node cannot run in an app: at which of its fields, as which problem."""

    field: Path
    code: str
    message: str


#: Graphs that are looked at together, by name: those of files that are to be loaded.
Others = Mapping[str, GraphSpec]


def check_fit(
    app: Weft | None, others: Others = MappingProxyType({})
) -> Callable[[GraphSpec, Topology, Problems], None]:
    """Returns a check that notes what an app lacks for a definition; `others` are graphs that it will have as well.

    Without an app only those are looked at: whether one of them would run within itself.
    """

    def check(spec: GraphSpec, topology: Topology, problems: Problems) -> None:
        known = {**others, spec.name: spec}
        ways = {
            name: _way_back(spec.name, name, app, known)
            for name in {node.graph for node in spec.nodes.values()}
            if name
        }
        for id, node in spec.nodes.items():
            for field, code, message in unfit(app, spec, topology, id, others) if app else ():
                problems.add(code, message, ("nodes", id, *field))
            if node.graph != spec.name and (way := ways.get(node.graph or "")):  # its own name: told already
                message = f"graph {spec.name} would run within itself ({' > '.join(way)}): only a loop node goes back"
                problems.add("cycle", message, ("nodes", id, "graph"))

    return check


def require_fit(app: Weft, spec: GraphSpec, topology: Topology, ids: Iterable[str]) -> None:
    """Raises for nodes that cannot run in an app: DefinitionError, or InvalidGraph when there are several problems."""
    found = [(id, one) for id in ids for one in unfit(app, spec, topology, id)]
    if not found:
        return
    if len(found) == 1:
        ((id, one),) = found
        raise DefinitionError(f"graph {spec.name}, node {id}: {one.message}")
    lines = "".join(f"\n  {id}: {one.message} [{one.code}]" for id, one in found)
    problems = [
        Problem(one.code, one.message, id, "/".join(("", "nodes", id, *map(str, one.field)))) for id, one in found
    ]
    raise InvalidGraph(
        f"graph {spec.name} has {len(found)} problems:{lines}",
        problems=[msgspec.to_builtins(problem) for problem in problems],
    )


def unfit(
    app: Weft, spec: GraphSpec, topology: Topology, id: str, others: Others = MappingProxyType({})
) -> Iterator[Unfit]:
    """Yields why one node cannot run in an app."""
    node = spec.nodes[id]
    if node.type == "task" and node.call:
        yield from _unfit_task(app, node, node.call, ("call",))
    if node.type == "subgraph" and node.graph:
        yield from _unfit_subgraph(app, node, others)
    yield from _unfit_delays(app, node)
    yield from _unfit_hedge(app, node)
    if node.compensate is not None:
        call = node.compensate["call"]
        wrong = list(_unfit_task(app, node, call, ("compensate", "call")))
        yield from wrong
        if not wrong and id in topology.order_set:
            for problem in bind_compensation(app, spec, topology, id)[1]:
                yield Unfit(("compensate",), problem.code, f"compensate: {problem.message}")


def bind_compensation(
    app: Weft, spec: GraphSpec, topology: Topology, id: str
) -> tuple[dict[str, Source], list[Problem]]:
    """Returns where the arguments of what undoes a node come from, as those of a node behind it, and what is wrong."""
    node, problems = spec.nodes[id], Problems()
    assert node.compensate is not None
    shape = app.find_shape(node.compensate["call"])
    assert shape is not None
    given: dict[str, Any] = dict(node.compensate.get("with") or {})
    if id in shape.parameters and id not in given:
        given[id] = f"${{{id}}}"
    undoing = msgspec.structs.replace(node, call=node.compensate["call"], with_=given)
    found = bind(id, msgspec.structs.replace(spec, nodes={**spec.nodes, id: undoing}), topology, shape, problems)
    return found, problems.found


def _unfit_task(app: Weft, node: NodeSpec, name: str, field: Path) -> Iterator[Unfit]:
    task = app.find_task(name)
    if task is None:
        yield Unfit(field, "unknown_task", f"app {app.name!r} has no task {name!r}{similar(name, app.tasks)}")
        return
    if field == ("call",) and (task.uniqueness is not None or task.batching is not None):
        yield Unfit(
            field,
            "unfit_task",
            f"task {name} has unique_for, throttle, debounce or batch, which count calls of its own; in a graph each step is"
            " one call: use a task without them",
        )
    gating = task.gating
    if gating and (gating.concurrency_key is not None or gating.rate_key is not None or callable(gating.rate_cost)):
        yield Unfit(
            field,
            "unfit_task",
            f"task {task.name} takes a key or a cost from its arguments by a function, which workers that decide for the graph"
            " may not have: give the node a concurrency_key, rate_key or rate_cost",
        )


def _unfit_subgraph(app: Weft, node: NodeSpec, others: Others) -> Iterator[Unfit]:
    name = node.graph or ""
    found = others.get(name) or app.graphs.get(name)
    if found is None:
        hint = similar(name, [*app.graphs, *others])
        yield Unfit(("graph",), "unknown_graph", f"app {app.name!r} has no graph {name!r}{hint}")
    elif node.version is not None and node.version != found.version:
        message = f"graph {name} has version {found.version or 'none'}, not {node.version}: name that one, or none"
        yield Unfit(("version",), "unknown_version", message)


def _way_back(name: str, child: str, app: Weft | None, others: Others) -> list[str]:
    """Returns by which graphs a graph would come to run within itself, if its node ran `child`; empty: it would not."""
    seen, ways = {child}, [[name, child]]
    while ways:
        way = ways.pop()
        if way[-1] == name:
            return way
        if way[-1] in others:
            below = [node.graph for node in others[way[-1]].nodes.values() if node.graph]
        else:
            found = app.graphs.get(way[-1]) if app else None
            below = found.subgraphs if found else []
        for graph in below:
            if graph == name or graph not in seen:
                seen.add(graph)
                ways.append([*way, graph])
    return []


def _unfit_hedge(app: Weft, node: NodeSpec) -> Iterator[Unfit]:
    """A second start that never comes, because the first attempt is over by then. (Against its own timeout: told already.)"""
    if node.hedge is None or node.timeout is not None or node.type not in ("task", "http"):
        return
    task = app.find_task(node.call or "")
    spec = RunSpec(HTTP) if node.type == "http" else task.spec if task else None
    if spec and spec.timeout_ms and parse_duration_ms(node.hedge, what="hedge") >= spec.timeout_ms:
        yield Unfit(
            ("hedge",),
            "never_happens",
            f"hedge after {node.hedge} never comes: an attempt of {spec.name} is over after its timeout of"
            f" {spec.timeout_ms / 1000:g} s: give the node a longer timeout, or a shorter hedge",
        )


def _unfit_delays(app: Weft, node: NodeSpec) -> Iterator[Unfit]:
    """A delay that no back-off reaches, where one of the two is the task's. (Both of the node: told already.)"""
    if node.type != "task" or (node.retry_delay is None) == (node.max_delay is None):
        return
    task = app.find_task(node.call or "")
    if task is None:
        return
    spec = task.spec
    if node.max_delay is not None:
        own = spec.retry_delay_ms != RunSpec("").retry_delay_ms
        delay, longest = spec.retry_delay_ms if own else 0, parse_duration_ms(node.max_delay, what="max_delay")
    else:
        delay, longest = parse_duration_ms(node.retry_delay or 0, what="retry_delay"), spec.max_delay_ms
    message = delay_problem(delay, longest)
    if message:
        yield Unfit(("retry_delay" if node.max_delay is None else "max_delay",), "never_happens", message)
