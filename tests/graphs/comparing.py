"""Compares a run with what the reference says of it: nodes, outputs, result, and each step's one end in its history."""

from __future__ import annotations

from collections import Counter
from typing import Any

from graphs.generator import Graph
from graphs.reference import Reference, Visit, execute, matches
from graphs.workload import MODEL
from weft import StepFailed, Weft
from weft.core.graph.validate import check_document
from weft.sdk.graph import Graph as AppGraph
from weft.sdk.graphrun import GraphRun

#: Events that end a step.
ENDS = ("step_completed", "step_failed", "step_cancelled", "step_cached")


def declare_graph(app: Weft, definition: dict[str, Any]) -> AppGraph:
    """Returns a definition as a graph of an app; one that is not valid is the generator's fault."""
    checked = check_document(definition, app.find_shape)
    assert not checked.problems, f"{definition['name']}: {checked.problems}"
    return AppGraph.of(app, checked.valid())


async def start(app: Weft, graph: Graph) -> GraphRun:
    for name, child in graph.children.items():
        app.graphs[name] = declare_graph(app, child)
    return await declare_graph(app, graph.definition).start(graph.input)


async def differences(graph: Graph, run: GraphRun, timeout: float = 20) -> list[str]:
    """Waits for a run and returns what it did otherwise than the reference."""
    expected = execute(graph.definition, graph.input, MODEL, graph.children)
    found: list[str] = []
    try:
        result = await run.result(timeout)
        if expected.status != "completed":
            found.append(f"it completed; expected to fail by one of {expected.failures}")
        elif not matches(expected.result, result):
            found.append(f"it gave {_short(result)}; expected {_short(expected.result)}")
    except StepFailed as error:
        if error.type not in expected.failures:
            found.append(f"it failed: {error.type}: {error}; expected {expected.status} {expected.failures}")
    except TimeoutError:
        nodes = (await run.graph())["nodes"]
        still = {id: about for id, about in nodes.items() if about["status"] in ("ready", "running", "waiting")}
        return [f"{graph.definition['name']}: it did not end in {timeout} s: {still}"]
    found += _compare_nodes(expected, (await run.graph())["nodes"])
    found += _compare_history(expected, await run.history())
    return [f"{graph.definition['name']}: {line}" for line in found]


def _compare_nodes(expected: Reference, nodes: dict[str, Any]) -> list[str]:
    found = []
    for id, about in nodes.items():
        visits, status = expected.visits.get(id, []), about["status"]
        if expected.status == "completed":
            allowed = visits[-1:] or [Visit("pending")]
        elif id in expected.unknown and not visits:
            continue  # behind what failed the run: how far it came depends on who was faster
        else:
            # When the run failed, a node may have come less far; an open one shows as what it was doing.
            allowed = [*visits, *(Visit(word) for word in ("pending", "ready", "running", "waiting", "cancelled"))]
        if not any(_fits(visit, about) for visit in allowed):
            found.append(
                f"node {id} is {status} with {_short(about.get('output'))} {about.get('error')}; expected one of {allowed}"
            )
    return found


def _fits(visit: Visit, about: dict[str, Any]) -> bool:
    if visit.status != about["status"] or not matches(visit.output, about.get("output")):
        return False
    if visit.status != "failed":
        return True
    return visit.error["type"] == about["error"]["type"]


def _compare_history(expected: Reference, events: list[Any]) -> list[str]:
    found = []
    if [event.seq for event in events] != list(range(1, len(events) + 1)):
        found.append(f"its events are numbered {[event.seq for event in events]}")
    ends = Counter(event.step for event in events if event.type in ENDS)
    twice = {step: n for step, n in ends.items() if n > 1}
    if twice:
        found.append(f"steps ended more than once: {twice}")
    known = set(expected.steps)
    if expected.status == "completed" and set(ends) != known:
        loose = {step.partition("#")[0] for step in known ^ set(ends)}
        # Items that a map did not wait for end or do not.
        early = {id for id in loose if "#" not in id and any(s.startswith(f"{id}#") for s in known)}
        if extra := {step for step in known ^ set(ends) if step.partition("#")[0] not in early}:
            found.append(f"steps that ended: {sorted(set(ends))}; differ from the expected by {sorted(extra)}")
    terminal = [event.type for event in events if event.type in ("completed", "failed", "cancelled")]
    if terminal != [expected.status] or events[-1].type != expected.status:
        found.append(f"its history ends by {terminal}, with {events[-1].type} last; expected {expected.status}")
    return found


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) < 200 else f"{text[:200]}…"
