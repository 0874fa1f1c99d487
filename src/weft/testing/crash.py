"""Crash points: dies, or stands still, at a chosen boundary of a chosen Redis call: before it is sent, or after its reply.

A point is named `<when>:<call>:<k>`, as in `after:commit_steps:2`: the second time that the reply of a commit
arrived. A process reads from the environment where it is to die (WEFT_CRASH_AT), where it is to stop until it is
continued (WEFT_STOP_AT), and where it notes every boundary it passes (WEFT_CRASH_LOG); with none set nothing is
installed. For tests only: nothing in production imports this room.
"""

from __future__ import annotations

import os
import signal
import threading
from collections import Counter
from pathlib import Path

from weft.store import connection

#: Where a process is to die.
CRASH_AT = "WEFT_CRASH_AT"
#: Where a process is to stop, as by SIGSTOP, until somebody sends SIGCONT.
STOP_AT = "WEFT_STOP_AT"
#: The file in which a process notes the boundaries it passes, one per line.
CRASH_LOG = "WEFT_CRASH_LOG"


class CrashPoints:
    """Counts boundaries by name; kills or stops its own process at one of them."""

    def __init__(self, *, crash_at: str = "", stop_at: str = "", log: str = "") -> None:
        self._crash_at, self._stop_at = crash_at, stop_at
        self._passed: Counter[str] = Counter()
        # Boundaries are also passed by the lease thread.
        self._lock = threading.Lock()
        self._log = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644) if log else -1

    def __call__(self, when: str, call: str) -> None:
        with self._lock:
            name = f"{when}:{call}"
            self._passed[name] += 1
            point = f"{name}:{self._passed[name]}"
            if self._log >= 0:
                os.write(self._log, f"{point}\n".encode())
        # Not an exception and not an exit: no handler, no `finally`, no flush, as with a pulled plug.
        if point == self._crash_at:
            os.kill(os.getpid(), signal.SIGKILL)
        if point == self._stop_at:
            os.kill(os.getpid(), signal.SIGSTOP)


def install_from_environ() -> None:
    """Installs what the environment asks for; does nothing when it asks for nothing."""
    crash_at, stop_at, log = (os.environ.get(name, "") for name in (CRASH_AT, STOP_AT, CRASH_LOG))
    if crash_at or stop_at or log:
        connection.boundary = CrashPoints(crash_at=crash_at, stop_at=stop_at, log=log)


def read_points(log: Path) -> list[str]:
    """Returns the boundaries a process passed, in order; none when it passed none."""
    return log.read_text().splitlines() if log.exists() else []
