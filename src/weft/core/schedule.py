"""Schedules: when a cron expression ticks in its timezone, and what is to be done about the ticks that are due.

Pure: moments come in and go out as ms since 1970, and nobody's clock is read. cronsim does the arithmetic; this room adds
what it leaves open: refusals in words, a strict order of ticks across a change to winter time, and the policies.

Daylight saving, for `minute hour …` expressions that name a minute and an hour: a time that does not exist that day ticks at
the moment the clock jumps to, a time that exists twice ticks the first time only. Expressions whose minute or hour begins
with `*`, and those with seconds, tick by the hands of the clock: not in the missing hour, and in both repeated ones.
"""

from __future__ import annotations

import difflib
import zoneinfo
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, tzinfo
from functools import lru_cache

import msgspec
from cronsim import CronSim, CronSimError

from weft.core.model import RunSpec
from weft.errors import InvalidOption

OVERLAPS = ("allow", "skip", "queue", "cancel_previous")
CATCH_UPS = ("none", "latest", "all")

#: Milliseconds a tick may be late and still count as on time; a later one was missed, and `catch_up` decides about it.
GRACE_MS = 60_000
#: Ticks of one schedule that one look starts side by side (overlap="allow", catch_up="all"); the next look goes on.
CATCH_UP_CHUNK = 16
#: Milliseconds between two looks at a run that a tick waits for: a tenth of the wait so far, within these.
LEAST_LOOK_MS, MOST_LOOK_MS = 100, 10_000
#: Seconds in which the clock is changed once at most.
DAY_SECONDS = 86_400
#: Longest cron expression, in characters.
MAX_EXPR_CHARS = 256
#: Expressions kept parsed; beyond that they are parsed at every look, some 20 us each.
PARSED = 1024

SHORTHANDS = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}


# --- when it ticks --------------------------------------------------------------------------------


