"""Portions of bounded size."""

from weft.core.portions import portions


def test_portions_keep_the_order_and_what_is_too_large_comes_alone():
    sized = [("a", 3), ("b", 3), ("c", 4), ("d", 50), ("e", 0), ("f", 10)]

    assert list(portions(sized, 10)) == [["a", "b", "c"], ["d"], ["e", "f"]]
    assert list(portions([], 10)) == []
