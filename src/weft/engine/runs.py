"""The verbs on runs: start, read, wait, cancel, list. Load -> decide -> commit; values stay bytes here."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import msgspec

from weft.codec import decode_plain
from weft.core.flow import parent_of
from weft.core.gates import home_of
from weft.core.model import (
    ERROR_DECODER,
    INLINE_BYTES,
    SPEC_ENCODER,
    VALUE_DECODER,
    ErrorRecord,
    RunInfo,
    RunSpec,
    RunStatus,
    Value,
)
from weft.core.starts import key_digest, same_digest
from weft.engine.closing import end_open_steps, end_replaced
from weft.engine.coldruns import cold_blob, find_cold
from weft.engine.committed import LEVEL as COMMITTED
from weft.engine.committed import check_once, start_task, start_tasks
from weft.engine.durability import keep
from weft.engine.engine import Engine
from weft.engine.events import error_dict
from weft.engine.steps import MAX_MESSAGE, keep_failed_ms
from weft.errors import (
    Conflict,
    InvalidOption,
    NotFound,
    OwnershipLost,
    PartitionLost,
    ResultExpired,
    RunCancelled,
    StepFailed,
    Unavailable,
)
from weft.ids import new_run_id, new_run_ids, partition_of
from weft.store.approvals import close_approvals
from weft.store.blobs import read_blob, stage_blob
from weft.store.flows import ask_to_end
from weft.store.namespace import Namespace
from weft.store.runs import (
    NewRun,
    RunRow,
    debounce_run,
    end_run,
    forget_unique,
    is_diverged,
    read_holders,
    read_runs,
    read_unique,
    reschedule_run,
)
from weft.store.waits import read_parked

#: Seconds between two looks whether a store that was lost is rebuilt.
REBUILT_SECONDS = 0.25
#: Runs started by one script call of `start_many`.
CHUNK = 256
#: Milliseconds a debounced call is remembered beyond the time it is to wait: until a worker is there to fire its timer.
DEBOUNCE_SLACK_MS = 86_400_000


@dataclass(frozen=True, slots=True)
class Started:
    """An accepted run."""

    id: str
    deduplicated: bool = False


@dataclass(frozen=True, slots=True)
class Once:
    """What makes a call count as one with others like it."""

    digest: str
    policy: str
    window_ms: int
    #: The call waits that long, and a later one takes its place while it waits.
    debounce: bool = False
    #: A run that failed does not stand in the way of the next call.
    forgiving: bool = False


async def start(engine: Engine, spec: RunSpec, data: bytes, once: Once | None = None, same: bytes = b"") -> Started:
    """Accepts one run. The same idempotency key gives the same run; with another payload it is a conflict.

    `same` is what of the payload is compared then: the arguments without those that only repeat a default.
    """
    if spec.durability == COMMITTED:
        return accepted(*await start_task(engine, spec, data, once, same), spec)
    if spec.durability:
        plain = msgspec.structs.replace(spec, durability="")

        async def call() -> list[Started]:
            return [await start(engine, plain, data, once, same)]

        return (await keep(engine, spec.durability, call))[0]
    await engine.open()
    if once is not None:
        return await _start_once(engine, spec, data, once)
    p = engine.home(spec.key or home_of(spec))
    run = new_run_id(p)
    spec = await _with_input(engine, p, run, spec, data)
    packed = SPEC_ENCODER.encode(spec)
    if not spec.key:
        word = await engine.submit(p, NewRun(run, spec, packed))
    else:
        word = await engine.submit(
            p, NewRun(run, spec, packed, key_digest(spec.key), same_digest(spec, same), spec.key_ms)
        )
    return accepted(run, word, spec)


async def _start_once(engine: Engine, spec: RunSpec, data: bytes, once: Once) -> Started:
    check_once(spec, once)
    p = engine.home(once.digest)
    if once.debounce:
        spec = msgspec.structs.replace(spec, delay_ms=once.window_ms, debounced=True)
    # The timer of a debounced call may fire late, never early. Whoever fires it shortens this.
    record_ms = once.window_ms + (DEBOUNCE_SLACK_MS if once.debounce else 0)
    named = {"unique" if once.forgiving else "once": once.digest}
    spec = msgspec.structs.replace(spec, once_ms=record_ms, **named)
    while True:
        waiting = await read_unique(engine.ns, p, once.digest) if once.debounce else ""
        run = waiting or new_run_id(p)
        full = await _with_input(engine, p, run, spec, data)
        new = NewRun(run, full, SPEC_ENCODER.encode(full), policy=once.policy, unique=once.digest, unique_ms=record_ms)
        if waiting:
            word = await debounce_run(engine.ns, p, waiting, new, by=engine.id)
            if word == "waits":
                return Started(waiting, deduplicated=True)
            if word == "blob_gone":
                continue
            # It has started meanwhile: the next look finds no record, and this call opens the next window.
            await forget_unique(engine.ns, p, once.digest, waiting)
            continue
        word = await engine.submit(p, new)
        if once.debounce and word.startswith("joined"):
            continue  # another call came first: this one is the newer of the two
        if word.startswith("replaced"):
            # The timer service does the same; but a worker that starts now might claim both before it.
            with contextlib.suppress(Unavailable, OwnershipLost):
                await end_replaced(engine.ns, p, [word.partition(" ")[2]], by=engine.id)
        return accepted(run, word, spec)


async def start_many(
    engine: Engine, specs: Sequence[RunSpec], inputs: Sequence[bytes], onces: Sequence[Once] | None = None
) -> list[Started]:
    """Accepts many runs, a few hundred per round trip; returns them in order."""
    if specs and (level := specs[0].durability):
        if level == COMMITTED and onces is None:
            await engine.open()
            found = await start_tasks(engine, specs, inputs, _chunks(engine, specs))
            return [accepted(*one, spec) for one, spec in zip(found, specs, strict=True)]
        if level != COMMITTED:
            plain = [msgspec.structs.replace(spec, durability="") for spec in specs]
            return list(await keep(engine, level, lambda: start_many(engine, plain, inputs, onces)))
    await engine.open()
    if onces is not None:
        return [await start(engine, *call) for call in zip(specs, inputs, onces, strict=True)]
    started: list[Started | None] = [None] * len(specs)
    # Without input and options the spec of every run is the same bytes.
    packed: dict[int, bytes] = {}
    for p, places in _chunks(engine, specs):
        names = new_run_ids(p, len(places))
        runs = []
        for run, i in zip(names, places, strict=True):
            spec, data = specs[i], inputs[i]
            if data:
                small = len(data) <= INLINE_BYTES
                full = (
                    msgspec.structs.replace(spec, input=data)
                    if small
                    else await _with_input(engine, p, run, spec, data)
                )
                runs.append(NewRun(run, full, SPEC_ENCODER.encode(full)))
            else:
                bare = packed.get(id(spec))
                if bare is None:
                    bare = packed[id(spec)] = SPEC_ENCODER.encode(spec)
                runs.append(NewRun(run, spec, bare))
        for run, i, word in zip(names, places, await engine.start_batch(p, runs), strict=True):
            started[i] = accepted(run, word, specs[i])
    return [one for one in started if one is not None]


def _chunks(engine: Engine, specs: Sequence[RunSpec]) -> Iterator[tuple[int, Sequence[int]]]:
    """Yields partitions with the places of the runs that go there, a call's worth at a time, in order."""
    homes: dict[int, list[int]] | None = None
    if engine.ns.partitions > 1 and any(spec.limits for spec in specs):
        homes = {}
        for i, spec in enumerate(specs):
            homes.setdefault(engine.home(home_of(spec)), []).append(i)
    for p, places in homes.items() if homes is not None else [(-1, range(len(specs)))]:
        for at in range(0, len(places), CHUNK):
            yield (engine.home() if p < 0 else p), places[at : at + CHUNK]


