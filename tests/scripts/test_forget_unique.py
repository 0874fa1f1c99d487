"""forget_unique: removes a record only while it names the run that is meant."""

from weft.store.runs import forget_unique


async def test_the_record_of_that_run_goes_and_no_other(part):
    key = part.keys.unique(part.p, "u")
    part.raw.set(key, "r0-b", px=60_000)
    await forget_unique(part.ns, part.p, "u", "r0-a")
    assert part.raw.get(key) == b"r0-b"
    await forget_unique(part.ns, part.p, "u", "r0-b")
    assert part.raw.get(key) is None


async def test_it_may_stay_for_a_while(part):
    key = part.keys.unique(part.p, "u")
    part.raw.set(key, "r0-b", px=3_600_000)
    await forget_unique(part.ns, part.p, "u", "r0-a", after_ms=1_000)
    assert part.raw.pttl(key) > 1_000
    await forget_unique(part.ns, part.p, "u", "r0-b", after_ms=1_000)
    assert part.raw.get(key) == b"r0-b" and 0 < part.raw.pttl(key) <= 1_000


async def test_it_refuses_other_epochs(part, refuses_other_epochs):
    part.raw.set(part.keys.unique(part.p, "u"), "r0-b", px=60_000)
    await refuses_other_epochs(lambda: forget_unique(part.ns, part.p, "u", "r0-b"))
