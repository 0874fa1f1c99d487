"""Says what a failed Redis call means: not executed, rejected by our own rules, or unknown.

Only UNKNOWN outcomes need a request id or a fence to be repeated safely; this room decides which is which, once.
"""

from __future__ import annotations

import asyncio

from redis import exceptions as rx

from weft.errors import NotExecuted, OutcomeUnknown, StoreRefused, WeftError
from weft.store.scripts import Script
from weft.store.wire import NotConnected

#: First words of server errors that mean: nothing of this command was carried out.
NOT_EXECUTED = frozenset(
    [
        "NOSCRIPT",
        "BUSY",
        "LOADING",
        "READONLY",
        "MISCONF",
        "OOM",
        "NOREPLICAS",
        "CLUSTERDOWN",
        "TRYAGAIN",
        "MOVED",
        "ASK",
        "MASTERDOWN",
        "UNKILLABLE",
    ]
)

#: The same as redis-py's classes: for these it cuts the first word off the message. Subclasses come first.
_NOT_EXECUTED_CLASSES: dict[type[Exception], str] = {
    rx.BusyLoadingError: "LOADING",
    rx.ReadOnlyError: "READONLY",
    rx.OutOfMemoryError: "OOM",
    rx.NoScriptError: "NOSCRIPT",
    rx.MasterDownError: "MASTERDOWN",
    rx.ClusterDownError: "CLUSTERDOWN",
    rx.TryAgainError: "TRYAGAIN",
    rx.MovedError: "MOVED",
    rx.AskError: "ASK",
}

_HINTS = {
    "OOM": "the server's maxmemory is reached: raise it or let the workers drain",
    "MISCONF": "the server cannot persist (disk full?): free space; INFO persistence tells more",
    "READONLY": "the server is a replica: a failover is under way or the URL points at the wrong node",
    "LOADING": "the server is loading its data",
    "MOVED": "the server is a node of a Cluster and has not this slot: begin the URL with redis+cluster",
    "BUSY": "a script of someone else blocks the server",
}


def translate(error: BaseException, script: Script | None = None) -> WeftError:
    """Returns the Weft error that a redis-py error stands for."""
    if isinstance(error, WeftError):
        return error
    text = str(error)
    word = next((w for cls, w in _NOT_EXECUTED_CLASSES.items() if isinstance(error, cls)), text.partition(" ")[0])
    if _is_refused_user(error):
        return StoreRefused(f"the store refuses this user: {text}; check the user and password in WEFT_REDIS_URL")
    if isinstance(error, tuple(_NOT_EXECUTED_CLASSES)) or (
        isinstance(error, rx.ResponseError) and word in NOT_EXECUTED
    ):
        hint = _HINTS.get(word, "")
        return NotExecuted(f"{text}{': ' + hint if hint else ''}", redis=word)
    if isinstance(error, NotConnected):
        return NotExecuted(f"the store cannot be reached: {text}", redis="")
    if isinstance(error, rx.ResponseError):
        if script is not None:
            return script.translate(text)
        if "DB index" in text:
            return StoreRefused(
                f"the store has no database of this number ({text}): WEFT_REDIS_URL ends with it, and `databases` in the"
                " server's configuration says how many there are"
            )
        if "unknown command" in text.lower():
            text += "; a server knows it: if the URL is that of a Sentinel, write redis+sentinel://host:port/name"
        return StoreRefused(text)
    if isinstance(error, (rx.ConnectionError, rx.TimeoutError, rx.RedisError, OSError, asyncio.TimeoutError, EOFError)):
        return OutcomeUnknown(f"the store does not answer: {text or type(error).__name__}")
    raise error


def _is_refused_user(error: BaseException) -> bool:
    """Tells whether the server does not let this user in; redis-py hides that behind a ConnectionError at times."""
    refused = (rx.AuthenticationError, rx.AuthorizationError, rx.NoPermissionError)
    while isinstance(error, rx.ConnectionError) and not isinstance(error, refused):
        cause = error.__cause__ or error.__context__
        if cause is None:
            return False
        error = cause
    return isinstance(error, refused)
