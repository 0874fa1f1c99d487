"""A store that lost everything, or went back in time, is rebuilt from the archive: what was archived goes on, once."""

from __future__ import annotations

import asyncio
import time

import pytest

from weft import Retry, Snooze, StepFailed, current
from weft.archive.recovery import Recovery
from weft.engine.housekeeping.recovery import recover_all
from weft.errors import CheckpointMoved, Conflict, PartitionLost
from weft.store.archived import read_log

# What a rebuilt log tells begins in the middle: the archive has the rest.
pytestmark = [pytest.mark.leaves("history", "open runs"), pytest.mark.usefixtures("quick")]


@pytest.fixture
def tasks(app, tmp_path):
    """Tasks that note every execution outside of the store."""
    notes = tmp_path / "effects"

    def note(word: str) -> None:
        with notes.open("a") as file:
            file.write(word + "\n")

    @app.task
    async def work(n: int) -> int:
        note(f"work {n}")
        return n * n

    @app.task(retries=3, retry_delay="1s", jitter=False)
    async def flaky(n: int) -> int:
        note(f"flaky {n} {current().attempt}")
        if current().attempt < 2:
            raise Retry(after="1h")
        return n

    @app.task
    async def lazy() -> None:
        raise Snooze("1h")

    work.noted = lambda: notes.read_text().split("\n")[:-1] if notes.exists() else []
    work.flaky, work.lazy = flaky, lazy
    return work


async def lose(app, raw, archivers):
    """Empties the store of this namespace, as FLUSHALL would, and lets an archiver rebuild it."""
    keys = [*raw.scan_iter(match=f"{app.engine().ns.keys.namespace}:*")]
    raw.delete(*keys)
    for each in await archivers():
        assert await each._recover()


async def test_queued_delayed_and_retrying_runs_go_on_after_everything_is_gone(
    app, tasks, start_worker, archive, archivers, raw
):
    worker = await start_worker()
    done = await tasks.enqueue(2)
    assert await done.result(20) == 4
    retrying = await tasks.flaky.enqueue(7)
    while "flaky 7 1" not in tasks.noted():
        await asyncio.sleep(0.01)
    while (await retrying.status()) != "waiting":
        await asyncio.sleep(0.01)
    snoozing = await tasks.lazy.enqueue()
    while (await snoozing.status()) != "waiting":
        await asyncio.sleep(0.01)
    await worker.stop()
    waiting = await tasks.enqueue_many([(n,) for n in range(20)])
    delayed = await tasks.options(delay="1h").enqueue(99)
    large = await tasks.options(tags={"a": "b"}).enqueue(5)
    await archive()

    await lose(app, raw, archivers)

    assert [event.type for event in await waiting[0].history()] == ["queued", "recovered"]
    assert (await retrying.info()).attempt == 2 and (await retrying.info()).status == "waiting"
    assert (await delayed.info()).due_at is not None and (await delayed.explain()).reason == "delayed"
    assert (await snoozing.info()).status == "waiting" and (await snoozing.explain()).reason == "delayed"
    await start_worker()
    assert [await run.result(30) for run in waiting] == [n * n for n in range(20)]
    assert await large.result(30) == 25 and (await large.info()).tags == {"a": "b"}
    # What had ended is known, and is not run again.
    assert await done.result(1) == 4
    assert tasks.noted().count("work 2") == 2  # once by itself, once as one of the twenty
    assert not any(word == "work 99" for word in tasks.noted())
    await archive()
    await lose(app, raw, archivers)
    assert [(await run.explain()).reason for run in (delayed, snoozing, retrying)] == ["delayed", "delayed", "retrying"]
    assert [await run.status() for run in (delayed, snoozing, retrying)] == ["queued", "waiting", "waiting"]
    await archive()
    assert [event.type for event in await waiting[3].history()] == ["queued", "recovered", "completed"]


