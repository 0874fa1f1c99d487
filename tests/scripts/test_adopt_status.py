"""adopt_status: a child is noted with a parent of another partition."""

from weft.core.status import digest_of
from weft.store.status import adopt_status


async def test_a_child_is_noted_once_and_keeps_the_others(part):
    key = part.keys.status_children(part.p, digest_of("above"))
    assert await adopt_status(part.ns, part.p, "above", "a child", keep_ms=60_000)
    ((child, first),) = part.raw.zrange(key, 0, -1, withscores=True)
    part.raw.pexpire(key, 1_000)

    assert not await adopt_status(part.ns, part.p, "above", "a child", keep_ms=60_000)
    assert part.raw.zrange(key, 0, -1, withscores=True) == [(child, first)] == [(b"a child", first)]
    assert 1_000 < part.raw.pttl(key) <= 60_000


async def test_it_refuses_other_epochs(part, refuses_other_epochs):
    await refuses_other_epochs(lambda: adopt_status(part.ns, part.p, "above", "a child", keep_ms=60_000))
