"""What tests of an app use: `app.testing()` anywhere, and a pytest plugin (`weft.testing.plugin`) that wraps it in fixtures."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from weft.testing.clock import VirtualClock
    from weft.testing.harness import Harness
    from weft.testing.manual import Attempt, ManualWorker
    from weft.testing.sweep import CrashEverywhere

#: Public name -> module. Loaded at first use: the plugin is imported by every pytest run of whoever has Weft installed.
_HOMES = {
    "Attempt": "weft.testing.manual",
    "CrashEverywhere": "weft.testing.sweep",
    "Harness": "weft.testing.harness",
    "ManualWorker": "weft.testing.manual",
    "VirtualClock": "weft.testing.clock",
}

__all__ = ["Attempt", "CrashEverywhere", "Harness", "ManualWorker", "VirtualClock"]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'weft.testing' has no attribute {name!r}")
    return getattr(importlib.import_module(home), name)
