"""Schedules: they tick by the store's clock, each tick once, under their policies."""

from __future__ import annotations

import asyncio
import itertools
from datetime import UTC, datetime, timedelta

import pytest

from weft import Conflict, DefinitionError, InvalidArguments, InvalidOption, NotFound, PayloadTooLarge, Weft, current
from weft.errors import Broken
from weft.store.schedules import Move, read_schedules, tick_schedules

HOUR, MINUTE = 3_600_000, 60_000


@pytest.fixture
def ticks(app: Weft):
    """Runs of a schedule, as its tags name them: in order of their ticks."""

    async def read(name: str) -> list[str]:
        found = await app.runs.list(tag=("schedule", name), limit=1000)
        return sorted(run.tags["tick"] for run in found if "tick" in run.tags)

    return read


@pytest.fixture
def until(app: Weft, advance):
    """Moves the clock to shortly after the next tick of a schedule, and further if asked."""
    offset = 0

    async def move(name: str, beyond_ms: int = 1_000) -> datetime:
        nonlocal offset
        info = await app.schedules.get(name)
        now = datetime.now(UTC) + timedelta(milliseconds=offset)
        step = int((info.next_at - now) / timedelta(milliseconds=1)) + beyond_ms
        offset += step
        await advance(step)
        return info.next_at

    return move


async def test_a_declared_schedule_ticks_and_its_function_is_a_task(app, start_worker, until, ticks, eventually):
    seen = []

    @app.cron("0 * * * *", tz="Europe/Berlin", queue="quick")
    async def tick(n: int = 7) -> int:
        seen.append(current().tags)
        return n

    await start_worker(queues=["quick"])
    for n in range(1, 4):
        due = await until("tick")
        await eventually(lambda n=n: len(seen) == n)
        assert seen[-1] == {"schedule": "tick", "tick": due.astimezone(UTC).isoformat().replace("+00:00", "Z")}

    run = await tick.enqueue(n=3)
    assert await run.result(timeout=10) == 3
    info = await app.schedules.get("tick")
    assert (info.status, info.source, info.app, info.orphaned) == ("active", "code", app.name, False)
    assert info.next_at > info.last_at == due and len(await ticks("tick")) == 3


async def test_a_paused_schedule_stays_paused_when_it_is_published_again(app, start_worker):
    @app.cron("0 * * * *")
    async def tick() -> None: ...

    worker = await start_worker()
    assert (await app.schedules.pause("tick")).status == "paused"
    await worker.stop()
    app.crons["tick"] = type(app.crons["tick"])("30 4 * * *", app.crons["tick"].run, declared_by=app.name)

    await start_worker()

    info = await app.schedules.get("tick")
    assert (info.status, info.expr, info.next_at) == ("paused", "30 4 * * *", None)
    resumed = await app.schedules.resume("tick")
    assert (resumed.status, resumed.next_at.hour, resumed.next_at.minute) == ("active", 4, 30)


async def test_a_changed_expression_arms_it_anew_and_a_vanished_one_is_shown(app, start_worker):
    @app.cron("0 * * * *")
    async def tick() -> None: ...

    @app.task
    async def other() -> None: ...

    worker = await start_worker()
    await worker.stop()
    app.crons["tick"] = type(app.crons["tick"])("17 * * * *", app.crons["tick"].run, declared_by=app.name)
    worker = await start_worker()
    assert (await app.schedules.get("tick")).next_at.minute == 17
    await worker.stop()

    del app.crons["tick"]
    await start_worker()

    (info,) = await app.schedules.list()
    assert info.orphaned and info.status == "active"


async def test_a_schedule_of_somebody_else_is_not_taken_over(app, start_worker, add):
    await app.schedules.create("tick", "0 0 * * *", add, (1, 2))

    @app.cron("0 * * * *")
    async def tick() -> None: ...

    await start_worker()
    info = await app.schedules.get("tick")
    assert (info.source, info.task) == ("runtime", "add")


