"""Which items are started a second time, and when to look again."""

from __future__ import annotations

import pytest

from weft.core.hedging import LOOK_MS, Item, choose

HEDGE = 5_000


@pytest.mark.parametrize(
    ("items", "most", "chosen", "wait_ms"),
    [
        pytest.param([], 10, [], HEDGE, id="nothing is open"),
        pytest.param([Item("a", 4_000), Item("b", 1_000)], 10, [], 1_000, id="the next one is due in a second"),
        pytest.param([Item("a", 5_000), Item("b", 9_000)], 10, ["b", "a"], HEDGE, id="the slowest first"),
        pytest.param([Item("a", 5_000), Item("b", 9_000)], 3, ["b"], HEDGE, id="one place is left"),
        pytest.param([Item("a", 5_000), Item("b", 9_000, copied=True)], 3, [], HEDGE, id="a copy takes a place"),
        pytest.param([Item("a"), Item("b", due_ms=60_000)], 10, [], HEDGE, id="who waits is not started again"),
        pytest.param([Item("b", due_ms=60_000)], 10, [], 65_000, id="who begins later is late later"),
        pytest.param([Item("a", 9_000, copied=True)], 10, [], HEDGE, id="nobody is started a third time"),
    ],
)
def test_what_is_chosen(items, most, chosen, wait_ms):
    assert choose(items, HEDGE, most) == (chosen, wait_ms)


def test_a_short_hedge_is_exact_while_something_runs_and_looks_seldom_while_nothing_does():
    assert choose([Item("a", 10)], 50, 10) == ([], 40)
    assert choose([Item("a")], 50, 10) == ([], LOOK_MS)
