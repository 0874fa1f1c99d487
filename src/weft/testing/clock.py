"""A clock that tests move: delays, retries and deadlines come due without anybody waiting for them.

Time in scripts is the server's plus an offset; this is who sets the offset. What Python and the server measure by
themselves stays real: timeouts of attempts, for how long they have run, leases, and how
long a finished run is kept.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from weft.clock import Duration, parse_duration_ms
from weft.store.timers import read_next_timer, read_timers, set_clock

if TYPE_CHECKING:
    from weft.sdk.app import Weft


class VirtualClock:
    """The clock of one app's test store. It begins at the real time and only ever goes forward."""

    def __init__(self, app: Weft) -> None:
        self._app = app
        self._offset_ms = 0

    @property
    def sync(self) -> SyncClock:
        """The same verbs for tests without a loop."""
        return SyncClock(self)

    def now(self) -> datetime:
        """What time it is on this clock."""
        return datetime.now(UTC) + timedelta(milliseconds=self._offset_ms)

    async def advance(self, duration: Duration) -> None:
        """Moves the clock forward; a worker that runs fires what is due by then."""
        await self._move(parse_duration_ms(duration, what="advance"))

    async def _move(self, ms: int) -> None:
        ns = await self._namespace()
        self._offset_ms += ms
        for p in range(ns.partitions):
            await set_clock(ns, p, self._offset_ms)

    async def _next(self, *, ticks: bool) -> int | None:
        """Returns the milliseconds until the next timer is due (0: one is due now); None when there is none.

        Without `ticks` the timers of schedules do not count: they never end.
        """
        ns = await self._namespace()
        waits: list[int] = []
        for p in range(ns.partitions):
            now, coming, due = await read_timers(ns, p, limit=1)
            if not ticks:
                coming, due = await read_next_timer(ns, p), []
            waits += [0] if due else [max(0, coming - now)] if coming is not None else []
        return min(waits, default=None)

    async def _namespace(self) -> Any:
        await self._app.open()
        return self._app.engine().ns


class SyncClock:
    """`clock.sync.advance("1h")`."""

    def __init__(self, clock: VirtualClock) -> None:
        self._clock = clock

    def now(self) -> datetime:
        return self._clock.now()

    def advance(self, duration: Duration) -> None:
        self._clock._app.portal.call(self._clock.advance(duration))