async def test_a_runtime_schedule_passes_its_arguments(app, start_worker, add, until, eventually):
    info = await app.schedules.create("sum", "*/5 * * * *", add.options(queue="q"), (2,), {"b": 3}, tz="Asia/Kolkata")
    assert (info.source, info.task, info.input) == ("runtime", "add", {"a": 2, "b": 3})
    await start_worker(queues=["q"])
    await until("sum")
    run = await eventually(lambda: _last(app, "sum"))
    assert await run.result(timeout=10) == 5


async def _last(app, name):
    info = await app.schedules.get(name)
    return app.runs.get(info.last_run) if info.last_run else None


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"expr": "* * * *"}, "wrong number of fields"),
        ({"expr": "61 * * * *"}, "bad minute"),
        ({"expr": "0 0 30 2 *"}, "day-of-month"),
        ({"expr": 5}, "a cron expression is a text"),
        ({"tz": "Europe/Berln"}, "did you mean Europe/Berlin"),
        ({"tz": ["UTC"]}, "there is no timezone a list"),
        ({"overlap": "never"}, "overlap must be one of allow, skip, queue, cancel_previous, not 'never'"),
        ({"catch_up": True}, "catch_up must be one of none, latest, all, not True"),
        ({"name": "a b"}, "is not a name"),
    ],
)
async def test_what_makes_no_sense_is_refused_and_nothing_is_written(app, add, change, said):
    options = {"name": "s", "expr": "* * * * *", "task": add, "args": (1, 2), **change}
    with pytest.raises(InvalidOption, match=said):
        await app.schedules.create(**options)
    if "name" not in change:
        policies = {key: value for key, value in change.items() if key != "expr"}
        with pytest.raises(InvalidOption, match=said):
            app.cron(change.get("expr", "* * * * *"), **policies)
    assert await app.schedules.list() == []


async def test_arguments_and_runs_that_cannot_be_scheduled_are_refused(app, add):
    @app.task
    async def swallow(text: str) -> None: ...

    with pytest.raises(InvalidArguments):
        await app.schedules.create("s", "* * * * *", add, ("one",))
    with pytest.raises(NotFound, match="did you mean add"):
        await app.schedules.create("s", "* * * * *", "ad", (1, 2))
    with pytest.raises(InvalidOption, match="an eta is one moment"):
        await app.schedules.create("x", "* * * * *", add.options(eta=datetime.now(UTC) + timedelta(hours=1)), (1, 2))
    with pytest.raises(InvalidOption, match="idempotency_key names one run"):
        await app.schedules.create("s", "* * * * *", add.options(idempotency_key="k"), (1, 2))
    with pytest.raises(PayloadTooLarge):
        await app.schedules.create("s", "* * * * *", swallow, ("x" * 5000,))
    with pytest.raises(DefinitionError, match="called without arguments"):

        @app.cron("* * * * *")
        async def needs(a: int) -> None: ...

    assert "needs" not in app.tasks and not app.crons
    with pytest.raises(DefinitionError, match="already has a task"):

        @app.cron("* * * * *", name="add")
        async def again() -> None: ...

    assert not app.crons and await app.schedules.list() == []


async def test_a_task_can_have_several_schedules(app):
    @app.cron("0 9 * * *", name="morning")
    @app.cron("0 18 * * *")
    @app.task(queue="mail")
    async def report() -> None: ...

    assert {name: spec.run.queue for name, spec in app.crons.items()} == {"report": "mail", "morning": "mail"}
    with pytest.raises(DefinitionError, match="already declares"):
        app.cron("0 1 * * *")(report)
    with pytest.raises(DefinitionError, match="give retries to @app"):
        app.cron("0 1 * * *", retries=1)(report)


async def test_creating_twice_is_the_same_or_a_conflict(app, add):
    first = await app.schedules.create("s", "0 * * * *", add, (1, 2))
    assert await app.schedules.create("s", "0 * * * *", "add", (1,), {"b": 2}) == first
    with pytest.raises(Conflict, match="with another definition"):
        await app.schedules.create("s", "0 * * * *", add, (1, 3))
    await app.schedules.delete("s")
    for verb in (app.schedules.get, app.schedules.delete, app.schedules.pause, app.schedules.trigger):
        with pytest.raises(NotFound, match="there is no schedule 's'"):
            await verb("s")


