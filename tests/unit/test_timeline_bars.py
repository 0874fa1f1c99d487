"""Bars of `weft runs timeline` are as long as the terminal has room for."""

from __future__ import annotations

import pytest

from weft.cli.tables import fit
from weft.cli.workflows import BAR, room_for_bars

HEADERS = ["began", "took", "kind", "step", "status", "attempt"]
ROW = ["12345", "123", "child", "kid~1", "completed", "1"]


@pytest.mark.parametrize("width", [70, 80, 100, 200])
def test_bars_are_not_folded(width: int):
    room = room_for_bars([HEADERS, ROW], width)
    assert room == min(BAR, width - 47)
    assert fit([*HEADERS, ""], [[*ROW, "█" * room]], width)[6] == room


def test_a_bar_is_never_too_short_to_show_anything():
    assert room_for_bars([HEADERS, ["x" * 90] * 6], 80) == 14
