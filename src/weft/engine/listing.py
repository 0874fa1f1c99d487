"""Listing runs: those the hot store holds, and finished ones of the archive, once each, newest first.

Where the archive knows of every run, it says which runs a page has, and the hot store how they stand: then a page costs what
it shows, however many runs there are. Else all ids of the hot store are looked at.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from weft.core.model import VALUE_DECODER, RunInfo, RunStatus
from weft.engine.coldruns import count_cold, list_cold, list_known, read_unindexed, whole_rows
from weft.engine.engine import Engine
from weft.engine.runs import blob_of, describe, describe_all
from weft.errors import ResultExpired
from weft.ids import partition_of
from weft.store.queues import read_delivered
from weft.store.runs import RunRow, read_runs, scan_runs

#: Archived runs that one statement reads at most: a long list must not take longer than a statement may.
PAGE = 1_000
#: Hot runs that are read at once.
HOT_PAGE = 200
#: Runs of which the archive may not know the last, some seconds of full load: with more a list is made by looking at all.
MOST_RECENT = 100_000


@dataclass(frozen=True, slots=True)
class Filter:
    """Which runs a listing wants."""

    status: str | None = None
    name: str | None = None
    tag: tuple[str, str] | None = None
    queue: str | None = None
    kind: str | None = None
    #: Runs with the tag `owner` of this value.
    owner: str | None = None
    #: The run that has started them.
    parent: str | None = None
    #: Class or code of the error that they failed with.
    error: str | None = None
    #: In what they were given or gave.
    text: str | None = None
    #: Not older than this, and older than this, by the part of an id that is in order of time.
    since: str = ""
    until: str = ""

    @property
    def tags(self) -> tuple[tuple[str, str], ...]:
        own = (("owner", self.owner),) if self.owner is not None else ()
        return (*own, self.tag) if self.tag is not None else own

    def admits(self, found: RunInfo) -> bool:
        """Tells whether a run is wanted, as far as that can be told without what it was given and gave."""
        error = found.error or {}
        return (
            (self.status is None or found.status == self.status)
            and (self.name is None or found.name == self.name)
            and (self.queue is None or found.queue == self.queue)
            and (self.kind is None or found.kind == self.kind)
            and all(found.tags.get(name) == value for name, value in self.tags)
            and (self.parent is None or found.parent.partition("/")[0] == self.parent)
            and (
                self.error is None
                or (found.status == RunStatus.FAILED and self.error in (error.get("type"), error.get("code")))
            )
        )

    @property
    def finished(self) -> bool:
        """Whether it may admit finished runs, which the archive has."""
        return self.status is None or RunStatus(self.status).finished

    def spans(self, run: str) -> bool:
        """Tells whether a run is of the time that is wanted."""
        return self.since <= age_of(run) and (not self.until or age_of(run) < self.until)

    def known(self, before: str) -> dict[str, Any]:
        """Returns it as the archive takes it for runs that may be open, too."""
        if self.status is None:
            return {**self.cold(before), "among": "known" if self.finished else "open"}
        if not RunStatus(self.status).finished:
            return {**self.cold(before), "status": None, "among": str(self.status)}
        return {**self.cold(before), "among": "ended"}

    def cold(self, before: str) -> dict[str, Any]:
        """Returns it as the archive takes it, for runs that have ended."""
        names = ("status", "kind", "name", "queue", "parent", "error", "text", "since")
        until = min(filter(None, (before, self.until)), default="")
        return {**{name: getattr(self, name) for name in names}, "tags": self.tags, "before": until}


def age_of(run: str) -> str:
    """Returns the part of an id that is in order of time: what stands before the dash is the partition."""
    return run.partition("-")[2]


async def list_runs(engine: Engine, wanted: Filter, *, limit: int, after: str = "") -> list[RunInfo]:
    """Lists runs, newest first: those the hot store holds, and finished ones of the archive.

    `after`: only those that come after this run in the list. Where the archive does not say which they are, hot ids are read
    by SCAN, so the cost grows with the runs held there; nobody is blocked.
    """
    await engine.open()
    before = age_of(after)
    if (recent := await _read_recent(engine, wanted)) is not None:
        return await _list_known(engine, wanted, recent, limit=limit, before=before)
    # Hot first: what leaves the hot store meanwhile has been archived before.
    found, seen = await _list_hot(engine, wanted, limit=limit, before=before)
    if not wanted.finished:
        return found
    cold: list[RunInfo] = []
    while len(cold) < limit:
        rows, before = await list_cold(engine, wanted.cold(before), limit=min(limit, PAGE))
        # The archive may lag behind: what the hot store holds stands as that says.
        told = [(row, describe(row, "")) for row in rows if row.id not in seen]
        cold += [info for row, info in told if await _is_wanted(engine, wanted, row, info)]
        if not before:
            break
    return sorted([*found, *cold], key=lambda info: age_of(info.id), reverse=True)[:limit]


async def _read_recent(engine: Engine, wanted: Filter) -> set[str] | None:
    """Returns runs that may be wanted without the archive's knowing; None when that cannot be said, or they are too many."""
    told = await read_unindexed(engine, most=MOST_RECENT)
    if told is None:
        return None
    if wanted.status is not None and RunStatus(wanted.status).finished:
        return {run for each in told for run in each.ends[str(wanted.status)] if "/" not in run}
    recent = {run for each in told for run in each.runs}
    if wanted.status == RunStatus.RUNNING:
        for p in range(engine.ns.partitions):
            recent |= await read_delivered(engine.ns, p, limit=MOST_RECENT)
    return recent


