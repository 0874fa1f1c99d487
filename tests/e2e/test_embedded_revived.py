"""A worker on the embedded store outlives its server: the server is started again, with its data."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest

from weft import Weft


async def test_work_goes_on_after_the_embedded_server_was_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("WEFT_REDIS_URL", raising=False)
    monkeypatch.setenv("WEFT_DATA", str(tmp_path / "data"))
    app = Weft("revived")

    @app.task
    async def double(n: int) -> int:
        return 2 * n

    async with app, app.worker():
        first = await double.enqueue(1)
        assert await first.result(timeout=10) == 2
        assert app.embedded is not None
        dead = app.embedded.pid

        os.kill(dead, signal.SIGKILL)

        # The start is repeated while the store is away, so nobody needs to wait for the server here.
        second = await double.enqueue(21)
        assert await second.result(timeout=20) == 42
        assert app.embedded.pid != dead


async def test_what_was_queued_before_the_kill_is_done_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("WEFT_REDIS_URL", raising=False)
    monkeypatch.setenv("WEFT_DATA", str(tmp_path / "data"))
    app = Weft("revived")
    gate = asyncio.Event()

    @app.task
    async def held(n: int) -> int:
        await gate.wait()
        return n

    async with app, app.worker(concurrency=1):
        runs = await held.enqueue_many([(n,) for n in range(20)])
        assert app.embedded is not None

        # A killed process loses nothing that it wrote: what the server acknowledged is with the kernel.
        os.kill(app.embedded.pid, signal.SIGKILL)
        gate.set()

        assert [await run.result(timeout=20) for run in runs] == list(range(20))
