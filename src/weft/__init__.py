"""Weft: durable work in Python on Redis. Tasks, graphs, workflows and agents on one engine."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from weft.core.model import Event, RunInfo, RunStatus
    from weft.core.schedule import ScheduleInfo
    from weft.errors import (
        Conflict,
        DefinitionError,
        HistoryExpired,
        InvalidArguments,
        InvalidOption,
        NotBuilt,
        NotFound,
        PayloadRefused,
        PayloadTooLarge,
        ResultExpired,
        RunCancelled,
        SettingsError,
        StepFailed,
        StoreRefused,
        Unavailable,
        WeftError,
    )
    from weft.sdk.app import Weft
    from weft.sdk.current import current
    from weft.sdk.run import Run

_ERRORS = [
    "Conflict",
    "DefinitionError",
    "HistoryExpired",
    "InvalidArguments",
    "InvalidOption",
    "NotBuilt",
    "NotFound",
    "PayloadRefused",
    "PayloadTooLarge",
    "ResultExpired",
    "RunCancelled",
    "SettingsError",
    "StepFailed",
    "StoreRefused",
    "Unavailable",
    "WeftError",
]

#: Public name -> module. Loaded at first use, so that `import weft` and `weft --help` stay quick.
_HOMES = {
    "Weft": "weft.sdk.app",
    "current": "weft.sdk.current",
    "Run": "weft.sdk.run",
    "Event": "weft.core.model",
    "RunInfo": "weft.core.model",
    "RunStatus": "weft.core.model",
    "ScheduleInfo": "weft.core.schedule",
    **dict.fromkeys(_ERRORS, "weft.errors"),
}

__all__ = [
    "Conflict",
    "DefinitionError",
    "Event",
    "HistoryExpired",
    "InvalidArguments",
    "InvalidOption",
    "NotBuilt",
    "NotFound",
    "PayloadRefused",
    "PayloadTooLarge",
    "ResultExpired",
    "Run",
    "RunCancelled",
    "RunInfo",
    "RunStatus",
    "ScheduleInfo",
    "SettingsError",
    "StepFailed",
    "StoreRefused",
    "Unavailable",
    "Weft",
    "WeftError",
    "__version__",
    "current",
]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'weft' has no attribute {name!r}")
    return getattr(importlib.import_module(home), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
