"""What all script tests share: a partition to work on, and the check that a script minds the epoch."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest
import redis
from partition import Partition

from weft.core.model import RunSpec
from weft.core.schedule import ScheduleSpec
from weft.errors import EpochMissing, StaleEpoch
from weft.store.namespace import Namespace
from weft.store.schedules import put_schedule

SPEC = msgspec.msgpack.encode(ScheduleSpec("0 * * * *", RunSpec("job")))


@pytest.fixture
def part(ns: Namespace, p: int, raw: redis.Redis) -> Partition:
    return Partition(ns, p, raw)


@pytest.fixture
def schedule(part: Partition, ns: Namespace, p: int) -> Callable[..., Awaitable[str]]:
    """Makes a schedule whose first tick is due at 1000."""

    async def make(name: str = "s") -> str:
        assert await put_schedule(ns, p, name, rev="0", due_ms=1000, fields={"spec": SPEC, "born": 1, "next": 1000})
        # Revisions begin with the time, so that none comes twice; here they begin with 1.
        assert abs(int(part.raw.hget(part.keys.schedule(p, name), "rev")) - time.time() * 1000) < 600_000
        part.raw.hset(part.keys.schedule(p, name), "rev", 1)
        return name

    return make


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