async def _with_input(engine: Engine, p: int, run: str, spec: RunSpec, data: bytes) -> RunSpec:
    if not data:
        return spec
    if len(data) <= INLINE_BYTES:
        return msgspec.structs.replace(spec, input=data)
    return msgspec.structs.replace(spec, blob=await stage_blob(engine.ns, p, run, data))


def accepted(run: str, word: str, spec: RunSpec) -> Started:
    verdict, _, other = word.partition(" ")
    if verdict in ("started", "replaced", "exists"):
        return Started(run)
    if verdict == "joined":
        return Started(other, deduplicated=True)
    if verdict == "dropped":
        return Started(run, deduplicated=True)
    if verdict == "conflict":
        raise Conflict(
            f"idempotency key {spec.key!r} was used before, for run {other}, with another task or other arguments:"
            " use the same arguments, or another key",
            run=other,
            key=spec.key,
        )
    raise Unavailable(f"the input of run {run} was uploaded but is gone; nothing was started: try again", run=run)


async def end_of(engine: Engine, run: str, timeout: float | None) -> bytes:
    """Waits for a run and returns its result's bytes; raises what its failure or cancellation means."""
    status, value = await _end_anywhere(engine, run, timeout)
    if status == RunStatus.COMPLETED:
        return await result_bytes(engine, run, value)
    record = ERROR_DECODER.decode(value)
    if status == RunStatus.CANCELLED:
        raise RunCancelled(f"run {run} was cancelled" + (f": {record.message}" if record.message else ""), run=run)
    raise failure_of(record, run)


