"""Test files outside packages are imported by their bare names: two of one name cannot be collected by one process."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]


def test_no_two_test_files_share_a_name() -> None:
    bare = [path for path in TESTS.rglob("test_*.py") if not (path.parent / "__init__.py").exists()]
    twice = {name for name, times in Counter(path.name for path in bare).items() if times > 1}
    shared = sorted(path.relative_to(TESTS).as_posix() for path in bare if path.name in twice)
    assert shared == []
