"""How a graph run stands, node by node."""

from __future__ import annotations

from typing import Any, NamedTuple

from weft.core.effects import UNDOES, step_id
from weft.core.graph.compile import NodePlan
from weft.core.routing import parse_step
from weft.core.scope import Iterations
from weft.engine.coldgraph import cold_graph_of
from weft.engine.definitions import definition_of
from weft.engine.engine import Engine
from weft.engine.events import error_dict
from weft.engine.graphs import Follower
from weft.engine.nodeview import tell_child, tell_map, tell_rest, tell_step, waits_for_child
from weft.engine.runs import load
from weft.engine.waiters import waiting_facts
from weft.errors import NotFound
from weft.ids import partition_of
from weft.store.graphs import read_open_steps, read_whole_context
from weft.store.runs import RunRow, read_holders, read_runs


async def graph_of(engine: Engine, run: str, *, outputs: bool = True) -> dict[str, Any]:
    """Tells how a graph run stands, node by node; without `outputs` what nodes gave is not read."""
    try:
        row = await load(engine, run)
    except NotFound:
        cold = await cold_graph_of(engine, run, outputs=outputs)
        if cold is None:
            raise
        return cold
    if not row.spec.definition:
        raise NotFound(f"run {run} is of a task, not of a graph", run=run)
    if "away" in row.fields and (cold := await cold_graph_of(engine, run, outputs=outputs)) is not None:
        return cold
    return await _hot_graph_of(engine, row, outputs=outputs)


async def _hot_graph_of(engine: Engine, row: RunRow, *, outputs: bool) -> dict[str, Any]:
    run, p = row.id, partition_of(row.id)
    follower = Follower(engine.ns, p)
    published = await definition_of(engine.ns, p, row.text("def"))
    given = await read_whole_context(engine.ns, p, run)
    open_steps = await read_open_steps(engine.ns, p, run) if row.open else {}
    steps = await read_runs(engine.ns, p, [step_id(run, step) for step in open_steps])
    rows = {step: found for step, found in zip(open_steps, steps, strict=True) if found is not None}
    holders = await read_holders(engine.ns, p, list(rows.values()))
    nodes: dict[str, dict[str, Any]] = {}
    for id in published.plan.order:
        about = nodes[id] = {
            "type": published.plan.node(id).type,
            "status": "pending",
            "after": list(published.plan.node(id).predecessors),
        }
        if id in given:
            about |= await follower.tell(run, given[id], output=outputs)
            if given[id].status != "skipped":
                about |= await tell_child(engine.ns, p, run, published.plan.node(id), given[id].step, given[id].attempt)
        undone = {name: one for name, one in given.items() if name.endswith(UNDOES) and _node_of(name) == id}
        if undone:
            about["compensation"] = [
                {"step": name[:-1], **await follower.tell(run, one)} for name, one in undone.items()
            ]
        about |= await tell_rest(engine.ns, p, row, published.plan.node(id), given.get(id))
        if about["status"] == "failed":
            about.pop("output", None)  # of the iteration before
    for step, opened_ms in open_steps.items():
        id, iterations = parse_step(published.plan, step)
        held = rows.get(step)
        if id not in nodes or (held is not None and not held.open):
            continue
        if not step.endswith(UNDOES):
            opened = _Opened(step, iterations, opened_ms, held, holders.get(held.id, "") if held is not None else "")
            nodes[id] = await _open_node(engine, run, published.plan.node(id), opened, nodes[id])
        elif held is not None:
            told = {"step": step[:-1], **tell_step(held, holders.get(held.id, ""), opened_ms)}
            nodes[id].setdefault("compensation", []).append(told)
    failing = {"failing": error_dict(row.fields["failing"])} if row.open and "failing" in row.fields else {}
    return {"revision": row.number("revision", 1), "definition": row.text("def"), "nodes": nodes, **failing}


class _Opened(NamedTuple):
    """A step that is open: its row, where it has one, and who is at it."""

    step: str
    iterations: Iterations
    since_ms: int
    row: RunRow | None
    holder: str


async def _open_node(
    engine: Engine, run: str, node: NodePlan, opened: _Opened, about: dict[str, Any]
) -> dict[str, Any]:
    """Tells of a node with an open step, besides what is known of it from the iteration before."""
    p, step, row = partition_of(run), opened.step, opened.row
    about["iteration"] = opened.iterations[-1] if opened.iterations else 0
    about.pop("ended_ms", None)  # of the iteration before
    if row is None or any(mark in step for mark in "?=+>@"):
        about["status"] = "running" if node.is_map else "ready"
        about["opened_ms"] = min(opened.since_ms, about.get("opened_ms", opened.since_ms))
        return about | (await tell_map(engine.ns, p, run, step.partition("+")[0].rstrip("=@")) if node.is_map else {})
    about |= tell_step(row, opened.holder, opened.since_ms)
    about |= waiting_facts(row)
    about |= await tell_child(engine.ns, p, run, node, step, about["attempt"])
    return waits_for_child(about)


def _node_of(step: str) -> str:
    return step.rstrip(UNDOES).partition("#")[0].partition("~")[0]
