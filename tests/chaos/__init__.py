"""Fault tests: real workers, producers and servers that are killed, stopped, wiped and cut.

Every scenario ends with the one checker (`checker/`). A fixed-seed sample of each runs in `make test`; the full
version is marked `chaos` and runs by `make chaos`.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys


def die_with_parent() -> None:
    """Asks the kernel to end this process with the one that started it: a killed test run leaves nothing behind."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


if "CHAOS_FLEET" in os.environ:
    die_with_parent()
