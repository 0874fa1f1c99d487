"""What operators set, schedules with their last tick, and marks of dead letters stand after a loss."""

from __future__ import annotations

import asyncio
import logging
from datetime import UTC, datetime

import pytest

from weft import Conflict, StepFailed
from weft.engine.housekeeping import recovery
from weft.engine.housekeeping.recovery import recover_all
from weft.engine.schedules import tick_run
from weft.ids import partition_of
from weft.store.runs import start_runs
from weft.store.schedules import read_schedules

pytestmark = [pytest.mark.leaves("history", "open runs"), pytest.mark.usefixtures("quick")]


@pytest.fixture
def database_url(tmp_path) -> str:
    """SQLite only: what is looked at here is the store."""
    return f"sqlite:///{tmp_path / 'archive.sqlite'}"


@pytest.fixture
def lose(app, raw, archivers):
    async def lost() -> None:
        raw.delete(*raw.scan_iter(match=f"{app.engine().ns.keys.namespace}:*"))
        for each in await archivers():
            assert await each._recover()

    return lost


async def test_a_tick_whose_run_is_archived_is_not_started_again(app, start_worker, archive, raw, lose):
    ran: list[str] = []

    @app.task
    async def work() -> None:
        ran.append("work")

    await app.schedules.create("often", "* * * * *", "work", catch_up="all", overlap="allow")
    ns, keys = app.engine().ns, app.engine().ns.keys
    (p,) = [p for p in range(ns.partitions) if raw.exists(keys.schedule(p, "often"))]
    # Three minutes ago: two ticks ran just before the loss, behind the last look at the schedule; the third did not.
    now_ms = int(datetime.now(UTC).timestamp() * 1000)
    first = now_ms // 60_000 * 60_000 - 120_000
    raw.hset(keys.schedule(p, "often"), mapping={"next": first})
    raw.zadd(keys.timers(p), {"cron:often": now_ms + 3_600_000})
    await archive()
    (row,) = await read_schedules(ns, p, ["often"])
    runs = [tick_run(p, "often", row.spec, first + 60_000 * n) for n in range(2)]
    await start_runs(ns, p, runs, by="s-1")
    worker = await start_worker()
    while len(ran) < 2:
        await asyncio.sleep(0.01)
    await worker.stop()
    made = await archive()
    assert made

    await lose()

    (after,) = await read_schedules(ns, p, ["often"])
    assert (after.moment("last"), after.run) == (first + 60_000, runs[1].id)
    assert after.moment("next") == first + 120_000
    await start_worker()
    while len(ran) < 3:
        await asyncio.sleep(0.01)
    await asyncio.sleep(0.2)
    assert len(ran) - 3 <= (datetime.now(UTC).timestamp() * 1000 - first - 120_000) // 60_000


async def test_pauses_limits_and_strikes_stand(app, archive, lose, start_worker, eventually):
    ran: list[int] = []

    @app.task
    async def work(n: int) -> int:
        ran.append(n)
        return n

    struck = await app.controls.strike("work", {"n": 13}, reason="unlucky")
    await app.controls.pause(task="work", reason="stop")
    await app.controls.limit(queue="default", concurrency=3)
    told = await app.controls.list()
    runs = [await work.enqueue(n) for n in (1, 13)]
    await archive()

    await lose()

    assert await app.controls.list() == told and len(told) == 3
    await start_worker()
    await app.controls.resume(task="work")
    assert await runs[0].result(20) == 1

    # A worker may have it in hand for a moment, until it sees that it is struck.
    async def rests() -> bool:
        return (await runs[1].status()) == "queued"

    await eventually(rests)
    assert ran == [1]
    await app.controls.unstrike(struck)
    assert await runs[1].result(20) == 13


async def test_dead_letters_keep_their_links_and_notes_and_what_was_purged_stays_gone(
    app, archive, lose, start_worker, raw
):
    healed = asyncio.Event()

    @app.task
    async def bad(n: int) -> int:
        if not healed.is_set():
            raise KeyError("broken")
        return n

    @app.workflow
    async def flow(ctx, n: int) -> int:
        raise KeyError("broken too")

    await start_worker()
    runs = [await bad.enqueue(n) for n in range(3)] + [await flow.start(3)]
    for run in runs:
        with pytest.raises(StepFailed):
            await run.result(20)
    await app.dlq.investigate(runs[0].id, "the disk was full, | and so on")
    healed.set()
    replayed = await app.dlq.replay(runs[1].id)
    assert await replayed.result(20) == 1
    await app.dlq.purge(ids=[runs[2].id])
    before = sorted(await app.dlq.list(), key=lambda letter: letter.id)
    await archive()

    await lose()

    after = sorted(await app.dlq.list(), key=lambda letter: letter.id)
    assert after == before and len(after) == 3
    assert {letter.replayed_as for letter in after} == {"", replayed.id}
    assert next(one for one in after if one.investigated).investigated.note == "the disk was full, | and so on"
    with pytest.raises(Conflict, match="replayed before"):
        await app.dlq.replay(runs[1].id)
    events = {run.id: [event.type for event in await run.history()] for run in runs[:2]}
    assert [types[-1] for types in events.values()] == ["investigated", "replayed"]


