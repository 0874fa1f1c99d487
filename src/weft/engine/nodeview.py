"""How the nodes of a graph run stand, as people read it: open steps, maps, and what an ended run left undone."""

from __future__ import annotations

from typing import Any

from weft.core.given import Gave
from weft.core.graph.compile import NodePlan
from weft.core.model import ERROR_DECODER, ErrorRecord
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


def waits_for_child(about: dict[str, Any]) -> dict[str, Any]:
    """Tells what a step that runs a subgraph waits for: its child, and not its next look at it."""
    if "child" not in about or about.get("reason") != "delay":
        return about
    kept = {name: thing for name, thing in about.items() if name not in ("reason", "due_ms")}
    return kept | {"waits_for": f"run:{about['child']}"}


def failed_item(node: NodePlan, status: str, error: bytes | None) -> tuple[str, ErrorRecord] | None:
    """Returns the step of a map whose item has failed the run, with the error, if it was of this node.

    An item that fails the run says which it was; a map may have had failed items and nothing to do with it.
    """
    if not node.is_map or status != "failed" or not error:
        return None
    record = ERROR_DECODER.decode(error)
    step, hash, _ = record.message.partition("#")
    return (step, record) if hash and step.partition("~")[0] == node.id else None


async def tell_rest(ns: Namespace, p: int, run: RunRow, node: NodePlan, given: Gave | None) -> dict[str, Any]:
    """Tells what else there is to know of a node: how far its map came, and what became of it in a run that has ended."""
    about: dict[str, Any] = {}
    step = given.step if given is not None else step_name(node.id, (0,) * len(node.loops))
    ended = failed_item(node, run.text("status"), run.fields.get("error")) if not run.open else None
    if ended is not None:
        step = ended[0]  # maybe of a later iteration than the one it completed in
    if node.is_map:
        about = await tell_map(ns, p, run.id, step)
        about.pop("open", None)
    if ended is not None and about.get("failed"):
        about |= {"status": "failed", "error": {"type": ended[1].type, "message": ended[1].message}}
    elif given is None and not run.open:
        about["status"] = "cancelled"
    return about | iteration_of(node, step if given is not None or ended is not None else "")


def iteration_of(node: NodePlan, step: str) -> dict[str, int]:
    """Tells in which iteration a node of a loop ended; nothing where it did not."""
    numbers = step.partition("~")[2]
    return {"iteration": int(numbers.split(".")[-1]) if numbers else 0} if step and node.loops else {}
