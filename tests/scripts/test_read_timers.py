"""read_timers: lists what is due and when the next is, without changing anything."""

import pytest

from weft.store.timers import read_timers

pytestmark = pytest.mark.leaves("open runs", "broken keys")


async def test_nothing_set_means_nothing_due_and_nothing_to_come(ns, p):
    now, coming, due = await read_timers(ns, p, limit=10)

    assert now > 1_700_000_000_000
    assert (coming, due) == (None, [])


async def test_due_ones_are_listed_in_order_and_the_next_to_come_is_told(part, ns, p):
    now, _, _ = await read_timers(ns, p, limit=1)
    key = part.keys.timers(p)
    part.raw.zadd(key, {"open:b": now - 5, "open:a": now - 50, "open:c": now + 60_000, "open:d": now + 90_000})
    before = part.snapshot()

    _, coming, due = await read_timers(ns, p, limit=10)

    assert due == ["open:a", "open:b"]
    assert coming == now + 60_000
    assert part.snapshot() == before


async def test_a_timer_is_due_at_its_millisecond_and_not_before(part, ns, p):
    (run,) = await part.start(delay_ms=3_600_000)
    due_at = part.timers()[f"open:{run}"]
    now, _, _ = await read_timers(ns, p, limit=1)

    await part.advance(due_at - now - 2_000)
    assert (await read_timers(ns, p, limit=10))[2] == []

    await part.advance(due_at - now)
    assert (await read_timers(ns, p, limit=10))[2] == [f"open:{run}"]


async def test_no_more_than_the_limit_are_listed(part, ns, p):
    part.raw.zadd(part.keys.timers(p), {f"open:{n}": n for n in range(10)})

    assert (await read_timers(ns, p, limit=3))[2] == ["open:0", "open:1", "open:2"]


async def test_it_refuses_other_epochs(ns, p, refuses_other_epochs):
    await refuses_other_epochs(lambda: read_timers(ns, p, limit=1))
