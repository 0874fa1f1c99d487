"""Blocks are kept first and indexed when there is time: whatever happens in between, nothing is lost or found twice."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from weft.core.status import MARK
from weft.engine.housekeeping import archiver as archiving
from weft.engine.housekeeping.recovery import recover_all
from weft.store.archived import read_mark

pytestmark = pytest.mark.leaves("history", "open runs")


@pytest.fixture
def busy(monkeypatch):
    """The engine is always at full load, until told otherwise."""
    monkeypatch.setattr(archiving, "BUSY_RATE", 0)
    return lambda rate=5_000: monkeypatch.setattr(archiving, "BUSY_RATE", rate)


@pytest.fixture
def square(app):
    @app.task
    async def square(n: int) -> int:
        return n * n

    return square


async def keep_only(archivers, hot_ms=300_000):
    """Lets new archivers keep what the log has, and look no further."""
    made = await archivers(hot_ms)
    for each in made:
        await each.tick()
    return made


async def behind(rows):
    return sum(row.block - row.indexed_block for row in await rows("checkpoints"))


async def test_what_is_only_kept_is_indexed_by_whoever_comes_next(
    app, square, start_worker, archivers, archive, rows, logged, busy, one_home
):
    await start_worker()
    runs = [await square.enqueue(n) for n in range(5)]
    for run in runs:
        await run.result(20)
    await keep_only(archivers)
    assert await rows("runs") == [] and await behind(rows) == 1
    assert {(row.run, row.seq, row.entry) for row in await rows("events")} == logged()

    busy()
    await archive()

    assert await behind(rows) == 0
    assert {row.id: row.status for row in await rows("runs")} == {run.id: "completed" for run in runs}
    assert len(await rows("events")) == len(logged())
    assert [event.type for event in await runs[0].history()] == ["queued", "completed"]


async def test_a_run_whose_events_stand_in_different_blocks_is_one_row(
    app, square, start_worker, archivers, archive, rows, busy, one_home
):
    made = await keep_only(archivers)
    run = await square.enqueue(3)
    for each in made:
        await each.tick()
    await start_worker()
    await run.result(20)
    for each in made:
        await each.tick()
        await each.drain()

    (row,) = await rows("runs")
    assert (row.status, row.seq, row.gap) == ("completed", 2, 0)
    assert row.blocks.split() == ["1", "2"]


async def test_the_log_keeps_what_is_not_indexed_however_old_it_is(
    app, square, start_worker, archivers, archive, raw, busy, one_home
):
    key = app.engine().ns.keys.log(0)
    await start_worker()
    for n in range(150):
        await square.enqueue(n)
    await (await square.enqueue(0)).result(20)
    before = raw.xlen(key)
    made = await keep_only(archivers, hot_ms=-10_000)
    assert raw.xlen(key) >= before

    for each in made:
        await each.drain()
    assert raw.xlen(key) < before


async def test_lag_is_what_is_not_kept(app, square, start_worker, archivers, busy, one_home):
    await start_worker()
    await (await square.enqueue(1)).result(20)
    await keep_only(archivers)

    mark = await read_mark(app.engine().ns, 0)
    assert (mark.lag_entries, mark.lag_ms) == (0, 0) and mark.index_ms > 0
    assert "weft_archive_lag_seconds 0\n" in (metrics := await app.queues.metrics())
    assert "weft_archive_index_seconds 0\n" not in metrics


async def test_a_damaged_observation_is_put_aside_however_busy_it_is(
    app, square, start_worker, archivers, rows, raw, busy, one_home
):
    await start_worker()
    await (await square.enqueue(1)).result(20)
    log = app.engine().ns.keys.log(0)
    entry = raw.xadd(log, {"at": "1", "by": "c", f"{MARK}job": "no event"})

    await keep_only(archivers)

    (gap,) = await rows("gaps")
    assert gap.raw == b"no event" and await rows("runs") == []
    raw.xdel(log, entry)


async def test_a_small_batch_behind_a_full_one_is_no_sign_of_rest(archivers, monkeypatch):
    archiver, now = (await archivers())[0], [1_000.0]
    monkeypatch.setattr(archiving, "time", SimpleNamespace(monotonic=lambda: now[0]))
    archiver._counted_since = now[0]

    def kept(n: int, after: float) -> bool:
        now[0] += after
        return bool(archiver._is_busy(n))

    # At 20,000 events a second: full batches, and what is left at once.
    assert all([kept(4_300, 0.21), kept(420, 0.02), kept(4_000, 0.19), kept(650, 0.03), kept(4_200, 0.2)])
    assert kept(100, 0.1) and not kept(200, 0.3) and not kept(900, 0.2)
    assert not kept(3_000, 60.0) and kept(3_000, 0.01)


async def test_however_busy_it_is_there_is_a_limit_to_what_waits(
    app, square, start_worker, archivers, rows, busy, monkeypatch, one_home
):
    monkeypatch.setattr(archiving, "MAX_BEHIND", 2)
    await start_worker()
    made = await archivers()
    for n in range(4):
        await (await square.enqueue(n)).result(20)
        for each in made:
            await each.tick()
        assert await behind(rows) < 2


@pytest.mark.parametrize("partitions", [1])
async def test_two_that_index_at_once_do_it_once(app, square, start_worker, archivers, rows, busy, one_home):
    from weft.errors import CheckpointMoved

    await start_worker()
    for n in range(5):
        await (await square.enqueue(n)).result(20)
    (first,) = await keep_only(archivers)
    (second,) = await archivers()
    assert await second._open()
    busy()

    await first._index()
    with pytest.raises(CheckpointMoved):
        await second._index()

    assert len(await rows("runs")) == 5 and await behind(rows) == 0


@pytest.mark.parametrize("partitions", [1])
async def test_what_was_only_kept_is_rebuilt_too(
    app, square, start_worker, archivers, rows, raw, busy, one_home, quick
):
    from weft.engine.cold import Cold

    worker = await start_worker()
    done = await square.enqueue(2)
    assert await done.result(20) == 4
    await worker.stop()
    waiting = await square.options(tags={"team": "a"}).enqueue(3)
    await keep_only(archivers)
    assert await rows("runs") == []

    ns = app.engine().ns
    raw.delete(*raw.scan_iter(match=f"{ns.keys.namespace}:*"))
    cold = Cold(app.database(), ns.keys.namespace)
    (seen,) = await recover_all(ns, cold, "a-test", hot_ms=300_000, dry_run=True)
    assert seen.lost and seen.behind == 1 and await rows("runs") == []
    (found,) = await recover_all(ns, cold, "a-test", hot_ms=300_000, dry_run=False)
    assert (found.runs, found.gaps) == (1, 0)
    await cold.close()

    await start_worker()
    assert await waiting.result(20) == 9
    assert await done.result(20) == 4
    assert [event.type for event in await done.history()] == ["queued", "completed"]
