"""Crash points: dies at a chosen boundary of a chosen Redis call, just before it is sent or just after its reply.

A point is named `<when>:<call>:<k>`, as in `after:commit_steps:2`: the second time that the reply of a commit
arrived. A process takes its point from WEFT_CRASH_AT and notes every boundary it passes in the file WEFT_CRASH_LOG;
with neither set nothing is installed. For tests only: nothing in production imports this room.
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
#: Where a process writes the boundaries it passes, one per line.
CRASH_LOG = "WEFT_CRASH_LOG"


class CrashPoints:
    """Counts boundaries by name; kills its own process at one of them."""

    def __init__(self, at: str = "", log: str = "") -> None:
        self._at = at
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
        if point == self._at:
            # Not an exception and not an exit: no handler, no `finally`, no flush, as with a pulled plug.
            os.kill(os.getpid(), signal.SIGKILL)


def install_from_environ() -> None:
    """Installs what the environment asks for; does nothing when it asks for nothing."""
    at, log = os.environ.get(CRASH_AT, ""), os.environ.get(CRASH_LOG, "")
    if at or log:
        connection.boundary = CrashPoints(at, log)


def read_points(log: Path) -> list[str]:
    """Returns the boundaries a process passed, in order; the last line of a killed process counts too."""
    return log.read_text().splitlines() if log.exists() else []