async def _end_anywhere(engine: Engine, run: str, timeout: float | None) -> tuple[str, bytes]:
    """Waits for a run's end, in whichever store it stands, and through a loss of the hot one."""
    now = asyncio.get_running_loop().time
    until = None if timeout is None else now() + timeout
    while True:
        try:
            await engine.open()
            return await engine.waiting.end_of(run, None if until is None else max(0.0, until - now()))
        except PartitionLost as error:
            lost = error
        except NotFound:
            try:
                return await _cold_end(engine, run)
            except PartitionLost as error:
                lost = error
        if until is not None and now() >= until:
            raise TimeoutError(f"run {run} did not end in time: {lost.message}")
        await asyncio.sleep(REBUILT_SECONDS)


async def _cold_end(engine: Engine, run: str) -> tuple[str, bytes]:
    """Returns how a run ended that only the archive still has. `keep_result` counts there too."""
    row = await find_cold(engine, run)
    if row is None:
        raise NotFound(f"there is no run {run}: it never was, or it is no longer kept", run=run)
    status = row.text("status")
    keep_ms = keep_failed_ms(row.spec) if status == RunStatus.FAILED else row.spec.keep_ms
    seconds, _ = await engine.ns.read("TIME", p=partition_of(run))
    if int(seconds) * 1000 > row.number("ended", 0) + keep_ms:
        raise ResultExpired(f"run {run} has {status}, but its result is no longer kept (keep_result)", run=run)
    return status, row.fields["result" if status == RunStatus.COMPLETED else "error"]


def failure_of(record: ErrorRecord, run: str) -> StepFailed:
    """Returns the exception that a stored error comes back as."""
    return StepFailed(
        f"{record.type}: {record.message}" if record.message else record.type,
        type=record.type,
        traceback=record.traceback,
        causes=record.causes,
        code=record.code,
        run=run,
    )


async def result_bytes(engine: Engine, run: str, packed: bytes) -> bytes:
    """Returns the bytes of a result, from whichever store has them."""
    value = VALUE_DECODER.decode(packed)
    return await blob_of(engine, run, value.blob) if value.blob else value.inline


async def result_at(ns: Namespace, p: int, run: str, packed: bytes) -> bytes:
    """Returns the bytes of a result that the hot store has, inline or not."""
    return await value_bytes(ns, p, run, VALUE_DECODER.decode(packed))


async def value_bytes(ns: Namespace, p: int, run: str, value: Value) -> bytes:
    return await read_blob(ns, p, run, value.blob) if value.blob else value.inline


async def blob_of(engine: Engine, run: str, digest: str) -> bytes:
    """Returns a large value, from whichever store has it; raises ResultExpired."""
    try:
        return await read_blob(engine.ns, partition_of(run), run, digest)
    except ResultExpired:
        data = await cold_blob(engine, digest)
        if data is None:
            raise
        return data


async def find(engine: Engine, run: str, *, whole: bool = False) -> RunRow:
    """Reads one run, from whichever store has it; raises NotFound. `whole`: with what a workflow run showed of itself."""
    try:
        return await load(engine, run)
    except NotFound:
        try:
            row = await find_cold(engine, run, whole=whole)
        except PartitionLost:
            # It may have begun since the store was asked, and be archived already: its starter still waits to hear of it.
            with contextlib.suppress(NotFound):
                return await load(engine, run)
            raise
        if row is None:
            raise
        return row


async def load(engine: Engine, run: str) -> RunRow:
    """Reads one run that the hot store holds; raises NotFound."""
    await engine.open()
    p = partition_of(run)
    row = (await read_runs(engine.ns, p, [run]))[0] if p < engine.ns.partitions else None
    if row is None:
        raise NotFound(f"there is no run {run}: it never was, or it is no longer kept", run=run)
    return row


async def info(engine: Engine, run: str) -> RunInfo:
    """Tells how a run stands."""
    row = await find(engine, run, whole=True)
    return (await describe_all(engine, partition_of(run), [row]))[0]


async def describe_all(engine: Engine, p: int, rows: Sequence[RunRow]) -> list[RunInfo]:
    """Turns rows of one partition into what people read."""
    holders = await read_holders(engine.ns, p, rows)
    parked = [row.id for row in rows if row.open and row.number("parked", 0) > 0]
    waiting = {run for run, waits in zip(parked, await read_parked(engine.ns, p, parked), strict=True) if waits}
    return [describe(row, holders.get(row.id, ""), waits=row.id in waiting) for row in rows]


async def input_of(engine: Engine, row: RunRow) -> bytes:
    """Returns the arguments of a run, as bytes."""
    if row.spec.blob:
        return await blob_of(engine, row.id, row.spec.blob)
    return row.spec.input


