"""What engine tests share: a few tasks, a clock to move, and an app whose tasks live in a module."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable

import process_tasks
import pytest

from servers import ServerProcess
from weft import Weft
from weft.sdk.task import AsyncTask
from weft.testing import VirtualClock


@pytest.fixture
def add(app: Weft) -> AsyncTask[[int, int], int]:
    """The smallest task."""

    @app.task
    async def add(a: int, b: int) -> int:
        return a + b

    return add


@pytest.fixture
def advance(weft_clock: VirtualClock) -> Callable[[int], Awaitable[None]]:
    """Moves the clock of every partition forward, by so many ms."""
    return weft_clock._move


@pytest.fixture
async def process_app(server: ServerProcess, namespace: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Weft]:
    """An app whose tasks stand at the top of a module, as tasks with pool="process" must."""
    monkeypatch.setenv("WEFT_REDIS_URL", server.url)
    monkeypatch.setenv("WEFT_NAMESPACE", namespace)
    yield process_tasks.app
    await process_tasks.app.close()
