"""close_partition: nothing that writes is served until the partition is opened again."""

import pytest
from rebuilding import closed

from weft.errors import PartitionLost
from weft.store.controls import set_control
from weft.store.namespace import Namespace
from weft.store.recovery import close_partition


async def test_a_closed_partition_serves_nothing_that_writes(part, p, ns: Namespace):
    part.raw.hset(part.keys.epoch(p), "behind", "far")

    await closed(part)

    assert set(part.raw.hgetall(part.keys.epoch(p))) == {b"recovering", b"incarnation", b"levels"}
    before = part.snapshot()
    with pytest.raises(PartitionLost, match="being rebuilt"):
        await set_control(ns, p, "pause:queue:a", {}, gates=[], queues=[])
    assert part.snapshot() == before


async def test_a_partition_at_a_later_epoch_is_not_closed(part, p):
    ns = await closed(part, 4_000_000_000)
    before = part.snapshot()

    ns.epochs[p] = "3999999999"
    assert not await close_partition(ns, p)
    assert part.snapshot() == before

    ns.epochs[p] = "4000000000"
    assert await close_partition(ns, p)
    part.raw.hset(part.keys.epoch(p), "number", "4000000000")
    assert not await close_partition(ns, p)