async def test_a_paused_schedule_does_not_tick_and_catches_nothing_up(app, add, start_worker, until, ticks, eventually):
    await app.schedules.create("s", "0 * * * *", add, (1, 2), overlap="allow", catch_up="all")
    await app.schedules.create("beacon", "0 * * * *", add, (1, 2))
    await start_worker()
    await app.schedules.pause("s")
    await until("beacon", 5 * HOUR)
    await eventually(lambda: ticks("beacon"))
    assert await ticks("s") == []

    resumed = await app.schedules.resume("s")
    await until("s")
    await eventually(lambda: ticks("s"))
    assert await ticks("s") == [resumed.next_at.isoformat().replace("+00:00", "Z")]


async def test_next_follows_the_clock_of_its_place(app, add, advance):
    await app.schedules.create("s", "30 2 * * *", add, (1, 2), tz="Europe/Berlin")
    shown = await app.schedules.next("s", 400)
    assert all(b - a <= timedelta(hours=25) for a, b in itertools.pairwise(shown)) and len(set(shown)) == 400
    # On one day of the year there is no half past two.
    odd = [moment for moment in shown if (moment.hour, moment.minute) != (2, 30)]
    assert odd and all((moment.hour, moment.minute, moment.month) == (3, 0, 3) for moment in odd)
    with pytest.raises(InvalidOption):
        await app.schedules.next("s", 0)


@pytest.mark.leaves("broken keys")
async def test_a_broken_schedule_keeps_no_other_from_ticking(app, add, start_worker, until, ticks, eventually, raw):
    for name in ("good", "garbled", "wrong", "late"):
        await app.schedules.create(name, "0 * * * *", add, (1, 2))
    keys, home = app.engine().ns.keys, app.engine().home
    raw.hset(keys.schedule(home("garbled"), "garbled"), "spec", b"\xc1")
    raw.delete(keys.schedule(home("wrong"), "wrong"))
    raw.set(keys.schedule(home("wrong"), "wrong"), "x")
    await start_worker()
    for n in (1, 2):
        await until("good")
        await eventually(lambda n=n: _count(app, "good", n))
        await (await _last(app, "good")).result(timeout=10)  # a tick is skipped while the run of the last one is open
    delayed = await add.options(delay="1ms").enqueue(1, 1)
    assert await delayed.result(timeout=10) == 2
    raw.delete(keys.schedule(home("wrong"), "wrong"))
    with pytest.raises(Broken, match="garbled cannot be read"):
        await app.schedules.get("garbled")
    assert [info.name for info in await app.schedules.list()] == ["good", "late"]
    await app.schedules.delete("garbled")


async def test_a_schedule_made_anew_is_safe_from_what_was_decided_before(app, add):
    """The same name, deleted and created within one look of a scheduler that sleeps: its revision must be another."""
    first = await app.schedules.create("s", "@yearly", add, (1, 2))
    ns, p = app.engine().ns, app.engine().home("s")
    (old,) = await read_schedules(ns, p, ["s"])
    await app.schedules.delete("s")
    await asyncio.sleep(0.002)
    await app.schedules.create("s", "@yearly", add, (3, 4))
    move = Move("s", old.rev, next_ms=1, timer_ms=1, last_ms=1, run="r0-0000000000000000000000")
    assert await tick_schedules(ns, p, [move], [], by="s-1") == [0]
    assert (await app.schedules.get("s")).next_at == first.next_at


