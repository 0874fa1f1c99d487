"""The verbs that replay dead letters: the same work once more, as new runs. Of letters that only the archive has, too."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from weft.core.carrying import REDACTED
from weft.core.effects import run_of
from weft.core.letters import ReplayReport
from weft.core.model import SPEC_ENCODER, RunSpec
from weft.engine.coldletters import find_letter, home_for, input_for, is_known, reserve
from weft.engine.coldruns import cold_blob
from weft.engine.engine import Engine
from weft.engine.letters import Progress, act_on, chunks, home_of, is_dead, seek
from weft.errors import Conflict, NotFound
from weft.ids import new_run_id, partition_of
from weft.store.blobs import stage_blob
from weft.store.letters import copy_inputs, mark_replays, reserve_replays
from weft.store.runs import NewRun, RunRow, read_records, read_runs


async def replay(engine: Engine, run: str, *, force: bool) -> str:
    """Starts a new run of a dead letter and returns its id.

    Conflict, unless forced, when it was replayed before, and when a call that counts as one with it is active.
    """
    row, cold = await seek(engine, run)
    if cold:
        new, why = await _replay_cold(engine, row, force=force)
    else:
        new, why = (await _replay(engine, home_of(run), [row], force=force))[0]
    if new:
        return new
    if why == "other":
        raise Conflict(f"run {run} is no dead letter: it has not failed, so there is nothing to replay", run=run)
    if why == "graph":
        raise Conflict(
            f"run {run} is of a graph: `weft runs retry` opens it again, `weft runs fork` starts a new one from a step",
            run=run,
        )
    if why == "redacted":
        raise Conflict(
            f"run {run} is not replayed: secrets were taken out of its arguments when it was exported. Start it anew with"
            " them, or force the replay without",
            run=run,
        )
    if why == "gone":
        raise NotFound(f"there is no run {run} any more: it was purged or has expired", run=run)
    if why == "no input":
        raise NotFound(f"run {run} cannot be replayed: its arguments are no longer kept", run=run)
    if why.startswith("active "):
        active = why.partition(" ")[2]
        raise Conflict(
            f"run {run} is not replayed: a call that counts as one with it is active as run {active}. Wait for that one"
            " or cancel it, or force the replay to run beside it",
            run=run,
            active=active,
        )
    raise Conflict(
        f"run {run} was replayed before, as {why.partition(' ')[2]}: look at that run, or force another replay",
        run=run,
        replayed_as=why.partition(" ")[2],
    )


async def replay_many(
    engine: Engine, ids: Sequence[str], *, force: bool, progress: Progress | None = None
) -> ReplayReport:
    """Replays dead letters, a hundred per round; what was replayed before or has an active equal is skipped unless forced.

    Safe to repeat after an error: what was replayed is marked, and is skipped the next time.
    """
    await engine.open()
    report, done = ReplayReport(len(ids), {}, {}), 0
    for run in dict.fromkeys(run for run in ids if home_of(run) >= engine.ns.partitions):
        await _note_replay(engine, run, report, force=force)
    for p, chunk in chunks(engine, ids):
        rows = dict(zip(chunk, await read_runs(engine.ns, p, chunk), strict=True))
        there = [row for row in rows.values() if row is not None]
        for run in [run for run, row in rows.items() if row is None]:
            await _note_replay(engine, run, report, force=force)
        for row, (new, why) in zip(there, await _replay(engine, p, there, force=force), strict=True):
            if new:
                report.replayed[row.id] = new
            else:
                report.skipped[row.id] = why
        done += len(chunk)
        if progress is not None:
            progress(done, len(ids))
    return report


async def _note_replay(engine: Engine, run: str, report: ReplayReport, *, force: bool) -> None:
    """Replays a letter that the store does not have, and says in the report what came of it."""
    row = await find_letter(engine, run)
    new, why = ("", "gone") if row is None else await _replay_cold(engine, row, force=force)
    if new:
        report.replayed[run] = new
    else:
        report.skipped[run] = why


async def _replay_cold(engine: Engine, row: RunRow, *, force: bool) -> tuple[str, str]:
    """Replays a letter that only the archive has; returns (new run, "") or ("", why not).

    1. Reserve an id in the database. 2. Start under it. Who finds an id that nobody started goes on with it.
    """
    await engine.open()
    if row.is_graph:
        return "", "graph"
    if not is_dead(row):
        return "", "other"
    p = home_for(engine, row)
    data = await input_for(engine, row)
    if data is None:
        return "", "no input"
    if REDACTED.encode() in data and not force:
        return "", "redacted"
    while True:
        ended, active = await _equals(engine, p, [row])
        if row.id in active and not force:
            return "", f"active {active[row.id]}"
        new, mine = await reserve(engine, row.id, new_run_id(p), force=force)
        if not mine and await is_known(engine, new):
            return "", f"replayed {new}"
        home = partition_of(new)
        if row.spec.blob:
            await stage_blob(engine.ns, home, new, data)
        fresh = _new_run(row, new, "f" if force else "t", ended.get(row.id, ""))
        (word,) = await engine.start_batch(home, [fresh])
        # Else the record of an equal call has changed hands between being read and being taken.
        if not word.startswith("active "):
            return (new, "") if word in ("started", "exists") else ("", "no input")


async def _replay(engine: Engine, p: int, rows: Sequence[RunRow], *, force: bool) -> list[tuple[str, str]]:
    """Replays letters of one partition; returns (new run, "") or ("", why not) for each."""
    told: dict[str, tuple[str, str]] = {}
    # Once, unless the record of an equal call changes hands between being read and being taken.
    while left := [row for row in rows if row.id not in told]:
        told |= await _replay_at_once(engine, p, left, force=force)
    return [told[row.id] for row in rows]


async def _replay_at_once(engine: Engine, p: int, rows: Sequence[RunRow], *, force: bool) -> dict[str, tuple[str, str]]:
    """Replays letters; what is to be looked at again is left out.

    1. Reserve an id: from here on nobody starts another. 2. Start under it: repeated, that changes nothing. 3. Mark. A
    process that dies in between leaves the reservation, and the next replay goes on with the same id.
    """
    ns = engine.ns
    ended, active = await _equals(engine, p, rows)
    told = {row.id: ("", "graph") for row in rows if row.is_graph}
    told |= {} if force else {run: ("", f"active {other}") for run, other in active.items()}
    rows = [row for row in rows if row.id not in told]
    words = await reserve_replays(ns, p, [(row.id, new_run_id(p)) for row in rows], force=force) if rows else []
    reserved = [(row, word.partition(" ")[2]) for row, word in zip(rows, words, strict=True) if word[:8] == "reserved"]
    await _bring_inputs(engine, p, [(run_of(row.id), new, row.spec.blob) for row, new in reserved if row.spec.blob])
    fresh = [_new_run(row, new, "f" if force else "t", ended.get(row.id, "")) for row, new in reserved]
    started = await engine.start_batch(p, fresh) if fresh else []
    ready = [(row.id, new) for (row, new), word in zip(reserved, started, strict=True) if word in ("started", "exists")]
    acts = [act_on(engine, "replay", run, {"replayed_as": new, "forced": force}) for run, new in ready]
    marked = await mark_replays(ns, p, ready, acts=acts, by=engine.id) if ready else []
    won = {run: new for (run, new), mine in zip(ready, marked, strict=True) if mine}
    lost = {run: f"replayed {new}" for run, new in ready if run not in won}
    again = {row.id for (row, _), word in zip(reserved, started, strict=True) if word.startswith("active ")}
    return told | {
        row.id: (won[row.id], "")
        if row.id in won
        else ("", lost.get(row.id) or (word if word[:8] != "reserved" else "no input"))
        for row, word in zip(rows, words, strict=True)
        if row.id not in again
    }


async def _bring_inputs(engine: Engine, p: int, inputs: Sequence[tuple[str, str, str]]) -> None:
    """Gives new runs the large inputs (run, new run, digest) of letters; of a graph run that is gone, from the archive."""
    copied = await copy_inputs(engine.ns, p, inputs)
    for (_, new, digest), is_there in zip(inputs, copied, strict=True):
        if not is_there and (data := await cold_blob(engine, digest)) is not None:
            await stage_blob(engine.ns, p, new, data)


async def _equals(engine: Engine, p: int, rows: Sequence[RunRow]) -> tuple[dict[str, str], dict[str, str]]:
    """Returns by letter who has the record of equal calls: a run that has ended, or one that is active."""
    recorded = [row for row in rows if row.spec.once_ms and is_dead(row)]
    if not recorded:
        return {}, {}
    holders = await read_records(engine.ns, p, [_record(row.spec) for row in recorded])
    found = dict(zip(holders, await read_runs(engine.ns, p, holders), strict=True))
    ended: dict[str, str] = {}
    active: dict[str, str] = {}
    for row, holder in zip(recorded, holders, strict=True):
        run = found[holder]
        if run is None or not run.open:
            ended[row.id] = holder
        elif run.spec.replay_of != row.id and not row.text("replayed"):  # those are told of its replay
            active[row.id] = holder
    return ended, active


def _record(spec: RunSpec) -> str:
    return spec.unique or spec.once


def _new_run(row: RunRow, new: str, policy: str, ended: str) -> NewRun:
    """The same work once more, now: without the key that would join it to the old run, and without its delay.

    Of calls that count as one it is the one that later ones join.
    """
    spec: RunSpec = msgspec.structs.replace(
        row.spec, key="", durability="", delay_ms=0, due_ms=0, debounced=False, replay_of=row.id
    )
    packed = SPEC_ENCODER.encode(spec)
    if not spec.once_ms:
        return NewRun(new, spec, packed)
    return NewRun(new, spec, packed, policy=policy, unique=_record(spec), unique_ms=spec.once_ms, ended=ended)
