"""What all housekeeping services share."""

from __future__ import annotations

import asyncio

from weft.engine.housekeeping.service import Service
from weft.errors import PartitionLost


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
