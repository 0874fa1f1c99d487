"""How a graph run stands, node by node."""

from __future__ import annotations

from typing import Any

from weft.codec import decode_plain
from weft.core.effects import UNDOES, step_id
from weft.core.history import read_history
from weft.core.regrow import regrow
from weft.core.routing import parse_step
from weft.engine.coldruns import cold_blob
from weft.engine.definitions import definition_of, definitions
from weft.engine.engine import Engine
from weft.engine.events import error_dict
from weft.engine.graphs import Follower
from weft.engine.nodeview import tell_child, tell_map, tell_rest, tell_step
from weft.engine.runs import find, load, result_bytes
from weft.engine.waiters import waiting_facts
from weft.errors import NotFound
from weft.ids import partition_of
from weft.store.graphs import read_open_steps, read_whole_context
from weft.store.runs import read_holders, read_runs


async def graph_of(engine: Engine, run: str, *, outputs: bool = True) -> dict[str, Any]:
    """Tells how a graph run stands, node by node; without `outputs` what nodes gave is not read."""
    try:
        row = await load(engine, run)
    except NotFound:
        return await _archived(engine, run, outputs=outputs)
    if not row.spec.definition:
        raise NotFound(f"run {run} is of a task, not of a graph", run=run)
    p = partition_of(run)
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
            told = [{"step": name[:-1], **await follower.tell(run, one)} for name, one in undone.items()]
            about["compensation"] = told
        about |= await tell_rest(engine.ns, p, row, published.plan.node(id), given.get(id))
    for step, opened_ms in open_steps.items():
        id, iterations = parse_step(published.plan, step)
        if id not in nodes:
            continue
        held, about = rows.get(step), nodes[id]
        if step.endswith(UNDOES) or (held is not None and not held.open):
            continue
        about["iteration"] = iterations[-1] if iterations else 0
        about.pop("ended_ms", None)  # of the iteration before
        if held is None or any(mark in step for mark in "?=+>@"):
            about["status"] = "running" if published.plan.node(id).is_map else "ready"
            about["opened_ms"] = min(opened_ms, about.get("opened_ms", opened_ms))
            if published.plan.node(id).is_map:
                about |= await tell_map(engine.ns, p, run, step.partition("+")[0].rstrip("=@"))
        else:
            about |= tell_step(held, holders.get(held.id, ""), opened_ms)
            about |= waiting_facts(held)
            about |= await tell_child(engine.ns, p, run, published.plan.node(id), step, about["attempt"])
    failing = {"failing": error_dict(row.fields["failing"])} if row.open and "failing" in row.fields else {}
    return {"revision": row.number("revision", 1), "definition": row.text("def"), "nodes": nodes, **failing}


async def _archived(engine: Engine, run: str, *, outputs: bool) -> dict[str, Any]:
    """Tells the same of a run that only the archive has, by its events."""
    row = await find(engine, run)
    if not row.spec.definition:
        raise NotFound(f"run {run} is of a task, not of a graph", run=run)
    found = regrow(row.spec.definition, read_history(run, await engine.cold.reader.all_events(run)))
    data = await cold_blob(engine, found.definition)
    if data is None:
        raise NotFound(f"the archive has no definition cas://sha256:{found.definition} of run {run}", run=run)
    plan, nodes = definitions.make(found.definition, data).plan, dict[str, dict[str, Any]]()
    for id in plan.order:
        node, given = plan.node(id), found.given.get(id)
        about = nodes[id] = {"type": node.type, "status": "pending", "after": list(node.predecessors)}
        if given is None:
            continue
        about |= {"status": given.status, "attempt": given.attempt}
        if given.status == "completed" and outputs:
            about["output"] = decode_plain(await result_bytes(engine, run, given.value))
        elif given.status == "failed":
            about["error"] = error_dict(given.value)
        if given.ended_ms:
            about |= {"started_ms": given.started_ms, "ended_ms": given.ended_ms}
    return {"revision": found.revision, "definition": found.definition, "nodes": nodes}


def _node_of(step: str) -> str:
    return step.rstrip(UNDOES).partition("#")[0].partition("~")[0]