async def test_declared_schedules_come_back_after_the_store_was_wiped(launch, eventually, monkeypatch):
    monkeypatch.setenv("WEFT_LEASE", "500ms")
    server = launch()
    app = Weft("wiped", redis_url=server.url)

    @app.cron("@yearly")
    async def tick() -> None: ...

    async with app, app.worker(grace=0):
        with server.client() as client:
            # Epochs count seconds: a wipe within the second of its creation would give the same one again.
            epoch = int(client.hget(app.engine().ns.keys.epoch(0), "number"))
            await eventually(lambda: client.time()[0] > epoch)
            client.flushall()

        async def back():
            return [info.name for info in await app.schedules.list()] == ["tick"]

        await eventually(back, within=30)


# --- policies -------------------------------------------------------------------------------------


@pytest.fixture
def gated(app: Weft):
    """A task that runs until its gate opens."""
    gate = asyncio.Event()

    @app.task(timeout=None)
    async def hold() -> None:
        await gate.wait()

    return hold, gate


async def _statuses(app, name):
    found = await app.runs.list(tag=("schedule", name))
    return [str(run.status) for run in sorted(found, key=lambda run: run.tags["tick"])]


async def test_skip_starts_nothing_while_the_run_before_is_open(app, gated, start_worker, until, eventually):
    hold, gate = gated
    await app.schedules.create("s", "0 * * * *", hold, overlap="skip")
    await start_worker()
    await until("s")
    await eventually(lambda: _statuses(app, "s"))
    skipped = await until("s")
    await eventually(lambda: _skipped(app, "s", skipped))
    assert len(await _statuses(app, "s")) == 1
    with pytest.raises(Conflict, match="has not finished"):
        await app.schedules.trigger("s")

    gate.set()
    await (await _last(app, "s")).result(timeout=10)
    await until("s")
    await eventually(lambda: _count(app, "s", 2))


async def _skipped(app, name, moment):
    return (await app.schedules.get(name)).skipped_at == moment


async def _count(app, name, n):
    return len(await _statuses(app, name)) == n


async def test_queue_starts_one_when_the_run_before_ends(app, gated, start_worker, until, eventually):
    hold, gate = gated
    await app.schedules.create("s", "0 * * * *", hold, overlap="queue")
    await start_worker()
    await until("s")
    await eventually(lambda: _statuses(app, "s"))
    await until("s", 3 * HOUR)
    await eventually(lambda: _waits(app, "s"))
    assert len(await _statuses(app, "s")) == 1

    gate.set()

    await eventually(lambda: _all_completed(app, "s", 2), within=20)
    assert not (await app.schedules.get("s")).waiting


async def _waits(app, name):
    return (await app.schedules.get(name)).waiting


async def _all_completed(app, name, n):
    return await _statuses(app, name) == ["completed"] * n


async def test_cancel_previous_cancels_it_first(app, gated, start_worker, until, eventually):
    hold, gate = gated
    await app.schedules.create("s", "0 * * * *", hold, overlap="cancel_previous")
    await start_worker()
    await until("s")
    await eventually(lambda: _statuses(app, "s"))
    await until("s")
    await eventually(lambda: _count(app, "s", 2))
    assert (await _statuses(app, "s"))[0] == "cancelled"
    triggered = await app.schedules.trigger("s")
    gate.set()
    await triggered.result(timeout=10)
    assert "cancelled" in (await _statuses_by_hand(app, "s"))


async def _statuses_by_hand(app, name):
    return [str(run.status) for run in await app.runs.list(tag=("schedule", name))]


async def test_allow_starts_every_tick(app, gated, start_worker, until, eventually):
    hold, gate = gated
    await app.schedules.create("s", "0 * * * *", hold, overlap="allow")
    await start_worker()
    for n in (1, 2, 3):
        await until("s")
        await eventually(lambda n=n: _count(app, "s", n))
    assert set(await _statuses(app, "s")) <= {"running", "queued"}
    gate.set()


