"""How long the archive keeps runs, as people write it."""

import pytest

from weft.core.retention import parse_policy
from weft.ids import new_run_id, stamp_of

DAY = 86_400_000


def test_rules_are_read_in_order_and_the_last_is_about_every_run():
    policy = parse_policy("status=failed 90d; kind=task tag.env=test 1d;\n kind=graph name=report forever; 30d")

    assert [rule.keep_ms for rule in policy.rules] == [90 * DAY, DAY, None, 30 * DAY]
    assert policy.rules[1].tags == (("env", "test"),) and policy.rules[2].name == "report"
    assert policy.shortest_ms == DAY
    assert parse_policy(policy.text) == policy


def test_without_a_last_rule_the_rest_is_kept_for_good():
    policy = parse_policy("kind=task 1d")

    assert policy.rules[-1].keep_ms is None and policy.rules[-1].is_plain
    assert policy.observed_ms is None and parse_policy("forever").shortest_ms is None
    assert parse_policy("kind=status 2d; 30d").observed_ms == 2 * DAY
    assert parse_policy("kind=task 1d; 30d").observed_ms == 30 * DAY
    assert policy.schedules_ms is None and parse_policy("kind=status 2d; 30d").schedules_ms == 30 * DAY
    assert parse_policy("kind=schedule 3d").schedules_ms == 3 * DAY


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "there is no rule"),
        ("30d; kind=task 1d", "no rule can stand behind"),
        ("kind=task", "does not say how long"),
        ("kind=agents 1d", "there is no kind"),
        ("status=running 1d", "have ended"),
        ("colour=red 1d", "no condition"),
        ("tag.=a 1d", "no condition"),
        ("tag.team= 1d", "no condition"),
        ("kind=task kind=graph 1d", "twice"),
        ("kind=status status=failed 1d", "age alone"),
        ("kind=schedule tag.team=a 1d", "age alone"),
        ("0s", "rule '0s'"),
        ("soon", "rule 'soon'"),
        (";".join(["name=a 1d"] * 51), "at most 50"),
    ],
)
def test_what_cannot_be_meant_is_refused(text, told):
    with pytest.raises(ValueError, match=told):
        parse_policy(text)


def test_the_stamp_of_a_moment_stands_before_all_ids_of_it():
    import time

    before = time.time_ns() // 1_000_000
    born = new_run_id(0).partition("-")[2]
    after = time.time_ns() // 1_000_000

    assert stamp_of(before) <= born < stamp_of(after + 1)
    assert stamp_of(-5) == "0" * 10 < stamp_of(1) < stamp_of(1 << 60)
