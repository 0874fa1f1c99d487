"""The functions of expressions, each with the kinds it takes. Whatever is not in these tables is refused when read.

A function gets its arguments, its place and the evaluation that pays for work that grows with the data.
"""

from __future__ import annotations

import datetime
import math
import re
from collections.abc import Callable
from typing import Any, NamedTuple

from weft.core.cel.faults import Fault
from weft.core.cel.lexemes import MAX_INT, MIN_INT
from weft.core.cel.values import (
    BOOL,
    CHARS_PER_POINT,
    DOUBLE,
    DURATION,
    INT,
    LIST,
    MAP,
    STRING,
    TIMESTAMP,
    Duration,
    Evaluation,
    Kind,
    Timestamp,
    check_size,
    duration_text,
    kind_of,
    timestamp_text,
)

#: Characters that one point pays for where each is looked at.
SEARCHED_PER_POINT = 32

_INTEGER = re.compile(r"[+-]?[0-9]{1,19}")
_NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_DURATION = re.compile(r"([+-])?((?:[0-9]+(?:\.[0-9]+)?(?:h|ms|us|ns|m|s))+)")
_DURATION_PART = re.compile(r"([0-9]+(?:\.[0-9]+)?)(h|ms|us|ns|m|s)")
_MICROS = {"h": 3.6e9, "m": 6e7, "s": 1e6, "ms": 1e3, "us": 1.0, "ns": 1e-3}


class Function(NamedTuple):
    """A function: the kinds of its arguments, the subject of a method first (None: any), and what it does.

    `points` is what one call costs in a loop, before it pays for lengths.
    """

    kinds: tuple[tuple[Kind, ...] | None, ...]
    call: Callable[..., Any]
    points: int = 4


def _size(value: Any, at: int, evaluation: Evaluation) -> int:
    return len(value)


def _int(value: Any, at: int, evaluation: Evaluation) -> int:
    if type(value) is Timestamp:
        return math.floor(value.timestamp())
    if type(value) is str and not _INTEGER.fullmatch(value):
        raise Fault("bad_value", "int() was given a text that is not an integer", at)
    number = int(value)
    if not MIN_INT <= number <= MAX_INT:
        raise Fault("overflow", "int() was given a number beyond 64 bits", at)
    return number


def _double(value: Any, at: int, evaluation: Evaluation) -> float:
    if type(value) is str and not _NUMBER.fullmatch(value):
        raise Fault("bad_value", "double() was given a text that is not a number", at)
    number = float(value)
    if not math.isfinite(number):
        raise Fault("overflow", "double() was given a number that is too large", at)
    return number


def _string(value: Any, at: int, evaluation: Evaluation) -> str:
    if type(value) is str:
        return value
    if type(value) is bool:
        return "true" if value else "false"
    if type(value) is Duration:
        return duration_text(value)
    if type(value) is float:
        return repr(value).removesuffix(".0")
    return timestamp_text(value) if type(value) is Timestamp else str(value)


def _bool(value: Any, at: int, evaluation: Evaluation) -> bool:
    if type(value) is str and value not in ("true", "false"):
        raise Fault("bad_value", "bool() was given a text that is neither true nor false", at)
    return value if type(value) is bool else value == "true"


def _timestamp(value: Any, at: int, evaluation: Evaluation) -> Timestamp:
    if type(value) is Timestamp:
        return value
    try:
        if type(value) is int:
            return Timestamp.fromtimestamp(value, datetime.UTC)
        moment = Timestamp.fromisoformat(value)
    except (ValueError, OverflowError, OSError):
        raise Fault("bad_value", "timestamp() takes a text such as 2026-01-31T09:00:00Z, or Unix seconds", at) from None
    if moment.tzinfo is None:
        raise Fault("bad_value", "timestamp() needs a time with its offset, such as 2026-01-31T09:00:00Z", at)
    return moment


def _duration(value: Any, at: int, evaluation: Evaluation) -> Duration:
    if type(value) is Duration:
        return value
    match = _DURATION.fullmatch(value) if len(value) <= 100 else None
    if match is None:
        raise Fault("bad_value", "duration() takes a text such as 1h30m, 90s or 250ms", at)
    micros = sum(float(number) * _MICROS[unit] for number, unit in _DURATION_PART.findall(match[2]))
    try:
        return Duration(microseconds=-micros if match[1] == "-" else micros)
    except OverflowError:
        raise Fault("overflow", "duration() was given more than a duration can hold", at) from None


