"""Lets go of archived runs that were kept long enough, now and then, a few at a time: one archiver of the fleet, by a lease."""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import Any

from weft.core.retention import Policy
from weft.engine.cold import Cold
from weft.engine.housekeeping.service import Service
from weft.engine.retention import Sweep, Swept, read_policy
from weft.telemetry import get_logger

log = get_logger("weft.retention")

#: Seconds between two sweeps.
SWEEP_SECONDS = 600.0
#: Seconds before the first one: whoever has just started has other things to do.
FIRST_SECONDS = 30.0
#: Seconds that a transaction under way gets to finish when the service is to stop.
STOP_PATIENCE = 5.0
#: A step of a sweep is followed by a rest of this many times its length: archiving comes first.
REST = 4.0


class Sweeping(Service):
    """Sweeps the archive by the policy that is set."""

    name = "retention"

    def __init__(self, ns: Any, session: str, *, cold: Cold, policy: Policy) -> None:
        super().__init__(ns, 0, session)
        self._cold, self._policy = cold, policy
        self._next = time.monotonic() + FIRST_SECONDS
        self._sweep: Sweep | None = None
        self._swept = Swept()

    async def tick(self) -> float:
        began = time.monotonic()
        if self._sweep is None:
            if began < self._next:
                return self._next - began
            seconds, _ = await self.ns.read("TIME", p=0)
            self._sweep = Sweep(self.ns, self._cold, self._policy, int(seconds) * 1000)
            self._swept = Swept()
        if await self._sweep.step(self._swept):
            return REST * (time.monotonic() - began)
        if self._swept.runs or self._swept.observed:
            log.info(
                "the archive let go of what was kept long enough",
                runs=self._swept.runs,
                blobs=self._swept.blobs,
                observed=self._swept.observed,
            )
        self._sweep, self._next = None, time.monotonic() + SWEEP_SECONDS
        return SWEEP_SECONDS

    def on_fault(self) -> None:
        """Begins anew: the archive may be another by then."""
        self._sweep = None

    async def stop(self) -> None:
        # Within a turn nothing is being written: a transaction that is cancelled may leave the database locked for good.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(STOP_PATIENCE), self._cold.turn:
                await super().stop()
        await super().stop()


def make_sweeping(ns: Any, cold: Cold, session: str) -> list[Sweeping]:
    """Returns what sweeps the archive; nothing where everything is kept for good."""
    policy = read_policy()
    return [Sweeping(ns, session, cold=cold, policy=policy)] if policy.shortest_ms is not None else []
