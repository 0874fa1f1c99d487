"""The archive lets go of what was kept long enough: a run with all that is its own, and nothing of any other."""

from __future__ import annotations

import asyncio
import time

import pytest

from weft import InvalidOption, NotFound, StepFailed
from weft.core.retention import parse_policy
from weft.engine.housekeeping.retention import Sweeping
from weft.engine.retention import Sweep, Swept
from weft.errors import SettingsError
from weft.ids import partition_of

DAY = 86_400_000
#: The tables in which something of a run may stand.
OF_RUNS = ("runs", "labels", "steps", "places", "uses", "blobs", "blocks")


@pytest.fixture
def tasks(app):
    class Tasks:
        @app.task
        async def add(a: int, b: int) -> int:
            return a + b

        @app.task
        async def bad() -> None:
            raise ValueError("never")

        @app.task
        async def large(text: str) -> str:
            return text * 2

        @app.task(keep_result="60d")
        async def dear() -> int:
            return 7

    return Tasks


@pytest.fixture
def sweep(app):
    """Lets go of what is due by a policy some days from now."""

    async def run(policy: str, *, days: int, dry_run: bool = False) -> Swept:
        engine, swept = app.engine(), Swept()
        now_ms = int(time.time() * 1000) + days * DAY
        one = Sweep(engine.ns, engine.cold, parse_policy(policy), now_ms, dry_run=dry_run)
        while await one.step(swept):
            pass
        return swept

    return run


async def done(*runs):
    for run in runs:
        await asyncio.wait([asyncio.ensure_future(run.result(20))])


async def test_each_run_goes_by_the_first_rule_that_fits(app, tasks, start_worker, archive, forget, sweep):
    await start_worker()
    plain = await tasks.add.enqueue(1, 2)
    team = await tasks.add.options(tags={"team": "a"}).enqueue(1, 2)
    failed = await tasks.bad.enqueue()
    dear = await tasks.dear.enqueue()
    await done(plain, team, failed, dear)
    await archive()
    forget(plain, team, failed, dear)
    policy = "tag.team=a forever; status=failed 20d; kind=graph 1h; 5d"

    before = await sweep(policy, days=10, dry_run=True)
    first = await sweep(policy, days=10)
    again = await sweep(policy, days=10)
    later = await sweep(policy, days=100)

    assert (before.runs, before.kept) == (first.runs, first.kept) == (1, 1) and again.runs == 0
    assert later.runs == 2 and later.by_kind == {"task": 2}
    with pytest.raises(NotFound):
        await plain.info()
    assert await team.result() == 3 and [event.type for event in await team.history()] == ["queued", "completed"]


async def test_nothing_of_a_run_is_left_and_nothing_of_others_goes(
    app, tasks, start_worker, archive, forget, sweep, rows
):
    graph = app.graph("g")

    @graph.node(map="input.texts")
    async def twice(item: str) -> str:
        return item * 2

    await start_worker()
    stays = [await tasks.large.options(tags={"keep": "yes"}).enqueue("y" * 9_000)]
    stays.append(await tasks.add.options(tags={"keep": "yes"}).enqueue(1, 1))
    goes = [await tasks.large.enqueue("y" * 9_000), await tasks.large.options(tags={"a": "b"}).enqueue("z" * 9_000)]
    goes += [await tasks.bad.enqueue(), await graph.start({"texts": ["u" * 6_000, "v"]})]
    await done(*stays, *goes)
    await archive()
    histories = [await run.history() for run in stays]
    forget(*stays, *goes)
    full = {table: len(await rows(table)) for table in OF_RUNS}

    swept = await sweep("tag.keep=yes forever; 1d", days=30)

    assert swept.runs == 4 and swept.blobs > 0
    kept = {run.id for run in stays}
    left = {table: await rows(table) for table in OF_RUNS}
    assert {row.id for row in left["runs"]} == kept
    assert {row.run for table in ("labels", "steps", "places", "uses") for row in left[table]} == kept
    assert {event.run for event in await rows("events")} == kept
    # Its input and its result, which another run had in common with it; and the definition of a graph, which is shared.
    used = {row.digest for row in left["uses"]}
    assert len(used) == 2 and used < {row.digest for row in left["blobs"]} and len(left["blobs"]) == 3
    assert len(left["blobs"]) < full["blobs"]
    assert await stays[0].result() == "y" * 18_000 and [await run.history() for run in stays] == histories

    await sweep("1d", days=30)

    empty = {table: await rows(table) for table in OF_RUNS if table != "blobs"}
    assert not any(empty.values()) and len(await rows("blobs")) == 1


