"""set_clock: moves the partition's clock, which only tests do, and lets the timers look again."""

from weft.store.timers import read_timers, set_clock


async def test_the_clock_moves_by_the_offset_and_timers_are_woken(part, ns, p):
    before, _, _ = await read_timers(ns, p, limit=1)

    await set_clock(ns, p, 3_600_000)

    now, _, _ = await read_timers(ns, p, limit=1)
    assert 3_600_000 <= now - before < 3_610_000
    assert part.timer_pebbles() == 1


async def test_the_offset_is_absolute_and_can_be_taken_back(part, ns, p):
    start, _, _ = await read_timers(ns, p, limit=1)
    await set_clock(ns, p, 60_000)
    await set_clock(ns, p, 60_000)

    now, _, _ = await read_timers(ns, p, limit=1)
    assert now - start < 70_000

    await set_clock(ns, p, 0)
    now, _, _ = await read_timers(ns, p, limit=1)
    assert now - start < 10_000
    assert part.raw.hget(part.keys.epoch(p), "clock_ms") == b"0"
