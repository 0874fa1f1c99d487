"""What all script tests share: a partition to work on, and the check that a script minds the epoch."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import redis
from partition import Partition

from weft.errors import EpochMissing, StaleEpoch
from weft.store.namespace import Namespace


@pytest.fixture
def part(ns: Namespace, p: int, raw: redis.Redis) -> Partition:
    return Partition(ns, p, raw)


@pytest.fixture
def refuses_other_epochs(part: Partition, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Awaitable[None]]:
    """Checks that a call changes nothing when the partition's epoch is another one than the caller's, or missing."""

    async def check(call: Callable[[], Awaitable[Any]]) -> None:
        async def learn_nothing() -> None: ...

        # Without this the namespace would learn the new epoch and repeat the call, which is what it is for.
        monkeypatch.setattr(part.ns, "open", learn_nothing)
        before = part.snapshot()
        known, part.ns.epochs[part.p] = part.ns.epochs[part.p], "1"
        with pytest.raises(StaleEpoch, match=f"at epoch {known}, the caller at 1"):
            await call()
        assert part.snapshot() == before

        part.ns.epochs[part.p] = known
        home = part.raw.hgetall(part.keys.epoch(part.p))
        part.raw.delete(part.keys.epoch(part.p))
        with pytest.raises(EpochMissing):
            await call()
        part.raw.hset(part.keys.epoch(part.p), mapping=home)
        assert part.snapshot() == before

    return check
