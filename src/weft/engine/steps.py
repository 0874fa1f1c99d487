"""The verbs on steps: claim, commit, report; and what the end of an attempt means."""

from __future__ import annotations

import asyncio
import os
import random
import traceback
from pathlib import Path
from typing import Any

import msgspec

from weft.core.effects import run_of
from weft.core.model import INLINE_BYTES, ErrorRecord, Outcome, RunSpec, Token, Value
from weft.core.retry import next_delay_ms
from weft.core.steering import Fatal, Retry, Sequel, decide
from weft.errors import ResourceFailed, WeftError
from weft.settings import read_setting
from weft.store.blobs import read_blob, stage_blob
from weft.store.steps import Head, await_steps, begin_suspect, claim_steps, commit_steps, queue_streams, report_steps
from weft.store.wake import Pebbles

#: Characters of a traceback that are kept.
MAX_TRACEBACK = 8_000
#: Characters of an error message that are kept.
MAX_MESSAGE = 2_000
#: Characters of an error's code that are kept.
MAX_CODE = 200
#: Causes of an error that are kept.
MAX_CAUSES = 8

#: Where the frames of Weft itself lie.
PACKAGE = str(Path(__file__).parents[1]) + os.sep

_ENCODE = msgspec.msgpack.Encoder().encode


async def completed(ns: Any, token: Token, data: bytes, started_ms: int) -> Outcome:
    """Makes the outcome of a step that returned; a large result becomes a blob first."""
    if len(data) <= INLINE_BYTES:
        return completed_inline(token, data, started_ms)
    digest = await stage_blob(ns, token.partition, run_of(token.run), data)
    packed = _ENCODE(Value(blob=digest, size=len(data)))
    return Outcome(token, "completed", packed, token.spec.keep_ms, started_ms, digest)


def completed_inline(token: Token, data: bytes, started_ms: int) -> Outcome:
    """Makes the outcome of a step that returned something small."""
    return Outcome(token, "completed", _ENCODE(Value(data)), token.spec.keep_ms, started_ms)


def concluded(token: Token, sequel: Sequel, started_ms: int) -> Outcome:
    """Makes the outcome of a step that raised: retried while there are retries, snoozed, discarded, or failed."""
    spec, packed = token.spec, _ENCODE(sequel.record)
    if sequel.kind == "snooze":
        reason = sequel.record.message.encode()
        return Outcome(token, "snoozed", reason, sequel.after_ms or 0, started_ms)
    if sequel.kind == "discard":
        return Outcome(token, "cancelled", packed, spec.keep_ms, started_ms)
    delay = next_delay_ms(spec, token.attempt, random.random()) if sequel.kind == "retry" else None
    if delay is None:
        return Outcome(token, "failed", packed, keep_failed_ms(spec), started_ms)
    return Outcome(token, "retrying", packed, delay if sequel.after_ms is None else sequel.after_ms, started_ms)


def keep_failed_ms(spec: RunSpec) -> int:
    """Returns how long a failed run is kept: as a dead letter it outlives the results of others."""
    return max(spec.keep_ms, int(read_setting("WEFT_DLQ_RETENTION")))


def returned(token: Token, reason: str, started_ms: int, *, delay_ms: int = 0) -> Outcome:
    """Makes the outcome of a step that is handed back: no attempt is burnt and no crash counted."""
    return Outcome(token, "returned", reason.encode(), delay_ms, started_ms)


def sequel_of(
    error: BaseException, retry_on: tuple[type[BaseException], ...], fatal_on: tuple[type[BaseException], ...]
) -> Sequel:
    """Tells what follows an error that a task raised."""
    # A `Retry` or `Fatal` raised from one of our own errors stands for that error.
    told = error.__cause__ if isinstance(error, (Retry, Fatal)) and isinstance(error.__cause__, WeftError) else error
    record = record_of(told)
    if isinstance(error, ResourceFailed) and isinstance(error.__cause__, Exception):
        error = error.__cause__  # what its opener raised is what the task's options speak of
    if isinstance(error, asyncio.CancelledError) and Exception in retry_on:
        # Nobody cancelled the run: the code raised it itself, and that is an error like others, though no Exception to Python.
        retry_on = (BaseException,)
    return decide(error, record, retry_on, fatal_on)


