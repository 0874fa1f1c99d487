"""drop_schedule: deletes a schedule, its name and its timer."""

from partition import acts_of

from weft.store.schedules import drop_schedule, read_names


async def test_drop_leaves_nothing(part, ns, p, schedule):
    await schedule()
    assert await drop_schedule(ns, p, "s") and not await drop_schedule(ns, p, "s")
    assert part.timers() == {} and await read_names(ns, p) == [] and part.schedule() == {}


async def test_it_refuses_other_epochs(part, ns, p, schedule, refuses_other_epochs):
    await schedule()
    await refuses_other_epochs(lambda: drop_schedule(ns, p, "s"))


async def test_an_act_is_told_once(part, ns, p, schedule):
    await schedule()
    for _ in range(2):
        await drop_schedule(ns, p, "s", act=b"ACT")
    (event,) = acts_of(part)
    assert event.facts["after"] == "0" and event.payload.endswith(b"ACT")
