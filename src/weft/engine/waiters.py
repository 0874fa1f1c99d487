"""Steps of graph runs that wait for people and other programs: how they end, and what is said of them meanwhile."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from weft.core.effects import NodeEnd, step_id
from weft.core.graph.compile import NodePlan
from weft.core.model import Token
from weft.core.routing import Iterations, Router
from weft.core.waits import conclude
from weft.engine.engine import Engine
from weft.errors import NotFound
from weft.ids import partition_of
from weft.store.approvals import read_approvals
from weft.store.graphs import read_open_steps
from weft.store.namespace import Namespace
from weft.store.runs import RunRow, read_runs
from weft.store.waits import read_given, read_parked

#: Waiting steps that are named.
SHOWN = 5


Pack = Callable[[str, Any, NodeEnd], Awaitable[bytes]]

_pack = msgspec.msgpack.Encoder().encode


async def conclude_step(
    ns: Namespace, token: Token, router: Router, node: NodePlan, iterations: Iterations, end: NodeEnd, pack: Pack
) -> None:
    """Ends a node whose step was given what it waited for: completed, failed or skipped."""
    given = await read_given(ns, token.partition, token.run)
    if given is None:
        raise NotFound(f"step {token.run} was given nothing")
    end.started_ms = await waited_since(ns, token)
    ended = conclude(node, given)
    end.kind = router.scope.status[node.id] = ended.kind
    if ended.error is not None:
        end.value = _pack(ended.error)
        router.note_failure(node.id, iterations, ended.error)
        router.go(())
    elif ended.kind == "skipped":
        router.ended(node.id, iterations, "-")
    else:
        router.scope.values[node.id] = ended.value
        end.value = await pack(end.run, ended.value, end)
        router.ended(node.id, iterations)


async def waited_since(ns: Namespace, token: Token) -> int:
    """Returns when a step that waited was opened: it took that long, not the moment in which a worker ended it."""
    (row,) = await read_runs(ns, token.partition, [token.run])
    return token.claimed_ms if row is None else row.number("born", token.claimed_ms)


def waiting_facts(row: RunRow) -> dict[str, Any]:
    """Returns what is said of a step that waits; nothing of one that does not."""
    if not row.waits:
        return {}
    about: dict[str, Any] = {"waits_for": row.waits}
    if row.waits == "approval":
        about["approval"] = row.id
    if "due" in row.fields:
        about["due_ms"] = row.number("due", 0)
    return about


async def explain_wait(ns: Namespace, p: int, held: RunRow) -> tuple[str, str]:
    """Returns what a parked step waits for, as a word and a sentence."""
    if held.waits != "approval":
        return "signal", f"waits for signal {held.waits.partition(':')[2]}"
    (asked,) = await read_approvals(ns, p, [held.id])
    who = ", ".join(asked.state.approvers) if asked is not None else ""
    text = f"waits for the approval of {who or 'anybody'}"
    if asked is not None and asked.ask.quorum > 1:
        given = [vote.by for vote in asked.state.votes]
        text += f", {len(given)} of {asked.ask.quorum} given" + (f" (by {', '.join(given)})" if given else "")
    return "approval", f"{text} (weft approvals show {held.id})"


async def explain_waits(engine: Engine, row: RunRow) -> tuple[str, str] | None:
    """Returns why a graph run does not go on, as a word and a sentence; None while some step goes on without help."""
    ns, run, p = engine.ns, row.id, partition_of(row.id)
    if not (await read_parked(ns, p, [run]))[0]:
        return None
    steps = await read_open_steps(ns, p, run)
    rows = await read_runs(ns, p, [step_id(run, step) for step in steps])
    waiting = [held for held in rows if held is not None and held.waits]
    if not waiting:
        return None
    texts = [f"{held.id.partition('/')[2]} {(await explain_wait(ns, p, held))[1]}" for held in waiting[:SHOWN]]
    more = f" and {len(waiting) - SHOWN} more" if len(waiting) > SHOWN else ""
    return "approval" if waiting[0].waits == "approval" else "signal", "; ".join(texts) + more
