"""The verbs that run part of a graph run anew: retry, in place, and fork, as a run of its own."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from weft.core.effects import ERRORS, UNDOES, Mark, Open, route_spec
from weft.core.given import Gave
from weft.core.graph.schema import check_input, pack_input
from weft.core.model import INLINE_BYTES, SPEC_ENCODER, VALUE_DECODER, RunSpec, RunStatus
from weft.core.patch import Ended
from weft.core.recall import read_before, recall
from weft.core.redo import Redo, plan_redo
from weft.core.routing import Published, parse_step
from weft.engine.bringing import READING_MS, bring_back, definitions_of, is_hot, read_cold_graph
from weft.engine.engine import Engine
from weft.engine.graphs import definition_of
from weft.engine.histories import raw_history
from weft.engine.housekeeping.graphs import map_keys
from weft.engine.keeping import definitions_below
from weft.engine.patches import ended_of
from weft.engine.pauses import load_graph
from weft.engine.runs import Started, accepted, blob_of, find, input_of
from weft.errors import Conflict, HistoryExpired, InvalidArguments, NotFound, ResultExpired
from weft.ids import new_run_id, partition_of
from weft.store.blobs import stage_blob
from weft.store.controls import informed
from weft.store.definitions import keep_definitions
from weft.store.graphs import read_definition, read_whole_context, start_graph
from weft.store.retries import drop_maps, read_joins, retry_graph
from weft.store.runs import NewRun, RunRow
from weft.store.undoing import read_failing, read_undoable

#: Looks at a run that has just ended and is still put away, and seconds between them.
MAX_LOOKS, PAUSE = 200, 0.05
#: Finished nodes that a fork may take over: they go in one script call.
MAX_SHARED = 1_000
#: Runs whose history is asked, one forked from the other, for what was given in an earlier iteration.
MAX_ORIGINS = 8
#: Steps that can be undone whose large values a retry keeps.
MAX_UNDOABLE = 1_000

_pack = msgspec.msgpack.Encoder().encode


async def retry(engine: Engine, run: str, *, from_step: str | None, reason: str, by: str) -> list[str]:
    """Opens a failed or cancelled run again, from a step on; returns the nodes that run anew."""
    p = partition_of(run)
    for _ in range(MAX_LOOKS):
        row = await load_graph(engine, run)
        if row.open:
            raise Conflict(f"run {run} has not ended: cancel it first, or fork it", run=run)
        if row.text("status") == RunStatus.COMPLETED:
            raise Conflict(f"run {run} has completed: fork it to run part of it anew", run=run)
        if not await is_hot(engine, row):
            await _bring_back(engine, run)
            continue
        published = await definition_of(engine.ns, p, row.text("def"))
        given = await read_whole_context(engine.ns, p, run)
        _refuse_undone(run, given)
        await _refuse_undoing(engine, p, run)
        redo = plan_redo(published.plan, _ended(published, given), from_step)
        recalled = await _recalled(engine, row, published, redo, run)
        word = await _reopen(engine, p, row, published, given, redo, recalled, from_step, reason, by)
        if word == "retried":
            return list(redo.again)
        if word == "blob_gone":
            raise ResultExpired(f"results of run {run} that a retry needs are no longer kept: start it anew", run=run)
        if word in ("open", "moved"):
            raise Conflict(f"run {run} was retried by somebody else just now", run=run)
        if word != "away":
            await asyncio.sleep(PAUSE)
    raise Conflict(f"run {run} has ended, but no worker has put away what it left: start one, then try again", run=run)


async def _bring_back(engine: Engine, run: str) -> None:
    cold = await read_cold_graph(engine, run)
    if cold is None:
        raise NotFound(
            f"what run {run} left is in the archive alone, and this process cannot read it: set WEFT_DATABASE_URL",
            run=run,
        )
    _refuse_undone(run, cold.found.given)
    await bring_back(engine, cold)


async def _reopen(
    engine: Engine,
    p: int,
    row: RunRow,
    published: Published,
    given: dict[str, Gave],
    redo: Redo,
    recalled: list[Mark],
    from_step: str | None,
    reason: str,
    by: str,
) -> str:
    run, seq, plan = row.id, row.number("seq", 1), published.plan
    again = set(redo.again)
    if await engine.ns.read("ZSCORE", engine.ns.keys.timers(p), f"close:{run}", p=p) is not None:
        return "closing"
    # Before it is open again: nobody reads or writes what the maps of an ended run left.
    maps = [id for id in redo.again if plan.node(id).is_map]
    await drop_maps(engine.ns, p, (await map_keys(engine.ns, p, run, plan, maps)).all)
    joins = [
        join for join in await read_joins(engine.ns, p, run) if parse_step(plan, join)[0] in again - set(redo.roots)
    ]
    spec = msgspec.structs.replace(route_spec(published.address), input=_jobs(redo))
    undoable = await read_undoable(engine.ns, p, run, MAX_UNDOABLE)
    forget = [id for id in given if id.removesuffix(ERRORS) in again - redo.earlier]
    kept = [one for id, one in given.items() if id.removesuffix(ERRORS) in {*redo.kept, *redo.earlier}]
    blobs = {
        row.spec.blob,
        *map(_blob, kept),
        *map(_blob, recalled),
        *(VALUE_DECODER.decode(value).blob for _, value in undoable),
    } - {""}
    record = {"from_step": from_step, "reason": reason, "again": list(redo.again), "reset": joins}
    record["earlier"] = sorted(redo.earlier)
    return await informed(
        engine.ns,
        p,
        lambda: retry_graph(
            engine.ns,
            p,
            run,
            seq=seq,
            deadline_ms=row.spec.deadline_ms,
            forget=forget,
            recall=recalled,
            reset=joins,
            opens=Open(f"$retry{seq}>", spec),
            blobs=sorted(blobs),
            payload=msgspec.json.encode(record),
            by=by,
            maps=sorted({step.partition("#")[0] for step, _ in undoable if "#" in step}),
        ),
    )


async def fork(engine: Engine, run: str, *, from_step: str, input: Any, new_input: bool, by: str) -> Started:
    """Starts a run that shares what another has finished before a step, and goes on from there by itself."""
    row = await load_graph(engine, run)
    cold = None if await is_hot(engine, row, for_ms=READING_MS) else await read_cold_graph(engine, run)
    p = partition_of(run)
    if cold is None:
        published = await definition_of(engine.ns, p, row.text("def"))
        given = await read_whole_context(engine.ns, p, run)
        await _refuse_undoing(engine, p, run)
    else:
        # It may come from elsewhere, of a namespace with more partitions.
        p = p if p < engine.ns.partitions else engine.home()
        published, given = cold.published, cold.found.given
        await keep_definitions(engine.ns, p, await definitions_of(engine, run, {published.address}))
    if new_input and (wrong := check_input(published.plan.spec.input, input)):
        raise InvalidArguments(
            f"the input does not fit graph {published.plan.spec.name}: {'; '.join(wrong)}", problems=wrong
        )
    packed = pack_input(input) if new_input else await input_of(engine, row)
    _refuse_undone(run, given)
    redo = plan_redo(published.plan, _ended(published, given), from_step)
    shared = [*redo.kept, *sorted(redo.earlier)]
    if len(shared) > MAX_SHARED:
        raise Conflict(f"run {run} has {len(shared)} finished nodes; a fork takes over {MAX_SHARED} at most", run=run)
    definition = await read_definition(engine.ns, p, published.address)
    assert definition is not None
    new = new_run_id(p)
    spec = await _forked_spec(engine, new, row, published.address, packed)
    marks, blobs = [], []
    for id in [name for node in shared for name in (node, node + ERRORS) if name in given]:
        one = given[id]
        if digest := _blob(one):
            blobs.append(await stage_blob(engine.ns, p, new, await blob_of(engine, run, digest)))
        marks.append(Mark(id, one.step, one.status, one.value))
    for mark in await _recalled(engine, row, published, redo, new):
        blobs += [digest] if (digest := _blob(mark)) else []
        marks.append(mark)
    step = Open("$fork>", msgspec.structs.replace(route_spec(published.address), input=_jobs(redo)))
    started = NewRun(new, spec, SPEC_ENCODER.encode(spec))
    below = await definitions_below(engine.ns, p, published)
    word = await informed(
        engine.ns,
        p,
        lambda: start_graph(
            engine.ns,
            p,
            started,
            [*marks, step],
            definition=definition,
            result=b"",
            by=by,
            blobs=sorted(set(blobs)),
            below=below,
        ),
    )
    return accepted(new, word, spec)


async def _recalled(engine: Engine, row: RunRow, published: Published, redo: Redo, into: str) -> list[Mark]:
    """Returns what nodes gave in the iteration before, where they are read before they run anew; stages large values.

    A fork has of the past what it shares: the rest is told by the run it was forked from.
    """
    wanted, found = read_before(published, redo), dict[str, Mark]()
    run = row.id
    for _ in range(MAX_ORIGINS):
        if not wanted or not run:
            break
        try:
            events = await raw_history(engine, run)
        except HistoryExpired as error:
            names = ", ".join(sorted(wanted))
            raise ResultExpired(
                f"what {names} of run {row.id} gave in the iteration before is no longer kept: start it anew",
                run=row.id,
            ) from error
        told = recall(published, wanted, events)
        for mark in told.values():
            if digest := _blob(mark):
                await stage_blob(engine.ns, partition_of(into), into, await blob_of(engine, run, digest))
        found |= told
        wanted = {id: before for id, before in wanted.items() if id not in found}
        run = row.spec.replay_of if run == row.id else (await find(engine, run)).spec.replay_of
    return list(found.values())


async def _forked_spec(engine: Engine, new: str, row: RunRow, definition: str, packed: bytes) -> RunSpec:
    """Returns what the fork of a run asks for: what that run did, with this input, at once and under no key."""
    spec = msgspec.structs.replace(
        row.spec,
        key="",
        durability="",
        definition=definition,
        replay_of=row.id,
        input=b"",
        blob="",
        delay_ms=0,
        due_ms=0,
    )
    if len(packed) > INLINE_BYTES:
        return msgspec.structs.replace(spec, blob=await stage_blob(engine.ns, partition_of(new), new, packed))
    return msgspec.structs.replace(spec, input=packed)


def _refuse_undone(run: str, given: dict[str, Gave]) -> None:
    """What was undone is not there to go on from."""
    undone = [name.removesuffix(UNDOES) for name in given if name.endswith(UNDOES)]
    if undone:
        raise Conflict(f"run {run} has undone what it did ({', '.join(undone[:5])}): start it anew", run=run)


async def _refuse_undoing(engine: Engine, p: int, run: str) -> None:
    """What is being undone, or was when the run was ended, may be half there."""
    if await read_failing(engine.ns, p, run) is None:
        return
    if left := await read_undoable(engine.ns, p, run, 1):
        raise Conflict(f"run {run} has begun to undo what it did ({left[0][0]}): start it anew", run=run)


def _jobs(redo: Redo) -> bytes:
    return _pack([(job.what, job.id, job.iterations, job.mark) for job in redo.jobs])


def _ended(published: Published, given: dict[str, Gave]) -> dict[str, Ended]:
    return {id: ended_of(published.plan, id, one) for id, one in given.items() if id in published.plan}


def _blob(given: Gave | Mark) -> str:
    return VALUE_DECODER.decode(given.value).blob if given.status == "completed" else ""
