"""The pulse of a worker: a thread that renews the session's lease and watches the event loop.

It has a connection of its own, so neither a busy loop nor a slow command can make a healthy worker look dead.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import sys
import sysconfig
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import weft
from weft.errors import EpochMissing, OwnershipLost, SessionLost, WeftError
from weft.telemetry import get_logger

log = get_logger("weft.worker")

#: Seconds between two looks at the loop.
TICK = 0.25
#: Seconds without a turn of the loop that are worth a warning.
LAG = 1.0


#: Where code lies that is not the app's: Python, what is installed, Weft, and what has no file.
_LIBRARIES = (
    *{sysconfig.get_path(name) + os.sep for name in ("stdlib", "platstdlib", "purelib", "platlib")},
    str(Path(weft.__file__).parent) + os.sep,
    "<",
)
#: What runs the loop: outside of it stands who started the worker, and blocks nothing.
_LOOPS = tuple(str(Path(asyncio.__file__).parent / name) for name in ("runners.py", "base_events.py", "events.py"))


class Pulse(threading.Thread):
    """Renews at a third of the lease; names the frame that blocks the loop."""

    def __init__(
        self,
        renew: Callable[[], None],
        *,
        lease: float,
        on_lost: Callable[[WeftError], None],
        loop_thread: int,
        moved: Callable[[], bool] = lambda: False,
    ) -> None:
        super().__init__(name="weft pulse", daemon=True)
        self._renew, self._lease, self._on_lost, self._loop_thread = renew, lease, on_lost, loop_thread
        #: Tells that a store which was rebuilt knows nothing of the lease: then it is taken at once.
        self._moved = moved
        self._stopping = threading.Event()
        #: Monotonic time of the last renewal that was confirmed, taken before it was asked for.
        self._renewed = time.monotonic()
        #: Monotonic time of the loop's last turn; the worker writes it.
        self.beat = time.monotonic()
        self._warned = False
        self.worst_lag = 0.0

    def run(self) -> None:
        due = time.monotonic() + self._lease / 3
        failing_since: float | None = None
        while not self._stopping.wait(min(TICK, self._lease / 6)):
            self._watch_loop()
            if time.monotonic() < due and not self._moved():
                continue
            try:
                asked = time.monotonic()
                self._renew()
                self._renewed = asked
                due, failing_since = time.monotonic() + self._lease / 3, None
            except (SessionLost, OwnershipLost, EpochMissing) as error:
                self._on_lost(error)
                due = time.monotonic() + self._lease / 3
            except WeftError as error:
                now = time.monotonic()
                if failing_since is None:
                    failing_since = now
                    self._warn("the lease cannot be renewed; trying on", error=error)
                due = now + min(0.5, self._lease / 6)

    @property
    def overdue(self) -> bool:
        """Whether the lease has run out by our own clock: others may have what this session holds."""
        return time.monotonic() > self._renewed + self._lease

    def stop(self) -> None:
        self._stopping.set()

    def _watch_loop(self) -> None:
        lag = time.monotonic() - self.beat
        self.worst_lag = max(self.worst_lag, lag)
        if lag < LAG:
            self._warned = False
        elif not self._warned:
            self._warned = True
            self._warn(
                f"the event loop is blocked for {lag:.1f} s: use `def` (a thread), pool='process' or `await` instead",
                where=_where(sys._current_frames().get(self._loop_thread)),
            )

    def _warn(self, sentence: str, **facts: Any) -> None:
        """Writes a line, and waits for it only briefly.

        Where nobody reads what is logged (a full pipe, a terminal on hold) it waits for ever, and the lease would run out.
        """
        writing = threading.Thread(target=log.warning, args=(sentence,), kwargs=facts, name="weft warning", daemon=True)
        writing.start()
        writing.join(TICK)


def _where(frame: Any) -> str:
    """Names the innermost line of the app; behind it the line of the library it waits in, if it is another one."""
    if frame is None:
        return "unknown"
    stack = traceback.extract_stack(frame)
    last = stack[-1]
    inside = itertools.takewhile(lambda one: not one.filename.startswith(_LOOPS), reversed(stack))
    own = next((one for one in inside if not one.filename.startswith(_LIBRARIES)), last)
    return _line(own) + ("" if own is last else f", which waits in {_line(last)}")


def _line(frame: traceback.FrameSummary) -> str:
    return f"{frame.filename}:{frame.lineno} in {frame.name}" + (f": {frame.line}" if frame.line else "")
