"""What all housekeeping services share: one session of the fleet runs each, by a lease."""

from __future__ import annotations

import asyncio
import contextlib
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from typing import Any

from weft.clock import backoff
from weft.ending import end_tasks
from weft.errors import WeftError
from weft.settings import read_setting
from weft.store.leases import drop_lease, take_lease
from weft.telemetry import get_logger

log = get_logger("weft.housekeeping")

#: Milliseconds a service's lease lasts, at most; a leader that dies is replaced within one and a half of it.
LEADER_LEASE_MS = 3_000


class Service(ABC):
    """Runs `tick` while this session leads; stands by otherwise."""

    name: str

    def __init__(self, ns: Any, p: int, session: str) -> None:
        self.ns, self.p, self.session = ns, p, session
        # With a short lease, steps of dead workers would otherwise wait for a dead worker's housekeeping lease to end.
        self._lease_ms: int = min(LEADER_LEASE_MS, read_setting("WEFT_LEASE"))
        self._renewed = 0.0
        self._task: asyncio.Task[None] | None = None

    @abstractmethod
    async def tick(self) -> float:
        """Does what is due; returns the seconds until the next look."""

    async def pause(self, seconds: float) -> None:
        """Waits between two looks; a service that can be woken overrides this."""
        await asyncio.sleep(seconds)

    def on_fault(self) -> None:  # noqa: B027 - most services need not care
        """Called after every failed contact with the store."""

    def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name=f"weft {self.name} {self.p}")

    async def stop(self) -> None:
        """Ends the service and gives the lease back."""
        if self._task is None:
            return
        await end_tasks(self._task)
        with contextlib.suppress(WeftError):
            await drop_lease(self.ns, self.p, self.name, owner=self.session)

    async def _run(self) -> None:
        failures = 0
        while True:
            try:
                if not await self._lead():
                    await asyncio.sleep(self._lease_ms / 2000)
                    continue
                async with self._renewing():
                    wait = await self.tick()
                failures = 0
            except Exception as error:  # noqa: BLE001 - a service that ends silently would be missed only days later
                self.on_fault()
                if failures % 20 == 0:
                    tell = log.warning if isinstance(error, WeftError) else log.error
                    tell("housekeeping met an error; trying on", service=self.name, error=repr(error))
                # Not by `pause`: what wakes a service would have it try again at once, for as long as nothing can be done.
                await asyncio.sleep(min(backoff(failures), self._lease_ms / 3000))
                failures += 1
                continue
            await self.pause(min(wait, self._lease_ms / 3000))

    @contextlib.asynccontextmanager
    async def _renewing(self) -> AsyncIterator[None]:
        """Renews the lease while something is done: that may take longer than a lease, and two would do it."""
        keeper = asyncio.create_task(self._keep_lease(), name=f"weft {self.name} {self.p} lease")
        try:
            yield
        finally:
            keeper.cancel()

    async def _keep_lease(self) -> None:
        while True:
            await asyncio.sleep(self._lease_ms / 3000)
            with contextlib.suppress(WeftError):  # whoever does it comes upon the same
                held = await take_lease(self.ns, self.p, self.name, owner=self.session, lease_ms=self._lease_ms)
                self._renewed = time.monotonic() if held else 0.0

    async def _lead(self) -> bool:
        now = time.monotonic()
        if now - self._renewed < self._lease_ms / 3000:
            return True
        held = await take_lease(self.ns, self.p, self.name, owner=self.session, lease_ms=self._lease_ms)
        self._renewed = now if held else 0.0
        return held
