"""How a workflow run went: its steps along the time; and the runs that a run started."""

from __future__ import annotations

from datetime import UTC, datetime

import msgspec

from weft.core.model import Event, RunStatus
from weft.engine.coldruns import find_cold
from weft.engine.definitions import definition_of
from weft.engine.engine import Engine
from weft.engine.histories import history
from weft.engine.listing import Filter, list_runs
from weft.engine.runs import describe, find
from weft.errors import HistoryExpired, NotFound, WeftError
from weft.ids import partition_of
from weft.store.graphs import read_belongings
from weft.store.runs import RunRow, read_runs

#: Runs that a tree has at most.
MAX_RUNS = 1_000

_OVER = {
    "step_completed": "completed",
    "step_failed": "failed",
    "step_cancelled": "cancelled",
    "child_completed": "completed",
    "child_failed": "failed",
    "child_cancelled": "cancelled",
}


class Span(msgspec.Struct):
    """One thing that a run did: a step, call or child, a timer, or a signal that came."""

    step: str
    #: step (where its run was), call, child, timer or signal.
    kind: str
    status: str
    attempt: int
    asked_at: datetime
    #: When it began; a call may have waited in a queue before.
    started_at: datetime
    ended_at: datetime | None = None
    #: The run that it is, of a child.
    child: str = ""

    @property
    def seconds(self) -> float | None:
        return None if self.ended_at is None else (self.ended_at - self.started_at).total_seconds()


class RunTree(msgspec.Struct):
    """A run and the runs that it started."""

    id: str
    name: str
    status: RunStatus
    created_at: datetime
    finished_at: datetime | None
    #: The step of the run above that this one is.
    step: str = ""
    #: Where its code waits, and for what.
    awaits: str = ""
    children: list[RunTree] = []
    #: Children that are not listed, because a tree has at most 1,000 runs.
    left_out: int = 0


async def timeline(engine: Engine, run: str) -> list[Span]:
    """Returns what a run did, in the order it was begun. Raises HistoryExpired when the log no longer has it all."""
    spans: dict[tuple[str, int], Span] = {}
    opened: dict[str, Span] = {}
    for event in await history(engine, run):
        _take(event, spans, opened)
    return sorted(spans.values(), key=lambda span: (span.started_at, span.step))


def _take(event: Event, spans: dict[tuple[str, int], Span], opened: dict[str, Span]) -> None:
    step, at, seq = event.step, event.at, event.seq
    if event.type in ("step_opened", "child_opened"):
        kind = "call" if event.type == "step_opened" else "child"
        span = Span(step, kind, "open", 1, at, at, child=str(event.data.get("run", "")))
        spans[step, seq] = opened[step] = span
    elif event.type == "timer_fired" and step.startswith("$"):  # not the back-off of a step
        spans[step, seq] = Span(step, "timer", "fired", 1, at, at, at)
    elif event.type == "signalled":
        spans[str(event.data.get("name", "")), seq] = Span(
            str(event.data.get("name", "")), "signal", "given", 1, at, at, at
        )
    elif event.type in _OVER or event.type == "step_retrying":
        status, attempt = _OVER.get(event.type, "retrying"), int(event.data.get("attempt", 1))
        started = event.data.get("started")
        began = at if not isinstance(started, int) or not started else datetime.fromtimestamp(started / 1000, UTC)
        span = opened.get(step) or Span(step, "step", "", attempt, began, began)
        if step in opened and event.type != "step_retrying":
            span.started_at = span.asked_at if span.kind == "child" else began
            span.status, span.attempt, span.ended_at = status, attempt, at
            del opened[step]
        else:
            spans[step, seq] = Span(step, span.kind, status, attempt, span.asked_at, began, at)


async def tree(engine: Engine, run: str) -> RunTree:
    """Returns a run with all the runs that it, and they, have started and that are still kept."""
    return await _tree(engine, await find(engine, run), "", [MAX_RUNS - 1])


async def _tree(engine: Engine, row: RunRow, step: str, room: list[int]) -> RunTree:
    info, p = describe(row, ""), partition_of(row.id)
    awaits = row.text("awaits") if row.open and not row.token else ""
    made = RunTree(row.id, info.name, info.status, info.created_at, info.finished_at, step, awaits, [])
    steps = await _children(engine, p, row)
    found: dict[str, RunRow | None] = {}
    for home in {partition_of(id) for id in steps}:  # one with an id of its own may live elsewhere
        there = [id for id in steps if partition_of(id) == home]
        found |= dict(zip(there, await read_runs(engine.ns, home, there), strict=True))
    for id in steps:
        hot = found[id]
        if room[0] <= 0:
            made.left_out += 1
            continue
        child = hot if hot is not None else await _cold(engine, id)
        if child is None:
            continue
        room[0] -= 1
        made.children.append(await _tree(engine, child, steps[child.id], room))
    return made


async def _cold(engine: Engine, run: str) -> RunRow | None:
    """Returns a run that only the archive still has; None when it is kept nowhere, or nobody knows how it stands."""
    try:
        return await find_cold(engine, run)
    except WeftError:
        return None


async def _children(engine: Engine, p: int, row: RunRow) -> dict[str, str]:
    """Returns the runs that a run started, with the step that each is."""
    if row.spec.definition:
        return await _subgraphs(engine, p, row)
    try:
        events = await history(engine, row.id)
        return {str(event.data["run"]): event.step for event in events if event.type == "child_opened"}
    except (HistoryExpired, NotFound):
        # The log is shorter than the run: what goes with it is known all the same.
        found = [member async for members in read_belongings(engine.ns, p, row.id) for member in members]
        return {member.partition(" ")[2]: "" for member in found if member.startswith("child ")}


async def _subgraphs(engine: Engine, p: int, row: RunRow) -> dict[str, str]:
    """Returns the runs that a graph run started, with the step that each is, in the order they were started."""
    # Of one that ended long ago only the archive knows how it looked.
    address = row.text("def")
    if address and not any(step.child for step in (await definition_of(engine.ns, p, address)).steps.values()):
        return {}
    found = await list_runs(engine, Filter(parent=row.id), limit=MAX_RUNS)
    return {info.id: info.parent.partition("/")[2] for info in reversed(found)}
