"""drop_lease: gives a lease back, if the caller holds it."""

from weft.store.leases import drop_lease, take_lease


async def test_the_holder_gives_it_back_and_another_takes_it_at_once(part, ns, p):
    assert await take_lease(ns, p, "timers", owner="s-1", lease_ms=60_000)

    await drop_lease(ns, p, "timers", owner="s-1")

    assert not part.raw.exists(part.keys.lock(p, "timers"))
    assert await take_lease(ns, p, "timers", owner="s-2", lease_ms=60_000)


async def test_nobody_gives_back_what_another_holds(part, ns, p):
    await take_lease(ns, p, "timers", owner="s-1", lease_ms=60_000)

    await drop_lease(ns, p, "timers", owner="s-2")

    assert part.raw.get(part.keys.lock(p, "timers")) == b"s-1"


async def test_giving_back_what_nobody_holds_changes_nothing(part, ns, p):
    before = part.snapshot()

    await drop_lease(ns, p, "timers", owner="s-1")

    assert part.snapshot() == before
