"""Says why a graph run does not go on: for every open step what binds it, and for the run the step that goes on first."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgspec

from weft.core.effects import ROUTE, SUBGRAPH, UNDOES, run_of, step_id, step_of
from weft.core.model import ERROR_DECODER, RunInfo, RunStatus
from weft.engine.children import find_child
from weft.engine.coldgraph import cold_given
from weft.engine.engine import Engine
from weft.engine.explain import Explanation, explain_pause, explain_row
from weft.engine.explain_flow import explain_flow
from weft.engine.runs import describe, find, load
from weft.engine.waiters import explain_waits
from weft.ids import partition_of
from weft.store.graphs import MapRow, read_map, read_open_items, read_open_steps, read_whole_context
from weft.store.runs import RunRow, read_runs

#: Open steps that are explained one by one; of more than that only the number is told.
MAX_EXPLAINED = 20
#: Open items of one map that are explained.
MAX_ITEMS = 3
#: Open steps, and items of each map, that are explained of a run that a step waits for; further down only the oldest.
MAX_BELOW = 3

#: Which step stands for the run: what moves by itself, then what only has to wait, then what somebody must do something about.
_ORDER = ("running", "deciding", "queued", "admitting", "retrying", "delayed", "rate", "concurrency")


async def explain_run(engine: Engine, run: str) -> Explanation:
    """Returns why a run of a task or a graph does not go on."""
    row, p = await find(engine, run), partition_of(run)
    if not row.spec.definition:
        return await explain_flow(engine, row) or await explain_row(engine, p, row)
    if not row.open:
        return await _ended(engine, p, row)
    return await _open(engine, p, row, MAX_EXPLAINED)


async def _open(engine: Engine, p: int, row: RunRow, most: int) -> Explanation:
    opened = await read_open_steps(engine.ns, p, row.id)
    # The oldest first: what has waited longest is what people ask about.
    names = sorted(opened, key=lambda step: (opened[step], step))
    found: list[tuple[str, Explanation]] = []
    for step in names[:most]:
        found += [(step, one) for one in await _step(engine, p, row.id, step, most)]
    # What a step does for the whole of a map stands behind the map itself.
    whole_maps = {step for step, _ in found}
    steps = [one for step, one in found if step == one.step or one.step not in whole_maps]
    n = len(names) - (len(found) - len(steps))
    info = describe(row, "")
    if not steps:
        text = "its last step has just ended, and its end is being written"
        return Explanation(row.id, info.status, "ending", text, open_steps=len(names))
    whole = _whole(info, steps, n)
    if paused := await explain_pause(engine, p, row):
        text, facts = paused
        return msgspec.structs.replace(whole, reason="run_paused", text=text, **facts)
    if row.number("parked", 0) and (waiting := await explain_waits(engine, row)):
        # Nothing moves by itself: what somebody must do is the answer.
        reason, text = waiting
        return msgspec.structs.replace(whole, status=RunStatus.WAITING, reason=reason, text=text)
    return whole


def _whole(info: RunInfo, steps: list[Explanation], n: int) -> Explanation:
    """Returns what holds for the run: the reason of the step that goes on first, and how many others are open."""
    first = min(steps, key=_rank)
    others = n - 1
    more = f"; {others} other step{'s are' if others > 1 else ' is'} open" if others else ""
    return msgspec.structs.replace(
        first,
        run_id=info.id,
        status=info.status,
        text=f"{first.step}: {first.text}{more}" if first.step else f"{first.text}{more}",
        open_steps=n,
        steps=steps,
    )


def _rank(step: Explanation) -> tuple[int, datetime]:
    place = _ORDER.index(step.reason) if step.reason in _ORDER else len(_ORDER)
    return place, step.until or datetime.max.replace(tzinfo=UTC)


async def _step(engine: Engine, p: int, run: str, step: str, most: int) -> list[Explanation]:
    (row,) = await read_runs(engine.ns, p, [step_id(run, step)])
    if row is not None:
        return [await _one(engine, p, row, most)] if row.open else []
    progress = await read_map(engine.ns, p, run, step)
    return [] if progress is None else [await _map(engine, p, run, step, progress, most)]


async def _one(engine: Engine, p: int, row: RunRow, most: int) -> Explanation:
    """Explains one open step: one that waits for another run by what that run waits for."""
    found = _named(await explain_row(engine, p, row))
    if row.spec.name == ROUTE:
        return _deciding(found)
    if found.step.endswith(UNDOES):
        step = found.step.removesuffix(UNDOES)
        return msgspec.structs.replace(found, step=step, text=f"is undone, since the run fails: {found.text}")
    if row.spec.name != SUBGRAPH or found.reason != "delayed":
        return found
    run, step = found.run_id, found.step
    child, below = await find_child(engine.ns, p, run, step, describe(row, "").attempt, since_ms=row.number("born", 0))
    if below is None or not below.open:
        return msgspec.structs.replace(
            found, reason="deciding", text=f"run {child} has ended; the next free worker takes over how", until=None
        )
    why = await _open(engine, p, below, MAX_BELOW if most == MAX_EXPLAINED else 1)
    return msgspec.structs.replace(
        why,
        run_id=run,
        step=step,
        text=f"waits for run {child} of graph {below.spec.name}: {why.text}",
        open_steps=0,
        steps=[],
    )


def _deciding(found: Explanation) -> Explanation:
    """Names a step that decides by the node it decides for, and says what it does when somebody is at it."""
    name = found.step.partition("+")[0].rstrip("?=>@")
    changes: dict[str, Any] = {"step": "" if name.startswith("$") else name}
    if found.reason == "running":
        what = "opens its next items" if "+" in found.step else "decides what follows"
        changes |= {"reason": "deciding", "text": f"worker {found.by} {what}"}
    return msgspec.structs.replace(found, **changes)


async def _map(engine: Engine, p: int, run: str, step: str, progress: MapRow, most: int) -> Explanation:
    """Explains a map by the item that goes on first among the oldest open ones."""
    head = f"{progress.done} of {progress.n} items are done" + (
        f", {progress.failed} failed" if progress.failed else ""
    )
    indexes = await read_open_items(engine.ns, p, run, step, progress.at, limit=min(MAX_ITEMS, most))
    rows = await read_runs(engine.ns, p, [step_id(run, f"{step}#{index}") for index in indexes])
    found = [await _one(engine, p, row, most) for row in rows if row is not None and row.open]
    if not found:
        text = f"{head}; the next free worker goes on with it"
        return Explanation(run, describe(await load(engine, run), "").status, "deciding", text, step=step)
    first = min(found, key=_rank)
    n_open = progress.at - progress.done - progress.failed
    twice = f" ({progress.copies} started twice)" if progress.copies else ""
    text = f"{head}, {n_open} open{twice}; {first.step}: {first.text}"
    return msgspec.structs.replace(first, step=step, text=text)


def _named(found: Explanation) -> Explanation:
    return msgspec.structs.replace(found, run_id=run_of(found.run_id), step=step_of(found.run_id))


async def _ended(engine: Engine, p: int, row: RunRow) -> Explanation:
    """Explains a run that is over; of a failed one also the node it failed at."""
    found = await explain_row(engine, p, row)
    if row.text("status") != "failed":
        return found
    error = ERROR_DECODER.decode(row.fields["error"])
    changes: dict[str, Any] = {}
    # What the nodes gave goes from the store with the run, and sooner than a dead letter.
    context = await read_whole_context(engine.ns, p, row.id) or await cold_given(engine, row)
    for id, given in context.items():
        if given.status == "failed" and ERROR_DECODER.decode(given.value).message == error.message:
            changes = {"step": given.step, "text": f"{found.text} (node {id})"}
    return msgspec.structs.replace(found, **changes)
