"""take_lease: one session of the fleet runs each housekeeping service."""

from weft.store.leases import take_lease


async def test_the_first_takes_it_and_the_second_does_not(part, ns, p):
    assert await take_lease(ns, p, "sweeper", owner="s-1", lease_ms=60_000)
    assert not await take_lease(ns, p, "sweeper", owner="s-2", lease_ms=60_000)

    key = part.keys.lock(p, "sweeper")
    assert part.raw.get(key) == b"s-1"
    assert 0 < part.raw.pttl(key) <= 60_000


async def test_the_holder_renews_it_and_a_refused_claim_does_not(part, ns, p):
    key = part.keys.lock(p, "sweeper")
    await take_lease(ns, p, "sweeper", owner="s-1", lease_ms=10_000)

    await take_lease(ns, p, "sweeper", owner="s-2", lease_ms=60_000)
    assert part.raw.pttl(key) <= 10_000

    assert await take_lease(ns, p, "sweeper", owner="s-1", lease_ms=60_000)
    assert part.raw.pttl(key) > 10_000


async def test_a_lease_that_ran_out_goes_to_whoever_asks_next(part, ns, p):
    await take_lease(ns, p, "sweeper", owner="s-1", lease_ms=60_000)
    part.raw.delete(part.keys.lock(p, "sweeper"))  # what expiry does

    assert await take_lease(ns, p, "sweeper", owner="s-2", lease_ms=60_000)
    assert not await take_lease(ns, p, "sweeper", owner="s-1", lease_ms=60_000)


async def test_services_and_partitions_have_leases_of_their_own(ns, p):
    assert await take_lease(ns, p, "sweeper", owner="s-1", lease_ms=60_000)
    assert await take_lease(ns, p, "timers", owner="s-2", lease_ms=60_000)
