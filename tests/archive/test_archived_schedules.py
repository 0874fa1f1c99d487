"""Schedules in the archive: a row each, told by what people did and by looks; they outlive the store, and their deletion."""

from __future__ import annotations

import msgspec
import pytest
from sqlalchemy import text

from weft.archive.schema import migrate
from weft.engine.engine import user_name
from weft.engine.housekeeping import looking
from weft.errors import PartitionLost
from weft.store.schedules import read_schedules

pytestmark = pytest.mark.leaves("history")


@pytest.fixture
def work(app):
    @app.task
    async def work(n: int = 0) -> int:
        return n

    return work


@pytest.fixture
def wipe(app, raw):
    return lambda: raw.delete(*raw.scan_iter(match=f"{app.engine().ns.keys.namespace}:*"))


@pytest.fixture
def recover(app, archivers):
    async def run() -> None:
        for each in await archivers():
            assert await each._recover()

    return run


@pytest.fixture
def blind(monkeypatch):
    """Nobody looks at the store: all that is known is what the log tells."""

    async def look(self, checkpoint, writing):
        self._due = float("inf")

    monkeypatch.setattr(looking.Looker, "look", look)


async def test_each_schedule_has_a_row_with_who_did_what(app, work, archive, rows):
    await app.schedules.create("nightly", "0 3 * * *", work, [7], tz="Europe/Berlin")
    await app.schedules.create("hourly", "0 * * * *", work)
    await app.schedules.create("gone", "0 * * * *", work)
    paused = await app.schedules.pause("hourly")
    await app.schedules.delete("gone")
    await archive()

    found = {row.name: row for row in await rows("schedules")}

    me = user_name()
    nightly = found["nightly"]
    assert (nightly.status, nightly.expr, nightly.tz, nightly.task) == ("active", "0 3 * * *", "Europe/Berlin", "work")
    assert nightly.next_ms == (await app.schedules.get("nightly")).next_at.timestamp() * 1000
    assert nightly.created_ms > 0 and nightly.changed_by == me
    assert (found["hourly"].status, found["hourly"].paused_by, found["hourly"].next_ms) == ("paused", me, 0)
    assert (paused.paused_by, round(paused.paused_at.timestamp() * 1000)) == (me, found["hourly"].paused_ms)
    assert (found["gone"].status, found["gone"].deleted_by) == ("deleted", me) and found["gone"].deleted_ms > 0
    assert not [row for row in await rows("settings") if row.kind == "schedule"]
    await app.schedules.resume("hourly")
    assert (await app.schedules.get("hourly")).paused_by == ""


async def test_the_archive_tells_of_schedules_when_the_store_is_gone(app, work, archive, wipe):
    await app.schedules.create("nightly", "0 3 * * *", work, [7])
    await app.schedules.create("gone", "0 * * * *", work)
    await app.schedules.delete("gone")
    kept = await app.schedules.get("nightly")
    await archive()
    wipe()

    gone, nightly = await app.schedules.archived()

    assert nightly == kept
    assert (gone.name, gone.status, gone.deleted_by, gone.next_at) == ("gone", "deleted", user_name(), None)
    assert gone.deleted_at >= gone.created_at and gone.expr == "0 * * * *"


@pytest.mark.usefixtures("blind")
async def test_what_the_log_tells_is_enough_to_rebuild_them(app, work, archive, wipe, recover, raw):
    for name in ("plain", "paused", "resumed", "dropped", "again"):
        await app.schedules.create(name, "*/5 * * * *", work, [1])
    await app.schedules.pause("paused")
    await app.schedules.pause("resumed")
    await app.schedules.resume("resumed")
    await app.schedules.delete("dropped")
    await app.schedules.delete("again")
    await app.schedules.create("again", "0 4 * * *", work, [2])
    before = _plain(await app.schedules.list())
    await archive()
    wipe()

    await recover()

    assert _plain(await app.schedules.list()) == before
    assert [info.name for info in before] == ["again", "paused", "plain", "resumed"]
    # And they tick, all but the one that is paused.
    ns = app.engine().ns
    armed = {member.decode() for p in range(ns.partitions) for member in raw.zrange(ns.keys.timers(p), 0, -1)}
    assert {f"cron:{name}" for name in ("again", "plain", "resumed")} <= armed and "cron:paused" not in armed


