"""The audit: what people did, told by the script that did it, in a chain that shows when an entry was changed or removed."""

from __future__ import annotations

import asyncio

import pytest

from weft import Context, Weft
from weft.archive import bulk
from weft.archive.tables import audit, audit_heads
from weft.errors import InvalidOption, NotFound, StepFailed


@pytest.fixture
def tasks(app):
    class Tasks:
        @app.task
        async def bad() -> None:
            raise ValueError("never")

        @app.task
        async def add(a: int, b: int) -> int:
            return a + b

    return Tasks


async def listed(app, **filters):
    return [(entry.action, entry.object) for entry in (await app.audit.list(**filters)).entries][::-1]


async def test_what_operators_do_is_audited_with_what_stood_before_and_after(app, tasks, archive):
    await app.controls.pause(queue="mail", reason="the server is down")
    await app.controls.limit(task="add", concurrency=2, rate="10/s")
    await app.controls.limit(task="add", concurrency=3)
    await app.controls.unlimit(task="add")
    await app.controls.resume(queue="mail")
    assert not await app.controls.resume(queue="mail"), "what changes nothing is no act"
    strike = await app.controls.strike("add", {"a": 1})
    await app.controls.unstrike(strike)
    await archive()

    assert await listed(app) == [
        ("control.pause", "queue mail"),
        ("control.limit", "task add"),
        ("control.limit", "rate add"),
        ("control.limit", "task add"),
        ("control.unlimit", "task add"),
        ("control.unlimit", "rate add"),
        ("control.resume", "queue mail"),
        ("control.strike", strike),
        ("control.unstrike", strike),
    ]
    newest, *_, first = (await app.audit.list()).entries
    assert first.reason == "the server is down" and first.actor and first.via == app.engine().id
    limits = (await app.audit.list(object="task add")).entries[::-1]
    assert [one.before for one in limits] == ["", limits[0].after, limits[1].after]
    assert limits[1].detail == {"value": 3} and limits[2].after == ""
    assert newest.hash != first.hash and (await app.audit.verify()).ok


async def test_schedules_and_dead_letters_are_audited(app, tasks, start_worker, archive, rows):
    await start_worker()
    await app.schedules.create("nightly", "0 3 * * *", tasks.add, [1, 2])
    await app.schedules.pause("nightly")
    await app.schedules.pause("nightly")
    await app.schedules.resume("nightly")
    await app.schedules.delete("nightly")
    bad = [await tasks.bad.enqueue() for _ in range(2)]
    for run in bad:
        with pytest.raises(StepFailed):
            await run.result(10)
    await app.dlq.investigate(bad[0].id, "a bug", by="ann")
    again = await app.dlq.replay(bad[0].id)
    with pytest.raises(StepFailed):
        await again.result(10)
    await app.dlq.purge(ids=[bad[1].id])
    await archive()

    assert await listed(app) == [
        ("schedule.create", "nightly"),
        ("schedule.pause", "nightly"),
        ("schedule.resume", "nightly"),
        ("schedule.delete", "nightly"),
        ("letter.investigate", bad[0].id),
        ("letter.replay", bad[0].id),
        ("letter.purge", bad[1].id),
    ]
    made, paused, resumed, gone = (await app.audit.list(object="nightly")).entries[::-1]
    assert (made.before, gone.after) == ("", "") and made.after == paused.before == resumed.after == gone.before
    letters = {row.run: row for row in await rows("letters")}
    assert (letters[bad[0].id].replayed_as, letters[bad[0].id].note) == (again.id, "a bug")
    assert letters[bad[0].id].investigated_by == "ann" and letters[bad[1].id].purged_ms > 0
    assert (await app.audit.list(actor="ann")).entries[0].detail == {"note": "a bug"}


async def test_what_people_do_to_runs_is_audited_and_what_workers_do_is_not(app, tasks, archive):
    run = await tasks.add.options(delay="1h").enqueue(1, 2)
    assert await run.cancel("no longer needed")
    await archive()

    (entry,) = (await app.audit.list(run=run.id)).entries
    assert (entry.action, entry.object, entry.reason) == ("run.cancel", run.id, "no longer needed")
    assert entry.via == app.engine().id and "@" not in entry.actor


async def test_pages_follow_on_and_filters_hold(app, archive):
    for n in range(5):
        await app.controls.pause(queue=f"q{n}")
    await archive()

    seen, cursor = [], ""
    while True:
        page = await app.audit.list(limit=2, cursor=cursor)
        seen += [entry.object for entry in page.entries]
        cursor = page.cursor
        if not cursor:
            break
    assert seen == [f"queue q{n}" for n in (4, 3, 2, 1, 0)]
    assert await listed(app, action="control.resume") == [] and len(await listed(app, object="queue q1")) == 1
    for wrong in ({"limit": 0}, {"cursor": "x"}, {"since": 5}):
        with pytest.raises(InvalidOption):
            await app.audit.list(**wrong)
    with pytest.raises(InvalidOption, match="earlier check"):
        await app.audit.verify(["nonsense"])