@pytest.mark.parametrize("ended", [True, False])
async def test_steps_that_became_dead_letters_are_there_and_can_be_replayed(app, archive, lose, start_worker, ended):
    graph, healed = app.graph("mailing"), asyncio.Event()

    @graph.node(map="input.items", on_error="dead_letter")
    async def send(item: str) -> int:
        if item.startswith("bad") and not healed.is_set():
            raise KeyError("broken")
        return len(item)

    @graph.node(after=send)
    async def last() -> str:
        return "sent"

    graph.wait("seen", signal="seen", after=last)
    run = await graph.start({"items": ["a", "bad" * 3_000, "bad", "worse"]})
    worker = await start_worker()
    while "last" not in [event.step for event in await run.history() if event.type == "step_completed"]:
        await asyncio.sleep(0.01)
    if ended:
        await run.signal("seen", 1)
        await run.result(20)
    letters = sorted(await app.dlq.list(), key=lambda letter: letter.id)
    assert [letter.step for letter in letters] == ["send#1", "send#2"]
    await app.dlq.investigate(letters[1].id, "known", by="ann")
    before = sorted(await app.dlq.list(), key=lambda letter: letter.id)
    await worker.stop()
    await archive()

    await lose()

    assert sorted(await app.dlq.list(), key=lambda letter: letter.id) == before
    healed.set()
    await start_worker()
    again = await app.dlq.replay(letters[0].id)
    assert await again.result(20) == 9_000
    if not ended:
        await run.signal("seen", 1)
        assert await run.result(20) == 1


@pytest.mark.parametrize("partitions", [1])
async def test_a_recovery_that_died_in_the_middle_is_begun_again_and_nothing_is_there_twice(
    app, archive, raw, start_worker, monkeypatch, caplog
):
    effects: list[int] = []

    async def note(n: int) -> int:
        effects.append(n)
        return n

    @app.workflow
    async def flow(ctx, n: int) -> list[int]:
        done = await ctx.step(note, n)
        return [done, await ctx.receive("go"), await ctx.receive("go")]

    worker = await start_worker()
    runs = [await flow.start(n) for n in range(6)]
    while len(effects) < 6:
        await asyncio.sleep(0.01)
    await worker.stop()
    for run in runs:
        await run.signal("go", 7, request_id="one")
    await archive()
    keys, p = app.engine().ns.keys, partition_of(runs[0].id)
    before = {
        run.id: (raw.lrange(keys.journal(p, run.id), 0, -1), raw.lrange(keys.mail(p, run.id), 0, -1)) for run in runs
    }
    raw.delete(*raw.scan_iter(match=f"{keys.namespace}:*"))
    engine, honest, calls = app.engine(), recovery.reflow_run, []

    async def die(*args):
        calls.append(1)
        if len(calls) % 4 == 0:
            raise RuntimeError("killed")
        return await honest(*args)

    monkeypatch.setattr(recovery, "reflow_run", die)
    monkeypatch.setattr(recovery, "TOLD", 0.0)
    caplog.set_level(logging.INFO)
    with pytest.raises(RuntimeError):
        await recover_all(engine.ns, engine.cold, "a-1", hot_ms=1000, dry_run=False)
    monkeypatch.setattr(recovery, "reflow_run", honest)
    (done,) = await recover_all(engine.ns, engine.cold, "a-1", hot_ms=1000, dry_run=False)

    assert done is not None and done.workflows == 6 and done.gaps == 0
    # How far it has come is told.
    told = [record.facts for record in caplog.records if record.getMessage().startswith("rebuilding ")]
    assert told[-1] == {"partition": p, "runs": 6, "of": 6}
    after = {
        run.id: (raw.lrange(keys.journal(p, run.id), 0, -1), raw.lrange(keys.mail(p, run.id), 0, -1)) for run in runs
    }
    assert after == before
    await start_worker()
    for n, run in enumerate(runs):
        await run.signal("go", 7, request_id="one")
        await run.signal("go", 8, request_id="two")
        assert await run.result(20) == [n, 7, 8]
    assert sorted(effects) == list(range(6))
