"""Chaos runs on one partition, whatever the suite runs on: its checker reads one log, and its kills aim at one stream."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="session")
def partitions() -> int:
    return 1