async def test_idempotency_keys_and_records_of_equal_calls_stand_after_a_loss(
    app, tasks, start_worker, archive, archivers, raw
):
    @app.task(unique_for="1h")
    async def once(n: int) -> int:
        return n

    worker = await start_worker()
    done = await tasks.options(idempotency_key="k1").enqueue(3)
    assert await done.result(20) == 9
    await worker.stop()
    queued = await tasks.options(idempotency_key="k2").enqueue(4)
    single = await once.enqueue(1)
    await archive()

    await lose(app, raw, archivers)

    for key, n, first in (("k1", 3, done), ("k2", 4, queued)):
        again = await tasks.options(idempotency_key=key).enqueue(n)
        assert again.id == first.id and again.deduplicated
        with pytest.raises(Conflict):
            await tasks.options(idempotency_key=key).enqueue(n + 1)
    assert (await once.enqueue(1)).id == single.id
    await start_worker()
    assert await queued.result(20) == 16 and await single.result(20) == 1


async def test_a_debounced_call_takes_newer_arguments_after_losses(app, tasks, start_worker, archive, archivers, raw):
    saved = []

    @app.task(debounce="1h", unique_key=lambda page: page)
    async def save(page: str, text: str) -> str:
        saved.append(text)
        return text

    draft = await save.enqueue("home", "H")
    for text in ("He", "Hello"):
        await archive()
        await lose(app, raw, archivers)
        newer = await save.enqueue("home", text)
        assert newer == draft and newer.deduplicated
    await archive()
    await lose(app, raw, archivers)
    await draft.reschedule(delay=0)
    await start_worker()

    assert await draft.result(20) == "Hello"
    assert saved == ["Hello"]


async def test_schedules_and_what_operators_set_stand_after_a_loss(app, tasks, start_worker, archive, archivers, raw):
    await app.schedules.create("yearly", "@yearly", "work", kwargs={"n": 1})
    await app.controls.pause(queue="default", reason="stop")
    await app.controls.limit(task="work", rate="5/m")
    told = await app.controls.list()
    before = await app.schedules.get("yearly")
    await tasks.enqueue(1)
    await archive()

    await lose(app, raw, archivers)

    assert await app.schedules.get("yearly") == before
    assert await app.controls.list() == told and len(told) == 2


@pytest.mark.parametrize("partitions", [1])
async def test_a_store_that_went_back_in_time_is_told_by_its_log_and_nothing_archived_runs_again(
    app, tasks, start_worker, archive, archivers, raw
):
    namespace = app.engine().ns
    runs = await tasks.enqueue_many([(n,) for n in range(10)])
    await archive()
    dump = {key: raw.dump(key) for key in raw.scan_iter(match=f"{namespace.keys.namespace}:*")}
    worker = await start_worker()
    assert [await run.result(20) for run in runs] == [n * n for n in range(10)]
    await worker.stop()
    later = await tasks.enqueue(50)
    await archive()
    # The old dump comes back: ten runs are queued again, and the later one never was.
    raw.delete(*raw.scan_iter(match=f"{namespace.keys.namespace}:*"))
    for key, data in dump.items():
        raw.restore(key, 0, data)
    unseen = await tasks.enqueue(60)

    for each in await archivers():
        assert await each._recover()

    await start_worker()
    assert await later.result(20) == 2500 and await unseen.result(20) == 3600
    assert [await run.result(1) for run in runs] == [n * n for n in range(10)]
    assert sorted(tasks.noted()) == sorted([f"work {n}" for n in (*range(10), 50, 60)])


async def test_dead_letters_come_back_and_can_be_replayed(app, tasks, start_worker, archive, archivers, raw):
    healed = asyncio.Event()

    @app.task
    async def bad(text: str) -> int:
        if not healed.is_set():
            raise KeyError("broken")
        return len(text)

    await start_worker()
    run = await bad.enqueue("x" * 9_000)
    with pytest.raises(StepFailed):
        await run.result(20)
    before = await app.dlq.list()
    await archive()

    await lose(app, raw, archivers)

    assert await app.dlq.list() == before and len(before) == 1
    with pytest.raises(StepFailed, match="broken"):
        await run.result(1)
    healed.set()
    new = await app.dlq.replay(run.id)
    assert await new.result(20) == 9_000