async def _list_known(engine: Engine, wanted: Filter, recent: set[str], *, limit: int, before: str) -> list[RunInfo]:
    """Lists runs by what the archive knows, and those of which it may know too little."""
    mine = [run for run in recent if (not before or age_of(run) < before) and wanted.spans(run)]
    found, seen = await _described(engine, wanted, sorted(mine, key=age_of, reverse=True), limit)
    asked = len(found)
    while len(found) - asked < limit:
        known, before = await list_known(engine, wanted.known(before), limit=min(limit, PAGE))
        known = [each for each in known if each.state.id not in seen]
        hot = {row.id: (row, info) for row, info in await _describe_hot(engine, [each.state.id for each in known])}
        # What is not held any more has ended; one that is gone without an end was lost, as whoever reads it is told.
        gone = [each for each in known if each.state.id not in hot and each.state.finished]
        told = {row.id: (row, describe(row, "")) for row in await whole_rows(engine, gone)} | hot
        found += [info for row, info in told.values() if await _is_wanted(engine, wanted, row, info)]
        if not before:
            break
    return sorted(found, key=lambda info: age_of(info.id), reverse=True)[:limit]


async def _describe_hot(engine: Engine, ids: Sequence[str]) -> list[tuple[RunRow, RunInfo]]:
    return [one for at in range(0, len(ids), HOT_PAGE) for one in await _describe_page(engine, ids[at : at + HOT_PAGE])]


async def count_runs(engine: Engine, wanted: Filter, *, by: str) -> dict[str, int]:
    """Counts the runs that a filter admits, by status, kind, name or queue. What both stores hold counts once."""
    await engine.open()
    hot, seen = await _list_hot(engine, wanted, limit=0)
    counts: dict[str, int] = {}
    for info in hot:
        value = str(getattr(info, by))
        counts[value] = counts.get(value, 0) + 1
    if wanted.finished:

        async def admits(row: RunRow) -> bool:
            return await _is_wanted(engine, wanted, row, describe(row, ""))

        cold = await count_cold(engine, wanted.cold(""), by, without=seen, admits=admits)
        counts |= {value: counts.get(value, 0) + n for value, n in cold.items()}
    return {value: n for value, n in sorted(counts.items()) if n > 0}


async def _list_hot(engine: Engine, wanted: Filter, *, limit: int, before: str = "") -> tuple[list[RunInfo], set[str]]:
    """Returns runs that are wanted, all of them without a limit, and the ids of all that were looked at."""
    ids = [run for p in range(engine.ns.partitions) async for run in _ids(engine, p)]
    ids = sorted(
        {run for run in ids if (not before or age_of(run) < before) and wanted.spans(run)}, key=age_of, reverse=True
    )
    return await _described(engine, wanted, ids, limit)


async def _described(engine: Engine, wanted: Filter, ids: Sequence[str], limit: int) -> tuple[list[RunInfo], set[str]]:
    """Returns the first of some runs that are wanted, all of them without a limit, and the ids of all that were looked at."""
    found: list[RunInfo] = []
    seen: set[str] = set()
    for at in range(0, len(ids), HOT_PAGE):
        for row, described in await _describe_page(engine, ids[at : at + HOT_PAGE]):
            seen.add(row.id)
            if await _is_wanted(engine, wanted, row, described):
                found.append(described)
                if len(found) == limit:
                    return found, seen
    return found, seen


async def _is_wanted(engine: Engine, wanted: Filter, row: RunRow, info: RunInfo) -> bool:
    return wanted.admits(info) and (wanted.text is None or await _holds(engine, row, wanted.text.encode()))


async def _holds(engine: Engine, row: RunRow, text: bytes) -> bool:
    """Tells whether a text stands in what a run was given, or gave, or failed with. Packed values have texts as they are."""
    packed = row.fields.get("result", b"")
    value = VALUE_DECODER.decode(packed) if packed else None
    if text in row.spec.input or (value is None and text in row.fields.get("error", b"")):
        return True
    if value is not None and text in value.inline:
        return True
    for digest in filter(None, (row.spec.blob, value.blob if value is not None else "")):
        try:
            if text in await blob_of(engine, row.id, digest):
                return True
        except ResultExpired:
            continue
    return False


async def _ids(engine: Engine, p: int) -> AsyncIterator[str]:
    cursor = 0
    while True:
        cursor, found = await scan_runs(engine.ns, p, cursor)
        for run in found:
            if "/" not in run:  # a step of a graph run is none of its own
                yield run
        if not cursor:
            return


async def _describe_page(engine: Engine, ids: Sequence[str]) -> Iterable[tuple[RunRow, RunInfo]]:
    described: dict[str, tuple[RunRow, RunInfo]] = {}
    for p in {partition_of(run) for run in ids}:
        rows = await read_runs(engine.ns, p, [run for run in ids if partition_of(run) == p])
        live = [row for row in rows if row is not None]
        told = await describe_all(engine, p, live)
        described |= {row.id: (row, info) for row, info in zip(live, told, strict=True)}
    return [described[run] for run in ids if run in described]
