"""Backpressure: a log that nobody archives in time must not grow for ever."""

from __future__ import annotations

import pytest

from weft.engine.health import examine
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


async def test_new_runs_are_refused_before_memory_runs_out_and_what_was_accepted_goes_on(
    app, start_worker, archive, sweep, raw, monkeypatch
):
    @app.task
    async def add(a: int, b: int) -> int:
        return a + b

    await app.open()
    await archive()
    waiting = await add.enqueue(1, 2)
    most = int(raw.info("memory")["used_memory"] * 1.2)
    raw.config_set("maxmemory", most)
    try:
        monkeypatch.setenv("WEFT_MAX_MEMORY", "50%")
        await sweep("1h")
        with pytest.raises(ArchiveBehind, match="WEFT_MAX_MEMORY") as refused:
            await add.enqueue(3, 4)
        assert refused.value.retry_after_ms > 0
        with pytest.raises(ArchiveBehind, match="WEFT_MAX_MEMORY"):
            await add.options(durability="committed").enqueue(3, 4)
        told = await app.queues.metrics()
        assert f"weft_store_memory_max_bytes {most}" in told and f"weft_store_memory_soft_bytes {most // 2}" in told
        assert f"weft_starts_refused {app.engine().ns.partitions}" in told
        health = await examine(app.engine())
        assert any(each.about == "starts" and "WEFT_MAX_MEMORY" in each.message for each in health.findings)
        await start_worker()
        assert await waiting.result(10) == 3
    finally:
        raw.config_set("maxmemory", 0)
    await sweep("1h")
    assert "weft_starts_refused 0" in await app.queues.metrics()
    assert await (await add.enqueue(3, 4)).result(10) == 7
