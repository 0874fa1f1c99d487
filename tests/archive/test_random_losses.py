"""The store is wiped at random moments while everything runs: what the archive has goes on, what has ended stays ended."""

from __future__ import annotations

import asyncio
import random
import sqlite3
import time

import pytest
from cold_checker import Wiped, broken_promises

from chaos.checker.rest import _unrest
from chaos.recorder import Row
from weft import current
from weft.engine.cold import Cold
from weft.errors import Unavailable
from weft.store.recovery import Closed, read_hot

pytestmark = pytest.mark.leaves("history", "open runs")


@pytest.fixture
def database_url(tmp_path) -> str:
    """SQLite only: what is looked at here is the store."""
    return f"sqlite:///{tmp_path / 'archive.sqlite'}"


def archived(url: str) -> dict[str, str]:
    """Returns the status of every run in the database."""
    connection = sqlite3.connect(url.removeprefix("sqlite:///"))
    try:
        return dict(connection.execute("SELECT id, status FROM weft_runs").fetchall())
    finally:
        connection.close()


def note(effects: list[Row], phase: str) -> None:
    now = current()
    effects.append(
        Row(now.effect_key, now.run_id, now.attempt, now.delivery, now.fence, 0, "", time.monotonic(), phase)
    )


def times(effects: list[Row], run: str) -> int:
    return sum(row.run == run and row.phase == "before" for row in effects)


def runs_of(raw, keys, p: int) -> list[str]:
    """Returns the runs that the store has."""
    return [key.decode().rpartition(":")[2] for key in raw.scan_iter(match=keys.run(p, "*"))]


async def wiped_at_random(
    app, start_worker, archive, archivers, raw, database_url, server, eventually, *, seed, n, wipes
) -> None:
    chance, effects = random.Random(seed), list[Row]()

    @app.task(retries=2, retry_delay="20ms", jitter=False)
    async def work(i: int) -> int:
        note(effects, "before")
        await asyncio.sleep(chance.random() * 0.02)
        note(effects, "after")
        if i % 7 == 0 and current().attempt == 1:
            raise ValueError("once")
        return i

    await archive()
    archiving = await archivers()
    for each in archiving:
        each.start()
    await start_worker(concurrency=20)
    space, started, ended_before = app.engine().ns, {}, {}

    async def produce() -> None:
        for i in range(n):
            while True:
                try:
                    started[(await work.options(idempotency_key=f"k{i}").enqueue(i)).id] = i
                    # They are to come while the store is lost, not before.
                    await asyncio.sleep(0.006)
                    break
                except Unavailable:
                    await asyncio.sleep(0.02)

    producing = asyncio.create_task(produce())
    for _ in range(wipes):
        await asyncio.sleep(0.1 + chance.random() * 0.5)
        keys = [*raw.scan_iter(match=f"{space.keys.namespace}:*")]
        raw.delete(*keys)
        known, ran = archived(database_url), list(effects)
        for run, status in known.items():
            if status == "completed":
                ended_before.setdefault(run, times(ran, run))
        closed = Closed(space, space.partitions)
        while any([(await read_hot(closed, p, "1-1")).epoch == 0 for p in range(space.partitions)]):
            await asyncio.sleep(0.02)
    await producing

    # Everything the archive knows comes to its end; runs it never saw are gone, or were started again by their key.
    last = (await work.enqueue(-1)).id

    async def all_ended() -> bool:
        known = archived(database_url)
        return last in known and set(known.values()) == {"completed"}

    for _ in range(3_000):
        if await all_ended():
            break
        await asyncio.sleep(0.02)
    assert await all_ended(), {
        s: list(archived(database_url).values()).count(s) for s in archived(database_url).values()
    }
    for run, before in ended_before.items():
        assert times(effects, run) == before, f"{run} had ended, and ran again"
    # I17: a run in which all was lost before it was archived proves nothing.
    assert len(archived(database_url)) > n / 5
    wiped = Wiped(app, server.url, effects, started)
    await eventually(lambda: not any(True for _ in _unrest(wiped)), 30)
    # Of all partitions, not only of that of the last run.
    hot = {id for p in range(space.partitions) for id in runs_of(raw, space.keys, p)}
    await eventually(lambda: hot <= archived(database_url).keys(), 30)
    cold = Cold(app.database(), space.keys.namespace)
    known = archived(database_url)
    problems = await broken_promises(wiped, cold, known, started)
    await cold.close()
    wiped.server.client.close()
    assert not problems, f"{len(problems)} broken promises:\n" + "\n".join(problems[:25])
    await asyncio.gather(*(each.stop() for each in archiving))


@pytest.mark.parametrize("seed", range(2))
async def test_a_store_that_is_wiped_while_tasks_run(
    app, start_worker, archive, archivers, raw, database_url, server, eventually, seed
):
    await wiped_at_random(
        app, start_worker, archive, archivers, raw, database_url, server, eventually, seed=seed, n=120, wipes=2
    )


@pytest.mark.chaos
@pytest.mark.parametrize("seed", range(20))
async def test_a_store_that_is_wiped_again_and_again_while_a_thousand_tasks_run(
    app, start_worker, archive, archivers, raw, database_url, server, eventually, seed
):
    await wiped_at_random(
        *(app, start_worker, archive, archivers, raw, database_url, server, eventually),
        seed=seed + 100,
        n=1_000,
        wipes=1 + seed % 5,
    )
