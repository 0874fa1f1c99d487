"""Ends the open steps of a graph run that has ended: whoever runs one is told, and its result is refused from then on."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

import msgspec

from weft.core.effects import step_id
from weft.core.model import ErrorRecord
from weft.errors import NotFound
from weft.store.graphs import read_map, read_open_steps, read_result_indexes
from weft.store.namespace import Namespace
from weft.store.runs import end_run, read_runs

#: Steps of one ended run that are ended in one round.
END_BATCH = 200
#: Milliseconds that an ended step is remembered, so that whoever held it is told what became of it.
STEP_KEEP_MS = 60_000
#: Steps that are looked at in one round trip.
PAGE = 200

_ENDED = msgspec.msgpack.encode(ErrorRecord("RunCancelled", "its run has ended", code="run_cancelled"))


async def end_open_steps(ns: Namespace, p: int, run: str, *, by: str, until_ms: int, most: int = END_BATCH) -> bool:
    """Ends up to so many open steps of a run that has ended; returns whether none is left.

    `until_ms` is when it ended: what opened later belongs to a run that was opened again. Steps that went through a gate
    since they were read count as left: the next round finds them where they are then.
    """
    left = False
    async for ids in _pages(ns, p, run):
        for row in await read_runs(ns, p, ids):
            if row is None or not row.open or row.number("born", 0) > until_ms:
                continue
            if most == 0:
                return False
            most -= 1
            with contextlib.suppress(NotFound):
                status, _ = await end_run(ns, p, row, kind="cancelled", value=_ENDED, keep_ms=STEP_KEEP_MS, by=by)
                left |= status == "again"
    return not left


async def _pages(ns: Namespace, p: int, run: str) -> AsyncIterator[list[str]]:
    """Yields the ids of steps that may be open: those of the ledger, and the items that its maps have opened."""
    open_steps = list(await read_open_steps(ns, p, run))
    for at in range(0, len(open_steps), PAGE):
        yield [step_id(run, step) for step in open_steps[at : at + PAGE]]
    for step in open_steps:
        row = await read_map(ns, p, run, step)
        if row is None or not row.at:
            continue
        given = await read_result_indexes(ns, p, run, step, row.at)
        items = [i for i in range(row.at) if i not in given]
        for at in range(0, len(items), PAGE):
            yield [step_id(run, f"{step}#{i}") for i in items[at : at + PAGE]]