class Times:
    """The ticks of one expression in one timezone. Raises InvalidOption for what is neither."""

    __slots__ = ("_found", "expr", "tz", "zone")

    def __init__(self, expr: str, tz: str) -> None:
        self.zone = _zone(tz)
        self.expr, self.tz = _expression(expr), tz
        self._found: tuple[int, int | None] = (-1, None)
        try:
            CronSim(self.expr, datetime(2000, 1, 1, tzinfo=self.zone))
        except (CronSimError, AssertionError, ValueError) as error:
            raise _bad_expression(expr, str(error).lower() or "cannot be read") from error
        if self.after(946_684_800_000) is None:
            raise _bad_expression(expr, "never comes true: no such date in fifty years")

    def after(self, ms: int) -> int | None:
        """Returns the first tick later than a moment; None when there is none in the next fifty years."""
        # Schedules of one expression are due together and ask the same; for ten thousand of them that is a second saved.
        asked, found = self._found
        if asked != ms:
            found = next(self.all_after(ms), None)
            self._found = (ms, found)
        return found

    def all_after(self, ms: int) -> Iterator[int]:
        """Yields the ticks later than a moment, in order, each once."""
        return self._by_hands(ms) if self._goes_by_hands else self._by_day(ms)

    @property
    def _goes_by_hands(self) -> bool:
        minute, hour, *others = self.expr.split()
        return self.zone is not UTC and (len(others) > 3 or minute[0] == "*" or hour[0] == "*")

    def _by_hands(self, ms: int) -> Iterator[int]:
        """Yields what the hands of the clock say, by one offset from UTC until that changes, then by the next.

        cronsim walks over a change by the hour, and misses ticks where the clock goes back by half an hour, or in the middle
        of an hour.
        """
        last = ms // 1000
        offset: int | None = self._offset(last)
        while offset is not None:
            now_by, offset = offset, None
            for moment in CronSim(self.expr, datetime.fromtimestamp(last + now_by, UTC)):
                tick = int(moment.timestamp()) - now_by
                change = self._change(last, tick, now_by)
                if change is not None:
                    # The second before it, for a tick may be at the change itself.
                    last, offset = change - 1, self._offset(change)
                    break
                last = tick
                if tick * 1000 > ms:
                    yield tick * 1000

    def _offset(self, second: int) -> int:
        """Returns how many seconds the clock is ahead of UTC."""
        ahead = datetime.fromtimestamp(second, self.zone).utcoffset()
        return 0 if ahead is None else round(ahead.total_seconds())

    def _change(self, after: int, until: int, offset: int) -> int | None:
        """Returns the first second in (after, until] at which the clock has another offset, or None."""
        same = after
        while same < until:
            other = min(same + DAY_SECONDS, until)
            if self._offset(other) != offset:
                while other - same > 1:
                    middle = (same + other) // 2
                    same, other = (middle, other) if self._offset(middle) == offset else (same, middle)
                return other
            same = other
        return None

    def _by_day(self, ms: int) -> Iterator[int]:
        sim = CronSim(self.expr, datetime.fromtimestamp(ms // 1000, self.zone))
        last = ms
        for moment in sim:
            tick = int(moment.timestamp()) * 1000
            # In the second of two equal hours cronsim, which looks at the hands, may point back into the first.
            if tick > last:
                last = tick
                yield tick

    def around(self, first_ms: int, now_ms: int) -> tuple[int, int | None]:
        """Returns the latest tick that is not after now and the one that follows; `first_ms` is a tick that is not."""
        following = self.after(first_ms)
        if following is None or following > now_ms:
            return first_ms, following
        sim = CronSim(self.expr, datetime.fromtimestamp(now_ms // 1000 + 1, self.zone), reverse=True)
        moment = next(sim, None)
        newest = first_ms if moment is None else max(first_ms, int(moment.timestamp()) * 1000)
        newest = newest if newest <= now_ms else first_ms
        # Walking back skips what walking forward meets in a repeated hour; so the last stretch is walked forward.
        for tick in self.all_after(newest):
            if tick > now_ms:
                return newest, tick
            newest = tick
        return newest, None

    def local(self, ms: int) -> datetime:
        """Returns a moment as the schedule's own clock shows it."""
        return datetime.fromtimestamp(ms / 1000, self.zone)


@lru_cache(maxsize=PARSED)
def times_of(expr: str, tz: str) -> Times:
    """Returns the ticks of an expression, parsed once; raises InvalidOption."""
    return Times(expr, tz)


def _expression(expr: str) -> str:
    if not isinstance(expr, str) or not expr.strip():
        raise InvalidOption(f"a cron expression is a text such as '*/5 * * * *', not {expr!r}", option="expr")
    if len(expr) > MAX_EXPR_CHARS:
        raise InvalidOption(f"a cron expression has at most {MAX_EXPR_CHARS} characters", option="expr")
    text = " ".join(expr.split())
    if text.startswith("@") and text.lower() not in SHORTHANDS:
        raise _bad_expression(expr, f"is no shorthand; there are {' '.join(SHORTHANDS)}")
    return SHORTHANDS.get(text.lower(), text)


def _bad_expression(expr: str, why: str) -> InvalidOption:
    return InvalidOption(
        f"cron expression {expr!r}: {why}; write `minute hour day-of-month month day-of-week`, such as '*/5 * * * *',"
        " with a field for seconds in front if you need one",
        option="expr",
    )


def _zone(tz: str) -> tzinfo:
    # UTC by the standard library's own constant: cronsim then need not ask for offsets at every step.
    if tz == "UTC":
        return UTC
    try:
        return zoneinfo.ZoneInfo(tz)
    except (KeyError, ValueError, OSError, TypeError, AttributeError) as error:
        shown = repr(tz[:60]) if isinstance(tz, str) else f"a {type(tz).__name__}"
        close = difflib.get_close_matches(str(tz)[:60], zoneinfo.available_timezones(), n=1)
        hint = f"did you mean {close[0]}?" if close else "use a name such as Europe/Berlin, or UTC"
        raise InvalidOption(f"there is no timezone {shown}: {hint}", option="tz") from error


# --- what a schedule is ---------------------------------------------------------------------------


class ScheduleSpec(msgspec.Struct, frozen=True, omit_defaults=True):
    """What was asked for: when, and the run that each tick starts."""

    expr: str
    run: RunSpec
    tz: str = "UTC"
    overlap: str = "skip"
    catch_up: str = "latest"
    #: The app whose code declares it with `@app.cron`; empty for one that was created at run time.
    declared_by: str = ""

    @property
    def times(self) -> Times:
        return times_of(self.expr, self.tz)


def check_policies(overlap: str, catch_up: str) -> None:
    """Refuses an unknown overlap or catch_up policy."""
    for what, value, choices in (("overlap", overlap, OVERLAPS), ("catch_up", catch_up, CATCH_UPS)):
        if value not in choices:
            raise InvalidOption(f"{what} must be one of {', '.join(choices)}, not {value!r}", option=what)


class ScheduleInfo(msgspec.Struct, frozen=True):
    """How a schedule stands, in one read."""

    name: str
    status: str  # active, paused, ended: no tick to come in fifty years; in the archive also deleted
    expr: str
    tz: str
    task: str
    overlap: str
    catch_up: str
    source: str  # code: declared by @app.cron; runtime: created by somebody
    app: str  # whose code declares it
    orphaned: bool  # declared by this app once, and no longer in its code
    created_at: datetime
    next_at: datetime | None
    last_at: datetime | None  # the newest tick that started a run
    last_run: str
    skipped_at: datetime | None  # the newest tick that started none
    waiting: bool  # a tick is due and waits for the run before it
    input: dict[str, object]
    paused_at: datetime | None = None
    paused_by: str = ""
    deleted_at: datetime | None = None  # only the archive knows of those
    deleted_by: str = ""


# --- what is due ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Plan:
    """What one look at a due schedule decides."""

    #: Ticks whose runs are started now.
    fire: tuple[int, ...]
    #: The first tick that is still undecided; None when there will be none.
    next_ms: int | None
    #: When to look again and since when, if a tick waits for the run before it.
    look_ms: int | None = None
    waits_ms: int | None = None
    #: The newest tick that was decided against.
    skipped_ms: int | None = None
    #: The run before is cancelled first.
    cancels: bool = False


def plan(spec: ScheduleSpec, *, next_ms: int, now_ms: int, previous_open: bool, waits_ms: int | None) -> Plan:
    """Decides about the ticks from `next_ms` to now. `waits_ms`: since when the first of them waits for the run before.

    | catch_up | ticks that are due                                                   |
    | none     | the newest, if it is on time (or has waited its turn); the rest never |
    | latest   | the newest                                                           |
    | all      | each: side by side under `allow`, one after the other else           |

    Then overlap: while the run before is open, `allow` starts, `cancel_previous` cancels and starts, `queue` waits, `skip`
    starts nothing; but ticks that `all` promises to catch up wait even there.
    """
    if spec.catch_up == "all":
        return _plan_all(spec, next_ms, now_ms, previous_open, waits_ms)
    newest, after = spec.times.around(next_ms, now_ms)
    missed = now_ms - newest > GRACE_MS and waits_ms is None
    if spec.catch_up == "none" and missed:
        return Plan((), after, skipped_ms=newest)
    if previous_open and spec.overlap == "skip":
        return Plan((), after, skipped_ms=newest)
    if previous_open and spec.overlap == "queue":
        return _wait(next_ms, now_ms, waits_ms)
    return Plan((newest,), after, cancels=previous_open and spec.overlap == "cancel_previous")


def _plan_all(spec: ScheduleSpec, next_ms: int, now_ms: int, previous_open: bool, waits_ms: int | None) -> Plan:
    ticks = spec.times.all_after(next_ms)
    if spec.overlap == "allow":
        fire, following = [next_ms], next(ticks, None)
        while following is not None and following <= now_ms and len(fire) < CATCH_UP_CHUNK:
            fire.append(following)
            following = next(ticks, None)
        return Plan(tuple(fire), following)
    if previous_open and spec.overlap == "skip" and now_ms - next_ms <= GRACE_MS:
        return Plan((), next(ticks, None), skipped_ms=next_ms)
    if previous_open and spec.overlap in ("skip", "queue"):
        return _wait(next_ms, now_ms, waits_ms)
    return Plan((next_ms,), next(ticks, None), cancels=previous_open)


def _wait(next_ms: int, now_ms: int, waits_ms: int | None) -> Plan:
    since = now_ms if waits_ms is None else waits_ms
    pause = min(max((now_ms - since) // 10, LEAST_LOOK_MS), MOST_LOOK_MS)
    return Plan((), next_ms, look_ms=now_ms + pause, waits_ms=since)