async def test_what_is_still_hot_or_open_or_has_a_gap_stays(app, tasks, start_worker, archive, forget, sweep, database):
    from weft.archive.tables import runs

    await start_worker()
    hot, torn = await tasks.add.enqueue(1, 2), await tasks.add.enqueue(3, 4)
    waits = await tasks.add.options(delay="1h").enqueue(5, 6)
    await done(hot, torn)
    await archive()
    forget(torn, keep_log=True)
    async with database.writing() as connection:
        await connection.execute(runs.update().where(runs.c.id == torn.id).values(gap=1))

    swept = await sweep("1s", days=30)

    assert (swept.runs, swept.kept) == (0, 1)
    await waits.cancel()


async def test_a_key_that_still_stands_keeps_its_run(app, tasks, start_worker, archive, forget, sweep):
    await start_worker()
    run = await tasks.add.options(idempotency_key="k", keep_result="1s").enqueue(1, 2)
    await done(run)
    await archive()
    forget(run)
    engine, swept = app.engine(), Swept()
    soon = Sweep(engine.ns, engine.cold, parse_policy("1s"), int(time.time() * 1000) + DAY // 2)

    while await soon.step(swept):
        pass

    assert swept.runs == 0
    assert (await sweep("1s", days=2)).runs == 1


async def test_a_run_of_very_many_blocks_goes_in_bounded_steps(
    app, tasks, start_worker, archive, forget, sweep, rows, monkeypatch
):
    from weft.archive import retention
    from weft.engine.housekeeping import stretches

    monkeypatch.setattr(retention, "MAX_BLOCKS", 2)
    monkeypatch.setattr(stretches, "BLOCK_BYTES", 200)
    await start_worker()
    runs = [await tasks.add.enqueue(i, i) for i in range(20)]
    await done(*runs)
    await archive()
    assert len(await rows("blocks")) > 4
    forget(*runs)

    assert (await sweep("1d", days=3)).runs == 20
    assert await rows("blocks") == [] and await rows("runs") == []


async def test_observations_of_work_elsewhere_go_by_their_age(app, archive, sweep, rows, raw):
    for n in range(3):
        await app.status.publish("job-1", "running", {"n": n}, event_id=f"e{n}")
    await archive()
    assert len(await rows("statuses")) == 3 and await rows("blocks") == []

    assert (await sweep("kind=status forever; 1d", days=5)).observed == 0
    assert (await sweep("kind=status 10d; 1d", days=5)).observed == 0
    assert (await sweep("1d", days=5, dry_run=True)).observed == 3
    assert (await sweep("1d", days=5)).observed == 3
    assert await rows("statuses") == []


async def test_the_service_sweeps_by_itself(app, tasks, start_worker, archive, forget, rows, monkeypatch, eventually):
    from weft.engine.housekeeping import retention

    monkeypatch.setattr(retention, "FIRST_SECONDS", 0.0)
    monkeypatch.setattr(retention, "SWEEP_SECONDS", 0.1)
    await start_worker()
    run = await tasks.add.options(keep_result="1s").enqueue(1, 2)
    await done(run)
    await archive()
    forget(run)
    engine = app.engine()
    service = Sweeping(engine.ns, "s-1", cold=engine.cold, policy=parse_policy("1ms"))

    async def is_empty():
        return await rows("runs") == [] and await rows("blocks") == []

    service.start()
    try:
        await eventually(is_empty)
    finally:
        await service.stop()


async def test_the_public_verbs_tell_and_apply(app, tasks, start_worker, archive, forget, monkeypatch):
    await start_worker()
    run, bad = await tasks.add.enqueue(1, 2), await tasks.bad.enqueue()
    await done(run, bad)
    await archive()

    shown = await app.retention.show("status=failed 90d; kind=status 1d; 30d")
    kept = await app.retention.show()
    swept = await app.retention.apply(policy="1s")

    assert [(rule.rule, rule.keeps, rule.n) for rule in shown] == [
        ("status=failed 90d", "90d", 1),
        ("kind=status 1d", "1d", 0),
        ("30d", "30d", 1),
    ]
    assert shown[0].oldest is not None and [(rule.rule, rule.n) for rule in kept] == [("forever", 2)]
    assert swept.runs == 0  # they ended just now
    with pytest.raises(InvalidOption, match="no condition"):
        await app.retention.apply(policy="color=red 1d")
    monkeypatch.setenv("WEFT_KEEP_COLD", "nonsense")
    with pytest.raises(SettingsError, match="WEFT_KEEP_COLD"):
        await app.retention.show()
    with pytest.raises(StepFailed):
        await bad.result()


async def test_a_purged_run_is_gone_from_the_archive_too(app, tasks, start_worker, archive, sweep, rows):
    """Given failed runs that are archived, one with a large input / when some are purged / then no store has them."""

    @app.task
    async def picky(text: str, n: int) -> None:
        raise ValueError(text[:9])

    await start_worker()
    goes = [await picky.enqueue("secret-1" * 1_000, 1), await picky.options(tags={"a": "b"}).enqueue("secret-2", 2)]
    stays = await picky.enqueue("other", 3)
    await done(*goes, stays)
    await archive()

    assert await app.dlq.purge(ids=[run.id for run in goes]) == 2
    await archive()

    # Readers are told at once.
    for run in (app.runs.get(run.id) for run in goes):
        for read in (run.info, run.history, run.result, lambda id=run.id: app.runs.export(id)):
            with pytest.raises(NotFound):
                await read()
    assert [info.id for info in await app.runs.list()] == [stays.id]
    # The rows go with the next sweep, although everything is kept by the policy.
    assert (await sweep("forever", days=0, dry_run=True)).runs == 2
    assert (await sweep("forever", days=0)).runs == 2
    told = await rows("events")  # "!": what people did, for the audit
    assert {row.id for row in await rows("runs")} == {event.run for event in told} - {"!"} == {stays.id}
    assert not any("secret" in repr(event) for event in told)
    assert await rows("blobs") == [] and {row.run for row in await rows("labels")} == {stays.id}
    assert (await sweep("forever", days=0)).runs == 0


async def test_what_a_purged_run_logged_goes_at_once(app, start_worker, raw):
    @app.task
    async def talks() -> None:
        from weft import current

        current().log.info("a secret")
        raise ValueError("no")

    await start_worker()
    run = await talks.enqueue()
    await done(run)
    key = app.engine().ns.keys.tasklog(partition_of(run.id), run.id)
    assert raw.exists(key)

    assert await app.dlq.purge(ids=[run.id]) == 1

    assert not raw.exists(key)


async def test_a_purged_run_whose_key_stands_goes_when_that_ends(app, tasks, start_worker, archive, sweep):
    await start_worker()
    run = await tasks.bad.options(idempotency_key="k").enqueue()
    await done(run)
    await archive()
    await app.dlq.purge(ids=[run.id])
    await archive()

    assert (await sweep("forever", days=0)).runs == 0
    with pytest.raises(NotFound):
        await run.info()
    assert (await sweep("forever", days=2)).runs == 1


async def test_the_service_looks_for_purged_runs_where_everything_is_kept(
    app, tasks, start_worker, archive, rows, monkeypatch, eventually
):
    from weft.engine.housekeeping import retention

    monkeypatch.setattr(retention, "FIRST_SECONDS", 0.0)
    monkeypatch.setattr(retention, "LOOK_SECONDS", 0.1)
    await start_worker()
    run, kept = await tasks.bad.enqueue(), await tasks.add.options(keep_result="1s").enqueue(1, 2)
    await done(run, kept)
    await archive()
    engine = app.engine()
    (service,) = retention.make_sweeping(engine.ns, engine.cold, "s-1")

    async def left():
        return {row.id for row in await rows("runs")} == {kept.id}

    service.start()
    try:
        await app.dlq.purge(ids=[run.id])
        await archive()
        await eventually(left)
    finally:
        await service.stop()


@pytest.mark.leaves("history")
async def test_schedules_go_some_time_after_they_were_deleted(app, tasks, archive, sweep, rows):
    for name in ("stays", "goes"):
        await app.schedules.create(name, "0 3 * * *", tasks.dear)
    await app.schedules.delete("goes")
    await archive()

    kept = await sweep("kind=schedule forever; 1h", days=10)
    early = await sweep("kind=schedule 20d; 1h", days=10)
    counted = await sweep("5d", days=10, dry_run=True)
    both = {info.name for info in await app.schedules.archived()}
    told = await app.retention.show("kind=schedule 5d")
    done = await sweep("5d", days=10)

    assert (kept.schedules, early.schedules, counted.schedules, done.schedules) == (0, 0, 1, 1)
    assert both == {"stays", "goes"} and {row.name for row in await rows("schedules")} == {"stays"}
    assert told[0].n == 1 and told[0].oldest is not None
    assert [entry.action for entry in (await app.audit.list(object="goes")).entries] == [
        "schedule.delete",
        "schedule.create",
    ]
