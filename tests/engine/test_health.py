"""What `weft doctor` says of the work: schedules that do not tick, dead letters."""

from __future__ import annotations

import asyncio

import pytest
import redis

from weft import StepFailed
from weft.engine.health import Health, Session, Space, Store, _judge_store, examine
from weft.engine.health_apps import judge_apps
from weft.store.faults import translate


def finding(health, about):
    """The one finding about something; None when there is none."""
    found = [each for each in health.findings if each.about == about]
    assert len(found) <= 1
    return found[0] if found else None


async def test_schedules_that_nobody_ticks_are_named(app, add, advance):
    for name in ("hourly", "nightly", "asleep"):
        await app.schedules.create(name, "0 * * * *", add, (1, 2))
    await app.schedules.pause("asleep")

    calm = await examine(app.engine())
    await advance(2 * 3_600_000)
    late = await examine(app.engine())

    assert (calm.schedules.set, calm.schedules.paused, calm.schedules.overdue) == (3, 1, [])
    assert finding(calm, "schedules") is None
    assert sorted(late.schedules.overdue) == ["hourly", "nightly"]
    assert 3_600_000 <= late.schedules.late_ms <= 2 * 3_600_000 + 60_000
    told = finding(late, "schedules")
    assert told.level == "warning" and "'hourly'" in told.message and "start a worker" in told.fix
    assert late.sound


async def test_a_schedule_that_a_worker_ticks_is_not_overdue(app, add, advance, start_worker, eventually):
    await app.schedules.create("hourly", "0 * * * *", add, (1, 2))
    await start_worker()
    await advance(2 * 3_600_000)

    async def ticked():
        return (await app.schedules.get("hourly")).last_at is not None

    await eventually(ticked)
    assert finding(await examine(app.engine()), "schedules") is None


async def test_a_tick_that_waits_for_the_run_before_it_is_not_overdue(app, advance, start_worker, eventually):
    go = asyncio.Event()

    @app.task(timeout=None)
    async def slow() -> None:
        await go.wait()

    await app.schedules.create("slow", "0 * * * *", slow, overlap="queue")
    await start_worker()
    await advance(3_600_000)
    await eventually(lambda: _running(app, "slow"))
    await advance(3_600_000)

    async def waits():
        return (await app.schedules.get("slow")).waiting

    await eventually(waits)
    await advance(600_000)
    assert finding(await examine(app.engine()), "schedules") is None
    await app.schedules.delete("slow")
    go.set()


async def _running(app, name):
    return await app.runs.list(status="running", name=name)


async def test_dead_letters_are_counted_with_the_command_that_lists_them(app, start_worker):
    @app.task
    async def failing() -> None:
        raise ValueError("no")

    await start_worker()
    assert finding(await examine(app.engine()), "dead letters") is None
    for _ in range(2):
        with pytest.raises(StepFailed):
            await (await failing.enqueue()).result(10)

    health = await examine(app.engine())

    told = finding(health, "dead letters")
    assert health.dead_letters == 2 and told.level == "warning" and told.message.startswith("2 runs failed")
    assert "weft dlq ls" in told.fix and health.sound


@pytest.mark.parametrize(
    ("allocator", "embedded", "warns"),
    [("libc", False, True), ("libc", True, False), ("jemalloc-5.3.0", False, False), (None, False, False)],
)
def test_a_slow_allocator_is_told_with_its_remedy(allocator, embedded, warns):
    health = Health(
        Store("redis://x", "standalone", embedded=embedded, version="9.0", allocator=allocator), Space("s"), {}
    )
    _judge_store(health)
    told = finding(health, "allocator")
    assert (told is not None) == warns
    if told:
        assert told.level == "warning" and "GLIBC_TUNABLES" in told.fix


async def test_a_server_that_cannot_write_its_file_is_told_as_that(app, monkeypatch):
    # Given a store that answers as one does whose disk is full: it refuses what writes, and PING too.
    ns = app.engine().ns
    await ns.open()
    info, on_node = ns.info, ns.on_node

    async def failing(section):
        return await info(section) | (
            {"aof_enabled": "1", "aof_last_write_status": "err"} if section == "persistence" else {}
        )

    async def refusing(p, *command):
        if command[0] in ("PING", "EXISTS"):
            raise translate(redis.ResponseError("MISCONF Errors writing to the AOF file: No space left on device"))
        return await on_node(p, *command)

    monkeypatch.setattr(ns, "info", failing)
    monkeypatch.setattr(ns, "on_node", refusing)

    # When the doctor looks, then it reads what it can, and says what is wrong and what helps.
    health = await examine(app.engine())
    told = finding(health, "persistence")
    assert health.reachable and not health.sound
    assert told.level == "problem" and "free space" in told.fix
    assert "disk full" in finding(health, "namespace").message
    assert finding(health, "namespace").fix == ""  # what it answered tells what to do


async def test_the_allocator_is_read_from_the_server(app):
    assert (await examine(app.engine())).store.allocator


def test_apps_that_take_from_each_others_queues_are_told():
    def session(app, *tasks, queues=("default",)):
        return Session("s", True, app, "host", 1, list(queues), list(tasks), 10, "0.1.0")

    def told(*sessions):
        health = Health(Store("", "standalone"), Space("weft"), {})
        judge_apps(health, sessions)
        return [each.message for each in health.findings]

    assert told(session("shop", "pay"), session("shop", "pay", "ship")) == [], "a deploy under way"
    assert told(session("shop", "pay"), session("mail", "send", queues=["mail"])) == []
    (apart,) = told(session("shop", "pay"), session("mail", "send"))
    assert apart == "mail and shop serve queue 'default': a run that reaches the wrong one waits to be offered again"
    (both,) = told(session("shop", "tidy", "pay"), session("mail", "send", "tidy"))
    assert "each has a task tidy" in both