@pytest.mark.parametrize(("catch_up", "n"), [("none", 0), ("latest", 1), ("all", 40)])
@pytest.mark.parametrize("overlap", ["allow", "skip", "queue", "cancel_previous"])
async def test_what_was_missed_while_nobody_was_there(
    app, add, start_worker, until, ticks, eventually, overlap, catch_up, n
):
    first = await app.schedules.create("s", "0 * * * *", add, (1, 2), overlap=overlap, catch_up=catch_up)
    # Forty ticks pass; the newest is half an hour old.
    await until("s", 39 * HOUR + 30 * MINUTE)

    await start_worker()

    async def done():
        info = await app.schedules.get("s")
        ended = all(run.status.finished for run in await app.runs.list(tag=("schedule", "s"), limit=100))
        return ended and info.next_at == first.next_at + timedelta(hours=40)

    await eventually(done, within=60)
    newest = first.next_at + timedelta(hours=39)
    expected = [newest - timedelta(hours=back) for back in reversed(range(n))]
    assert await ticks("s") == [moment.isoformat().replace("+00:00", "Z") for moment in expected]


# --- by hand --------------------------------------------------------------------------------------


async def test_trigger_starts_a_run_now_and_moves_no_tick(app, add, start_worker):
    created = await app.schedules.create("s", "@yearly", add, (1, 2))
    await app.schedules.pause("s")
    await start_worker()
    run = await app.schedules.trigger("s")
    assert await run.result(timeout=10) == 3
    assert (await run.info()).tags == {"schedule": "s"}
    info = await app.schedules.resume("s")
    assert (info.last_run, info.last_at, info.next_at) == (run.id, None, created.next_at)


async def test_backfill_starts_each_tick_of_a_period_once(app, add, start_worker, ticks, eventually):
    await app.schedules.create("s", "0 12 * * *", add, (1, 2), tz="Europe/Berlin")
    await start_worker()
    start, end = datetime(2026, 3, 27, tzinfo=UTC), datetime(2026, 3, 30, 10, tzinfo=UTC)
    runs = await app.schedules.backfill("s", start, end)
    assert [await run.result(timeout=10) for run in runs] == [3, 3, 3]
    # Summer time begins on the 29th, and the end itself is left out.
    assert await ticks("s") == ["2026-03-27T11:00:00Z", "2026-03-28T11:00:00Z", "2026-03-29T10:00:00Z"]
    assert not any(run.deduplicated for run in runs)
    later = await app.schedules.backfill("s", start, end + timedelta(hours=1))
    assert later[:3] == runs and [run.deduplicated for run in later] == [True, True, True, False]
    assert await later[3].result(timeout=10) == 3
    assert [run.deduplicated for run in await app.schedules.backfill("s", start, end)] == [True, True, True]
    assert len(await ticks("s")) == 4

    with pytest.raises(InvalidOption, match="in the future"):
        await app.schedules.backfill("s", start, datetime(2100, 1, 1, tzinfo=UTC))
    with pytest.raises(InvalidOption, match="later than start"):
        await app.schedules.backfill("s", end, start)
    with pytest.raises(InvalidOption, match="with a timezone"):
        await app.schedules.backfill("s", datetime(2026, 1, 1), end)
    await app.schedules.create("often", "* * * * *", add, (1, 2))
    with pytest.raises(InvalidOption, match="more than 10000 ticks"):
        await app.schedules.backfill("often", datetime(2026, 1, 1, tzinfo=UTC), end)


async def test_the_same_verbs_without_a_loop(app, add, start_worker):
    await start_worker()

    def work():
        verbs = app.schedules.sync
        verbs.create("s", "0 * * * *", add, (1, 2), tz="Asia/Tokyo")
        assert [info.name for info in verbs.list()] == ["s"] and len(verbs.next("s", 3)) == 3
        assert verbs.pause("s").status == "paused" and verbs.resume("s").status == verbs.get("s").status == "active"
        assert verbs.trigger("s").result(timeout=10) == 3
        moment = datetime(2026, 1, 1, tzinfo=UTC)
        assert [run.result(timeout=10) for run in verbs.backfill("s", moment, moment + timedelta(hours=2))] == [3, 3]
        verbs.delete("s")

    await asyncio.to_thread(work)