async def test_who_knows_of_the_archive_waits_until_it_is_rebuilt(app, tasks, archive, archivers, raw):
    await tasks.enqueue(1)
    await archive()
    engine = app.engine()
    raw.delete(*raw.scan_iter(match=f"{engine.ns.keys.namespace}:*"))

    with pytest.raises(PartitionLost, match="an archiver rebuilds it"):
        await tasks.enqueue(2)
    told = await recover_all(engine.ns, engine.cold, "a-1", hot_ms=1000, dry_run=True)
    assert sum(each.runs for each in told) == 1 and raw.keys(f"{engine.ns.keys.namespace}:*") == []
    await recover_all(engine.ns, engine.cold, "a-1", hot_ms=1000, dry_run=False)

    assert await tasks.enqueue(2)
    assert all(not each.lost for each in await recover_all(engine.ns, engine.cold, "a", hot_ms=1000, dry_run=True))


async def test_a_recovery_that_died_in_the_middle_is_begun_again_by_another(
    app, tasks, start_worker, archive, archivers, raw, monkeypatch
):
    from weft.engine.housekeeping import recovery

    runs = await tasks.enqueue_many([(n,) for n in range(30)])
    await archive()
    raw.delete(*raw.scan_iter(match=f"{app.engine().ns.keys.namespace}:*"))
    engine, honest = app.engine(), recovery.reopen_partition

    async def die(*args):
        raise RuntimeError("killed")

    monkeypatch.setattr(recovery, "reopen_partition", die)
    with pytest.raises(RuntimeError):
        await recover_all(engine.ns, engine.cold, "a-1", hot_ms=1000, dry_run=False)
    monkeypatch.setattr(recovery, "reopen_partition", honest)
    # Another waits for the turn of the first to be over; the first itself need not.
    assert None in await recover_all(engine.ns, engine.cold, "a-2", hot_ms=1000, dry_run=False)
    with pytest.raises(PartitionLost):
        await tasks.enqueue(1)
    await recover_all(engine.ns, engine.cold, "a-1", hot_ms=1000, dry_run=False)

    await start_worker()
    assert [await run.result(30) for run in runs] == [n * n for n in range(30)]
    assert sorted(tasks.noted()) == sorted(f"work {n}" for n in range(30))


async def test_a_recovery_that_is_told_to_stop_leaves_its_turn_to_the_next(
    app, tasks, archive, archivers, raw, monkeypatch, eventually
):
    from weft.engine.housekeeping import recovery

    await tasks.options(delay="1h").enqueue(1)
    await archive()
    raw.delete(*raw.scan_iter(match=f"{app.engine().ns.keys.namespace}:*"))
    engine, reached = app.engine(), asyncio.Event()
    with monkeypatch.context() as patched:

        async def stand_still(*args):
            reached.set()
            await asyncio.sleep(60)

        patched.setattr(recovery, "reopen_partition", stand_still)
        first = asyncio.create_task(recover_all(engine.ns, engine.cold, "a-1", hot_ms=1000, dry_run=False))
        await reached.wait()
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
    await asyncio.sleep(0.002)  # the turn is over in the millisecond after

    done = await recover_all(engine.ns, engine.cold, "a-2", hot_ms=1000, dry_run=False)

    assert all(each is not None for each in done) and any(each.lost for each in done if each is not None)


