"""Backpressure: a log that nobody archives in time must not grow for ever."""

from __future__ import annotations

import pytest

from weft.engine.housekeeping.sweeper import Sweeper
from weft.errors import ArchiveBehind, Unavailable


@pytest.fixture
def sweep(app, monkeypatch):
    """Lets a sweeper of every partition look at its log."""

    async def run(max_lag):
        monkeypatch.setenv("WEFT_MAX_LAG", max_lag)
        ns = app.engine().ns
        for p in range(ns.partitions):
            await Sweeper(ns, p, "s-test", lease=1, retention_ms=3_600_000)._trim()

    return run


async def test_new_runs_are_refused_while_the_archive_is_too_far_behind_and_taken_again_after(
    app, start_worker, archive, sweep, eventually, raw, one_home
):
    @app.task
    async def add(a: int, b: int) -> int:
        return a + b

    graph = app.graph("g")

    @graph.node
    async def first(input: dict) -> int:
        return 1

    await app.open()
    await archive()
    waiting = await add.enqueue(1, 2)

    async def held():
        await sweep("1ms")
        return raw.hget(app.engine().ns.keys.epoch(0), "behind")

    await eventually(held)
    for start in (lambda: add.enqueue(3, 4), lambda: add.enqueue_many([(3, 4)]), lambda: graph.start({})):
        with pytest.raises(ArchiveBehind, match="WEFT_MAX_LAG") as refused:
            await start()
        assert isinstance(refused.value, Unavailable) and refused.value.retry_after_ms > 0

    # What was accepted goes on.
    await start_worker()
    assert await waiting.result(10) == 3

    await archive()
    await sweep("1h")
    await (await add.options(delay="1h").enqueue(5, 6)).cancel()
    assert await (await graph.start({})).result(10) == 1


async def test_a_log_that_nobody_archives_refuses_nothing(app, sweep):
    @app.task
    async def add(a: int, b: int) -> int:
        return a + b

    run = await add.options(delay="1h").enqueue(1, 2)
    await sweep("1ms")
    await (await add.options(delay="1h").enqueue(1, 2)).cancel()
    await run.cancel()
