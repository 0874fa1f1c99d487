"""Durations: what is accepted, what it becomes, and what is refused with which words."""

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.clock import MAX_DURATION_MS, UNIT_MS, format_duration, parse_duration_ms
from weft.errors import InvalidOption


@pytest.mark.parametrize(
    ("value", "ms"),
    [
        ("250ms", 250),
        ("5s", 5_000),
        ("2m", 120_000),
        ("1h", 3_600_000),
        ("7d", 604_800_000),
        ("1.5s", 1_500),
        ("0.25h", 900_000),
        (" 5 s ", 5_000),
        ("30", 30_000),
        (3, 3_000),
        (0.25, 250),
        (0, 0),
        ("0s", 0),
        (1.0005, 1_000),
        ("1.005s", 1_005),
        (timedelta(days=1, milliseconds=1), 86_400_001),
        (timedelta(microseconds=1_600), 2),
    ],
)
def test_every_written_form_becomes_whole_milliseconds(value, ms):
    assert parse_duration_ms(value, what="timeout") == ms


@pytest.mark.parametrize("value", ["0.1ms", 0.0000001, timedelta(microseconds=1)])
def test_a_tiny_duration_is_never_rounded_to_nothing(value):
    assert parse_duration_ms(value, what="delay", allow_zero=False) == 1


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (True, "not a length of time"),
        (False, "not a length of time"),
        (None, "not a length of time"),
        ([5], "not a length of time"),
        (5j, "not a length of time"),
        ("", "not a length of time"),
        ("   ", "not a length of time"),
        ("soon", "not a length of time"),
        ("5 minutes", "not a length of time"),
        ("s", "not a length of time"),
        ("1e3s", "not a length of time"),
        ("nan", "not a length of time"),
        ("inf", "not a length of time"),
        ("5s\x00", "not a length of time"),
        ("٥s", "not a length of time"),
        (b"5s", "not a length of time"),
        (-1, "negative"),
        (-0.5, "negative"),
        ("-5s", "negative"),
        (timedelta(seconds=-1), "negative"),
        (float("nan"), "finite"),
        (float("inf"), "finite"),
        (float("-inf"), "finite"),
        ("3654d", "ten years"),
        (10**12, "ten years"),
        (10**400, "ten years"),
        (-(10**400), "negative"),
        (1e300, "ten years"),
        (timedelta.max, "ten years"),
        ("9" * 5_000 + "s", "finite"),
    ],
)
def test_what_cannot_be_meant_is_refused_with_the_option_the_value_and_the_forms(value, why):
    with pytest.raises(InvalidOption) as caught:
        parse_duration_ms(value, what="retry_delay")
    message = str(caught.value)
    assert message.startswith("retry_delay: ")
    assert why in message
    assert '"250ms"' in message
    assert "timedelta" in message
    assert "seconds" in message
    assert len(message) < 300
    assert caught.value.facts == {"option": "retry_delay"}


def test_the_refused_value_is_shown():
    with pytest.raises(InvalidOption, match="'soonish'"):
        parse_duration_ms("soonish", what="delay")


@pytest.mark.parametrize("value", [0, 0.0, "0s", "0ms", timedelta(0)])
def test_zero_is_refused_only_where_the_option_says_so(value):
    assert parse_duration_ms(value, what="delay") == 0
    with pytest.raises(InvalidOption, match="is zero"):
        parse_duration_ms(value, what="lease", allow_zero=False)


def test_the_limit_itself_is_accepted_and_one_more_is_not():
    assert parse_duration_ms(f"{MAX_DURATION_MS}ms", what="deadline") == MAX_DURATION_MS
    with pytest.raises(InvalidOption):
        parse_duration_ms(f"{MAX_DURATION_MS + 1}ms", what="deadline")


@pytest.mark.parametrize(
    ("ms", "text"),
    [
        (0, "0s"),
        (1, "1ms"),
        (999, "999ms"),
        (1_000, "1s"),
        (1_500, "1.5s"),
        (59_999, "59.9s"),
        (60_000, "1m"),
        (125_000, "2m 5s"),
        (125_999, "2m 5s"),
        (3_600_000, "1h"),
        (3_661_000, "1h 1m"),
        (3_600_999, "1h"),
        (273_600_000, "3d 4h"),
        (MAX_DURATION_MS, "3653d"),
        (-125_000, "-2m 5s"),
    ],
)
def test_durations_are_written_short_for_people(ms, text):
    assert format_duration(ms) == text


@given(st.integers(0, MAX_DURATION_MS))
def test_every_way_of_writing_whole_milliseconds_gives_the_same(ms):
    assert parse_duration_ms(f"{ms}ms", what="x") == ms
    assert parse_duration_ms(timedelta(milliseconds=ms), what="x") == ms
    assert parse_duration_ms(ms / 1_000, what="x") == ms
    assert parse_duration_ms(f"{ms / 1_000:.3f}s", what="x") == ms


@given(st.integers(1, 1_000), st.sampled_from(sorted(UNIT_MS)))
def test_a_formatted_round_duration_reads_back(n, unit):
    ms = n * UNIT_MS[unit]
    parts = format_duration(ms).split()
    assert sum(parse_duration_ms(part, what="x") for part in parts) <= ms
    assert sum(parse_duration_ms(part, what="x") for part in parts) > ms * 0.9


@given(st.one_of(st.text(), st.floats(), st.integers(), st.timedeltas(), st.booleans(), st.none(), st.binary()))
def test_anything_gives_milliseconds_within_the_limit_or_a_named_refusal(value):
    try:
        ms = parse_duration_ms(value, what="x")
    except InvalidOption as error:
        assert str(error).startswith("x: ")
    else:
        assert type(ms) is int
        assert 0 <= ms <= MAX_DURATION_MS
