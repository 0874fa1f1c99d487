"""Turns a graph into what is stored with its runs: the definition, and what its tasks look like now.

Workers follow a run by this alone, so a worker needs none of the graph's code, only the tasks it serves. What is declared
but not built yet is refused here, before anything is stored.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import msgspec

from weft.core.effects import SUBGRAPH, UNDOES
from weft.core.gates import gate_name
from weft.core.graph.arguments import Source, bind
from weft.core.graph.compile import NodePlan, Plan
from weft.core.graph.problems import Problems
from weft.core.model import ROUTES, Limit, RunSpec
from weft.core.routing import HTTP, Bundle, StepBase
from weft.engine.graphs import bundle_bytes
from weft.errors import DefinitionError, NotBuilt
from weft.sdk.task import Task

if TYPE_CHECKING:
    from weft.sdk.graph import Graph

#: Node types that are declared and checked but not executed yet.
_UNBUILT_TYPES = ("agent",)
#: How deep graphs may run within graphs.
MAX_SUBGRAPHS = 16
#: Options that mean one call of a task, which a subgraph is not.
_NOT_OF_SUBGRAPHS = (
    *("queue", "priority", "cache", "hedge", "concurrency", "concurrency_key", "concurrency_per_key"),
    *("rate_limit", "rate_key", "rate_cost"),
)
#: Node types that make a call, which a dead letter keeps.
LETTERS = ("task", "http", "agent")
#: Options of a node that overrule its task's, and where they go.
_DURATIONS = {"retry_delay": "retry_delay_ms", "max_delay": "max_delay_ms", "timeout": "timeout_ms"}
_PLAIN = ("queue", "priority", "retries", "backoff", "jitter")


def publish_all(graph: Graph, around: tuple[str, ...] = ()) -> tuple[bytes, dict[str, bytes]]:
    """Returns what is stored with runs of a graph, and by digest what its subgraphs follow. `around`: the graphs it is in.

    Raises InvalidGraph, DefinitionError, NotBuilt.
    """
    steps, children = steps_of(graph, graph.plan.spec.nodes, around)
    return bundle_bytes(Bundle(graph.spec, steps)), children


def steps_of(
    graph: Graph, ids: Iterable[str], around: tuple[str, ...] = ()
) -> tuple[dict[str, StepBase], dict[str, bytes]]:
    """Returns what the tasks of some nodes look like now, and by digest what those follow that are subgraphs."""
    plan = graph.plan
    steps: dict[str, StepBase] = {}
    children: dict[str, bytes] = {}
    for id in ids:
        node = plan.node(id)
        _refuse_unbuilt(graph, node)
        if node.type == "task":
            steps[id] = _task_step(graph, plan, node)
        elif node.type == "http":
            steps[id] = StepBase(_with_options(node, RunSpec(HTTP)))
        elif node.type == "subgraph":
            data, below = publish_all(_subgraph(graph, node, (*around, graph.name)), (*around, graph.name))
            address = hashlib.sha256(data).hexdigest()
            children |= {**below, address: data}
            steps[id] = StepBase(_with_options(node, RunSpec(SUBGRAPH, queue=ROUTES)), child=address)
        if id in steps:
            _check_hedge(graph, node, steps[id].spec)
        if node.on_error == "dead_letter" and node.type not in LETTERS:
            raise DefinitionError(
                f"graph {graph.name}, node {id}: on_error: dead_letter keeps a call that can be made again, and a"
                f" {node.type} makes none: use continue, or fail"
            )
        if node.spec.compensate is not None:
            steps[id + UNDOES] = _compensation(graph, plan, node)
    return steps, children


def _subgraph(graph: Graph, node: NodePlan, around: tuple[str, ...]) -> Graph:
    """Returns the graph that a node runs."""
    where, name = f"graph {graph.name}, node {node.id}", node.spec.graph or ""
    found = graph.app.graphs.get(name)
    if found is None:
        raise DefinitionError(f"{where}: app {graph.app.name!r} has no graph {name!r}")
    if node.spec.version is not None and node.spec.version != found.version:
        raise DefinitionError(
            f"{where}: graph {name} has version {found.version or 'none'}, not {node.spec.version}: name that one, or none"
        )
    if name in around:
        raise DefinitionError(
            f"{where}: graph {name} would run within itself ({' > '.join([*around, name])}): only a loop node goes back"
        )
    if len(around) >= MAX_SUBGRAPHS:
        raise DefinitionError(
            f"{where}: graphs are nested more than {MAX_SUBGRAPHS} deep: {' > '.join([*around, name])}"
        )
    for option in _NOT_OF_SUBGRAPHS:
        if getattr(node.spec, option) is not None:
            raise DefinitionError(f"{where}: a subgraph has no {option}: give it to nodes of graph {name}")
    return found


def _refuse_unbuilt(graph: Graph, node: NodePlan) -> None:
    if node.type in _UNBUILT_TYPES:
        raise NotBuilt(f"graph {graph.name}, node {node.id}: type: {node.type} is not built yet", node=node.id)


def _check_hedge(graph: Graph, node: NodePlan, spec: RunSpec) -> None:
    """Raises for a second start that never comes, because the first attempt is over by then."""
    hedge_ms = node.duration_ms("hedge")
    if hedge_ms is not None and spec.timeout_ms and hedge_ms >= spec.timeout_ms:
        raise DefinitionError(
            f"graph {graph.name}, node {node.id}: hedge after {node.spec.hedge} never comes: an attempt of {spec.name} is over"
            f" after its timeout of {spec.timeout_ms / 1000:g} s: give the node a longer timeout, or a shorter hedge"
        )


def _task_step(graph: Graph, plan: Plan, node: NodePlan) -> StepBase:
    name = node.spec.call or ""
    task = graph.app.find_task(name)
    if task is None:
        raise DefinitionError(f"graph {graph.name}, node {node.id}: app {graph.app.name!r} has no task {name!r}")
    if task.uniqueness is not None or task.batching is not None:
        raise DefinitionError(
            f"graph {graph.name}, node {node.id}: task {name} has unique_for, throttle, debounce or batch, which count calls of"
            " its own; in a graph each step is one call: use a task without them"
        )
    shape = graph.app.find_shape(name)
    assert shape is not None
    bound = {name: _source(source) for name, source in plan.binding(node.id, shape).items() if source.kind != "with"}
    return StepBase(_with_options(node, task.spec), bound, _limits(graph, node, task))


def _compensation(graph: Graph, plan: Plan, node: NodePlan) -> StepBase:
    """Returns what undoes a node: a task of the app, whose arguments are found like those of a node behind it."""
    assert node.spec.compensate is not None
    name = node.spec.compensate["call"]
    where = f"graph {graph.name}, node {node.id}: compensate"
    task, shape = graph.app.find_task(name), graph.app.find_shape(name)
    if task is None or shape is None:
        raise DefinitionError(f"{where}: app {graph.app.name!r} has no task {name!r}")
    given = dict(node.spec.compensate.get("with") or {})
    if node.id in shape.parameters and node.id not in given:
        given[node.id] = f"${{{node.id}}}"
    undoing = msgspec.structs.replace(node.spec, call=name, with_=given)
    spec = msgspec.structs.replace(plan.spec, nodes={**plan.spec.nodes, node.id: undoing})
    problems = Problems()
    found = bind(node.id, spec, plan.topology, shape, problems)
    if problems.found:
        raise DefinitionError(f"{where}: {'; '.join(problem.message for problem in problems.found)}")
    bound = {name: _source(source) for name, source in found.items() if source.kind != "with"}
    if node.id in found and node.id not in (node.spec.compensate.get("with") or {}):
        bound[node.id] = "=" + node.id
    return StepBase(_own(task.spec), bound, _limits(graph, node, task))


def _own(spec: RunSpec, **changes: Any) -> RunSpec:
    """Returns the options of a step. What is a run's own, it has not: key, delay, deadline."""
    return msgspec.structs.replace(spec, key="", delay_ms=0, due_ms=0, deadline_ms=0, input=b"", **changes)


