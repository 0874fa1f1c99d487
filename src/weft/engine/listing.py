"""Listing runs: those the hot store holds, and finished ones of the archive, once each, newest first."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass

from weft.core.model import RunInfo, RunStatus
from weft.engine.coldruns import list_cold
from weft.engine.engine import Engine
from weft.engine.runs import describe, describe_all
from weft.ids import partition_of
from weft.store.runs import read_runs, scan_runs


@dataclass(frozen=True, slots=True)
class Filter:
    """Which runs a listing wants."""

    status: str | None = None
    name: str | None = None
    tag: tuple[str, str] | None = None
    queue: str | None = None

    def admits(self, found: RunInfo) -> bool:
        return (
            (self.status is None or found.status == self.status)
            and (self.name is None or found.name == self.name)
            and (self.queue is None or found.queue == self.queue)
            and (self.tag is None or found.tags.get(self.tag[0]) == self.tag[1])
        )


def _age(run: str) -> str:
    """Returns the part of an id that is in order of time: what stands before the dash is the partition."""
    return run.partition("-")[2]


async def list_runs(engine: Engine, wanted: Filter, *, limit: int, after: str = "") -> list[RunInfo]:
    """Lists runs, newest first: those the hot store holds, and finished ones of the archive.

    `after`: only those that come after this run in the list. Hot ids are read by SCAN, so the cost grows with the runs
    held there; nobody is blocked.
    """
    await engine.open()
    before = _age(after)
    hot = await _list_hot(engine, wanted, limit=limit, before=before)
    if wanted.status is not None and not RunStatus(wanted.status).finished:
        return hot
    cold = await list_cold(
        engine,
        status=wanted.status,
        name=wanted.name,
        tag=wanted.tag,
        queue=wanted.queue,
        before=before,
        limit=limit,
    )
    # The archive may lag behind, never be ahead.
    found = {row.id: describe(row, "") for row in cold} | {info.id: info for info in hot}
    return sorted(found.values(), key=lambda info: _age(info.id), reverse=True)[:limit]


async def _list_hot(engine: Engine, wanted: Filter, *, limit: int, before: str = "", page: int = 200) -> list[RunInfo]:
    ids = [run for p in range(engine.ns.partitions) async for run in _ids(engine, p)]
    ids = sorted({run for run in ids if not before or _age(run) < before}, key=_age, reverse=True)
    found: list[RunInfo] = []
    for at in range(0, len(ids), page):
        for described in await _describe_page(engine, ids[at : at + page]):
            if wanted.admits(described):
                found.append(described)
                if len(found) == limit:
                    return found
    return found


async def _ids(engine: Engine, p: int) -> AsyncIterator[str]:
    cursor = 0
    while True:
        cursor, found = await scan_runs(engine.ns, p, cursor)
        for run in found:
            if "/" not in run:  # a step of a graph run is none of its own
                yield run
        if not cursor:
            return


async def _describe_page(engine: Engine, ids: Sequence[str]) -> Iterable[RunInfo]:
    described: dict[str, RunInfo] = {}
    for p in {partition_of(run) for run in ids}:
        rows = await read_runs(engine.ns, p, [run for run in ids if partition_of(run) == p])
        live = [row for row in rows if row is not None]
        described |= {found.id: found for found in await describe_all(engine, p, live)}
    return [described[run] for run in ids if run in described]
