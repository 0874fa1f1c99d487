"""The operators: what they do with two values. int and double mix; every other mix is refused by name."""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from weft.core.cel.faults import Fault
from weft.core.cel.lexemes import MAX_INT, MIN_INT
from weft.core.cel.values import (
    CELL,
    CHARS_PER_POINT,
    ITEMS_PER_POINT,
    Duration,
    Evaluation,
    Timestamp,
    check_size,
    equal,
    find,
    see,
    spell,
)

#: What an operator is given: both values, the place of the right one, and the evaluation that pays.
Operator = Callable[[Any, Any, int, Evaluation], Any]

_NUMBERS = frozenset({int, float})
_TIMES = (Timestamp, Duration)


def add(one: Any, other: Any, at: int, evaluation: Evaluation) -> Any:
    """Add numbers and durations, join texts and lists."""
    kind, other_kind = type(one), type(other)
    if kind in _NUMBERS and other_kind in _NUMBERS:
        return _checked(one + other, at)
    if kind is str and other_kind is str:
        length = len(one) + len(other)
        check_size(length, at)
        evaluation.pay(length // CHARS_PER_POINT)
        return one + other
    if kind is list and other_kind is list:
        length = len(one) + len(other)
        check_size(length * CELL, at)
        evaluation.pay(length // ITEMS_PER_POINT)
        return one + other
    if kind in _TIMES and other_kind in _TIMES and not kind is other_kind is Timestamp:
        return _shifted(lambda: one + other, at)
    raise _unfit("+", one, other, at)


def subtract(one: Any, other: Any, at: int, evaluation: Evaluation) -> Any:
    """Subtract numbers, durations and timestamps."""
    kind, other_kind = type(one), type(other)
    if kind in _NUMBERS and other_kind in _NUMBERS:
        return _checked(one - other, at)
    if kind in _TIMES and (other_kind is Duration or kind is other_kind):
        return _shifted(lambda: one - other, at)
    raise _unfit("-", one, other, at)


def multiply(one: Any, other: Any, at: int, evaluation: Evaluation) -> Any:
    """Multiply numbers."""
    if type(one) in _NUMBERS and type(other) in _NUMBERS:
        return _checked(one * other, at)
    raise _unfit("*", one, other, at)


def divide(one: Any, other: Any, at: int, evaluation: Evaluation) -> Any:
    """Divide numbers; of two integers the quotient is an integer, cut towards zero."""
    if type(one) not in _NUMBERS or type(other) not in _NUMBERS:
        raise _unfit("/", one, other, at)
    if other == 0:
        raise Fault("division_by_zero", "division by zero", at)
    if type(one) is float or type(other) is float:
        return _checked(one / other, at)
    return _checked(_quotient(one, other), at)


def remainder(one: Any, other: Any, at: int, evaluation: Evaluation) -> Any:
    """Return what a division of integers leaves, with the sign of the first."""
    if type(one) is not int or type(other) is not int:
        raise _unfit("%", one, other, at)
    if other == 0:
        raise Fault("division_by_zero", "division by zero", at)
    return one - other * _quotient(one, other)


def contained(one: Any, other: Any, at: int, evaluation: Evaluation) -> bool:
    """Return whether a list has the value, or a map the key."""
    if type(other) is dict:
        return type(one) in (str, int) and find(other, one)[0]
    if type(other) is not list:
        advice = "; use text.contains(part)" if type(other) is str else ""
        raise Fault("wrong_type", f"`in` looks into a list or a map, not into {spell(other)}{advice}", at)
    for item in other:
        evaluation.pay(1)
        if equal(one, see(item, at, evaluation), at, evaluation):
            return True
    return False


def _order(sign: str, compare: Callable[[Any, Any], bool]) -> Operator:
    def ordered(one: Any, other: Any, at: int, evaluation: Evaluation) -> bool:
        kind, other_kind = type(one), type(other)
        if kind in _NUMBERS and other_kind in _NUMBERS:
            return compare(one, other)
        if kind is not other_kind or (kind not in (str, bool) and kind not in _TIMES):
            raise _unfit(sign, one, other, at)
        if kind is str and len(one) > CHARS_PER_POINT:
            evaluation.pay(len(one) // CHARS_PER_POINT)
        return compare(one, other)

    return ordered


#: Every operator between two values, by its sign.
OPERATORS: dict[str, Operator] = {
    "+": add,
    "-": subtract,
    "*": multiply,
    "/": divide,
    "%": remainder,
    "in": contained,
    "==": equal,
    "!=": lambda one, other, at, evaluation: not equal(one, other, at, evaluation),
    "<": _order("<", lambda one, other: one < other),
    "<=": _order("<=", lambda one, other: one <= other),
    ">": _order(">", lambda one, other: one > other),
    ">=": _order(">=", lambda one, other: one >= other),
}


def negate(value: Any, at: int) -> Any:
    """Return the number with the other sign."""
    if type(value) in _NUMBERS:
        return _checked(-value, at)
    raise Fault("wrong_type", f"`-` takes a number, not {spell(value)}", at)


def _quotient(one: int, other: int) -> int:
    quotient = abs(one) // abs(other)
    return quotient if (one < 0) == (other < 0) else -quotient


def _checked(number: Any, at: int) -> Any:
    if type(number) is int:
        if MIN_INT <= number <= MAX_INT:
            return number
        raise Fault("overflow", "the result is an integer beyond 64 bits; use double() for large numbers", at)
    if math.isfinite(number):
        return number
    raise Fault("not_finite", "the result is too large for a double", at)


def _shifted(work: Callable[[], Any], at: int) -> Any:
    try:
        made = work()
        # Python gives the difference of two as its own timedelta.
        return Duration(made.days, made.seconds, made.microseconds) if isinstance(made, timedelta) else made
    except OverflowError:
        raise Fault("overflow", "the result is outside of the calendar", at) from None


def _unfit(sign: str, one: Any, other: Any, at: int) -> Fault:
    advice = ""
    if str in (type(one), type(other)) and type(one) is not type(other):
        advice = "; convert one of them, with string(), int() or double()"
    elif type(one) is type(None) or type(other) is type(None):
        advice = "; test for null first, as in `x != null && …`"
    return Fault("wrong_type", f"`{sign}` does not go with {spell(one)} and {spell(other)}{advice}", at)