def describe(row: RunRow, holder: str, *, waits: bool = False) -> RunInfo:
    """Turns a run's hash into what people read. `holder` is the session that has its token, if any.

    `waits`: all open steps of a graph run wait for something from outside.
    """
    status = row.text("status")
    if row.open and row.is_graph:
        status = RunStatus.WAITING if waits else RunStatus.RUNNING
        if "paused" in row.fields:
            status = RunStatus.PAUSED
    elif (row.open and status != RunStatus.WAITING) or (row.open and row.token):
        status = RunStatus.RUNNING if holder else RunStatus.QUEUED
    fraction, _, message = row.text("progress").partition(" ")
    started = row.number("started", 0)
    return RunInfo(
        id=row.id,
        name=row.spec.name,
        kind="graph" if row.spec.definition else "workflow" if row.spec.flow else "task",
        status=RunStatus(status),
        queue=row.spec.queue,
        priority=row.spec.priority,
        attempt=row.number("attempt", 1),
        delivery=row.delivery,
        created_at=_time(row.number("born", 0)),
        started_at=_time(started) if started else None,
        finished_at=_time(row.number("ended", 0)) if "ended" in row.fields else None,
        due_at=_time(row.due_ms) if row.due_ms else None,
        deadline_at=_time(row.number("deadline", 0)) if "deadline" in row.fields else None,
        progress=float(fraction) if fraction else None,
        message=message,
        # The error of an earlier attempt stays in the hash; a run that completed has none.
        error=error_dict(row.fields["error"]) if "error" in row.fields and "result" not in row.fields else None,
        tags=row.spec.tags,
        durability=row.text("kept") or row.spec.durability or "redis",
        idempotency_key=row.spec.key,
        crashes=row.number("crashes", 0),
        worker=holder or row.text("by"),
        state=dict(decode_plain(row.fields["state"])) if "state" in row.fields else {},
        replay_of=row.spec.replay_of,
        replayed_as=row.text("replayed"),
        parent=row.text("parent") or "/".join(filter(None, parent_of(row.spec))),
        version=row.spec.version,
        gap="gap" in row.fields,
    )


def _time(ms: int) -> datetime:
    return datetime.fromtimestamp(ms / 1000, UTC)


async def cancel(engine: Engine, run: str, *, reason: str, by: str) -> bool:
    """Cancels a run; returns whether it is cancelled now (False: it had finished otherwise)."""
    if not isinstance(reason, str):
        raise InvalidOption(f"reason must be a text, not a {type(reason).__name__}", option="reason")
    text = reason[:MAX_MESSAGE].encode("utf-8", "replace").decode()
    value = msgspec.msgpack.encode(ErrorRecord("RunCancelled", text, code="run_cancelled"))
    while True:
        row = await find(engine, run)
        if not row.open:
            return row.text("status") == RunStatus.CANCELLED
        p = partition_of(run)
        # A workflow whose code does not fit its journal could not be told of the cancellation.
        told = row.spec.flow and not is_diverged(row)
        if told and ("turn" in row.fields or await read_holders(engine.ns, p, [row])):
            return await ask_to_end(engine.ns, p, row, value, by=by)
        keep_ms = row.spec.keep_ms
        status, ended = await end_run(
            engine.ns, partition_of(run), row, kind="cancelled", value=value, keep_ms=keep_ms, by=by
        )
        if status == "again":
            continue
        if ended and row.is_graph:
            # The timer service does the same; whoever runs a step is told at once, even if that service is just changing hands.
            with contextlib.suppress(Unavailable, NotFound):
                await _end_steps(engine, run, by)
        return status == RunStatus.CANCELLED


async def _end_steps(engine: Engine, run: str, by: str) -> None:
    row = await load(engine, run)
    if not row.open:
        if approvals := row.text("approvals").split():
            await close_approvals(engine.ns, partition_of(run), run, approvals, seq=row.number("seq", 1))
        await end_open_steps(engine.ns, partition_of(run), run, by=by, until_ms=row.number("ended", 0))


async def reschedule(engine: Engine, run: str, *, when: str, by: str) -> datetime:
    """Moves the moment at which a run that waits goes on; returns it. Conflict when it does not wait."""
    await engine.open()
    p = partition_of(run)
    if p >= engine.ns.partitions:
        raise NotFound(f"there is no run {run}: it never was, or it is no longer kept", run=run)
    try:
        return _time(await reschedule_run(engine.ns, p, run, when, by=by))
    except NotFound:
        row = await find_cold(engine, run)
        if row is None:
            raise
        text = f"run {run} waits for no delay, so there is none to change: it has ended ({row.text('status')})"
        raise Conflict(text, run=run) from None


__all__ = ["ResultExpired", "Started", "cancel", "end_of", "info", "start"]
