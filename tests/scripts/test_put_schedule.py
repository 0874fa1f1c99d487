"""put_schedule: writes at the revision that was read, or nothing; the timer goes with it."""

from partition import acts_of

from weft.store.schedules import put_schedule, read_names, read_schedules


async def test_a_schedule_is_written_with_its_timer_and_listed(part, ns, p, schedule):
    await schedule("a/b")
    assert part.schedule("a/b") == {"rev": "1", "born": "1", "next": "1000"}
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
    assert part.schedule() == {"rev": "2", "born": "1", "paused": "1"} and part.timers() == {}


async def test_put_without_fields_only_sets_the_timer_right(part, ns, p, schedule):
    await schedule()
    assert await put_schedule(ns, p, "s", rev="1", due_ms=None, fields={})
    assert part.schedule()["rev"] == "1" and part.timers() == {}
    part.raw.zadd(part.keys.timers(p), {"cron:gone": 5})
    assert await put_schedule(ns, p, "gone", rev="0", due_ms=None, fields={})
    assert part.timers() == {} and await read_names(ns, p) == ["s"]


async def test_it_refuses_other_epochs(part, ns, p, schedule, refuses_other_epochs):
    await schedule()
    await refuses_other_epochs(lambda: put_schedule(ns, p, "s", rev="1", due_ms=5, fields={"paused": 1}))


async def test_an_act_is_told_with_what_was_set_before_and_after(part, ns, p, schedule):
    await schedule()
    assert not await put_schedule(ns, p, "s", rev="9", due_ms=5, fields={"paused": 1}, act=b"ACT")
    await put_schedule(ns, p, "s", rev="1", due_ms=None, fields={"paused": 1}, act=b"ACT", by="c-1")
    (event,) = acts_of(part)
    before, after = int(event.facts["before"]), int(event.facts["after"])
    assert (event.by, after - before, event.payload[before + after :]) == ("c-1", 1, b"ACT")
    assert event.payload[before : before + after] == event.payload[:before] + b"1"