def _on_texts(work: Callable[..., Any]) -> Callable[..., Any]:
    """Return `work`, a function of texts, made to pay for their length."""

    def call(*args: Any) -> Any:
        *texts, _, evaluation = args
        if (length := sum(map(len, texts))) > SEARCHED_PER_POINT:
            evaluation.pay(length // SEARCHED_PER_POINT)
        return work(*texts)

    return call


def _cased(change: Callable[[bytes], bytes]) -> Callable[..., Any]:
    # As bytes, for their case is that of ASCII only, and quick.
    return _on_texts(lambda text: change(text.encode("utf-8", "surrogatepass")).decode("utf-8", "surrogatepass"))


def _split(text: str, separator: str, at: int, evaluation: Evaluation) -> list[str]:
    n_parts = text.count(separator) + 1 if separator else len(text)
    evaluation.pay(len(text) // SEARCHED_PER_POINT + n_parts)
    return text.split(separator) if separator else list(text)


def _join(parts: list[Any], separator: str, at: int, evaluation: Evaluation) -> str:
    evaluation.pay(len(parts))
    if not all(type(part) is str for part in parts):
        raise Fault("wrong_type", "join() takes a list of texts only; make them so with map(x, string(x))", at)
    check_size(size := sum(map(len, parts)) + len(separator) * len(parts), at)
    evaluation.pay(size // CHARS_PER_POINT)
    return separator.join(parts)


def _replace(text: str, old: str, new: str, at: int, evaluation: Evaluation) -> str:
    evaluation.pay(len(text) // SEARCHED_PER_POINT)
    n_found = text.count(old)
    check_size(grown := len(text) + n_found * max(0, len(new) - len(old)), at)
    evaluation.pay(grown // CHARS_PER_POINT + n_found // 4)
    return text.replace(old, new)


def _clock(field: Callable[[datetime.datetime], int], of_duration: int = 0) -> Callable[..., int]:
    """Return a getter of a timestamp, in UTC; of a duration it is the whole number of `of_duration` seconds."""

    def call(value: Any, at: int, evaluation: Evaluation) -> int:
        if type(value) is Duration:
            return math.trunc(value.total_seconds() / of_duration)
        try:
            return field(value.astimezone(datetime.UTC))
        except OverflowError:
            raise Fault("overflow", "this time is outside of the calendar", at) from None

    return call


_SIZED, _TEXT, _TIME = (STRING, LIST, MAP), (STRING,), (TIMESTAMP,)
_TIMES = (TIMESTAMP, DURATION)

#: `size(x)`
FUNCTIONS: dict[str, Function] = {
    "size": Function((_SIZED,), _size),
    "int": Function(((INT, DOUBLE, STRING, TIMESTAMP),), _int),
    "double": Function(((INT, DOUBLE, STRING),), _double),
    "string": Function(((STRING, INT, DOUBLE, BOOL, TIMESTAMP, DURATION),), _string),
    "bool": Function(((BOOL, STRING),), _bool),
    "timestamp": Function(((STRING, INT, TIMESTAMP),), _timestamp, 10),
    "duration": Function(((STRING, DURATION),), _duration, 20),
    "type": Function((None,), lambda value, at, evaluation: kind_of(value)),
    "dyn": Function((None,), lambda value, at, evaluation: value),
}

#: `x.size()`
METHODS: dict[str, Function] = {
    "size": Function((_SIZED,), _size),
    "contains": Function((_TEXT, _TEXT), _on_texts(lambda text, part: part in text)),
    "startsWith": Function((_TEXT, _TEXT), _on_texts(str.startswith)),
    "endsWith": Function((_TEXT, _TEXT), _on_texts(str.endswith)),
    "lowerAscii": Function((_TEXT,), _cased(bytes.lower)),
    "upperAscii": Function((_TEXT,), _cased(bytes.upper)),
    "trim": Function((_TEXT,), _on_texts(str.strip)),
    "split": Function((_TEXT, _TEXT), _split),
    "join": Function(((LIST,), _TEXT), _join),
    "replace": Function((_TEXT, _TEXT, _TEXT), _replace),
    "getFullYear": Function((_TIME,), _clock(lambda time: time.year)),
    "getMonth": Function((_TIME,), _clock(lambda time: time.month - 1)),
    "getDate": Function((_TIME,), _clock(lambda time: time.day)),
    "getDayOfMonth": Function((_TIME,), _clock(lambda time: time.day - 1)),
    "getDayOfWeek": Function((_TIME,), _clock(lambda time: time.isoweekday() % 7)),
    "getHours": Function((_TIMES,), _clock(lambda time: time.hour, 3600)),
    "getMinutes": Function((_TIMES,), _clock(lambda time: time.minute, 60)),
    "getSeconds": Function((_TIMES,), _clock(lambda time: time.second, 1)),
}

#: Parts of CEL that are not built, with what to write instead.
REFUSED = {
    "matches": "a pattern can cost more than any budget; use startsWith(), endsWith(), contains() or split()",
    "bytes": "bytes are text in JSON form",
    "uint": "JSON has no unsigned integers; use int()",
    "min": "write `a < b ? a : b`",
    "max": "write `a > b ? a : b`",
}
