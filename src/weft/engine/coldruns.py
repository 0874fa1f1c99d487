"""Runs that the hot store no longer holds, in the form in which it held them: readers need not care where a run stands."""

from __future__ import annotations

import asyncio
from base64 import b64decode
from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any

from weft.core.fold import PURGED, Logged, RunState, read_facts
from weft.core.history import read_history
from weft.core.model import RunSpec, RunStatus
from weft.core.reflow import reflow
from weft.engine.cold import load_archive
from weft.engine.engine import Engine
from weft.errors import HistoryExpired, NotFound, PartitionLost
from weft.ids import partition_of
from weft.store.archived import Recent, read_mark, read_recent
from weft.store.log import RawEvent
from weft.store.runs import RunRow
from weft.telemetry import get_logger

if TYPE_CHECKING:
    from weft.archive.reader import ColdRun

log = get_logger("weft.archive")


async def find_cold(engine: Engine, run: str, *, whole: bool = False) -> RunRow | None:
    """Returns a finished run as the archive has it; None when it has none. Raises when it cannot say how the run stands.

    `whole`: with what a workflow run showed of itself, and as which run it was tried again.
    """
    found = await engine.cold.reader.run(run) if await readable(engine) else None
    if found is not None and found.state.keep_ms == PURGED:
        return None  # its rows go with the next sweep
    if found is None:
        if other := await archived_elsewhere(engine, partition_of(run)):
            raise NotFound(
                f"there is no run {run} here: if it ever was, then the archive has it, and that is {other}, not"
                f" {engine.cold.address.shown}: set WEFT_DATABASE_URL to the same database",
                run=run,
            )
        if await readable(engine) and await engine.cold.reader.is_to_start(run):
            raise PartitionLost(
                f"run {run} stands in the database, and the store does not know it: an archiver starts it from there",
                run=run,
            )
        return None
    if found.state.gap or found.spec is None:
        raise HistoryExpired(
            f"run {run} is no longer in the store, and its archive has a gap: after event {found.state.seq} it is not known"
            " how it stands",
            run=run,
        )
    if not found.state.finished:
        raise PartitionLost(
            f"run {run} was {found.state.status} when the store lost it (its archive ends with event {found.state.seq});"
            " an archiver rebuilds it, see `weft recover`",
            run=run,
        )
    return (await whole_rows(engine, [found]))[0] if whole else as_row(found)


async def cold_events(engine: Engine, run: str, *, after: int = 0) -> list[RawEvent]:
    """Returns the events of a run with seq > after that are archived, in order."""
    if not await readable(engine):
        return []
    return [_raw(event) for event in await engine.cold.reader.events(run, after=after)]


async def cold_blob(engine: Engine, digest: str) -> bytes | None:
    """Returns a value from the archive by its digest, or None."""
    return await engine.cold.reader.blob(digest) if await readable(engine) else None


async def list_cold(
    engine: Engine,
    wanted: dict[str, Any],
    *,
    limit: int,
) -> tuple[list[RunRow], str]:
    """Lists finished runs of the archive, newest first, by what `weft.archive.wanted` knows.

    Returns also where the next page begins; nothing when this was the last.
    """
    await warn_elsewhere(engine)
    found, before = await list_known(engine, wanted, limit=limit)
    return await whole_rows(engine, found), before


async def list_known(engine: Engine, wanted: dict[str, Any], *, limit: int) -> tuple[list[ColdRun], str]:
    """Lists runs as the archive has them, unfinished ones too if they are wanted; returns also where the next page begins."""
    if not await readable(engine):
        return [], ""
    from weft.archive.wanted import Wanted

    found = await engine.cold.reader.listed(Wanted(**wanted), limit=limit)
    before = found[-1].state.id.partition("-")[2] if len(found) == limit else ""
    return [each for each in found if _is_there(each)], before


async def read_unindexed(engine: Engine, *, most: int) -> list[Recent] | None:
    """Returns what the log of each partition tells of runs, as far as the archive has no rows of it yet: all else it knows.

    None when that cannot be said: nobody archives, or to another database, or not from the beginning, or something could not
    be stored; or when more than `most` runs are told of.
    """
    if not await readable(engine):
        return None
    found = await asyncio.gather(*(read_recent(engine.ns, p, most=most) for p in range(engine.ns.partitions)))
    recent = [each for each in found if each is not None]
    if len(recent) < len(found):
        return None
    await load_archive("writer")
    from weft.archive.writer import read_identity

    ours = await read_identity(engine.cold.database)
    if any(each.database != ours for each in recent) or await engine.cold.reader.count_gaps():
        return None
    return recent if sum(len(each.runs) for each in recent) <= most else None


