"""What tests of graph runs share."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from weft import Weft
from weft.store.audit import audit


@pytest.fixture
def put_away(app: Weft, eventually) -> Callable[[], Awaitable[None]]:
    """Waits until ended runs are put away; then nothing of them is left but what expires."""

    async def wait() -> None:
        ns = app.engine().ns

        async def closed() -> bool:
            for p in range(ns.partitions):
                timers = await ns.read("ZRANGE", ns.keys.timers(p), 0, -1, p=p)
                if any(member.startswith((b"close:", b"route:")) for member in timers):
                    return False
            return True

        await eventually(closed)
        assert await audit(ns) == []

    return wait
