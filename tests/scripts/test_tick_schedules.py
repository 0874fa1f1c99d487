"""tick_schedules: moves schedules on and starts their runs in one, and does neither on a revision that is past."""

from __future__ import annotations

from typing import Any

import pytest

from weft.core.model import SPEC_ENCODER, RunSpec
from weft.errors import StaleControls
from weft.ids import new_run_id
from weft.store.controls import set_control
from weft.store.runs import NewRun
from weft.store.schedules import Move, drop_schedule, put_schedule, tick_schedules
from weft.store.scripts import load


def run_of(p: int, **options: Any) -> NewRun:
    spec = RunSpec("job", **options)
    return NewRun(new_run_id(p), spec, SPEC_ENCODER.encode(spec))


@pytest.mark.leaves("open runs")
async def test_a_tick_moves_the_schedule_and_starts_its_run(part, ns, p, schedule):
    await schedule()
    run = run_of(p, queue="other", priority=7)
    move = Move("s", "1", next_ms=2000, timer_ms=2000, last_ms=1000, run=run.id, keeps=frozenset({"skipped"}))

    assert await tick_schedules(ns, p, [move], [run], by="s-1") == []

    assert part.schedule() == {"rev": "2", "born": "1", "next": "2000", "last": "1000", "run": run.id}
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
    assert part.schedule() == {"rev": "2", "born": "1", "next": "1000", "waits": "1400"} and part.timers() == {
        "cron:s": 1500
    }
    ends = Move("s", "2", skipped_ms=1000)
    assert await tick_schedules(ns, p, [ends], [], by="s-1") == []
    assert part.schedule() == {"rev": "3", "born": "1", "skipped": "1000"} and part.timers() == {}


def test_tick_schedules_takes_all_that_start_runs_takes():
    """It includes that script as it is: a key or a field that one declares and the other does not would shift the rest."""
    start, tick = load("start_runs"), load("tick_schedules")
    assert [(key.family, key.many) for key in tick.keys] == [
        *((key.family, key.many) for key in start.keys),
        ("schedule", True),
    ]
    assert [arg.name for arg in tick.args] == [*(arg.name for arg in start.args), "moves"]
    assert tick.record == start.record


async def test_it_refuses_other_epochs(part, ns, p, schedule, refuses_other_epochs):
    await schedule()
    await refuses_other_epochs(lambda: tick_schedules(ns, p, [Move("s", "1")], [run_of(p)], by="s-1"))


async def test_a_caller_that_does_not_know_what_operators_set_is_refused_and_nothing_moves(part):
    await set_control(part.ns, part.p, "pause:queue|mail", {}, gates=[], queues=[])
    before = part.snapshot()
    with pytest.raises(StaleControls):
        await tick_schedules(part.ns, part.p, [], [], by="s-1")
    assert part.snapshot() == before