CHANGES = [
    ("UPDATE weft_audit SET actor = 'bob' WHERE number = 3", "0:3 was changed"),
    ("UPDATE weft_audit SET before = after WHERE number = 1", "0:1 was changed"),
    ("UPDATE weft_audit SET hash = 'none' WHERE number = 2", "0:2 was changed"),
    ("UPDATE weft_audit SET number = 9 WHERE number = 5", "0:5 to 0:8 are missing"),
    ("DELETE FROM weft_audit WHERE number = 2", "0:2 to 0:2 are missing"),
    ("DELETE FROM weft_audit WHERE number >= 4", "0:4 to 0:5 are missing"),
    ("DELETE FROM weft_audit WHERE number = 1", "0:1 to 0:1 are missing"),
    ("DELETE FROM weft_audit_heads", "stand behind the end"),
    ("UPDATE weft_audit_heads SET number = 4", "0:5 to 0:5 stand behind the end"),
]


async def test_a_changed_or_removed_entry_is_found(app, archive, database, rows):
    for n in range(5):
        await app.controls.pause(queue=f"q{n}")
    await archive()
    sound = await app.audit.verify()
    assert sound.ok and sound.checked == 5 and len(sound.anchors) == 1
    kept = {table: [tuple(row) for row in await rows(table.name[5:])] for table in (audit, audit_heads)}

    for statement, told in CHANGES:
        async with database.writing() as connection:
            await connection.exec_driver_sql(statement)

        found = await app.audit.verify()

        assert not found.ok and told in "; ".join(found.problems), statement
        async with database.writing() as connection:
            for table, values in kept.items():
                await connection.execute(table.delete())
                await bulk.insert(connection, table, values, update=False)
        assert (await app.audit.verify()).ok


async def test_a_chain_that_was_made_anew_is_found_by_what_was_noted_before(app, archive, database):
    await app.controls.pause(queue="a")
    await app.controls.pause(queue="b")
    await archive()
    noted = (await app.audit.verify()).anchors
    await app.controls.pause(queue="c")
    await archive()
    assert (await app.audit.verify(noted)).ok

    async with database.writing() as connection:
        await connection.exec_driver_sql("DELETE FROM weft_audit")
        await connection.exec_driver_sql("DELETE FROM weft_audit_heads")
    await app.controls.pause(queue="d")
    await app.controls.pause(queue="e")
    await archive()

    assert (await app.audit.verify()).ok
    found = await app.audit.verify(noted)
    assert not found.ok and "0:2 is not the entry that was noted" in found.problems


async def test_an_archiver_that_dies_or_two_at_once_add_every_act_once(app, archivers, database):
    for n in range(20):
        await app.controls.pause(queue=f"q{n}")
    (first, *_), (second, *_) = await archivers(), await archivers()
    await asyncio.gather(first.drain(), second.drain())
    # The checkpoint is lost, as when a copy of the database is put back: what was told before is known.
    async with database.writing() as connection:
        await connection.exec_driver_sql("UPDATE weft_checkpoints SET entry = '0-0'")
    third, *_ = await archivers()
    await third.drain()

    assert sorted(await listed(app)) == sorted(("control.pause", f"queue q{n}") for n in range(20))
    assert (await app.audit.verify()).ok


async def test_texts_that_no_database_takes_are_kept_readable(app: Weft, archive):
    await app.controls.pause(queue="mail", reason="nul \0 and surrogate \ud800")
    await archive()
    (entry,) = (await app.audit.list()).entries
    assert entry.reason.startswith("nul \\0 and surrogate")
    assert (await app.audit.verify()).ok


async def test_without_an_archive_there_is_nothing_to_read(app):
    assert (await app.audit.list()).entries == [] and (await app.audit.verify()).ok
    with pytest.raises(NotFound):
        await app.definitions.versions("report")


async def test_what_is_given_to_runs_and_forks_are_audited(app, tasks, start_worker, archive):
    graph = app.graph("asks")
    graph.wait("go", signal="go")
    graph.task("sum", call="add", with_={"a": 1, "b": 2}, after="go")

    @app.workflow
    async def flow(ctx: Context) -> str:
        return await ctx.receive("go", type=str)

    await start_worker()
    run, other = await graph.start(), await flow.start()
    await run.signal("go", {"a": 1}, request_id="q,1")
    await other.signal("go", "x")
    await run.result(10)
    await other.result(10)
    fork = await run.fork("sum")
    await fork.result(10)
    later = await tasks.add.options(delay="1h").enqueue(1, 2)
    await later.reschedule(delay="2h")
    await later.cancel("enough")
    await archive()

    acts = {entry.action: entry for entry in (await app.audit.list(run=run.id)).entries}
    assert acts["run.signal"].detail["name"] == "go" and acts["run.signal"].detail["request"] == "q,1"
    assert acts["run.signal"].after and acts["run.signal"].via == app.engine().id
    assert await listed(app, run=other.id) == [("run.signal", other.id)]
    assert await listed(app, run=fork.id) == [("run.fork", run.id)]
    assert await listed(app, run=later.id) == [("run.reschedule", later.id), ("run.cancel", later.id)]
    assert (await app.audit.verify()).ok
