"""What all housekeeping services share."""

from __future__ import annotations

import asyncio

from weft.engine.housekeeping.service import Service
from weft.errors import PartitionLost
from weft.store.namespace import Namespace


class Woken(Service):
    """A service that somebody wakes all the time, and that can do nothing."""

    name = "woken"
    looks = 0

    async def _lead(self) -> bool:
        type(self).looks += 1
        raise PartitionLost("the store lost partition 0", partition=0)

    async def tick(self) -> float:
        return 0.0

    async def pause(self, seconds: float) -> None:
        await asyncio.sleep(0)


async def test_a_service_that_is_woken_while_nothing_can_be_done_does_not_spin():
    service = Woken(None, 0, "s-1")
    service.start()
    await asyncio.sleep(0.5)
    assert service._task is not None
    service._task.cancel()

    assert 1 < Woken.looks < 20


class Slow(Service):
    """A service whose looks take longer than its lease."""

    name = "slow"

    def __init__(self, ns: Namespace, session: str, taken: asyncio.Event) -> None:
        super().__init__(ns, 0, session)
        self._lease_ms, self._taken = 150, taken
        self.looking, self.over = asyncio.Event(), asyncio.Event()

    async def _lead(self) -> bool:
        held = await super()._lead()
        if not held:
            self._taken.set()
        return held

    async def tick(self) -> float:
        self.looking.set()
        await self.over.wait()
        return 60.0


async def test_a_service_keeps_its_lease_while_it_works_for_longer(ns: Namespace):
    refused = asyncio.Event()
    first, second = Slow(ns, "s-1", refused), Slow(ns, "s-2", refused)
    first.start()
    await first.looking.wait()
    second.start()
    async with asyncio.timeout(10):
        for _ in range(4):  # one look of the second takes half a lease
            refused.clear()
            await refused.wait()

    assert not second.looking.is_set()
    await first.stop()
    await second.looking.wait()
    await second.stop()
