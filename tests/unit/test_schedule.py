"""Schedules, the pure part: ticks across daylight saving, and what each policy makes of the ticks that are due."""

from __future__ import annotations

import itertools
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weft.core.model import RunSpec
from weft.core.schedule import CATCH_UP_CHUNK, CATCH_UPS, GRACE_MS, OVERLAPS, Plan, ScheduleSpec, Times, plan
from weft.errors import InvalidOption
from weft.ids import partition_of, tick_ms_of, tick_run_id

BERLIN = "Europe/Berlin"
MINUTE, HOUR = 60_000, 3_600_000


def ms(text: str) -> int:
    return int(datetime.fromisoformat(text).timestamp() * 1000)


def ticks(expr: str, tz: str, after: str, n: int) -> list[str]:
    """The next ticks as the place's clock shows them, with the offset that tells equal times apart."""
    times = Times(expr, tz)
    return [times.local(tick).isoformat() for tick in itertools.islice(times.all_after(ms(after)), n)]


# --- daylight saving ------------------------------------------------------------------------------


def test_a_time_that_does_not_exist_ticks_when_the_clock_has_jumped():
    assert ticks("30 2 * * *", BERLIN, "2026-03-28T00:00+01:00", 3) == [
        "2026-03-28T02:30:00+01:00",
        "2026-03-29T03:00:00+02:00",
        "2026-03-30T02:30:00+02:00",
    ]


def test_a_time_that_exists_twice_ticks_once_the_first_time():
    assert ticks("30 2 * * *", BERLIN, "2026-10-24T12:00+02:00", 2) == [
        "2026-10-25T02:30:00+02:00",
        "2026-10-26T02:30:00+01:00",
    ]


@pytest.mark.parametrize("minute", [0, 10, 29, 30, 31, 59])
def test_in_the_second_of_two_equal_hours_the_first_is_not_ticked_again(minute):
    after = f"2026-10-25T02:{minute:02}+01:00"
    assert ticks("30 2 * * *", BERLIN, after, 1) == ["2026-10-26T02:30:00+01:00"]
    times = Times("30 2 * * *", BERLIN)
    first = ms("2026-10-24T02:30+02:00")
    newest, following = times.around(first, ms(after))
    assert times.local(newest).isoformat() == "2026-10-25T02:30:00+02:00"
    assert times.local(following).isoformat() == "2026-10-26T02:30:00+01:00"


def test_two_times_in_the_missing_hour_tick_once():
    assert ticks("0,30 2 * * *", BERLIN, "2026-03-29T00:00+01:00", 2) == [
        "2026-03-29T03:00:00+02:00",
        "2026-03-30T02:00:00+02:00",
    ]