@pytest.fixture
def flow(app, tasks, tmp_path):
    """A graph of tasks, a branch and a join, whose last task waits for a file."""
    graph = app.graph("flow", output="${last}")

    @graph.node
    async def first(input: dict) -> dict:
        with (tmp_path / "effects").open("a") as file:
            file.write("first\n")
        return {"n": input["n"], "text": "x" * 6_000}

    @graph.node(after=first)
    async def left(first: dict) -> int:
        with (tmp_path / "effects").open("a") as file:
            file.write("left\n")
        return int(first["n"]) + 1

    @graph.node(after=first, when="first.n > 100")
    async def never(first: dict) -> int:
        return 0

    @graph.node(after=[left, never])
    async def last(left: int, first: dict) -> list:
        while not (tmp_path / "go").exists():
            await asyncio.sleep(0.01)
        return [left, len(first["text"])]

    return graph


async def test_a_graph_run_goes_on_from_what_its_nodes_gave(
    app, tasks, flow, start_worker, archive, archivers, raw, tmp_path
):
    await start_worker()
    run = await flow.start({"n": 4})
    while tasks.noted() != ["first", "left"]:
        await asyncio.sleep(0.01)
    await archive()
    while "left" not in [event.step for event in await run.history() if event.type == "step_completed"]:
        await asyncio.sleep(0.01)
    await archive()

    await lose(app, raw, archivers)

    (tmp_path / "go").touch()
    assert await run.result(30) == [5, 6000]
    assert tasks.noted() == ["first", "left"]
    types = [event.type for event in await run.history()]
    assert types.count("recovered") == 1 and types[-1] == "completed"
    nodes = (await run.graph())["nodes"]
    assert {id: node["status"] for id, node in nodes.items()} == {
        "first": "completed",
        "left": "completed",
        "never": "skipped",
        "last": "completed",
    }


async def test_a_chain_goes_on_with_a_step_of_which_only_the_one_before_it_tells(
    app, start_worker, archive, archivers, raw
):
    graph, ran, gate = app.graph("chain", output="${last}"), [], asyncio.Event()

    @graph.node
    async def first(input: dict) -> int:
        ran.append("first")
        return int(input["n"]) + 1

    @graph.node(after=first)
    async def then(first: int) -> int:
        if not gate.is_set():
            await gate.wait()
        ran.append(f"then {first}")
        return first * 2

    @graph.node(after=then)
    async def last(then: int) -> list:
        return [then, current().tags]

    await start_worker()
    run = await graph.options(tags={"who": "ann"}).start({"n": 4})
    while "first" not in [event.step for event in await run.history() if event.type == "step_completed"]:
        await asyncio.sleep(0.01)
    await archive()

    await lose(app, raw, archivers)

    gate.set()
    assert await run.result(30) == [10, {"who": "ann"}]
    assert ran.count("first") == 1 and set(ran) == {"first", "then 5"}


async def test_a_graph_run_with_an_open_map_goes_on_with_what_is_left_of_it(
    app, tasks, start_worker, archive, archivers, raw
):
    graph, ran, gate = app.graph("mapped"), [], asyncio.Event()

    @graph.node
    async def items() -> list:
        return [1, 2, 3, 4]

    @graph.node(after=items, map="items", max_parallel=2)
    async def each(item: int) -> int:
        ran.append(item)
        if item == 3:
            await gate.wait()
        return item * 10

    worker = await start_worker()
    run = await graph.start()
    while "each#3" not in [event.step for event in await run.history() if event.type == "step_completed"]:
        await asyncio.sleep(0.01)
    gate.set()
    await worker.stop()
    await archive()

    await lose(app, raw, archivers)

    await start_worker()
    assert await run.result(30) == [10, 20, 30, 40]
    assert sorted(ran) in ([1, 2, 3, 4], [1, 2, 3, 3, 4])


async def test_a_run_that_is_not_told_enough_of_ends_and_a_retry_goes_on(
    app, tasks, start_worker, archive, archivers, raw, database
):
    from weft.archive.tables import blobs

    graph, gate = app.graph("mapped"), asyncio.Event()

    @graph.node
    async def items() -> list:
        return [1, 2]

    @graph.node(after=items, map="items")
    async def each(item: int) -> int:
        await gate.wait()
        return item * 10

    await start_worker()
    run = await graph.start()
    while "items" not in [event.step for event in await run.history() if event.type == "step_completed"]:
        await asyncio.sleep(0.01)
    await archive()
    async with database.writing() as connection:
        await connection.execute(blobs.delete().where(blobs.c.digest.like("items %")))

    await lose(app, raw, archivers)

    info = await run.info()
    assert info.status == "failed" and "a map each" in info.error["message"] and info.error["code"] == "partition_lost"
    gate.set()
    await run.retry()
    assert await run.result(30) == [10, 20]


