"""What values are in an expression: their JSON form, looked at one by one as they are met.

Values come as whatever a step returned. Only what an expression touches is converted and checked, so a condition on
one field of a large output costs one field. Results leave as fresh plain data, their size counted. Messages name
places and types, never values: a payload may hold secrets.
"""

from __future__ import annotations

import datetime
import math
from collections.abc import Mapping
from typing import Any

from weft.codec import MAX_DEPTH, MAX_PAYLOAD, json_form
from weft.core.cel.faults import Fault, Spent
from weft.core.cel.lexemes import MAX_INT, MIN_INT
from weft.errors import PayloadRefused

#: Largest result, and largest text or list on the way to it: characters, and `CELL` for every value.
MAX_RESULT = MAX_PAYLOAD
CELL = 16

#: Items and characters that one point pays for where the machine moves them in bulk.
ITEMS_PER_POINT, CHARS_PER_POINT = 16, 256


class Kind:
    """The type of a value, as `type(x)` gives it and `int`, `string`, … name it."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name


class Timestamp(datetime.datetime):
    """What `timestamp()` makes. A class of its own, for a datetime from outside is text."""


class Duration(datetime.timedelta):
    """What `duration()` makes."""


NULL, BOOL, INT, DOUBLE = Kind("null_type"), Kind("bool"), Kind("int"), Kind("double")
STRING, LIST, MAP, TYPE = Kind("string"), Kind("list"), Kind("map"), Kind("type")
TIMESTAMP, DURATION = Kind("timestamp"), Kind("duration")

#: The kinds an expression can name.
KINDS = {kind.name: kind for kind in (NULL, BOOL, INT, DOUBLE, STRING, LIST, MAP, TYPE)}

_KIND_OF: dict[type, Kind] = {
    type(None): NULL,
    bool: BOOL,
    int: INT,
    float: DOUBLE,
    str: STRING,
    list: LIST,
    dict: MAP,
    Kind: TYPE,
    Timestamp: TIMESTAMP,
    Duration: DURATION,
}
_AS_THEY_ARE = frozenset({type(None), bool, str, list, dict, Timestamp, Duration, Kind})


class Purse:
    """Points that several evaluations share, each of which pays for the length of its text, too."""

    __slots__ = ("all", "left", "sharers")

    def __init__(self, points: int, sharers: str) -> None:
        self.all = self.left = points
        #: Who shares them, for messages.
        self.sharers = sharers


class Evaluation:
    """One evaluation under way: the names it may read, what macros have bound, and the points it has left."""

    __slots__ = ("bound", "formed", "left", "scope")

    def __init__(self, scope: Mapping[str, Any], n_bound: int, max_points: int) -> None:
        self.scope, self.bound, self.left = scope, [None] * n_bound, max_points
        # Objects met and their JSON form, so that a loop does not convert one again and again. Held, so ids stay theirs.
        self.formed: dict[int, tuple[Any, Any]] = {}

    def pay(self, points: int) -> None:
        """Take points off what is left; raise `Spent` if it was less."""
        self.left -= points
        if self.left < 0:
            raise Spent


def kind_of(value: Any) -> Kind:
    """Return the kind of a value that `see` has let in."""
    return _KIND_OF[type(value)]


def spell(value: Any) -> str:
    """Return the kind of a value for a message."""
    name = kind_of(value).name
    return "null" if name == "null_type" else f"an {name}" if name == "int" else f"a {name}"


def see(value: Any, at: int, evaluation: Evaluation | None = None) -> Any:
    """Return a value from outside in its JSON form, its inside not looked at yet."""
    kind = type(value)
    if kind in _AS_THEY_ARE:
        return value
    if kind is int:
        if MIN_INT <= value <= MAX_INT:
            return value
        raise Fault("overflow", "this integer is beyond 64 bits; carry it as text", at)
    if kind is float:
        if math.isfinite(value):
            return value
        raise Fault("not_finite", "this number is not finite, and JSON has no such number", at)
    if evaluation is None:
        return _form(value, at)
    if id(value) not in evaluation.formed:
        evaluation.formed[id(value)] = (value, _form(value, at))
    return evaluation.formed[id(value)][1]


def _form(value: Any, at: int) -> Any:
    if type(value) is tuple:
        return list(value)
    try:
        formed = json_form(value)
    except PayloadRefused as error:
        raise Fault("no_json", error.message, at) from None
    if type(formed) is type(value):
        raise Fault("no_json", f"a value of type {type(value).__name__} has no JSON form", at)
    return see(formed, at)


def find(table: dict[Any, Any], key: Any) -> tuple[bool, Any]:
    """Return whether a map has the key, and its value. In JSON form the key 1 is "1": both find it."""
    if key in table and type(key) is not bool:
        return True, table[key]
    if type(key) is str:
        digits = key[1:] if key[:1] == "-" else key
        if digits.isascii() and digits.isdigit() and len(digits) < 20 and int(key) in table and str(int(key)) == key:
            return True, table[int(key)]
    elif type(key) is int and str(key) in table:
        return True, table[str(key)]
    return False, None


def keys_of(table: dict[Any, Any], at: int) -> list[str]:
    """Return the keys of a map as text."""
    return [key if type(key) is str else _key_text(key, at) for key in table]


def _key_text(key: Any, at: int) -> str:
    seen = see(key, at)
    if type(seen) is str:
        return seen
    if type(seen) is int:
        return str(seen)
    raise Fault("no_json", f"a map with {spell(seen)} as a key has no JSON form", at)


def equal(one: Any, other: Any, at: int, evaluation: Evaluation, depth: int = 0) -> bool:
    """Return whether two values are equal: numbers by value, everything else only within its kind."""
    kind, other_kind = type(one), type(other)
    if kind is not other_kind:
        return kind in (int, float) and other_kind in (int, float) and bool(one == other)
    if kind is list or kind is dict:
        if len(one) != len(other):
            return False
        if depth >= MAX_DEPTH:
            raise Fault("too_deep", f"these values are nested deeper than {MAX_DEPTH} levels", at)
        return (_equal_lists if kind is list else _equal_maps)(one, other, at, evaluation, depth + 1)
    if kind is str and len(one) > CHARS_PER_POINT and len(one) == len(other):
        evaluation.pay(len(one) // CHARS_PER_POINT)
    return bool(one == other)


def _equal_lists(one: list[Any], other: list[Any], at: int, evaluation: Evaluation, depth: int) -> bool:
    for left, right in zip(one, other, strict=True):
        evaluation.pay(2)
        if not equal(see(left, at, evaluation), see(right, at, evaluation), at, evaluation, depth):
            return False
    return True


def _equal_maps(one: dict[Any, Any], other: dict[Any, Any], at: int, evaluation: Evaluation, depth: int) -> bool:
    for key, value in one.items():
        evaluation.pay(6)
        found, right = find(other, key)
        if not found or not equal(see(value, at, evaluation), see(right, at, evaluation), at, evaluation, depth):
            return False
    return True


def check_size(size: int, at: int) -> None:
    """Refuse a text or list that is larger than a result may be."""
    if size > MAX_RESULT:
        raise Fault("too_large", f"this makes a value larger than {MAX_RESULT:,} bytes", at)


def to_plain(value: Any) -> Any:
    """Return a result as fresh plain data. Raises `Fault` when it is too large, too deep or has no JSON form."""
    if type(value) is dict or type(value) is list:
        return _copy(value, [MAX_RESULT], 0)
    return _leave(value)


def _copy(value: Any, left: list[int], depth: int) -> Any:
    if depth >= MAX_DEPTH:
        raise Fault("too_deep", f"the result is nested deeper than {MAX_DEPTH} levels", 0)
    _spend(left, len(value) * CELL)
    if type(value) is list:
        return [_part(item, left, depth) for item in value]
    copied = {}
    for key, item in value.items():
        text = key if type(key) is str else _key_text(key, 0)
        _spend(left, len(text))
        copied[text] = _part(item, left, depth)
    return copied


def _part(item: Any, left: list[int], depth: int) -> Any:
    seen = _leave(item)
    if type(seen) is str:
        _spend(left, len(seen))
    elif type(seen) is list or type(seen) is dict:
        return _copy(seen, left, depth + 1)
    return seen


def _spend(left: list[int], size: int) -> None:
    # One text may be met many times: a small list of large texts is a large result.
    left[0] -= size
    if left[0] < 0:
        raise Fault("too_large", f"the result is larger than {MAX_RESULT:,} bytes; let a task make it", 0)


def _leave(value: Any) -> Any:
    kind = type(value)
    if kind is Timestamp:
        return timestamp_text(value)
    if kind is Duration:
        return duration_text(value)
    return value.name if kind is Kind else see(value, 0)


def timestamp_text(value: Timestamp) -> str:
    """Return a timestamp as JSON has it, as in `2026-01-31T09:00:00Z`."""
    return value.isoformat().replace("+00:00", "Z")


def duration_text(value: Duration) -> str:
    """Return a duration as JSON has it in CEL: seconds, as in `90s` or `0.25s`."""
    micros = value // datetime.timedelta(microseconds=1)
    whole, part = divmod(abs(micros), 1_000_000)
    fraction = f".{part:06}".rstrip("0") if part else ""
    return f"{'-' if micros < 0 else ''}{whole}{fraction}s"
