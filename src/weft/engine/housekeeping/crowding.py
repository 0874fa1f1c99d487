"""Tells whether others wait for the processors of this machine: work that can wait gives way then."""

from __future__ import annotations

import os
import time
from pathlib import Path

#: Where Linux counts the microseconds during which somebody was ready to run and had no processor.
PRESSURE = Path("/proc/pressure/cpu")
#: The part of recent time from which on that is called crowded.
CROWDED = 0.25
#: Seconds after which what was seen counts half.
HALF_LIFE = 1.0


class Crowd:
    """The processors, as seen from time to time."""

    def __init__(self) -> None:
        self._waited, self._at = _waited_s(), time.monotonic()
        self._part = 0.0

    def look(self) -> bool:
        """Tells whether processors are crowded; made to be called a few times a second."""
        waited, now = _waited_s(), time.monotonic()
        if waited is None or self._waited is None:
            # Not counted here: the average of the last minute has to do.
            return os.getloadavg()[0] > (os.cpu_count() or 1) if hasattr(os, "getloadavg") else False
        seconds = now - self._at
        if seconds > 0:
            weight = 0.5 ** (seconds / HALF_LIFE)
            self._part = self._part * weight + min(1.0, (waited - self._waited) / seconds) * (1 - weight)
            self._waited, self._at = waited, now
        return self._part > CROWDED


def _waited_s() -> float | None:
    """Returns how long somebody has waited for a processor since the machine started; None where nobody counts."""
    try:
        some = PRESSURE.read_text(encoding="ascii").partition("\n")[0]
        return int(some.rpartition("total=")[2]) / 1e6
    except (OSError, ValueError):
        return None