async def test_what_ran_when_the_store_was_lost_stops_when_it_begins_anew(app, start_worker, archive, archivers, raw):
    told = []

    @app.task(concurrency=1)
    async def long() -> int:
        fence = current().fence
        told.append(("begins", fence))
        try:
            await asyncio.sleep(30 if len(told) == 1 else 0.1)
        except asyncio.CancelledError:
            told.append(("stopped", fence))
            raise
        return len(told)

    await start_worker(concurrency=5)
    run = await long.enqueue()
    while not told:
        await asyncio.sleep(0.01)
    await archive()

    await lose(app, raw, archivers)

    assert await run.result(10) >= 2
    assert sorted(told, key=lambda one: one[1])[0] == told[0] and ("stopped", told[0][1]) in told
    assert [word for word, _ in told].count("begins") == 2


async def test_a_worker_that_sees_the_loss_before_its_archiver_does_rebuilds_the_store(
    app, tasks, start_worker, archive, archivers, raw
):
    """It begins a new session, and what archives stops with the old one: nobody else is there who could."""
    worker = await start_worker(archive=True)
    run = await tasks.options(delay="2s").enqueue(3)
    await archive()

    raw.delete(*raw.scan_iter(match=f"{app.engine().ns.keys.namespace}:*"))
    worker._begin_anew(PartitionLost("the partition has no epoch"))

    assert await run.result(15) == 9


@pytest.mark.parametrize("finished", [True, False])
async def test_what_was_read_before_a_loss_is_not_stored_once_another_rebuilds(
    app, archive, archivers, raw, p, finished
):
    @app.task
    async def work(n: int) -> int:
        return n

    await work.enqueue(1)
    await archive()
    slow = (await archivers())[0]
    assert await slow._open()
    while not (stretch := await read_log(slow.ns, slow.p, slow._checkpoint, limit=10)).entries:
        await work.enqueue(2)
    _, batch, _, _ = await slow._keep(stretch)

    # While it goes on to the database, the store is lost, and somebody else rebuilds it without what is on its way.
    engine = app.engine()
    raw.delete(*raw.scan_iter(match=f"{engine.ns.keys.namespace}:*"))
    if finished:
        await recover_all(engine.ns, engine.cold, "a-1", hot_ms=1000, dry_run=False)
    else:
        recovery = Recovery(engine.cold.database, engine.ns.keys.namespace, slow.p)
        assert await recovery.take("a-1", at_least=4_000_000_000, now_ms=int(time.time() * 1000), lease_ms=60_000)

    with pytest.raises(CheckpointMoved):
        await slow._store(batch, len(stretch.entries))


async def test_a_turn_taken_by_a_clock_that_is_ahead_shuts_nobody_out(app, archive, raw):
    work = app.task(name="later")(_nothing)
    run = await work.options(delay="1h").enqueue()
    engine = app.engine()
    await archive()
    raw.delete(*raw.scan_iter(match=f"{engine.ns.keys.namespace}:*"))
    recovery = Recovery(engine.cold.database, engine.ns.keys.namespace, int(run.id[1 : run.id.index("-")]))
    ahead = int(time.time() * 1000) + 86_400_000
    # It dies behind that.
    assert await recovery.take("a-1", at_least=4_000_000_000, now_ms=ahead, lease_ms=15_000)

    done = await recover_all(engine.ns, engine.cold, "a-2", hot_ms=1000, dry_run=False)

    assert [each.runs for each in done if each is not None and each.lost and each.runs] == [1]


async def _nothing() -> None: ...
