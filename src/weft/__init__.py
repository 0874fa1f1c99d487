"""Weft: durable work in Python on Redis. Tasks, graphs, workflows and agents on one engine."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from weft.core.approvals import Approval
    from weft.core.letters import DeadLetter, LetterGroup, LetterPage, ReplayReport
    from weft.core.model import Event, LogLine, RunInfo, RunStatus
    from weft.core.schedule import ScheduleInfo
    from weft.core.status import FeedPage, Observation
    from weft.core.steering import Discard, Fatal, Retry, Snooze
    from weft.errors import (
        AlreadyRunning,
        Conflict,
        DefinitionError,
        DurabilityUnmet,
        ExpressionFailed,
        ForeignAwait,
        HistoryExpired,
        HistoryLimit,
        InvalidArguments,
        InvalidExpression,
        InvalidGraph,
        InvalidOption,
        LinkRefused,
        NonDeterminism,
        NotAllowed,
        NotBuilt,
        NotFound,
        PayloadRefused,
        PayloadTooLarge,
        ResourceFailed,
        ResultExpired,
        RunCancelled,
        SettingsError,
        StepFailed,
        StoreRefused,
        Unavailable,
        WeftError,
    )
    from weft.sdk.app import Weft
    from weft.sdk.context import Context
    from weft.sdk.current import Current, current
    from weft.sdk.depends import Depends
    from weft.sdk.graph import Graph
    from weft.sdk.run import Run

_ERRORS = [
    "AlreadyRunning",
    "Conflict",
    "DefinitionError",
    "DurabilityUnmet",
    "ExpressionFailed",
    "ForeignAwait",
    "HistoryExpired",
    "HistoryLimit",
    "InvalidArguments",
    "InvalidExpression",
    "InvalidGraph",
    "InvalidOption",
    "LinkRefused",
    "NonDeterminism",
    "NotAllowed",
    "NotBuilt",
    "NotFound",
    "PayloadRefused",
    "PayloadTooLarge",
    "ResourceFailed",
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
    "Current": "weft.sdk.current",
    "Depends": "weft.sdk.depends",
    "Context": "weft.sdk.context",
    "Graph": "weft.sdk.graph",
    "Run": "weft.sdk.run",
    "Event": "weft.core.model",
    "LogLine": "weft.core.model",
    "RunInfo": "weft.core.model",
    "RunStatus": "weft.core.model",
    **dict.fromkeys(["DeadLetter", "LetterGroup", "LetterPage", "ReplayReport"], "weft.core.letters"),
    **dict.fromkeys(["Retry", "Snooze", "Fatal", "Discard"], "weft.core.steering"),
    "ScheduleInfo": "weft.core.schedule",
    **dict.fromkeys(["FeedPage", "Observation"], "weft.core.status"),
    "Approval": "weft.core.approvals",
    **dict.fromkeys(_ERRORS, "weft.errors"),
}

__all__ = [
    "AlreadyRunning",
    "Approval",
    "Conflict",
    "Context",
    "Current",
    "DeadLetter",
    "DefinitionError",
    "Depends",
    "Discard",
    "DurabilityUnmet",
    "Event",
    "ExpressionFailed",
    "Fatal",
    "FeedPage",
    "ForeignAwait",
    "Graph",
    "HistoryExpired",
    "HistoryLimit",
    "InvalidArguments",
    "InvalidExpression",
    "InvalidGraph",
    "InvalidOption",
    "LetterGroup",
    "LetterPage",
    "LinkRefused",
    "LogLine",
    "NonDeterminism",
    "NotAllowed",
    "NotBuilt",
    "NotFound",
    "Observation",
    "PayloadRefused",
    "PayloadTooLarge",
    "ReplayReport",
    "ResourceFailed",
    "ResultExpired",
    "Retry",
    "Run",
    "RunCancelled",
    "RunInfo",
    "RunStatus",
    "ScheduleInfo",
    "SettingsError",
    "Snooze",
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
