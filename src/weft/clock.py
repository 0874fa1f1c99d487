"""Lengths of time, as people write them and as the store counts them.

The public API takes a `Duration`; store and Lua take whole milliseconds. This room turns the one into the
other and back into short text. It refuses what cannot be meant (negative, NaN, infinite, a century) with a
sentence that names the option, and it never reads a clock: time comes from the server.
"""

from __future__ import annotations

import math
import random
import re
from datetime import UTC, datetime, timedelta

from weft.errors import InvalidOption

#: What the public API accepts wherever a length of time is meant; a bare number counts seconds.
Duration = timedelta | str | int | float

#: The longest duration accepted, in milliseconds: ten years with their leap days.
MAX_DURATION_MS = 3_653 * 86_400_000

#: The most a rate may let through in one window, and the longest window.
MAX_RATE, MAX_RATE_WINDOW_MS = 1_000_000_000, 30 * 86_400_000

#: Milliseconds in each unit a duration can be written in; the longest first, as `format_duration` needs them.
UNIT_MS = {"d": 86_400_000, "h": 3_600_000, "m": 60_000, "s": 1_000, "ms": 1}

#: How much of a refused value an error message repeats, in characters.
SHOWN_CHARS = 60

_TEXT = re.compile(r"([+-]?[0-9]+(?:\.[0-9]+)?)\s*(ms|s|m|h|d)?")
_RATE = re.compile(r"([0-9]{1,12})\s*/\s*([0-9]{1,6})?\s*(ms|s|m|h|d)")
_FORMS = 'use a timedelta, a text like "250ms" "5s" "1.5m" "1h" "7d", or a number of seconds'


def parse_duration_ms(value: Duration, *, what: str, allow_zero: bool = True) -> int:
    """Return `value` in whole milliseconds, rounded to the nearest.

    A positive duration below one millisecond is one millisecond, never zero. A text without a unit counts
    seconds, like a number. Raises `InvalidOption` naming `what`, the value and the accepted forms.
    """
    ms = _to_ms(value, what)
    if math.isnan(ms) or math.isinf(ms):
        raise _refusal(what, value, "is not a finite length of time")
    if ms < 0:
        raise _refusal(what, value, "is negative")
    if ms > MAX_DURATION_MS:
        raise _refusal(what, value, "is longer than ten years")
    if ms == 0 and not allow_zero:
        raise _refusal(what, value, "is zero")
    return round(ms) if ms >= 1 or ms == 0 else 1


def parse_wait(value: Duration | None, *, what: str = "timeout") -> float | None:
    """Return how long to wait, in seconds; None for as long as it takes. A negative number of seconds is no wait at all."""
    if value is None:
        return None
    if isinstance(value, (int, float)) and not isinstance(value, bool) and value < 0:
        return 0.0  # what is left of a time that has run out
    return parse_duration_ms(value, what=what) / 1000


def parse_rate(value: str, *, what: str) -> tuple[int, int]:
    """Return how many may pass and in how many milliseconds, from a text like "100/m" or "5/10s"."""
    match = _RATE.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is None:
        shown = repr(value[:SHOWN_CHARS] if isinstance(value, str) else value)[: SHOWN_CHARS + 2]
        raise InvalidOption(f'{what}: {shown} is not a rate; write it like "100/m", with s, m, h or d', option=what)
    n, every = int(match[1]), int(match[2] or 1) * UNIT_MS[match[3]]
    if not 1 <= n <= MAX_RATE or not 1 <= every <= MAX_RATE_WINDOW_MS:
        raise InvalidOption(f"{what}: {value!r}: a rate is 1 to {MAX_RATE:,} in at most 30 days", option=what)
    return n, every


def format_rate(n: int, window_ms: int) -> str:
    """Return a rate as people write it."""
    for unit, ms in UNIT_MS.items():
        if window_ms % ms == 0:
            every = window_ms // ms
            return f"{n}/{unit}" if every == 1 else f"{n}/{every}{unit}"
    raise AssertionError("unreachable: every window is a multiple of 1 ms")


def parse_moment_ms(value: datetime, *, what: str, now: datetime) -> int:
    """Return a moment in whole milliseconds since 1970, at least 1; `now` is what "too far" is measured from.

    Raises `InvalidOption` for anything but a `datetime` with a time zone, and for what lies more than ten years ahead.
    """
    if not isinstance(value, datetime):
        raise InvalidOption(f"{what}: {str(value)[:SHOWN_CHARS]!r} is not a datetime", option=what)
    if value.utcoffset() is None:
        raise InvalidOption(
            f"{what}: {value.isoformat()} has no time zone, so it could be any of many moments; use an aware datetime,"
            " such as datetime.now(UTC) + timedelta(hours=1), or value.astimezone() if it is local time",
            option=what,
        )
    if value - now > timedelta(milliseconds=MAX_DURATION_MS):
        raise InvalidOption(f"{what}: {value.isoformat()} is more than ten years ahead", option=what)
    return max(1, math.floor((value - datetime(1970, 1, 1, tzinfo=UTC)) / timedelta(milliseconds=1)))


def format_duration(ms: int) -> str:
    """Return a short text for people: at most two units, the rest cut off ("250ms", "1.5s", "2m 5s", "3d 4h")."""
    if ms < 0:
        return "-" + format_duration(-ms)
    if 0 < ms < 1_000:
        return f"{ms}ms"
    if ms < 60_000:
        # Cut, not rounded: 59.99 seconds must not read as "60s".
        return f"{ms // 100 / 10:g}s"
    units = list(UNIT_MS.items())
    at = next(i for i, (_, size) in enumerate(units) if ms >= size)
    (big, big_ms), (small, small_ms) = units[at], units[at + 1]
    rest = ms % big_ms // small_ms
    return f"{ms // big_ms}{big} {rest}{small}" if rest else f"{ms // big_ms}{big}"


def _to_ms(value: Duration, what: str) -> float:
    # bool is an int to Python, but `timeout=True` is a mistake, not one second.
    if isinstance(value, bool):
        raise _refusal(what, value, "is not a length of time")
    if isinstance(value, timedelta):
        return value / timedelta(milliseconds=1)
    if isinstance(value, int):
        # Clamped before it becomes a float, which a huge integer does not fit.
        return max(-MAX_DURATION_MS, min(value, MAX_DURATION_MS)) * 1_000.0
    if isinstance(value, float):
        return value * 1_000
    if isinstance(value, str) and (match := _TEXT.fullmatch(value.strip())):
        return float(match[1]) * UNIT_MS[match[2] or "s"]
    raise _refusal(what, value, "is not a length of time")


def _refusal(what: str, value: object, why: str) -> InvalidOption:
    # A text is cut before `repr`: it comes from outside and may be megabytes long. Integers are cut
    # because Python refuses to print very long ones.
    if isinstance(value, int) and abs(value) > MAX_DURATION_MS:
        shown = "a huge number"
    else:
        shown = repr(value[:SHOWN_CHARS] if isinstance(value, str) else value)[: SHOWN_CHARS + 2]
    return InvalidOption(f"{what}: {shown} {why}; {_FORMS}", option=what)


def backoff(failures: int, *, base: float = 0.05, cap: float = 2.0) -> float:
    """Returns how many seconds to wait before trying a server again: exponential, with full jitter."""
    return random.uniform(base / 2, min(cap, base * 2 ** min(failures, 10)))
