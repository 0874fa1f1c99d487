"""put_schedule, tick_schedules, drop_schedule: what each writes, and that none writes on a revision that is past."""

from __future__ import annotations

import time
from typing import Any

import msgspec
import pytest

from weft.core.model import SPEC_ENCODER, RunSpec
from weft.core.schedule import ScheduleSpec
from weft.ids import new_run_id
from weft.store.runs import NewRun
from weft.store.schedules import Move, drop_schedule, put_schedule, read_names, read_schedules, tick_schedules
from weft.store.scripts import load

SPEC = msgspec.msgpack.encode(ScheduleSpec("0 * * * *", RunSpec("job")))


def run_of(p: int, **options: Any) -> NewRun:
    spec = RunSpec("job", **options)
    return NewRun(new_run_id(p), spec, SPEC_ENCODER.encode(spec))


@pytest.fixture
def schedule(part, ns, p):
    """Makes a schedule whose first tick is due at 1000."""

    async def make(name: str = "s") -> str:
        assert await put_schedule(ns, p, name, rev="0", due_ms=1000, fields={"spec": SPEC, "born": 1, "next": 1000})
        # Revisions begin with the time, so that none comes twice; here they begin with 1.
        assert abs(int(part.raw.hget(part.keys.schedule(p, name), "rev")) - time.time() * 1000) < 600_000
        part.raw.hset(part.keys.schedule(p, name), "rev", 1)
        return name

    return make


def fields(part, name: str = "s") -> dict[str, str]:
    found = part.raw.hgetall(part.keys.schedule(part.p, name))
    return {key.decode(): value.decode() for key, value in found.items() if key != b"spec"}


async def test_a_schedule_is_written_with_its_timer_and_listed(part, ns, p, schedule):
    await schedule("a/b")
    assert fields(part, "a/b") == {"rev": "1", "born": "1", "next": "1000"}
    assert part.timers() == {"cron:a/b": 1000} and part.timer_pebbles() == 1
    assert await read_names(ns, p) == ["a/b"]
    (row,) = await read_schedules(ns, p, ["a/b"])
    assert (row.spec.expr, row.rev, row.moment("next"), row.moment("last"), row.paused) == (
        "0 * * * *",
        "1",
        1000,
        None,
        False,
    )


async def test_put_is_refused_at_another_revision(part, ns, p, schedule):
    await schedule()
    before = part.snapshot()
    for rev in ("0", "2"):
        assert not await put_schedule(ns, p, "s", rev=rev, due_ms=None, fields={"paused": 1})
    assert part.snapshot() == before
    assert await put_schedule(ns, p, "s", rev="1", due_ms=None, fields={"paused": 1, "next": None})
    assert fields(part) == {"rev": "2", "born": "1", "paused": "1"} and part.timers() == {}


async def test_put_without_fields_only_sets_the_timer_right(part, ns, p, schedule):
    await schedule()
    assert await put_schedule(ns, p, "s", rev="1", due_ms=None, fields={})
    assert fields(part)["rev"] == "1" and part.timers() == {}
    part.raw.zadd(part.keys.timers(p), {"cron:gone": 5})
    assert await put_schedule(ns, p, "gone", rev="0", due_ms=None, fields={})
    assert part.timers() == {} and await read_names(ns, p) == ["s"]


@pytest.mark.leaves("open runs")
async def test_a_tick_moves_the_schedule_and_starts_its_run(part, ns, p, schedule):
    await schedule()
    run = run_of(p, queue="other", priority=7)
    move = Move("s", "1", next_ms=2000, timer_ms=2000, last_ms=1000, run=run.id, keeps=frozenset({"skipped"}))

    assert await tick_schedules(ns, p, [move], [run], by="s-1") == []

    assert fields(part) == {"rev": "2", "born": "1", "next": "2000", "last": "1000", "run": run.id}
    assert part.timers() == {"cron:s": 2000}
    ((entry, token),) = part.stream("other", 7)
    assert token["r"] == run.id and part.run(run.id)["open"] == f"1:{entry}"
    assert [event.type for event in part.events(run.id)] == ["queued"]


@pytest.mark.leaves("open runs")
async def test_a_second_scheduler_changes_nothing(part, ns, p, schedule):
    await schedule()
    first, second = run_of(p), run_of(p)
    moves = [Move("s", "1", next_ms=2000, timer_ms=2000, last_ms=1000, run=run.id) for run in (first, second)]
    await tick_schedules(ns, p, moves[:1], [first], by="s-1")
    before = part.snapshot()

    assert await tick_schedules(ns, p, moves[1:], [second], by="s-2") == [0]

    assert part.snapshot() == before


async def test_one_stale_move_holds_back_the_whole_call(part, ns, p, schedule):
    for name in ("a", "b", "c"):
        await schedule(name)
    await put_schedule(ns, p, "b", rev="1", due_ms=None, fields={"paused": 1})
    await drop_schedule(ns, p, "c")
    before = part.snapshot()
    runs = [run_of(p) for _ in "abc"]
    moves = [Move(name, "1", next_ms=2000, last_ms=1000) for name in "abc"]

    assert await tick_schedules(ns, p, moves, runs, by="s-1") == [1, 2]

    assert part.snapshot() == before


async def test_a_tick_to_come_is_not_started(part, ns, p, schedule):
    await schedule()
    before = part.snapshot()
    move = Move("s", "1", next_ms=None, last_ms=99_999_999_999_999)
    assert await tick_schedules(ns, p, [move], [run_of(p)], by="s-1") == [0]
    assert part.snapshot() == before


async def test_a_tick_may_start_nothing_and_a_schedule_may_end(part, ns, p, schedule):
    await schedule()
    waits = Move("s", "1", next_ms=1000, timer_ms=1500, waits_ms=1400, keeps=frozenset({"last", "run", "skipped"}))
    assert await tick_schedules(ns, p, [waits], [], by="s-1") == []
    assert fields(part) == {"rev": "2", "born": "1", "next": "1000", "waits": "1400"} and part.timers() == {
        "cron:s": 1500
    }
    ends = Move("s", "2", skipped_ms=1000)
    assert await tick_schedules(ns, p, [ends], [], by="s-1") == []
    assert fields(part) == {"rev": "3", "born": "1", "skipped": "1000"} and part.timers() == {}


async def test_drop_leaves_nothing(part, ns, p, schedule):
    await schedule()
    assert await drop_schedule(ns, p, "s") and not await drop_schedule(ns, p, "s")
    assert part.timers() == {} and await read_names(ns, p) == [] and fields(part) == {}


def test_tick_schedules_takes_all_that_start_runs_takes():
    """It includes that script as it is: a key or a field that one declares and the other does not would shift the rest."""
    start, tick = load("start_runs"), load("tick_schedules")
    assert [(key.family, key.many) for key in tick.keys] == [
        *((key.family, key.many) for key in start.keys),
        ("schedule", True),
    ]
    assert [arg.name for arg in tick.args] == [*(arg.name for arg in start.args), "moves"]
    assert tick.record == start.record


async def test_they_refuse_other_epochs(part, ns, p, schedule, refuses_other_epochs):
    await schedule()
    await refuses_other_epochs(lambda: put_schedule(ns, p, "s", rev="1", due_ms=5, fields={"paused": 1}))
    await refuses_other_epochs(lambda: drop_schedule(ns, p, "s"))
    await refuses_other_epochs(lambda: tick_schedules(ns, p, [Move("s", "1")], [run_of(p)], by="s-1"))
