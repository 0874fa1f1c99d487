"""Lets go of archived runs that were kept long enough or were purged: one archiver of the fleet by a lease, a few at a time."""

from __future__ import annotations

import asyncio
import contextlib
import math
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
#: Seconds between two looks for runs that somebody purged: who purges wants them gone.
LOOK_SECONDS = 60.0
#: Seconds before the first one: whoever has just started has other things to do.
FIRST_SECONDS = 30.0
#: Seconds that a transaction under way gets to finish when the service is to stop.
STOP_PATIENCE = 5.0
#: A step of a sweep is followed by a rest of this many times its length: archiving comes first.
REST = 4.0


class Sweeping(Service):
    """Sweeps the archive by the policy that is set, and of what was purged whatever it says."""

    name = "retention"

    def __init__(self, ns: Any, session: str, *, cold: Cold, policy: Policy) -> None:
        super().__init__(ns, 0, session)
        self._cold, self._policy = cold, policy
        #: When the next look for purged runs is due, and the next whole sweep: never where everything is kept.
        self._look = self._next = time.monotonic() + FIRST_SECONDS
        if policy.shortest_ms is None:
            self._next = math.inf
        self._sweep: Sweep | None = None
        self._swept = Swept()

    async def tick(self) -> float:
        began = time.monotonic()
        if self._sweep is None:
            if began < self._look:
                return self._look - began
            seconds, _ = await self.ns.read("TIME", p=0)
            whole = began >= self._next
            self._sweep = Sweep(self.ns, self._cold, self._policy, int(seconds) * 1000, only_purged=not whole)
            self._swept = Swept()
            if whole:
                self._next = began + SWEEP_SECONDS
        if await self._sweep.step(self._swept):
            return REST * (time.monotonic() - began)
        if self._swept.runs or self._swept.observed or self._swept.schedules:
            log.info(
                "the archive let go of what was kept long enough or was purged",
                runs=self._swept.runs,
                blobs=self._swept.blobs,
                observed=self._swept.observed,
                schedules=self._swept.schedules,
            )
        pause = min(LOOK_SECONDS, SWEEP_SECONDS)
        self._sweep, self._look = None, time.monotonic() + pause
        return pause

    def on_fault(self) -> None:
        """Begins anew: the archive may be another by then."""
        if self._sweep is not None and not math.isinf(self._next):
            self._next = time.monotonic()
        self._sweep = None

    async def stop(self) -> None:
        # Within a turn nothing is being written: a transaction that is cancelled may leave the database locked for good.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(STOP_PATIENCE), self._cold.turn:
                await super().stop()
        await super().stop()


def make_sweeping(ns: Any, cold: Cold, session: str) -> list[Sweeping]:
    """Returns what sweeps the archive."""
    return [Sweeping(ns, session, cold=cold, policy=read_policy())]
