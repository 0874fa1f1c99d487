"""How a graph run stood that the hot store no longer holds, node by node: by its archived events and the rows of its steps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from weft.codec import decode_plain
from weft.core.effects import UNDOES
from weft.core.fold import StepState
from weft.core.given import Gave
from weft.core.graph.compile import NodePlan
from weft.core.history import read_history
from weft.core.model import VALUE_DECODER, ErrorRecord
from weft.core.regrow import Regrown, regrow
from weft.core.routing import step_name
from weft.engine.coldruns import cold_blob, find_cold, readable
from weft.engine.definitions import definitions
from weft.engine.engine import Engine
from weft.engine.events import error_dict
from weft.engine.nodeview import failed_item, iteration_of
from weft.errors import NotFound
from weft.ids import child_run_id
from weft.store.runs import RunRow

#: Times that a step's child may have been started anew.
MAX_LIVES = 1_000


async def cold_graph_of(engine: Engine, run: str, *, outputs: bool) -> dict[str, Any] | None:
    """Tells how a graph run stood; None when the archive has none of that id. Times that steps spent are in it."""
    row = await find_cold(engine, run)
    if row is None:
        return None
    if not row.spec.definition:
        raise NotFound(f"run {run} is of a task, not of a graph", run=run)
    from weft.archive.rows import read_all_steps

    found = await _regrow(engine, row)
    plan = (await _definition(engine, found.definition)).plan
    steps = {state.step: state for state in await read_all_steps(engine.cold.database, run)}
    nodes: dict[str, dict[str, Any]] = {}
    for id in plan.order:
        node, given = plan.node(id), found.given.get(id)
        about = nodes[id] = {"type": node.type, "status": "pending", "after": list(node.predecessors)}
        if given is not None:
            about |= await _tell(engine, given, outputs=outputs)
            if given.status != "skipped":
                about |= await _child(engine, run, node, given, found.lives)
        about |= await _undone(engine, found, id)
        step = given.step if given is not None else step_name(id, (0,) * len(node.loops))
        ended = failed_item(node, row.text("status"), row.fields.get("error"))
        step = step if ended is None else ended[0]
        about |= _rest(node, given, found, step, None if ended is None else ended[1])
        if about["status"] == "failed":
            about.pop("output", None)  # of the iteration before
        about |= timings_of(steps, step)
    return {"revision": found.revision, "definition": found.definition, "nodes": nodes}


async def cold_given(engine: Engine, row: RunRow) -> Mapping[str, Gave]:
    """Returns how the nodes of a graph run had ended by what the archive has of it."""
    return (await _regrow(engine, row)).given if await readable(engine) else {}


async def _regrow(engine: Engine, row: RunRow) -> Regrown:
    return regrow(row.spec.definition, read_history(row.id, await engine.cold.reader.all_events(row.id)))


def timings_of(steps: Mapping[str, StepState], step: str) -> dict[str, int]:
    """Returns when a step was opened and how long it was queued, executed and waiting; of a map, all its items together."""
    mine = [state for name, state in steps.items() if name == step or name.startswith(f"{step}#")]
    if not mine:
        return {}
    return {
        "opened_ms": min(state.created_ms for state in mine),
        "queued_ms": sum(state.queued_ms for state in mine),
        "running_ms": sum(state.running_ms for state in mine),
        "waiting_ms": sum(state.waiting_ms for state in mine),
    }


async def _definition(engine: Engine, digest: str) -> Any:
    kept = definitions.get(digest)
    if kept is None:
        data = await cold_blob(engine, digest)
        if data is None:
            raise NotFound(f"the definition cas://sha256:{digest} is not in the archive")
        kept = definitions.make(digest, data)
    return kept


async def _tell(engine: Engine, given: Gave, *, outputs: bool = True) -> dict[str, Any]:
    about: dict[str, Any] = {"status": given.status, "attempt": given.attempt}
    if given.status == "completed" and outputs:
        value = VALUE_DECODER.decode(given.value)
        data = await cold_blob(engine, value.blob) if value.blob else value.inline
        about["output"] = None if data is None else decode_plain(data)
    elif given.status == "failed":
        about["error"] = error_dict(given.value)
    elif given.status == "skipped" and given.value:
        about["reason"] = given.value.decode(errors="replace")
    if given.cached:
        about["cached"] = True
    return about | {"started_ms": given.started_ms, "ended_ms": given.ended_ms}


async def _child(engine: Engine, run: str, node: NodePlan, given: Gave, lives: int) -> dict[str, Any]:
    if node.type != "subgraph" or node.is_map:
        return {}
    # Most runs have one life, and a step that a retry did not open anew has the child of an earlier one.
    for life in range(min(lives, MAX_LIVES), 0, -1):
        child = child_run_id(run, given.step, given.attempt, life)
        if await engine.cold.reader.run(child):
            return {"child": child}
    return {"child": child_run_id(run, given.step, given.attempt)}


async def _undone(engine: Engine, found: Regrown, id: str) -> dict[str, Any]:
    undone = [
        {"step": name[:-1], **await _tell(engine, one)}
        for name, one in found.given.items()
        if name.endswith(UNDOES) and name.rstrip(UNDOES).partition("#")[0].partition("~")[0] == id
    ]
    return {"compensation": undone} if undone else {}


def _rest(node: NodePlan, given: Gave | None, found: Regrown, step: str, failure: ErrorRecord | None) -> dict[str, Any]:
    """Tells how far a map came, what became of a node that has not ended, and in which iteration one of a loop did."""
    about: dict[str, Any] = {}
    scattered = found.maps.get(step)
    if node.is_map and scattered is not None:
        about = {"items": scattered.n, "done": scattered.done, "failed": len(scattered.results) - scattered.done}
        about |= {"cached": scattered.cached} if scattered.cached else {}
    if failure is not None and about.get("failed"):
        about |= {"status": "failed", "error": {"type": failure.type, "message": failure.message}}
    elif given is None:
        about["status"] = "cancelled"
    return about | iteration_of(node, step if given is not None or failure is not None else "")
