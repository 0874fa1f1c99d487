"""Everything starts again on a store that is empty, or whose rebuilding was cut short: it is rebuilt before it serves."""

from __future__ import annotations

import asyncio

import pytest

from weft import StepFailed, Weft
from weft.engine.health import examine
from weft.engine.housekeeping import recovery
from weft.errors import PartitionLost, StoreRefused

pytestmark = [pytest.mark.leaves("history", "open runs"), pytest.mark.usefixtures("quick")]


@pytest.fixture
def work(app):
    @app.task
    async def work(n: int) -> int:
        if n < 0:
            raise ValueError("below zero")
        return n * n

    return work


def wipe(namespace, raw) -> None:
    raw.delete(*raw.scan_iter(match=f"{namespace}:*"))


async def test_a_worker_that_starts_on_an_empty_store_rebuilds_it_before_it_serves(
    app, work, start_worker, archive, raw, namespace
):
    waiting = await work.options(delay="1h", idempotency_key="k").enqueue(3)
    soon = await work.enqueue(4)
    await archive()
    await app.close()
    wipe(namespace, raw)

    await start_worker(archive=True)

    again = await work.options(delay="1h", idempotency_key="k").enqueue(3)
    assert again.deduplicated and again.id == waiting.id
    assert await soon.result(20) == 16


async def test_a_producer_that_was_there_before_anything_was_archived_asks_its_database_after_a_loss(
    app, work, archive, raw, namespace, server
):
    first = Weft("first", redis_url=server.url, namespace=namespace)
    producer = first.task(work.fn, name="work")
    async with first:
        run = await producer.options(delay="1h", idempotency_key="k").enqueue(3)
        await archive()
        wipe(namespace, raw)

        with pytest.raises(PartitionLost, match="weft recover"):
            await producer.options(delay="1h", idempotency_key="k").enqueue(3)

        engine = app.engine()
        await recovery.recover_all(engine.ns, engine.cold, "a-1", hot_ms=1000, dry_run=False)
        again = await producer.options(delay="1h", idempotency_key="k").enqueue(3)
        assert again.deduplicated and again.id == run.id


async def test_the_doctor_tells_an_empty_store_that_was_lost_from_a_new_one(app, work, archive, raw, namespace):
    await work.enqueue(3)
    await archive()
    await app.close()
    wipe(namespace, raw)

    health = await examine(app.engine())

    (told,) = [each for each in health.findings if each.about == "namespace"]
    assert told.level == "problem" and "weft recover" in told.fix and raw.keys(f"{namespace}:*") == []


async def test_a_producer_without_the_database_learns_that_it_is_archived_while_it_works(
    app, work, archive, raw, namespace, server, monkeypatch, tmp_path
):
    monkeypatch.setattr("weft.store.namespace.LOOK", 0.0)
    nowhere = f"sqlite:///{tmp_path / 'none.sqlite'}"
    first = Weft("first", redis_url=server.url, namespace=namespace, database_url=nowhere)
    producer = first.task(work.fn, name="work")
    async with first:
        await producer.options(delay="1h", idempotency_key="k").enqueue(3)
        await archive()
        await producer.options(delay="1h").enqueue(4)
        wipe(namespace, raw)

        with pytest.raises(PartitionLost, match="weft recover"):
            await producer.options(delay="1h", idempotency_key="k").enqueue(3)
        assert raw.keys(f"{namespace}:*epoch*") == []


async def test_a_recovery_that_was_cut_short_is_finished_by_the_worker_that_starts_next(
    app, work, start_worker, archive, raw, namespace, monkeypatch
):
    run = await work.enqueue(5)
    await archive()
    wipe(namespace, raw)
    engine, honest = app.engine(), recovery.reopen_partition

    async def die(*args):
        raise RuntimeError("killed")

    monkeypatch.setattr(recovery, "LEASE_MS", 300)
    monkeypatch.setattr(recovery, "reopen_partition", die)
    with pytest.raises(RuntimeError):
        await recovery.recover_all(engine.ns, engine.cold, "a-1", hot_ms=1000, dry_run=False)
    monkeypatch.setattr(recovery, "reopen_partition", honest)
    await app.close()

    with monkeypatch.context() as unnamed:
        unnamed.delenv("WEFT_DATABASE_URL")  # whoever knows the database would take it up
        await app.open()  # to connect is no error: what cannot be served says so
    with pytest.raises(PartitionLost):
        await work.enqueue(1)
    await app.close()
    await start_worker(archive=True)
    assert await run.result(20) == 25


@pytest.mark.usefixtures("short_lease")
async def test_a_worker_whose_session_is_lost_meanwhile_goes_on_rebuilding(
    app, work, start_worker, archive, raw, namespace, monkeypatch
):
    await start_worker(archive=True)
    run = await work.options(delay="1s").enqueue(6)
    await archive()
    honest = recovery.restore_runs

    async def slow(*args, **options):
        await asyncio.sleep(1.5)  # three times as long as a session lasts that cannot be renewed
        return await honest(*args, **options)

    monkeypatch.setattr(recovery, "restore_runs", slow)
    wipe(namespace, raw)

    assert await run.result(20) == 36


