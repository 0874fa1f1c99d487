"""One app in several loops of a process: the embedded server goes with the last that uses it, not the first that leaves."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from weft import Weft
from weft.sdk.task import AsyncTask


@pytest.fixture
def app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Weft:
    monkeypatch.delenv("WEFT_REDIS_URL", raising=False)
    monkeypatch.setenv("WEFT_DATA", str(tmp_path / "data"))
    return Weft("loops")


def declare(app: Weft) -> AsyncTask[[int], int]:
    @app.task
    async def double(n: int) -> int:
        return 2 * n

    return double


def test_a_script_goes_on_without_a_loop_after_a_block_with_one(app: Weft) -> None:
    double = declare(app)

    async def work(n: int) -> int:
        async with app, app.worker():
            return await (await double.enqueue(n)).result(timeout=10)

    first = double.sync.enqueue(1)
    assert asyncio.run(work(2)) == 4
    assert first.sync.result(timeout=5) == 2  # the server was stopped under this loop
    assert asyncio.run(work(3)) == 6
    assert double.sync.enqueue(4).sync.status() == "queued"

    app.portal.close()
    app.release()
    assert app.embedded is None


async def test_a_block_within_another_leaves_the_outer_one_its_store(app: Weft) -> None:
    double = declare(app)

    async def helper(n: int) -> int:
        async with app:
            return await (await double.enqueue(n)).result(timeout=10)

    async with app, app.worker():
        assert app.embedded is not None
        pid = app.embedded.pid
        assert await helper(1) == 2
        assert await asyncio.gather(*(helper(n) for n in range(3))) == [0, 2, 4]
        assert app.embedded.pid == pid
    assert app.embedded is None


def test_the_server_stops_with_a_block_that_was_alone_on_it(app: Weft) -> None:
    double = declare(app)

    async def forgotten() -> str:
        return await (await double.enqueue(1)).status()

    async def work() -> None:
        async with app:
            await double.enqueue(2)

    assert asyncio.run(forgotten()) == "queued"  # its loop is closed, so nobody is on the server by it
    asyncio.run(work())
    assert app.embedded is None


def test_engines_of_loops_that_are_closed_are_let_go(app: Weft) -> None:
    double = declare(app)

    async def start() -> None:
        await double.enqueue(1)

    for _ in range(5):
        asyncio.run(start())  # as a view of a web framework may, for as long as its server lives
    assert len(app._engines) == 1
    app.release()
