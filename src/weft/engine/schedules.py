"""The verbs on schedules: create, publish, pause, resume, trigger, delete, list, archived, next, backfill.

A schedule lives in the partition that its name hashes to, and so do the runs it starts. Each verb reads the schedule, decides,
and writes at the revision it read; when somebody was quicker it begins again.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime

import msgspec

from weft.codec import decode_plain
from weft.core.acts import Act, pack_act
from weft.core.model import INLINE_BYTES, SPEC_ENCODER, RunSpec
from weft.core.schedule import ScheduleInfo, ScheduleSpec
from weft.engine import runs
from weft.engine.coldruns import readable
from weft.engine.engine import Engine, user_name
from weft.errors import Broken, Conflict, InvalidOption, NotFound, PayloadTooLarge
from weft.ids import new_run_id, tick_run_id
from weft.store.controls import informed
from weft.store.runs import NewRun, read_ledgers
from weft.store.schedules import (
    Move,
    ScheduleRow,
    drop_schedule,
    put_schedule,
    read_names,
    read_schedules,
    tick_schedules,
)
from weft.store.scripts import Arg
from weft.store.timers import read_timers
from weft.telemetry import get_logger

log = get_logger("weft.schedules")

#: Runs that one backfill may start.
MAX_BACKFILL = 10_000
#: Schedules read in one round trip.
PAGE = 500

_encode = msgspec.msgpack.Encoder().encode


def tick_run(p: int, name: str, spec: ScheduleSpec, tick_ms: int) -> NewRun:
    """Returns the run of one tick: its id and everything else follow from schedule and tick, whoever makes it."""
    moment = datetime.fromtimestamp(tick_ms / 1000, UTC).isoformat().replace("+00:00", "Z")
    return _run(tick_run_id(p, name, tick_ms), name, spec, {"tick": moment})


def _run(id: str, name: str, spec: ScheduleSpec, tags: Mapping[str, str]) -> NewRun:
    full = msgspec.structs.replace(spec.run, tags={**spec.run.tags, "schedule": name, **tags})
    return NewRun(id, full, SPEC_ENCODER.encode(full))


# --- bringing it about ----------------------------------------------------------------------------


async def create(engine: Engine, name: str, spec: ScheduleSpec) -> ScheduleInfo:
    """Creates a schedule. Asked for again with the same definition it is the same; with another, a conflict."""
    check_run(name, spec.run)
    p = await _home(engine, name)
    packed = _encode(spec)
    while True:
        row = await _read(engine, p, name)
        if row is not None:
            if row.fields["spec"] == packed:
                return describe(row)
            raise Conflict(f"there is a schedule {name} already, with another definition: delete it first", name=name)
        if await _put_new(engine, p, name, spec, None):
            return await get(engine, name)


async def publish(engine: Engine, declared: Mapping[str, ScheduleSpec], *, missing: bool = False) -> None:
    """Brings the schedules that code declares into the store. One that is paused stays so; one that is gone from code stays.

    `missing`: only those that the store does not have; after a loss, when others may run newer code than we do.
    """
    await engine.open()
    for name, spec in declared.items():
        p = engine.home(name)
        while True:
            row = await _read(engine, p, name)
            if row is not None and (missing or row.fields["spec"] == _encode(spec)):
                break
            if row is not None and row.spec.declared_by != spec.declared_by:
                whose = f"app {row.spec.declared_by!r}" if row.spec.declared_by else "somebody at run time"
                log.warning("a declared schedule is not published: its name is taken", schedule=name, by=whose)
                break
            if await _put_new(engine, p, name, spec, row):
                log.info("schedule published", schedule=name, expr=spec.expr, tz=spec.tz)
                break


async def _put_new(engine: Engine, p: int, name: str, spec: ScheduleSpec, old: ScheduleRow | None) -> bool:
    now = await _now(engine, p)
    fields: dict[str, Arg | None] = {"spec": _encode(spec)}
    if old is None:
        fields["born"] = now
    next_ms = old.moment("next") if old is not None else None
    # Only another time of ticking re-arms it: new arguments must not lose a tick that is due this very moment.
    if old is None or (old.spec.expr, old.spec.tz) != (spec.expr, spec.tz):
        next_ms = spec.times.after(now)
        fields |= {"next": next_ms, "waits": None}
    due = None if old is not None and old.paused else next_ms
    # What code declares, its app does; the rest a person.
    verb = "create" if old is None else "change"
    act = _act(engine, verb, name, spec, actor=f"app:{spec.declared_by}" if spec.declared_by else "")
    rev = old.rev if old else "0"
    return await put_schedule(engine.ns, p, name, rev=rev, due_ms=due, fields=fields, act=act, by=engine.id)


def _act(engine: Engine, verb: str, name: str, spec: ScheduleSpec | None = None, *, actor: str = "") -> bytes:
    """Returns what the audit is told."""
    said = {} if spec is None else {"expr": spec.expr, "tz": spec.tz, "task": spec.run.name}
    return pack_act(Act(f"schedule.{verb}", name, actor or user_name(), engine.id, detail=said))


def check_run(name: str, run: RunSpec) -> None:
    """Refuses a run that a schedule cannot start again and again."""
    if run.key:
        raise InvalidOption(
            f"schedule {name}: an idempotency_key names one run, and a schedule starts many: leave it out",
            option="idempotency_key",
        )
    if run.due_ms:
        raise InvalidOption(
            f"schedule {name}: an eta is one moment, and a schedule ticks at many: leave it out, or use delay, which counts"
            " from each tick",
            option="eta",
        )
    if len(run.input) > INLINE_BYTES:
        raise PayloadTooLarge(
            f"schedule {name}: its arguments take {len(run.input)} bytes, at most {INLINE_BYTES} go with every tick: store"
            " them elsewhere and pass where they are"
        )


# --- changing it ----------------------------------------------------------------------------------


async def pause(engine: Engine, name: str) -> ScheduleInfo:
    """Stops a schedule from ticking until it is resumed."""

    def decide(row: ScheduleRow, now: int) -> tuple[int | None, dict[str, Arg | None]]:
        if row.paused:
            return None, {}
        return None, {"paused": 1, "paused_at": now, "paused_by": user_name(), "waits": None}

    return await _change(engine, name, "pause", decide)


async def resume(engine: Engine, name: str) -> ScheduleInfo:
    """Lets a paused schedule tick again, from now on: what passed in between is for `backfill`."""

    def decide(row: ScheduleRow, now: int) -> tuple[int | None, dict[str, Arg | None]]:
        if not row.paused:
            return row.moment("next"), {}
        next_ms = row.spec.times.after(now)
        return next_ms, {"paused": None, "paused_at": None, "paused_by": None, "next": next_ms}

    return await _change(engine, name, "resume", decide)


Decision = Callable[[ScheduleRow, int], tuple[int | None, dict[str, Arg | None]]]


async def _change(engine: Engine, name: str, verb: str, decide: Decision) -> ScheduleInfo:
    p = await _home(engine, name)
    while True:
        row = _found(await _read(engine, p, name), name)
        due, fields = decide(row, await _now(engine, p))
        act = _act(engine, verb, name)
        if not fields or await put_schedule(
            engine.ns, p, name, rev=row.rev, due_ms=due, fields=fields, act=act, by=engine.id
        ):
            return await get(engine, name)


async def delete(engine: Engine, name: str) -> None:
    """Deletes a schedule; runs it started go on. Raises NotFound."""
    p = await _home(engine, name)
    if not await drop_schedule(engine.ns, p, name, act=_act(engine, "delete", name), by=engine.id):
        _found(None, name)


# --- starting runs by hand ------------------------------------------------------------------------


async def trigger(engine: Engine, name: str) -> str:
    """Starts a run now, paused or not, and returns its id. Its overlap policy holds: Conflict while the last run is open."""
    p = await _home(engine, name)
    while True:
        row = _found(await _read(engine, p, name), name)
        spec = row.spec
        if (
            spec.overlap != "allow"
            and row.run
            and any(each.open for each in await read_ledgers(engine.ns, p, [row.run]))
        ):
            if spec.overlap != "cancel_previous":
                raise Conflict(
                    f"run {row.run} of schedule {name} has not finished, and its overlap policy is {spec.overlap!r}: wait for"
                    " it or cancel it",
                    run=row.run,
                )
            await runs.cancel(engine, row.run, reason=superseded(name), by=engine.id)
        run = _run(new_run_id(p), name, spec, {})
        move = Move(name, row.rev, run=run.id, keeps=frozenset({"next", "timer", "last", "skipped", "waits"}))
        if not await informed(engine.ns, p, lambda: tick_schedules(engine.ns, p, [move], [run], by=engine.id)):  # noqa: B023
            return run.id


def superseded(name: str) -> str:
    """Returns the reason that a run cancelled by its successor is given."""
    return f"schedule {name} started its next run"


async def backfill(engine: Engine, name: str, start: datetime, end: datetime) -> list[runs.Started]:
    """Starts the runs of all ticks from `start` up to `end`, and returns them in order.

    They are started side by side, whatever the overlap policy: it is about ticks that come by themselves. A tick has one
    run: where the store still holds it, it is not started again, and comes back as `deduplicated`.
    """
    p = await _home(engine, name)
    first, last = (_moment(value, what) for value, what in ((start, "start"), (end, "end")))
    if first >= last:
        raise InvalidOption("backfill goes from start up to end: end must be later than start", option="end")
    if last > await _now(engine, p):
        raise InvalidOption("backfill is about the past: end lies in the future", option="end")
    spec = _found(await _read(engine, p, name), name).spec
    ticks = itertools.takewhile(lambda tick: tick < last, spec.times.all_after(first - 1))
    wanted = list(itertools.islice(ticks, MAX_BACKFILL + 1))
    if len(wanted) > MAX_BACKFILL:
        raise InvalidOption(f"schedule {name} has more than {MAX_BACKFILL} ticks in that time: take shorter pieces")
    made = [tick_run(p, name, spec, tick) for tick in wanted]
    words: list[str] = []
    for at in range(0, len(made), runs.CHUNK):
        words += await engine.start_batch(p, made[at : at + runs.CHUNK])
    return [runs.Started(run.id, deduplicated=word == "exists") for run, word in zip(made, words, strict=True)]


def _moment(value: datetime, what: str) -> int:
    if not isinstance(value, datetime) or value.tzinfo is None:
        raise InvalidOption(f"{what} must be a datetime with a timezone, not {value!r}", option=what)
    return int(value.timestamp() * 1000)


# --- looking --------------------------------------------------------------------------------------


async def get(engine: Engine, name: str) -> ScheduleInfo:
    """Tells how a schedule stands; raises NotFound."""
    p = await _home(engine, name)
    return describe(_found(await _read(engine, p, name), name))


async def list_schedules(engine: Engine) -> list[ScheduleInfo]:
    """Tells how all schedules stand, by name."""
    await engine.open()
    found: list[ScheduleInfo] = []
    for p in range(engine.ns.partitions):
        names = await read_names(engine.ns, p)
        for at in range(0, len(names), PAGE):
            rows = await read_schedules(engine.ns, p, names[at : at + PAGE])
            found += [info for row in rows if row is not None and (info := _described(row)) is not None]
    return sorted(found, key=lambda info: info.name)


async def archived(engine: Engine) -> list[ScheduleInfo]:
    """Tells how schedules stand in the archive, by name, those that were deleted too. The store is not asked."""
    if not await readable(engine):
        return []
    from weft.archive.schedules import read

    found = await read(engine.cold.database, engine.ns.keys.namespace, deleted=True)
    told = [_described(ScheduleRow(one.name, one.fields), one.deleted_ms, one.deleted_by) for one in found]
    return [info for info in told if info is not None]


async def upcoming(engine: Engine, name: str, n: int) -> Sequence[datetime]:
    """Returns the next n ticks, by the schedule's own clock. A paused schedule's are those it would have if resumed now."""
    if not isinstance(n, int) or isinstance(n, bool) or not 1 <= n <= MAX_BACKFILL:
        raise InvalidOption(f"n must be a whole number from 1 to {MAX_BACKFILL}, not {n!r}", option="n")
    p = await _home(engine, name)
    times = _found(await _read(engine, p, name), name).spec.times
    return [times.local(tick) for tick in itertools.islice(times.all_after(await _now(engine, p)), n)]


def _described(row: ScheduleRow, deleted_ms: int = 0, deleted_by: str = "") -> ScheduleInfo | None:
    """A schedule that cannot be read must not hide the others."""
    try:
        return describe(row, deleted_ms=deleted_ms, deleted_by=deleted_by)
    except Broken as error:
        log.error("a schedule is left out", schedule=row.name, error=error)
        return None


def describe(row: ScheduleRow, *, deleted_ms: int = 0, deleted_by: str = "") -> ScheduleInfo:
    """Turns a schedule's hash into what people read."""
    spec, next_ms = row.spec, row.moment("next")
    status = "paused" if row.paused else "ended" if next_ms is None else "active"

    def local(ms: int | None) -> datetime | None:
        return None if ms is None else spec.times.local(ms)

    return ScheduleInfo(
        name=row.name,
        status="deleted" if deleted_ms else status,
        expr=spec.expr,
        tz=spec.tz,
        task=spec.run.name,
        overlap=spec.overlap,
        catch_up=spec.catch_up,
        source="code" if spec.declared_by else "runtime",
        app=spec.declared_by,
        orphaned=False,
        created_at=spec.times.local(row.moment("born") or 0),
        next_at=None if row.paused or deleted_ms else local(next_ms),
        last_at=local(row.moment("last")),
        last_run=row.run,
        skipped_at=local(row.moment("skipped")),
        waiting=row.moment("waits") is not None,
        input=decode_plain(spec.run.input) if spec.run.input else {},
        paused_at=local(row.moment("paused_at")),
        paused_by=row.text("paused_by"),
        deleted_at=local(deleted_ms or None),
        deleted_by=deleted_by,
    )


async def _home(engine: Engine, name: str) -> int:
    await engine.open()
    return engine.home(name)


async def _read(engine: Engine, p: int, name: str) -> ScheduleRow | None:
    return (await read_schedules(engine.ns, p, [name]))[0]


def _found(row: ScheduleRow | None, name: str) -> ScheduleRow:
    if row is None:
        raise NotFound(f"there is no schedule {name!r}: `weft schedules ls` lists them", name=name)
    return row


async def _now(engine: Engine, p: int) -> int:
    """Returns the store's time: what is due is never judged by a clock of our own."""
    return (await read_timers(engine.ns, p, limit=0))[0]
