"""Decides what follows a failed attempt. Pure: randomness and attempt numbers come in, a delay or None goes out."""

from __future__ import annotations

from weft.clock import format_duration
from weft.core.model import RunSpec

#: The ways a delay may grow.
BACKOFFS = ("fixed", "linear", "exponential")


def next_delay_ms(spec: RunSpec, attempt: int, jitter: float) -> int | None:
    """Returns how long to wait before attempt + 1, or None when the retries are used up.

    `jitter` is a number from 0 to 1: with jitter on, the delay is spread over its upper half, so that a crowd
    that failed together does not come back together and still waits at least half of what was asked.
    """
    if attempt > spec.retries:
        return None
    if spec.backoff == "fixed":
        delay = spec.retry_delay_ms
    elif spec.backoff == "linear":
        delay = spec.retry_delay_ms * attempt
    else:
        delay = spec.retry_delay_ms * 2 ** min(attempt - 1, 40)
    delay = min(delay, spec.max_delay_ms)
    return int(delay * (0.5 + jitter / 2)) if spec.jitter else delay


def delay_problem(retry_delay_ms: int, max_delay_ms: int) -> str:
    """Returns what is wrong with a `retry_delay` above `max_delay`, which could never be waited for; else nothing."""
    if retry_delay_ms <= max_delay_ms:
        return ""
    delay, longest = format_duration(retry_delay_ms), format_duration(max_delay_ms)
    if delay == longest:  # they differ by less than is shown
        delay, longest = f"{retry_delay_ms}ms", f"{max_delay_ms}ms"
    is_default = max_delay_ms == RunSpec("").max_delay_ms
    return (
        f"retry_delay {delay} is longer than {'the default ' if is_default else ''}max_delay {longest}, which no back-off"
        f" exceeds: give a max_delay of {delay} or more, or a shorter retry_delay"
    )