def _plain(found):
    """Returns schedules without moments that a process and the log tell a few ms apart."""
    return [msgspec.structs.replace(info, created_at=None, paused_at=None) for info in found]


async def test_a_store_that_is_emptied_during_a_look_has_deleted_nothing(
    app, work, archivers, wipe, recover, monkeypatch
):
    await app.schedules.create("nightly", "0 3 * * *", work)
    await app.controls.pause(task="work", reason="stop")
    (archiver, *_) = made = await archivers()
    for each in made:
        await each.drain()
    honest = looking.read_settings

    async def emptied(ns, p):
        wipe()
        return await honest(ns, p)

    monkeypatch.setattr(looking, "read_settings", emptied)
    archiver._looker.hurry()
    with pytest.raises(PartitionLost):
        await archiver._looker.look(archiver._checkpoint, archiver._writing)
    monkeypatch.setattr(looking, "read_settings", honest)

    await recover()

    assert [info.name for info in await app.schedules.list()] == ["nightly"]
    assert [control["reason"] for control in await app.controls.list()] == ["stop"]


async def test_a_store_that_went_back_during_a_look_is_not_believed(app, work, archivers, raw, rows, monkeypatch):
    await app.schedules.create("nightly", "0 3 * * *", work)
    made = await archivers()
    for each in made:
        await each.drain()
    ns, keys = app.engine().ns, app.engine().ns.keys
    honest = looking.read_settings

    async def older(ns, p):
        raw.delete(keys.schedules(p))
        raw.xtrim(keys.log(p), maxlen=0)
        return await honest(ns, p)

    monkeypatch.setattr(looking, "read_settings", older)
    for each in made:
        each._looker.hurry()
        await each._looker.look(each._checkpoint if each._checkpoint != "0-0" else "", each._writing)
    monkeypatch.setattr(looking, "read_settings", honest)

    assert [row.status for row in await rows("schedules")] == ["active"]
    for p in range(ns.partitions):
        if raw.exists(keys.schedule(p, "nightly")):
            raw.sadd(keys.schedules(p), "nightly")


async def test_a_look_at_a_later_moment_is_not_undone_by_what_the_log_tells_late(app, work, archivers, raw, rows):
    made = await archivers()
    for each in made:
        await each.drain()
    await app.schedules.create("nightly", "0 3 * * *", work)
    await app.schedules.pause("nightly")
    await app.schedules.resume("nightly")
    ns = app.engine().ns
    (p,) = [p for p in range(ns.partitions) if raw.exists(ns.keys.schedule(p, "nightly"))]
    raw.hset(ns.keys.schedule(p, "nightly"), mapping={"last": 1_000, "run": "r0-x"})
    (row,) = await read_schedules(ns, p, ["nightly"])
    made[p]._looker.forget()
    await made[p]._looker.look("", made[p]._writing)

    await made[p].drain()

    (kept,) = await rows("schedules")
    assert (kept.status, kept.last_ms, kept.run) == ("active", 1_000, "r0-x")
    assert msgspec.msgpack.decode(kept.fields, type=dict[str, bytes]) == row.fields
    assert kept.changed_by == user_name()


async def test_schedules_of_an_older_database_are_taken_along(app, work, archive, database, rows, wipe, recover):
    await app.schedules.create("nightly", "0 3 * * *", work)
    before = await app.schedules.list()
    await archive()
    (row,) = await rows("schedules")
    async with database.writing() as connection:
        await connection.execute(
            text("INSERT INTO weft_settings VALUES (:namespace, :partition, 'schedule', :name, :data)"),
            {"namespace": row.namespace, "partition": row.partition, "name": row.name, "data": bytes(row.fields)},
        )
        await connection.exec_driver_sql("DROP TABLE weft_schedules")
        await connection.exec_driver_sql("UPDATE weft_version SET version_num = '0007'")
    wipe()

    await migrate(database)

    (moved,) = await rows("schedules")
    assert (moved.name, moved.status, moved.next_ms, bytes(moved.fields)) == (
        "nightly",
        "active",
        row.next_ms,
        bytes(row.fields),
    )
    assert await rows("settings") == []
    await recover()
    assert await app.schedules.list() == before