async def test_a_wiped_namespace_has_as_many_partitions_as_it_had(
    app, work, start_worker, archive, raw, namespace, monkeypatch
):
    monkeypatch.setenv("WEFT_PARTITIONS", "3")
    await work.options(delay="1h").enqueue(3)
    await archive()
    await app.close()
    wipe(namespace, raw)
    monkeypatch.delenv("WEFT_PARTITIONS")

    worker = await start_worker(archive=True)

    assert worker.ns.partitions == 3


@pytest.mark.parametrize("live", [False, True])
async def test_a_producer_that_knows_of_no_archive_takes_no_partitions_from_a_wiped_namespace(
    app, work, start_worker, archive, archivers, raw, namespace, server, monkeypatch, live, tmp_path
):
    monkeypatch.setenv("WEFT_PARTITIONS", "3")
    runs = [await work.enqueue(n) for n in range(6)]
    await archive()
    waking = await archivers()
    if not live:
        await app.close()
    wipe(namespace, raw)
    monkeypatch.delenv("WEFT_PARTITIONS")
    nowhere = f"sqlite:///{tmp_path / 'none.sqlite'}"
    newcomer = Weft("newcomer", redis_url=server.url, namespace=namespace, database_url=nowhere)
    hasty = newcomer.task(work.fn, name="work")
    async with newcomer:
        meanwhile = await hasty.enqueue(7)
        assert newcomer.engine().ns.partitions == 1

        if live:
            for each in waking:
                assert await each._recover()
        worker = await start_worker(archive=True)

        assert worker.ns.partitions == 3
        assert [await run.result(20) for run in runs] == [n * n for n in range(6)]
        assert await app.runs.get(meanwhile.id).result(20) == 49
        with pytest.raises(StoreRefused, match="3 partitions by now, this process knows 1"):
            await hasty.enqueue(8)


async def test_a_producer_that_knows_the_database_rebuilds_an_empty_store_before_it_takes_a_known_key(
    app, work, start_worker, archive, raw, namespace, server
):
    worker = await start_worker()
    done = await work.options(idempotency_key="k").enqueue(3)
    assert await done.result(20) == 9
    await worker.stop()
    waiting = await work.options(delay="1h").enqueue(4)
    await archive()
    await app.close()
    wipe(namespace, raw)
    newcomer = Weft("newcomer", redis_url=server.url, namespace=namespace)
    hasty = newcomer.task(work.fn, name="work")

    async with newcomer:
        again = await hasty.options(idempotency_key="k").enqueue(3)

        assert again.deduplicated and again.id == done.id
        assert (await newcomer.runs.get(waiting.id).info()).status == "queued"


async def test_many_producers_that_find_an_empty_store_rebuild_it_once(app, work, archive, raw, namespace, server):
    waiting = [await work.options(delay="1h", idempotency_key=f"k{n}").enqueue(n) for n in range(20)]
    await archive()
    await app.close()
    wipe(namespace, raw)
    newcomers = [Weft("newcomer", redis_url=server.url, namespace=namespace) for _ in range(8)]
    tasks = [newcomer.task(work.fn, name="work") for newcomer in newcomers]

    again = await asyncio.gather(
        *(tasks[n % 8].options(delay="1h", idempotency_key=f"k{n}").enqueue(n) for n in range(20))
    )

    assert [run.id for run in again] == [run.id for run in waiting]
    for newcomer in newcomers:
        await newcomer.close()


async def test_a_preview_of_an_empty_store_writes_nothing_and_counts_what_a_recovery_does(
    app, work, start_worker, archive, raw, namespace
):
    from weft.engine.housekeeping.reopening import expect_archive

    worker = await start_worker()
    failed = await work.enqueue(-1)
    with pytest.raises(StepFailed):
        await failed.result(20)
    await worker.stop()
    await work.options(delay="1h", idempotency_key="k").enqueue(3)
    await archive()
    await app.close()
    wipe(namespace, raw)
    engine = app.engine()
    expect_archive(engine)

    told = await recovery.recover_all(engine.ns, engine.cold, "a-1", hot_ms=1000, dry_run=True)

    assert {each.lost for each in told} == {"it is empty"}
    assert not [key for key in raw.scan_iter(match=f"{namespace}:*") if b":epoch" in key]
    done = await recovery.recover_all(engine.ns, engine.cold, "a-1", hot_ms=1000, dry_run=False)
    for counted in ("runs", "records", "letters"):
        assert [getattr(each, counted) for each in told] == [getattr(each, counted) for each in done]
    assert sum(each.letters for each in told) == 1


async def test_a_worker_rebuilds_a_store_that_was_lost_while_the_app_was_in_use(
    app, work, start_worker, archive, raw, namespace
):
    run = await work.enqueue(6)
    await archive()
    wipe(namespace, raw)
    with pytest.raises(PartitionLost):
        await work.enqueue(1)

    await start_worker(archive=True)

    assert await run.result(20) == 36