async def count_cold(
    engine: Engine,
    wanted: dict[str, Any],
    by: str,
    *,
    without: Collection[str],
    admits: Callable[[RunRow], Awaitable[bool]],
) -> dict[str, int]:
    """Counts finished runs of the archive by a column, those that `list_cold` has and that are admitted, `without` some."""
    await warn_elsewhere(engine)
    if not await readable(engine):
        return {}
    from weft.archive.wanted import Wanted

    async def judge(found: ColdRun) -> bool:
        return _is_there(found) and await admits(as_row(found))

    return await engine.cold.reader.counted(Wanted(**wanted), by, without=without, admits=judge)


def _is_there(found: ColdRun) -> bool:
    return found.spec is not None and found.state.keep_ms != PURGED


async def archived_elsewhere(engine: Engine, p: int = 0) -> str:
    """Returns the database that a partition is archived to if it is not this engine's; else, or if nobody archives, nothing."""
    mark = await read_mark(engine.ns, p) if p < engine.ns.partitions else None
    if mark is None or not mark.database:
        return ""
    if await readable(engine):
        from weft.archive.writer import read_identity

        if mark.database == await read_identity(engine.cold.database):
            return ""
    return mark.name


async def warn_elsewhere(engine: Engine) -> None:
    """Says once that lists end with what the store holds, where this engine's database is not the one that has the rest."""
    if engine.cold.checked:
        return
    engine.cold.checked = True
    if other := await archived_elsewhere(engine):
        log.warning(
            "lists and counts lack what only the archive has: it is another database; set WEFT_DATABASE_URL to the same",
            theirs=other,
            ours=engine.cold.address.shown,
        )


async def readable(engine: Engine) -> bool:
    """Tells whether there is an archive to read. Raises when there should be one and it does not serve."""
    if not engine.cold.exists:
        return False
    await load_archive("reader")
    return await engine.cold.reader.ready()


async def open_archive(engine: Engine, module: str) -> bool:
    """Opens the store, then loads a module of the archive; False where there is nothing to read."""
    await engine.open()
    if not await readable(engine):
        return False
    await load_archive(module)
    return True


async def whole_rows(engine: Engine, found: Sequence[ColdRun]) -> list[RunRow]:
    """Returns finished runs with what other rows, or events alone, tell of them."""
    rows = {row.id: row for row in map(as_row, found)}
    unsaid: dict[int, list[RunState]] = {}
    for each in found:
        if each.state.kind == "workflow" and each.state.shown is None:
            unsaid.setdefault(partition_of(each.state.id), []).append(each.state)
    for states in unsaid.values():
        for run, logged in (await engine.cold.reader.events_of_runs(states)).items():
            if state := reflow(read_history(run, logged)).state:
                rows[run].fields["state"] = state
    again = [each.state.id for each in found if each.state.status != RunStatus.COMPLETED]
    if again:
        await load_archive("rows")
        from weft.archive.rows import read_replays

        for run, new in (await read_replays(engine.cold.database, engine.ns.keys.namespace, again)).items():
            rows[run].fields["replayed"] = new.encode()
    return list(rows.values())


def as_row(found: ColdRun) -> RunRow:
    """Returns the hash that the hot store would have of a finished run."""
    assert found.spec is not None
    fields = fold_fields(found.state, found.spec, found.value)
    if found.state.shown:
        fields["state"] = b64decode(found.state.shown)
    return RunRow(found.state.id, found.spec, fields | ({"gap": b"1"} if found.state.gap else {}))


def fold_fields(state: RunState, spec: RunSpec, value: bytes | None) -> dict[str, bytes]:
    """Returns the fields of the hash of a run that stands like this, as far as readers use them."""
    numbers = {
        "born": state.created_ms,
        "seq": state.seq,
        "attempt": state.attempt,
        "ended": state.ended_ms,
    }
    # Absent in the hash while they say nothing.
    optional = {"started": state.started_ms, "crashes": state.crashes, "deadline": state.deadline_ms}
    fields = {name: str(number).encode() for name, number in numbers.items()}
    fields |= {name: str(number).encode() for name, number in optional.items() if number}
    fields["open"] = f"={state.delivery}:{'*' if state.kind == 'graph' else '-'}".encode()
    fields["status"] = state.status.encode()
    if state.progress:
        fields["progress"] = state.progress.encode()
    if state.parent and spec.definition:
        fields["parent"] = state.parent.encode()
    if state.worker:
        fields["by"] = state.worker.encode()
    if value is not None:
        fields["result" if state.status == "completed" else "error"] = value
    if spec.definition:
        fields["def"] = spec.definition.encode()
    return fields


def _raw(event: Logged) -> RawEvent:
    facts = read_facts(event.facts)
    return RawEvent(event.entry, event.run, event.seq, event.type, event.at_ms, event.by, facts, event.payload)