def test_every_half_hour_means_every_half_hour():
    for after in ("2026-03-29T00:45+01:00", "2026-10-25T00:45+02:00"):
        times = Times("*/30 * * * *", BERLIN)
        found = list(itertools.islice(times.all_after(ms(after)), 12))
        assert {b - a for a, b in itertools.pairwise(found)} == {HOUR // 2}


def test_a_zone_that_changes_at_midnight():
    assert ticks("0 0 * * *", "Africa/Cairo", "2026-04-22T12:00+02:00", 3) == [
        "2026-04-23T00:00:00+02:00",
        "2026-04-24T01:00:00+03:00",
        "2026-04-25T00:00:00+03:00",
    ]


def test_a_zone_that_changes_by_half_an_hour():
    assert ticks("15 2 * * *", "Australia/Lord_Howe", "2026-10-03T12:00+10:30", 2) == [
        "2026-10-04T02:30:00+11:00",
        "2026-10-05T02:15:00+11:00",
    ]


@settings(max_examples=60, deadline=None)
@given(
    expr=st.sampled_from(["30 2 * * *", "0 * * * *", "*/7 1-3 * * *", "15 */2 * * *", "0 0 29 2 *", "*/20 * * * * *"]),
    tz=st.sampled_from(["UTC", BERLIN, "America/New_York", "Africa/Cairo", "Australia/Lord_Howe", "Asia/Kolkata"]),
    at=st.integers(ms("2026-01-01T00:00Z"), ms("2027-12-31T00:00Z")),
    back=st.integers(0, 40),
)
def test_ticks_rise_and_the_newest_is_the_one_before_the_next(expr, tz, at, back):
    times = Times(expr, tz)
    found = list(itertools.islice(times.all_after(at), back + 2))
    assert all(a < b for a, b in itertools.pairwise([at, *found]))
    # Wherever one begins, the same ticks are met: a restart changes nothing.
    assert times.after(found[-2]) == found[-1]
    assert times.around(found[0], found[-1] - 1) == (found[-2], found[-1])
    assert times.around(found[0], found[-2]) == (found[-2], found[-1])


def test_a_second_field_and_the_shorthands():
    assert ticks("*/20 * * * * *", "UTC", "2026-01-01T00:00:00Z", 3)[-1] == "2026-01-01T00:01:00+00:00"
    assert ticks("@Hourly", "UTC", "2026-01-01T00:00:00.500Z", 1) == ["2026-01-01T01:00:00+00:00"]


NO_EXPRESSIONS: list[object] = [
    *("", " ", "* * * *", "* * * * * * *", "60 * * * *", "*/0 * * * *", "5-1 * * * *", "@reboot", "0 0 31 2 *"),
    *("a * * * *", "-1 * * * *", "١ * * * *", "* * * * MON#9", "x" * 5000, None, 5, b"* * * * *"),
]


@pytest.mark.parametrize("expr", NO_EXPRESSIONS)
def test_what_is_no_expression_is_refused(expr):
    with pytest.raises(InvalidOption) as refused:
        Times(expr, "UTC")
    assert len(str(refused.value)) < 400


@pytest.mark.parametrize(
    "tz", ["", "Mars/Base", "../../etc/passwd", "/etc/localtime", "Europe", None, 5, "x" * 5000, "a\0b"]
)
def test_what_is_no_timezone_is_refused(tz):
    with pytest.raises(InvalidOption, match="there is no timezone") as refused:
        Times("* * * * *", tz)
    assert len(str(refused.value)) < 200


# --- policies -------------------------------------------------------------------------------------

T = ms("2026-06-01T12:00Z")


def decide(
    overlap: str, catch_up: str, *, n: int = 1, late: int = 0, busy: bool = False, waits: int | None = None
) -> Plan:
    """Plans an hourly schedule of which n ticks are due, the newest `late` ms ago."""
    spec = ScheduleSpec("0 * * * *", RunSpec("job"), overlap=overlap, catch_up=catch_up)
    now = T + (n - 1) * HOUR + late
    return plan(spec, next_ms=T, now_ms=now, previous_open=busy, waits_ms=waits)


@pytest.mark.parametrize("overlap", OVERLAPS)
@pytest.mark.parametrize("catch_up", CATCH_UPS)
@pytest.mark.parametrize("late", [0, GRACE_MS])
def test_a_tick_on_time_fires_under_every_policy(overlap, catch_up, late):
    assert decide(overlap, catch_up, late=late) == Plan((T,), T + HOUR)


@pytest.mark.parametrize("overlap", OVERLAPS)
def test_missed_ticks(overlap):
    newest, after = T + 4 * HOUR, T + 5 * HOUR
    assert decide(overlap, "none", n=5, late=GRACE_MS + 1) == Plan((), after, skipped_ms=newest)
    assert decide(overlap, "none", n=5, late=5) == Plan((newest,), after)
    assert decide(overlap, "latest", n=5, late=GRACE_MS + 1) == Plan((newest,), after)
    each = decide(overlap, "all", n=5, late=GRACE_MS + 1)
    assert each == (Plan(tuple(T + i * HOUR for i in range(5)), after) if overlap == "allow" else Plan((T,), T + HOUR))


def test_many_missed_ticks_are_caught_up_in_pieces():
    assert decide("allow", "all", n=1000) == Plan(
        tuple(T + i * HOUR for i in range(CATCH_UP_CHUNK)), T + CATCH_UP_CHUNK * HOUR
    )


@pytest.mark.parametrize("catch_up", CATCH_UPS)
def test_a_tick_on_time_while_the_run_before_is_open(catch_up):
    assert decide("allow", catch_up, busy=True) == Plan((T,), T + HOUR)
    assert decide("skip", catch_up, busy=True) == Plan((), T + HOUR, skipped_ms=T)
    assert decide("cancel_previous", catch_up, busy=True) == Plan((T,), T + HOUR, cancels=True)
    assert decide("queue", catch_up, busy=True) == Plan((), T, look_ms=T + 100, waits_ms=T)


def test_missed_ticks_while_the_run_before_is_open():
    late = 30 * MINUTE
    assert decide("skip", "all", n=3, late=late, busy=True).look_ms is not None, "all means all: they wait"
    assert decide("skip", "latest", n=3, late=late, busy=True) == Plan((), T + 3 * HOUR, skipped_ms=T + 2 * HOUR)
    assert decide("cancel_previous", "all", n=3, late=late, busy=True) == Plan((T,), T + HOUR, cancels=True)


def test_of_the_ticks_that_waited_one_fires_and_under_all_each():
    late = 30 * MINUTE
    for catch_up in ("none", "latest"):
        fired = decide("queue", catch_up, n=3, late=late, waits=T + 5)
        assert fired == Plan((T + 2 * HOUR,), T + 3 * HOUR)
    assert decide("queue", "all", n=3, late=late, waits=T + 5) == Plan((T,), T + HOUR)


def test_who_waits_longer_is_looked_at_less_often():
    for waited, pause in ((0, 100), (999, 100), (5_000, 500), (HOUR, 10_000)):
        now = T + 3 * HOUR + GRACE_MS
        decided = decide("queue", "latest", n=4, late=GRACE_MS, busy=True, waits=now - waited)
        assert decided == Plan((), T, look_ms=now + pause, waits_ms=now - waited)


# --- identity -------------------------------------------------------------------------------------


def test_the_run_of_a_tick_has_one_id():
    assert tick_run_id(3, "a", T) == tick_run_id(3, "a", T)
    assert [tick_ms_of(tick_run_id(3, "a", T + ms)) for ms in range(9)] == [T + ms for ms in range(9)]
    made = {tick_run_id(3, name, T + s * 1000) for name in ("a", "b", "a/b") for s in range(100)}
    assert len(made) == 300 and {partition_of(id) for id in made} == {3}
    assert sorted(made) == sorted(made, key=lambda id: id.partition("-")[2])


def test_the_clock_of_the_machine_plays_no_part():
    zone = ZoneInfo("Pacific/Kiritimati")
    moment = datetime(2030, 1, 1, tzinfo=zone)
    (tick,) = ticks("0 0 * * *", zone.key, (moment - timedelta(seconds=1)).isoformat(), 1)
    assert datetime.fromisoformat(tick).astimezone(UTC) == moment


@pytest.mark.parametrize("tz", ["Australia/Lord_Howe", "Pacific/Chatham", "Antarctica/Troll", "Europe/Berlin"])
@pytest.mark.parametrize("expr", ["0 */2 * * *", "* 2 * * *", "*/7 1-3 * * *", "15 * * * *", "30 59 1 * * *"])
def test_whatever_the_clock_does_it_ticks_when_the_hands_say_so(tz: str, expr: str) -> None:
    """Given the days on which clocks go forward and back, by half an hour or in the middle of an hour elsewhere / when every
    second is compared with the hands / then it ticks exactly then, from wherever one begins."""
    zone, times = ZoneInfo(tz), Times(expr, tz)
    fields = expr.split()
    second, minute, hour = fields[:3] if len(fields) == 6 else ("0", *fields[:2])

    def fits(field: str, value: int) -> bool:
        span, _, step = field.partition("/")
        low, _, high = span.partition("-")
        within = span == "*" or int(low) <= value <= int(high or low)
        return within and (not step or value % int(step) == 0)

    days = [datetime(2026, 1, 1, 12, tzinfo=zone) + timedelta(days=n) for n in range(365)]
    changes = [a for a, b in itertools.pairwise(days) if a.utcoffset() != b.utcoffset()]
    assert len(changes) == 2
    for begin in changes:
        first = int(begin.timestamp())
        by_hands = []
        for at in range(first, first + 86_400, 30 if len(fields) == 6 else 60):
            hands = datetime.fromtimestamp(at, zone)
            if fits(second, hands.second) and fits(minute, hands.minute) and fits(hour, hands.hour):
                by_hands.append(at * 1000)
        for start in range(first, first + 86_400, 1_801):
            wanted = [tick for tick in by_hands if tick > start * 1000]
            assert list(itertools.islice(times.all_after(start * 1000), len(wanted))) == wanted
