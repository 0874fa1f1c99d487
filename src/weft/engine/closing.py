"""Ends what is still open of a graph run, or of one of its maps: steps that wait, are queued, or run on some worker."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Sequence

import msgspec

from weft.core.effects import SUBGRAPH, run_of, step_id, step_of
from weft.core.model import ErrorRecord
from weft.errors import NotFound
from weft.ids import child_run_id
from weft.store.graphs import read_map, read_open_steps, read_results
from weft.store.namespace import Namespace
from weft.store.runs import RunRow, end_run, read_runs

#: Milliseconds that an ended step is remembered, so that whoever held it is told what became of it.
STEP_KEEP_MS = 60_000
#: Steps that are read at once.
PAGE = 200

_ENDED = msgspec.msgpack.encode(ErrorRecord("RunCancelled", "its run has ended", code="run_cancelled"))
_ORPHANED = msgspec.msgpack.encode(
    ErrorRecord("RunCancelled", "the run that it belongs to has ended", code="run_cancelled")
)


async def open_items(ns: Namespace, p: int, run: str, step: str) -> list[str]:
    """Returns the ids of a map's items that were opened and have given nothing."""
    row = await read_map(ns, p, run, step)
    if row is None:
        return []
    results = await read_results(ns, p, run, step, row.n)
    return [step_id(run, f"{step}#{i}") for i in range(row.at) if i not in results]


async def open_ids(ns: Namespace, p: int, run: str) -> AsyncIterator[list[str]]:
    """Yields the ids of what is open of a run, a step with all its items at a time."""
    for step in await read_open_steps(ns, p, run):
        yield [step_id(run, step), *await open_items(ns, p, run, step)]


async def end_steps(ns: Namespace, p: int, ids: Sequence[str], *, by: str, most: int = 1 << 30) -> int:
    """Ends steps, so many at most, and returns how many: what they still give is refused, and who holds one is told."""
    ended = 0
    for at in range(0, len(ids), PAGE):
        for row in await read_runs(ns, p, ids[at : at + PAGE]):
            if row is None or ended >= most:
                continue
            if row.open:
                await _end(ns, p, row, by=by)
                ended += 1
            if row.spec.name == SUBGRAPH:  # also of a step that was ended by somebody who died before this
                await _end_child(ns, p, row, by=by)
    return ended


async def _end_child(ns: Namespace, p: int, row: RunRow, *, by: str) -> None:
    """Ends the run that a step has started. The step is over, so it starts no other."""
    child = child_run_id(run_of(row.id), step_of(row.id), row.number("attempt", 1))
    found = (await read_runs(ns, p, [child]))[0]
    if found is not None and found.open:
        with contextlib.suppress(NotFound):
            await end_run(ns, p, found, kind="cancelled", value=_ORPHANED, keep_ms=found.spec.keep_ms, by=by)


async def _end(ns: Namespace, p: int, row: RunRow, *, by: str) -> None:
    found: RunRow | None = row
    with contextlib.suppress(NotFound):
        while found is not None:
            status, _ = await end_run(ns, p, found, kind="cancelled", value=_ENDED, keep_ms=STEP_KEEP_MS, by=by)
            if status != "again":
                return
            found = (await read_runs(ns, p, [row.id]))[0]  # it went through a gate meanwhile
