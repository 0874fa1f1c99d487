"""reopen_partition: a rebuilt partition is served again, under its new epoch."""

from rebuilding import closed

from weft.store.recovery import reopen_partition


async def test_it_is_opened_under_its_new_epoch(part, p):
    ns = await closed(part)
    part.raw.hset(part.keys.epoch(p), "levels", "9 5")

    await reopen_partition(ns, p)

    # What it held is gone, and with it all tokens of other priorities than the usual.
    assert part.raw.hmget(part.keys.epoch(p), "number", "recovering", "levels") == [b"4000000000", None, b"5"]


async def test_it_is_opened_by_its_rebuilder_only(part, p, refuses_other_epochs):
    ns = await closed(part)

    await refuses_other_epochs(lambda: reopen_partition(ns, p))
