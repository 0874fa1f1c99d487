"""Ends what is still open of a graph run, or of one of its maps: steps that wait, are queued, or run on some worker.
Ends runs whose place a newer call took.

Whoever runs one is told, and its result is refused from then on.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Sequence

import msgspec

from weft.core.effects import COPY, SUBGRAPH, run_of, step_id, step_of
from weft.core.model import ErrorRecord
from weft.engine.children import newest_child
from weft.errors import NotFound
from weft.store.graphs import read_map, read_open_steps, read_result_indexes
from weft.store.namespace import Namespace
from weft.store.runs import RunRow, end_run, read_runs

#: Steps of one ended run that are ended in one round.
END_BATCH = 200
#: Milliseconds that an ended step is remembered, so that whoever held it is told what became of it.
STEP_KEEP_MS = 60_000
#: Steps that are looked at in one round trip.
PAGE = 200

_ENDED = msgspec.msgpack.encode(ErrorRecord("RunCancelled", "its run has ended", code="run_cancelled"))
_ORPHANED = msgspec.msgpack.encode(
    ErrorRecord("RunCancelled", "the run that it belongs to has ended", code="run_cancelled")
)
_REPLACED = msgspec.msgpack.encode(
    ErrorRecord("RunCancelled", "a newer call took its place (unique='replace')", code="run_cancelled")
)


async def end_replaced(ns: Namespace, p: int, runs: Sequence[str], *, by: str) -> list[str]:
    """Ends runs whose place a newer call took, if they are open; returns those that are gone."""
    gone = []
    for run, row in zip(runs, await read_runs(ns, p, runs), strict=True):
        if row is None:
            gone.append(run)
            continue
        with contextlib.suppress(NotFound):
            # A run that goes through a gate meanwhile is found by the next look of the timer service.
            await end_run(ns, p, row, kind="cancelled", value=_REPLACED, keep_ms=row.spec.keep_ms, by=by)
    return gone


async def end_open_steps(ns: Namespace, p: int, run: str, *, by: str, until_ms: int, most: int = END_BATCH) -> bool:
    """Ends up to so many open steps of a run that has ended; returns whether none is left.

    `until_ms` is when it ended: what opened later belongs to a run that was opened again.
    """
    async for ids in open_ids(ns, p, run):
        most -= await end_steps(ns, p, ids, by=by, most=most, until_ms=until_ms)
        if most <= 0:
            return False
    return True


async def end_steps(
    ns: Namespace, p: int, ids: Sequence[str], *, by: str, most: int = 1 << 30, until_ms: int | None = None
) -> int:
    """Ends steps, so many at most, and the runs they have started; returns how many. Those opened after `until_ms` stay."""
    ended = 0
    for at in range(0, len(ids), PAGE):
        for row in await read_runs(ns, p, ids[at : at + PAGE]):
            if row is None or ended >= most or (until_ms is not None and row.number("born", 0) > until_ms):
                continue
            if row.open:
                await _end(ns, p, row, by=by)
                ended += 1
            if row.spec.name == SUBGRAPH:  # also of a step that was ended by somebody who died before this
                await _end_child(ns, p, row, by=by)
    return ended


async def open_items(ns: Namespace, p: int, run: str, step: str) -> list[str]:
    """Returns the ids of a map's items that were opened and have given nothing, and of their copies if there are any."""
    row = await read_map(ns, p, run, step)
    if row is None or not row.at:
        return []
    given = await read_result_indexes(ns, p, run, step, row.at)
    items = [step_id(run, f"{step}#{i}") for i in range(row.at) if i not in given]
    return [*items, *(item + COPY for item in items)] if row.copies else items


async def open_ids(ns: Namespace, p: int, run: str) -> AsyncIterator[list[str]]:
    """Yields the ids of steps that may be open: those of the ledger, and the items that its maps have opened."""
    open_steps = list(await read_open_steps(ns, p, run))
    for at in range(0, len(open_steps), PAGE):
        yield [step_id(run, step) for step in open_steps[at : at + PAGE]]
    for step in open_steps:
        if items := await open_items(ns, p, run, step):
            yield items


async def _end_child(ns: Namespace, p: int, row: RunRow, *, by: str) -> None:
    """Ends the run that a step has started. The step is over, so it starts no other."""
    _, child = await newest_child(ns, p, run_of(row.id), step_of(row.id), row.number("attempt", 1))
    if child is not None and child.open:
        with contextlib.suppress(NotFound):
            await end_run(ns, p, child, kind="cancelled", value=_ORPHANED, keep_ms=child.spec.keep_ms, by=by)


async def _end(ns: Namespace, p: int, row: RunRow, *, by: str) -> None:
    found: RunRow | None = row
    with contextlib.suppress(NotFound):
        while found is not None:
            status, _ = await end_run(ns, p, found, kind="cancelled", value=_ENDED, keep_ms=STEP_KEEP_MS, by=by)
            if status != "again":
                return
            found = (await read_runs(ns, p, [row.id]))[0]  # it went through a gate meanwhile