def _source(source: Source) -> str:
    if source.kind == "input":
        return ("?" if source.optional else ".") + source.name
    return "=" + source.name


def _with_options(node: NodePlan, spec: RunSpec) -> RunSpec:
    changes: dict[str, Any] = {name: value for name in _PLAIN if (value := getattr(node.spec, name)) is not None}
    for option, field in _DURATIONS.items():
        ms = node.duration_ms(option)
        if ms is not None:
            changes[field] = ms
    return _own(spec, **changes)


def _limits(graph: Graph, node: NodePlan, task: Task[Any, Any]) -> list[Limit]:
    """Returns the limits that the task itself has; those by a key of its arguments cannot be told without its code."""
    gating = task.gating
    if gating is None:
        return []
    if gating.concurrency_key is not None or gating.rate_key is not None or callable(gating.rate_cost):
        raise DefinitionError(
            f"graph {graph.name}, node {node.id}: task {task.name} takes a key or a cost from its arguments by a function,"
            " which workers that decide for the graph may not have: give the node a concurrency_key, rate_key or rate_cost"
        )
    limits = [Limit(gate_name("task", task.name), gating.concurrency)] if gating.concurrency else []
    if gating.rate is not None:
        n, window_ms = gating.rate
        limits.append(Limit(gate_name("rate", task.name), n, window_ms, int(gating.rate_cost)))
    return limits
