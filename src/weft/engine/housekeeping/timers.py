"""The timer service: fires what is due, sleeps until the next, and is woken when an earlier timer arrives."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import msgspec

from weft.core.model import ErrorRecord
from weft.ending import end_tasks
from weft.engine.housekeeping.cron import fire_schedules
from weft.engine.housekeeping.service import Service
from weft.errors import NotFound, Unavailable
from weft.store.runs import end_run, read_runs
from weft.store.timers import drop_timers, fire_timers, read_timers
from weft.store.wake import timer_pebbles

#: Timers fired by one script call.
FIRE_BATCH = 128
#: Seconds the wake listener blocks at once.
LISTEN = 5.0

_DEADLINE = msgspec.msgpack.encode(
    ErrorRecord("DeadlineExceeded", "the run did not finish before its deadline", code="deadline_exceeded")
)


class Timers(Service):
    """Fires timers of one partition."""

    name = "timers"

    def __init__(self, ns: Any, p: int, session: str) -> None:
        super().__init__(ns, p, session)
        self._woken = asyncio.Event()
        self._pebbles = timer_pebbles(ns, p, seconds=LISTEN)
        self._listener: asyncio.Task[None] | None = None

    async def tick(self) -> float:
        if self._listener is None:
            self._listener = asyncio.create_task(self._listen(), name=f"weft timer wake {self.p}")
        self._woken.clear()
        now, coming, due = await read_timers(self.ns, self.p, limit=FIRE_BATCH)
        if due:
            await self._fire(due, now)
            return 0.0
        # Rounded up: a timer never fires early, and looking a moment too soon would only mean looking twice.
        return 60.0 if coming is None else (coming - now) / 1000

    async def pause(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._woken.wait(), seconds) if seconds > 0 else await asyncio.sleep(0)

    async def stop(self) -> None:
        await end_tasks(self._listener)
        await super().stop()
        await self._pebbles.close()

    async def _fire(self, due: list[str], now_ms: int) -> None:
        opening = [member.partition(":")[2] for member in due if member.startswith("open:")]
        ending = [member.partition(":")[2] for member in due if member.startswith("deadline:")]
        ticking = [member.partition(":")[2] for member in due if member.startswith("cron:")]
        rows = dict(zip(opening, await read_runs(self.ns, self.p, opening), strict=True))
        await drop_timers(self.ns, self.p, [f"open:{run}" for run, row in rows.items() if row is None])
        ready = [(run, row.spec) for run, row in rows.items() if row is not None]
        if ready:
            await fire_timers(self.ns, self.p, ready)
        for run, row in zip(ending, await read_runs(self.ns, self.p, ending), strict=True):
            if row is None:
                await drop_timers(self.ns, self.p, [f"deadline:{run}"])
                continue
            with contextlib.suppress(NotFound):
                await end_run(
                    self.ns, self.p, run, row.spec, kind="failed", value=_DEADLINE, by=self.session, deadline=True
                )

        if ticking:
            await fire_schedules(self.ns, self.p, ticking, now_ms=now_ms, by=self.session)

    async def _listen(self) -> None:
        """Turns pebbles into wake-ups. A local event, because a server-side block ends up to 100 ms late."""
        while True:
            try:
                if await self._pebbles.wait():
                    self._woken.set()
            except Unavailable:
                await asyncio.sleep(0.2)
