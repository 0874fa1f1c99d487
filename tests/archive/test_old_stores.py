"""A server comes back with an old dump, or without the end of its append-only file: what was archived is not run again."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from chaos.server import ServerProcess
from weft import Context, Weft
from weft.engine.cold import Cold
from weft.errors import Unavailable


@pytest.fixture
def database_url(tmp_path) -> str:
    """SQLite only: what is looked at here is the store."""
    return f"sqlite:///{tmp_path / 'archive.sqlite'}"


@pytest.fixture
def directory() -> Iterator[Path]:
    """A short path: sockets have no long ones."""
    with tempfile.TemporaryDirectory() as found:
        yield Path(found)


async def insist(ask: Callable[[], Awaitable[Any]]) -> Any:
    """Asks until the store serves."""
    while True:
        try:
            return await ask()
        except Unavailable:
            await asyncio.sleep(0.05)


async def goes_back(server: ServerProcess, database_url: str, keep: Callable[[], Callable[[], None]]) -> None:
    """Runs tasks, keeps how the store stands, runs more, and brings the old state back under everybody's feet."""
    effects: Counter[int] = Counter()
    app = Weft("old", redis_url=server.url, database_url=database_url)
    client = Weft("old", redis_url=server.url, database_url=database_url)

    @app.task
    async def work(n: int) -> int:
        effects[n] += 1
        return n * n

    async def step(n: int) -> int:
        effects[n] += 1
        return n

    @app.workflow
    async def flow(ctx: Context) -> list[int]:
        done = [await ctx.step(step, 100)]
        done.append(await ctx.receive("go"))
        ctx.set_state(at="second")
        done.append(await ctx.step(step, 101))
        return [*done, await ctx.receive("end")]

    cold = Cold(app.database(), app.engine().ns.keys.namespace)

    async def archived(run: str, status: str) -> None:
        while (found := await cold.reader.run(run)) is None or found.state.status != status:
            await asyncio.sleep(0.02)

    async def archived_event(run: str, kind: str, n: int) -> None:
        while [event.type for event in await cold.reader.events(run)].count(kind) < n:
            await asyncio.sleep(0.02)

    async with app.worker(archive=True):
        first = [await work.enqueue(n) for n in range(5)]
        for run in first:
            await run.result(30)
            await archived(run.id, "completed")
        going = await flow.start()
        while not effects[100]:
            await asyncio.sleep(0.01)
        await going.signal("early")
        await archived_event(going.id, "resumed", 1)
        bring_back = keep()
        await going.signal("go", 7, request_id="go")
        while not effects[101]:
            await asyncio.sleep(0.01)
        await archived_event(going.id, "step_completed", 2)
        second = [await work.enqueue(n) for n in range(5, 10)]
        waits = await work.options(delay="2s").enqueue(10)
        for run in second:
            await run.result(30)
            await archived(run.id, "completed")
        await archived(waits.id, "queued")
        # A client that only waits, and never asks for anything.
        blocked = asyncio.create_task(client.runs.get(waits.id).result(60))
        await asyncio.sleep(0.1)

        server.kill()
        bring_back()
        server.start()

        assert await blocked == 100
        for n, run in enumerate((*first, *second)):
            assert await insist(lambda run=run: run.result(30)) == n * n
        # What the store forgot of the workflow the archive knows: the signal came, and the second step was done.
        assert await going.state() == {"at": "second"}
        await going.signal("go", 8, request_id="go")
        await going.signal("end", 9)
        assert await going.result(30) == [100, 7, 101, 9]
        again = await insist(lambda: work.options(idempotency_key="k").enqueue(11))
        assert await again.result(30) == 121
        assert [event.type for event in await second[0].history()] == ["queued", "completed"]
    assert effects == Counter([*range(12), 100, 101])
    await cold.close()
    await client.close()
    await app.close()


async def test_an_old_dump_that_is_restored(directory, database_url):
    server = ServerProcess(directory, appendonly="no")
    server.start()

    def keep() -> Callable[[], None]:
        server.client.execute_command("SAVE")
        shutil.copy(directory / "dump.rdb", directory / "old.rdb")
        return lambda: shutil.copy(directory / "old.rdb", directory / "dump.rdb") and None

    try:
        await asyncio.wait_for(goes_back(server, database_url, keep), 120)
    finally:
        server.close()


async def test_an_append_only_file_whose_end_is_lost(directory, database_url):
    server = ServerProcess(directory, appendfsync="always")
    server.start()

    def keep() -> Callable[[], None]:
        (file,) = (directory / "appendonlydir").glob("*.incr.aof")
        size = file.stat().st_size

        def bring_back() -> None:
            with file.open("r+b") as opened:
                opened.truncate(size + 7)  # in the middle of a command

        return bring_back

    try:
        await asyncio.wait_for(goes_back(server, database_url, keep), 120)
    finally:
        server.close()


async def test_a_worker_that_starts_on_an_older_store_runs_nothing_that_is_archived(
    directory, database_url, monkeypatch
):
    server = ServerProcess(directory, appendonly="no")
    server.start()
    effects: Counter[int] = Counter()

    def make() -> Any:
        app = Weft("old", redis_url=server.url, database_url=database_url)

        @app.task
        async def work(n: int) -> int:
            effects[n] += 1
            return n * n

        return app, work

    try:
        app, work = make()
        cold = Cold(app.database(), app.engine().ns.keys.namespace)
        async with app:
            runs = [await work.enqueue(n) for n in range(5)]
            server.client.execute_command("SAVE")  # with all of them queued
            shutil.copy(directory / "dump.rdb", directory / "old.rdb")
            async with app.worker(archive=True):
                for run in runs:
                    await run.result(30)
                    while (found := await cold.reader.run(run.id)) is None or found.state.status != "completed":
                        await asyncio.sleep(0.02)
        await cold.close()
        server.kill()
        shutil.copy(directory / "old.rdb", directory / "dump.rdb")
        server.start()

        # Somebody else is the first who comes upon the new process, and whoever archives comes late.
        other, _ = make()
        async with other:
            await other.runs.get(runs[0].id).status()
        monkeypatch.setattr("weft.worker.worker.make_archivers", lambda *args, **options: [])
        again, _ = make()
        async with again, again.worker(archive=True):
            assert [await again.runs.get(run.id).result(30) for run in runs] == [n * n for n in range(5)]
        assert effects == Counter(range(5))
    finally:
        server.close()
