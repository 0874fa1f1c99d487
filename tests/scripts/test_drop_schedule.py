"""drop_schedule: deletes a schedule, its name and its timer."""

from weft.store.schedules import drop_schedule, read_names


async def test_drop_leaves_nothing(part, ns, p, schedule):
    await schedule()
    assert await drop_schedule(ns, p, "s") and not await drop_schedule(ns, p, "s")
    assert part.timers() == {} and await read_names(ns, p) == [] and part.schedule() == {}


async def test_it_refuses_other_epochs(part, ns, p, schedule, refuses_other_epochs):
    await schedule()
    await refuses_other_epochs(lambda: drop_schedule(ns, p, "s"))
