"""How the nodes of a graph run stand, as people read it: open steps, maps, and what an ended run left undone."""

from __future__ import annotations

from typing import Any

from weft.core.given import Gave
from weft.core.graph.compile import NodePlan
from weft.core.model import ERROR_DECODER
from weft.core.routing import step_name
from weft.engine.children import newest_child
from weft.store.graphs import read_map
from weft.store.namespace import Namespace
from weft.store.runs import RunRow


def tell_step(row: RunRow, holder: str, opened_ms: int) -> dict[str, Any]:
    """Tells of a step that is open: running, waiting for a moment or at a gate, or ready to be taken."""
    waits = row.due_ms is not None or bool(row.line) or bool(row.waits)
    about: dict[str, Any] = {
        "status": "running" if holder else "waiting" if waits else "ready",
        "attempt": row.number("attempt", 1),
        "opened_ms": opened_ms,
    }
    if holder:
        about["worker"] = holder
        fraction, _, message = row.text("progress").partition(" ")
        if fraction:
            about |= {"progress": float(fraction), "message": message}
    elif row.due_ms is not None:
        about |= {"reason": "retry" if about["attempt"] > 1 else "delay", "due_ms": row.due_ms}
    elif row.line:
        about["reason"] = f"limit {row.line}"
    if about["attempt"] > 1 and "error" in row.fields:
        record = ERROR_DECODER.decode(row.fields["error"])
        about["last_error"] = {"type": record.type, "message": record.message}
    return about


async def tell_map(ns: Namespace, p: int, run: str, step: str) -> dict[str, Any]:
    """Tells how far a map has come; empty when it has not begun, or is no longer kept."""
    row = await read_map(ns, p, run, step)
    if row is None:
        return {}
    about = {"items": row.n, "done": row.done, "failed": row.failed, "open": row.at - row.done - row.failed}
    return about | {name: n for name, n in (("hedged", row.copies), ("cached", row.cached)) if n}


async def tell_child(ns: Namespace, p: int, run: str, node: NodePlan, step: str, attempt: int) -> dict[str, Any]:
    """Tells which run a step has started, if it is one that does."""
    if node.type != "subgraph" or node.is_map:
        return {}
    return {"child": (await newest_child(ns, p, run, step, attempt))[0]}


async def tell_rest(ns: Namespace, p: int, run: RunRow, node: NodePlan, given: Gave | None) -> dict[str, Any]:
    """Tells what else there is to know of a node: how far its map came, and what became of it in a run that has ended."""
    about: dict[str, Any] = {}
    step = given.step if given is not None else step_name(node.id, (0,) * len(node.loops))
    if node.is_map:
        about = await tell_map(ns, p, run.id, step)
        about.pop("open", None)
    if given is None and not run.open:
        about |= tell_undone(run, step, failed=about.get("failed", 0))
    return about


def tell_undone(run: RunRow, step: str, *, failed: int) -> dict[str, Any]:
    """Tells what became of a node that had not ended when its run did; `failed` items of it had failed."""
    if run.text("status") == "failed" and failed:
        record = ERROR_DECODER.decode(run.fields["error"])
        # An item that fails the run says which it was; this map may have had failed items and nothing to do with it.
        if record.message.startswith(f"{step}#"):
            return {"status": "failed", "error": {"type": record.type, "message": record.message}}
    return {"status": "cancelled"}
