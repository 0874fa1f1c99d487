"""Fixtures of the store's tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from holders import (
    Hold,
    Holder,
    eventually,
    is_cleared,
)

from weft.store import embedded


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    """A directory for a server; whatever still runs below `tmp_path` in the end is killed."""
    yield tmp_path / "w"
    for server in list(embedded._attached):
        if server.directory.is_relative_to(tmp_path.resolve()):  # the one that all tests share stays
            server.detach(stop=True)
    for lock in tmp_path.rglob("running"):
        assert eventually(lambda lock=lock: is_cleared(lock))  # type: ignore[misc]


@pytest.fixture
def hold(home: Path) -> Iterator[Hold]:
    holders: list[Holder] = []

    def start(directory: Path = home, **env: str) -> Holder:
        holders.append(Holder(directory, **env))
        return holders[-1]

    yield start
    for holder in holders:
        holder.close()
