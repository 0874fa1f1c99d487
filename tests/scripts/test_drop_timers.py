"""drop_timers: what was due is removed; a timer that was set anew meanwhile stays."""

import pytest

from weft.store.timers import drop_timers, read_timers

pytestmark = pytest.mark.leaves("open runs", "broken keys")


async def test_timers_that_were_due_go_and_others_stay(part, ns, p):
    now, _, _ = await read_timers(ns, p, limit=1)
    part.raw.zadd(part.keys.timers(p), {"wait:a": now - 5, "wait:b": now - 9, "wait:c": now - 7})

    await drop_timers(ns, p, ["wait:a", "wait:b", "wait:none"], seen_ms=now)

    assert part.timers() == {"wait:c": now - 7}


@pytest.mark.parametrize("later_ms", [0, 1, 60_000])
async def test_a_timer_that_was_set_anew_since_it_was_seen_stays(part, ns, p, later_ms):
    """Whoever dropped it was slow: the run was retried, and the step waits again."""
    now, _, _ = await read_timers(ns, p, limit=1)
    part.raw.zadd(part.keys.timers(p), {"wait:a": now + later_ms})
    before = part.snapshot()

    await drop_timers(ns, p, ["wait:a"], seen_ms=now)

    assert part.snapshot() == before


async def test_it_refuses_other_epochs(ns, p, refuses_other_epochs):
    await refuses_other_epochs(lambda: drop_timers(ns, p, ["wait:a"], seen_ms=1))
