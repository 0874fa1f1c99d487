"""The timer service: fires what is due, sleeps until the next, and is woken when an earlier timer arrives."""

from __future__ import annotations

import asyncio
import contextlib
from collections import defaultdict
from typing import Any

import msgspec

from weft.core.flow import is_flow
from weft.core.model import ERROR_DECODER, SETTLED_MS, ErrorRecord
from weft.ending import end_tasks
from weft.engine.closing import end_replaced
from weft.engine.gates import admit
from weft.engine.holding import pass_on
from weft.engine.housekeeping.cron import fire_schedules
from weft.engine.housekeeping.graphs import shut_maps, tend
from weft.engine.housekeeping.hedges import stop_outrun, watch_maps
from weft.engine.housekeeping.service import Service
from weft.engine.steps import MAX_CAUSES, keep_failed_ms
from weft.engine.waits import look_after
from weft.errors import NotFound, Unavailable
from weft.store.controls import informed
from weft.store.flows import remind
from weft.store.gates import mark_gates
from weft.store.runs import RunRow, end_run, forget_unique, read_holders, read_runs
from weft.store.timers import drop_timers, fire_timers, read_specs, read_timers
from weft.store.wake import timer_pebbles

#: Timers fired by one script call: some 2 ms of server time, for which other queues wait.
FIRE_BATCH = 128
#: Seconds the wake listener blocks at once.
LISTEN = 5.0

_DEADLINE = msgspec.msgpack.encode(
    ErrorRecord("DeadlineExceeded", "the run did not finish before its deadline", code="deadline_exceeded")
)


def _overdue(row: RunRow) -> bytes:
    """Returns the error of a run that is past its deadline; what its last attempt failed with is the cause."""
    if "error" not in row.fields:
        return _DEADLINE
    late, last = ERROR_DECODER.decode(_DEADLINE), ERROR_DECODER.decode(row.fields["error"])
    late.traceback = last.traceback
    late.causes = [{"type": last.type, "message": last.message}, *last.causes][:MAX_CAUSES]
    return msgspec.msgpack.encode(late)


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
        # Also what a worker left behind that died between freeing a slot and giving it to the next.
        await admit(self.ns, self.p)
        if due:
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
        of: dict[str, list[str]] = defaultdict(list)
        for member in due:
            kind, _, name = member.partition(":")
            of[kind].append(name)
        ns, p, by = self.ns, self.p, self.session
        await mark_gates(ns, p, of["gate"], timers=True)
        await self._open(of["open"], now_ms)
        await self._replace(of["end"], now_ms)
        await self._end(of["deadline"], now_ms)
        await look_after(ns, p, of["wait"], by=by, seen_ms=now_ms)
        await tend(ns, p, of["close"], of["route"], by=by, seen_ms=now_ms)
        await shut_maps(ns, p, of["shut"], by=by, seen_ms=now_ms)
        await pass_on(ns, p, of["hold"], seen_ms=now_ms)
        await stop_outrun(ns, p, of["stop"], by=by, seen_ms=now_ms)
        await watch_maps(ns, p, of["hedge"], by=by, seen_ms=now_ms)
        if of["cron"]:
            await fire_schedules(ns, p, of["cron"], now_ms=now_ms, by=by)

    async def _open(self, runs: list[str], now_ms: int) -> None:
        """Gives runs whose delay or back-off is over their token."""
        found = list(zip(runs, await read_specs(self.ns, self.p, runs), strict=True))
        gone = [f"open:{run}" for run, known in found if known is None]
        await drop_timers(self.ns, self.p, gone, seen_ms=now_ms)
        ready = [(run, known[0]) for run, known in found if known is not None]
        seen = {run: known[1] for run, known in found if known is not None}
        if ready:
            words = await informed(self.ns, self.p, lambda: fire_timers(self.ns, self.p, ready, seen=seen))
            begun = [each for each, word in zip(ready, words, strict=True) if each[1].debounced and word != "early"]
            await asyncio.gather(
                *(forget_unique(self.ns, self.p, spec.once, run, after_ms=SETTLED_MS) for run, spec in begun)
            )

    async def _end(self, runs: list[str], now_ms: int) -> None:
        """Ends runs whose deadline has passed; workflow runs are told of it first."""
        for run, row in zip(runs, await read_runs(self.ns, self.p, runs), strict=True):
            if row is None:
                await drop_timers(self.ns, self.p, [f"deadline:{run}"], seen_ms=now_ms)
                continue
            if is_flow(row.spec) and await self._remind(row, now_ms):
                continue
            with contextlib.suppress(NotFound):
                # A run that goes through a gate meanwhile is found by the next look: its timer is still due.
                await end_run(
                    self.ns,
                    self.p,
                    row,
                    kind="failed",
                    value=_overdue(row),
                    keep_ms=keep_failed_ms(row.spec),
                    by=self.session,
                    deadline=True,
                )

    async def _remind(self, row: RunRow, now_ms: int) -> bool:
        """Tells a workflow run that its time is over; False when nobody is there to be told, or it went on all the same."""
        begun = row.open and ("turn" in row.fields or await read_holders(self.ns, self.p, [row]))
        if not begun or row.number("overdue", now_ms + 1) <= now_ms:
            return False
        with contextlib.suppress(NotFound):
            await remind(self.ns, self.p, row, _DEADLINE, by=self.session)
        return True

    async def _replace(self, runs: list[str], now_ms: int) -> None:
        """Ends runs whose place a newer call took, where whoever called did not live to do it."""
        if runs and (gone := await end_replaced(self.ns, self.p, runs, by=self.session)):
            await drop_timers(self.ns, self.p, [f"end:{run}" for run in gone], seen_ms=now_ms)

    async def _listen(self) -> None:
        """Turns pebbles into wake-ups. A local event, because a server-side block ends up to 100 ms late."""
        while True:
            try:
                if await self._pebbles.wait():
                    self._woken.set()
            except Unavailable:
                await asyncio.sleep(0.2)