def record_of(error: BaseException) -> ErrorRecord:
    """Turns an exception into what is stored: class name, message, traceback text and causes.

    An exception that cannot be taken apart, because its own code raises when it is looked at, is told as far as that goes.
    """
    try:
        return _record_of(error)
    except BaseException:  # noqa: BLE001 - the code of an exception must not cost the step its outcome, nor the worker its life
        return ErrorRecord(_class_name(error), _text(error), _frames(error), [], _code(error))


def _record_of(error: BaseException) -> ErrorRecord:
    causes = [{"type": type(one).__name__, "message": _text(one)} for one in _members(error)][:MAX_CAUSES]
    cause = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    while cause is not None and len(causes) < MAX_CAUSES:
        causes.append({"type": type(cause).__name__, "message": _text(cause)})
        cause = cause.__cause__ or (None if cause.__suppress_context__ else cause.__context__)
    told = traceback.TracebackException.from_exception(error)
    _begin_with_theirs(told)
    lines = "".join(told.format())
    text = lines if len(lines) <= MAX_TRACEBACK else "…" + lines[-MAX_TRACEBACK:]
    return ErrorRecord(type(error).__name__, _text(error), _clean(text), causes, _code(error))


def _class_name(error: BaseException) -> str:
    """Returns the name of an error's class, whatever its metaclass makes of it."""
    name: str = type.__dict__["__name__"].__get__(type(error))
    return _clean(name)


def _frames(error: BaseException) -> str:
    """Returns where an error was raised, without asking the error for anything that its class could define."""
    try:
        last = BaseException.__dict__["__traceback__"].__get__(error)
        return _clean("".join(traceback.format_tb(last))[-MAX_TRACEBACK:])
    except Exception:  # noqa: BLE001 - a source that cannot be read
        return ""


def _begin_with_theirs(told: traceback.TracebackException) -> None:
    """Takes away the frames of Weft that led to the code of a task, which its author can do nothing about."""
    seen, left = set[int](), [told]
    while left:
        one = left.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        # All of them: then the error is Weft's, and they are what there is to tell.
        first = next((i for i, frame in enumerate(one.stack) if not frame.filename.startswith(PACKAGE)), 0)
        del one.stack[:first]
        left += [each for each in (one.__cause__, one.__context__, *(one.exceptions or ())) if each is not None]


def _members(error: BaseException) -> list[BaseException]:
    """Returns the errors that a group is about, as a TaskGroup raises one; of any other error none."""
    if not isinstance(error, BaseExceptionGroup):
        return []
    return [leaf for one in error.exceptions for leaf in (_members(one) or [one])]


def _text(error: BaseException) -> str:
    try:
        return _clean(str(error)[:MAX_MESSAGE])
    except BaseException:  # noqa: BLE001 - a broken __str__ must not cost the step its outcome, whatever it raises
        return "<the exception's message cannot be read>"


def _code(error: BaseException) -> str:
    """Returns the code of an error, if it has one that is a text: whose class it is, and what that does there, is not ours."""
    try:
        code = getattr(error, "code", "")
        return _clean(str.__str__(code)[:MAX_CODE]) if isinstance(code, str) else ""
    except BaseException:  # noqa: BLE001 - nor must a broken property
        return ""


def _clean(text: str) -> str:
    return text.encode("utf-8", "replace").decode()


async def input_bytes(ns: Any, token: Token) -> bytes:
    """Returns the arguments of a token's step."""
    if token.spec.blob:
        return await read_blob(ns, token.partition, run_of(token.run), token.spec.blob)
    return token.spec.input


__all__ = [
    "Head",
    "Outcome",
    "Pebbles",
    "RunSpec",
    "Token",
    "await_steps",
    "begin_suspect",
    "claim_steps",
    "commit_steps",
    "completed",
    "concluded",
    "input_bytes",
    "keep_failed_ms",
    "queue_streams",
    "record_of",
    "report_steps",
    "returned",
    "sequel_of",
]
