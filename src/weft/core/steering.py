"""What a task may raise to say what is to follow, and what therefore follows any error of an attempt.

Pure: an exception goes in, a sequel comes out. It is plain data, so that a child process can send it to its worker.
"""

from __future__ import annotations

import msgspec

from weft.clock import Duration, parse_duration_ms
from weft.core.model import ErrorRecord
from weft.errors import InvalidArguments, PayloadRefused, ResultExpired


class Steering(Exception):
    """Asks for something else than what the task's options would do with an error."""

    #: Where a run ends that nothing follows; told to whoever reads the error by its code.
    code = ""


class Retry(Steering):
    """Asks for another attempt, within the task's retries: `after` that time, or after its back-off."""

    code = "retry"

    def __init__(self, reason: str = "", *, after: Duration | None = None) -> None:
        super().__init__(reason)
        self.after_ms = None if after is None else parse_duration_ms(after, what="Retry(after=…)")


class Snooze(Steering):
    """Puts the run off by a time without burning an attempt."""

    code = "snooze"

    def __init__(self, delay: Duration, reason: str = "") -> None:
        super().__init__(reason)
        # Not zero: a run that puts itself off by nothing would spin for ever.
        self.after_ms = parse_duration_ms(delay, what="Snooze(…)", allow_zero=False)


class Fatal(Steering):
    """Fails the run at once, whatever its retries say."""

    code = "fatal"


class Discard(Steering):
    """Ends the run as cancelled: it is not needed. No failure, and no dead letter."""

    code = "discarded"


class Sequel(msgspec.Struct, frozen=True):
    """What an error means: `retry` (while there are retries), `fail`, `snooze` or `discard`."""

    kind: str
    record: ErrorRecord
    #: How long to wait before what follows; None: the task's back-off.
    after_ms: int | None = None


def decide(
    error: BaseException,
    record: ErrorRecord,
    retry_on: tuple[type[BaseException], ...],
    fatal_on: tuple[type[BaseException], ...],
) -> Sequel:
    """Tells what follows an error. What the code asks for wins over the task's options."""
    if isinstance(error, Retry):
        return Sequel("retry", record, error.after_ms)
    if isinstance(error, Snooze):
        return Sequel("snooze", record, error.after_ms)
    if isinstance(error, Discard):
        return Sequel("discard", record)
    # Another attempt never helps arguments that cannot be read or results that cannot be kept.
    hopeless = isinstance(error, (Fatal, *fatal_on, InvalidArguments, PayloadRefused, ResultExpired))
    return Sequel("retry" if isinstance(error, retry_on) and not hopeless else "fail", record)
