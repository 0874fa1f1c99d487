"""A partition that is closed, to be rebuilt."""

from __future__ import annotations

from partition import Partition

from weft.store.recovery import Closed, close_partition


async def closed(part: Partition, epoch: int = 4_000_000_000) -> Closed:
    """Closes a partition; its scripts are called under the next epoch from here on."""
    ns = Closed(part.ns, part.ns.partitions)
    ns.epochs[part.p] = str(epoch)
    assert await close_partition(ns, part.p)
    await ns.open()
    # What the check of the epoch compares with.
    part.ns = ns
    return ns
