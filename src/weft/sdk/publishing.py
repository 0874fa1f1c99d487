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
from weft.core.graph.arguments import Source
from weft.core.graph.compile import NodePlan, Plan
from weft.core.model import ROUTES, Limit, RunSpec
from weft.core.routing import HTTP, Bundle, StepBase
from weft.engine.graphs import bundle_bytes
from weft.errors import DefinitionError, NotBuilt
from weft.sdk.fitting import bind_compensation, require_fit
from weft.sdk.task import Task

if TYPE_CHECKING:
    from weft.sdk.graph import Graph

#: Node types that are declared and checked but not executed yet.
_UNBUILT_TYPES = ("agent",)
#: How deep graphs may run within graphs.
MAX_SUBGRAPHS = 16
#: Milliseconds that an attempt of an HTTP node may take longer than its request: the one that says what took too long is the
#: request, which knows more, and not now this one and now the attempt.
HTTP_GRACE_MS = 1_000
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
    wanted = list(ids)
    require_fit(graph.app, plan.spec, plan.topology, wanted)
    for id in wanted:
        node = plan.node(id)
        _refuse_unbuilt(graph, node)
        if node.type == "task":
            steps[id] = _task_step(graph, plan, node)
        elif node.type == "http":
            spec = _with_options(node, RunSpec(HTTP))
            steps[id] = StepBase(msgspec.structs.replace(spec, timeout_ms=spec.timeout_ms + HTTP_GRACE_MS))
        elif node.type == "subgraph":
            data, below = publish_all(_subgraph(graph, node, (*around, graph.name)), (*around, graph.name))
            address = hashlib.sha256(data).hexdigest()
            children |= {**below, address: data}
            steps[id] = StepBase(_with_options(node, RunSpec(SUBGRAPH, queue=ROUTES)), child=address)
        if node.spec.compensate is not None:
            steps[id + UNDOES] = _compensation(graph, plan, node)
    return steps, children


def _subgraph(graph: Graph, node: NodePlan, around: tuple[str, ...]) -> Graph:
    """Returns the graph that a node runs."""
    where, name = f"graph {graph.name}, node {node.id}", node.spec.graph or ""
    if name in around:
        raise DefinitionError(
            f"{where}: graph {name} would run within itself ({' > '.join([*around, name])}): only a loop node goes back"
        )
    if len(around) >= MAX_SUBGRAPHS:
        raise DefinitionError(
            f"{where}: graphs are nested more than {MAX_SUBGRAPHS} deep: {' > '.join([*around, name])}"
        )
    return graph.app.graphs[name]


def _refuse_unbuilt(graph: Graph, node: NodePlan) -> None:
    if node.type in _UNBUILT_TYPES:
        raise NotBuilt(f"graph {graph.name}, node {node.id}: type: {node.type} is not built yet", node=node.id)


def _task_step(graph: Graph, plan: Plan, node: NodePlan) -> StepBase:
    name = node.spec.call or ""
    task, shape = graph.app.find_task(name), graph.app.find_shape(name)
    assert task is not None and shape is not None
    bound = {name: _source(source) for name, source in plan.binding(node.id, shape).items() if source.kind != "with"}
    return StepBase(_with_options(node, task.spec), bound, _limits(task))


def _compensation(graph: Graph, plan: Plan, node: NodePlan) -> StepBase:
    """Returns what undoes a node: a task of the app, whose arguments are found like those of a node behind it."""
    assert node.spec.compensate is not None
    task = graph.app.find_task(node.spec.compensate["call"])
    assert task is not None
    found, _ = bind_compensation(graph.app, plan.spec, plan.topology, node.id)
    bound = {name: _source(source) for name, source in found.items() if source.kind != "with"}
    if node.id in found and node.id not in (node.spec.compensate.get("with") or {}):
        bound[node.id] = "=" + node.id
    return StepBase(_own(task.spec), bound, _limits(task))


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


def _limits(task: Task[Any, Any]) -> list[Limit]:
    """Returns the limits that the task itself has; those by a key of its arguments cannot be told without its code."""
    gating = task.gating
    if gating is None:
        return []
    limits = [Limit(gate_name("task", task.name), gating.concurrency)] if gating.concurrency else []
    if gating.rate is not None:
        n, window_ms = gating.rate
        cost = gating.rate_cost if isinstance(gating.rate_cost, int) else 1  # a function is refused before
        limits.append(Limit(gate_name("rate", task.name), n, window_ms, cost))
    return limits
