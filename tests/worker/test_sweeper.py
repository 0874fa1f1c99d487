"""The sweeper: takes the steps of dead sessions, after unbroken contact and never before."""

import asyncio

import pytest

from weft import StepFailed
from weft.engine.housekeeping import sweeper as module
from weft.engine.housekeeping.sweeper import Sweeper
from weft.store.audit import audit
from weft.store.gates import read_heads, read_holders_of
from weft.store.sessions import read_sessions


class FakeTime:
    """A monotonic clock that moves when it is told to."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch) -> FakeTime:
    fake = FakeTime()
    monkeypatch.setattr(module, "time", fake)
    return fake


@pytest.fixture
async def sweeper(ns, clock) -> Sweeper:
    """A sweeper of partition 0 with a lease of 30 s, ticked by hand."""
    made = Sweeper(ns, 0, "s-sweeper", lease=30.0, retention_ms=3_600_000)
    await made.tick()
    return made


async def tick(sweeper: Sweeper, clock: FakeTime, seconds: float, every: float = 1.0) -> None:
    """Lets a time pass as a healthy sweeper sees it: a look a second."""
    for _ in range(round(seconds / every)):
        clock.now += every
        await sweeper.tick()


async def state(run) -> tuple:
    info = await run.info()
    return info.status, info.delivery, info.crashes


@pytest.fixture
async def lost(add, one_home, die_with):
    """A run in the hands of a dead session."""
    run = await add.enqueue(1, 2)
    await die_with(0)
    yield run
    await run.cancel()


async def test_a_session_that_the_directory_does_not_know_loses_its_steps_too(lost, sweeper, clock, ns, raw):
    # It claimed from a store that had been rebuilt, and died before it entered itself there.
    raw.hdel(ns.keys.sessions(0), "s-dead")

    await tick(sweeper, clock, 29)
    assert await state(lost) == ("running", 1, 0)
    await tick(sweeper, clock, 3)

    assert await state(lost) == ("queued", 2, 1)
    assert raw.get(ns.keys.session(0, "s-dead")) == b"dead"


async def test_a_session_that_enters_itself_in_time_keeps_its_steps(lost, sweeper, clock, ns, raw):
    about = raw.hget(ns.keys.sessions(0), "s-dead")
    raw.hdel(ns.keys.sessions(0), "s-dead")
    await tick(sweeper, clock, 10)
    raw.hset(ns.keys.sessions(0), "s-dead", about)
    raw.set(ns.keys.session(0, "s-dead"), "alive", px=60_000)

    await tick(sweeper, clock, 60)

    assert await state(lost) == ("running", 1, 0)
    raw.delete(ns.keys.session(0, "s-dead"))
    await tick(sweeper, clock, 1)
    assert await state(lost) == ("queued", 2, 1)


async def test_a_dead_session_loses_its_steps_after_a_lease_of_contact(lost, sweeper, clock, ns, raw):
    await tick(sweeper, clock, 29)
    assert await state(lost) == ("running", 1, 0)

    await tick(sweeper, clock, 2)

    assert await state(lost) == ("queued", 2, 1)
    assert await read_sessions(ns, 0) == {}
    assert raw.get(ns.keys.session(0, "s-dead")) == b"dead"


async def test_a_slot_of_a_limit_stays_with_the_step_when_its_worker_dies(app, one_home, die_with, sweeper, clock, ns):
    @app.task(concurrency=1)
    async def narrow() -> None: ...

    first, second = await narrow.enqueue(), await narrow.enqueue()
    await die_with(0)
    await tick(sweeper, clock, 31)

    assert await state(first) == ("queued", 2, 1)
    assert await read_holders_of(ns, 0, "task|narrow", limit=10) == [first.id]
    assert await read_heads(ns, 0, ["task|narrow"], limit=10) == [[second.id]]
    await second.cancel()
    await first.cancel()


async def test_an_error_breaks_the_contact(lost, sweeper, clock):
    await tick(sweeper, clock, 29)
    sweeper.on_fault()

    await tick(sweeper, clock, 29)
    assert await state(lost) == ("running", 1, 0)

    await tick(sweeper, clock, 2)
    assert await state(lost) == ("queued", 2, 1)


async def test_another_server_process_breaks_the_contact(lost, sweeper, clock, ns):
    await tick(sweeper, clock, 29)
    ns.incarnations = {"": "another"}

    await tick(sweeper, clock, 29)
    assert await state(lost) == ("running", 1, 0)

    await tick(sweeper, clock, 2)
    assert await state(lost) == ("queued", 2, 1)


async def test_a_new_connection_to_the_same_server_does_not_break_the_contact(lost, sweeper, clock, ns):
    for _ in range(31):
        ns.server.generation += 1
        await tick(sweeper, clock, 1)

    assert await state(lost) == ("queued", 2, 1)


async def test_a_look_that_comes_much_too_late_breaks_the_contact(lost, sweeper, clock):
    # A sweeper that was stopped itself, or whose server stood still, cannot tell who was silent.
    await tick(sweeper, clock, 29)
    clock.now += 600
    await sweeper.tick()
    assert await state(lost) == ("running", 1, 0)

    await tick(sweeper, clock, 31)
    assert await state(lost) == ("queued", 2, 1)


async def test_who_takes_over_from_a_sweeper_that_died_does_not_wait_for_another_lease(lost, sweeper, clock, ns, raw):
    heir = Sweeper(ns, 0, "s-heir", lease=30.0, retention_ms=3_600_000)
    assert await sweeper._lead()
    for _ in range(31):
        clock.now += 1
        assert not await heir._lead()
    raw.delete(ns.keys.lock(0, "sweeper"))

    clock.now += 1
    assert await heir._lead()
    await heir.tick()

    assert await state(lost) == ("queued", 2, 1)


async def test_an_error_while_it_stands_by_breaks_the_contact(lost, sweeper, clock, ns, raw):
    heir = Sweeper(ns, 0, "s-heir", lease=30.0, retention_ms=3_600_000)
    assert await sweeper._lead()
    for _ in range(31):
        clock.now += 1
        assert not await heir._lead()
    heir.on_fault()
    raw.delete(ns.keys.lock(0, "sweeper"))

    assert await heir._lead()
    await tick(heir, clock, 29)
    assert await state(lost) == ("running", 1, 0)

    await tick(heir, clock, 2)
    assert await state(lost) == ("queued", 2, 1)


async def test_a_session_that_renews_in_time_keeps_its_steps(lost, sweeper, clock, ns, raw):
    raw.set(ns.keys.session(0, "s-dead"), "alive", px=60_000)

    await tick(sweeper, clock, 60)

    assert await state(lost) == ("running", 1, 0)
    raw.delete(ns.keys.session(0, "s-dead"))
    await tick(sweeper, clock, 1)
    assert await state(lost) == ("queued", 2, 1)


async def test_a_dead_session_that_held_nothing_is_buried_too(die_with, sweeper, clock, ns, raw):
    await die_with(0)

    await tick(sweeper, clock, 31)

    assert await read_sessions(ns, 0) == {}
    # The tombstone keeps it from claiming under a name nobody watches any more.
    assert raw.get(ns.keys.session(0, "s-dead")) == b"dead"


async def test_more_steps_than_one_call_takes_are_all_taken(add, one_home, die_with, sweeper, clock, monkeypatch):
    monkeypatch.setattr(module, "RECLAIM_BATCH", 10)
    runs = await add.enqueue_many([(n, n) for n in range(35)])
    high = await add.options(priority=9, queue="other").enqueue(1, 1)
    assert len(await die_with(0, room=100, queues=("default", "other"))) == 36

    await tick(sweeper, clock, 31)

    for run in (*runs, high):
        assert await state(run) == ("queued", 2, 1)
    await asyncio.gather(*(run.cancel() for run in (*runs, high)))


@pytest.mark.leaves("broken keys", "repair", "history")
async def test_a_broken_run_does_not_keep_the_sweeper_from_the_others(
    add, one_home, die_with, sweeper, clock, ns, raw, caplog
):
    broken, fine = await add.enqueue(1, 2), await add.enqueue(3, 4)
    await die_with(0)
    raw.delete(ns.keys.run(0, broken.id))
    raw.lpush(ns.keys.run(0, broken.id), "x")

    await tick(sweeper, clock, 31)

    assert await state(fine) == ("queued", 2, 1)
    assert await read_sessions(ns, 0) == {}
    assert raw.zrange(ns.keys.repair(0), 0, -1) == [broken.id.encode()]
    await fine.cancel()


@pytest.mark.leaves("broken keys", "repair", "history", "open runs", "pending")
@pytest.mark.parametrize("field", ["spec", "open", "born", "seq"])
async def test_a_run_that_nobody_can_read_does_not_keep_the_sweeper_from_the_others(
    app, add, one_home, die_with, sweeper, clock, ns, raw, field
):
    damaged, fine = await add.enqueue(1, 2), await add.enqueue(3, 4)
    await die_with(0)
    raw.hset(ns.keys.run(0, damaged.id), field, b"\xff garbage")

    await tick(sweeper, clock, 31)

    assert await state(fine) == ("queued", 2, 1)
    assert await read_sessions(ns, 0) == {}
    assert raw.zrange(ns.keys.repair(0), 0, -1) == [damaged.id.encode()]
    # Whoever lists runs sees the others, and an audit says what is wrong.
    assert [run.id for run in await app.runs.list()] == [fine.id]
    assert any("cannot be read" in finding.problem for finding in await audit(ns))
    await fine.cancel()


async def test_an_unreadable_session_does_not_keep_the_sweeper_from_the_others(lost, sweeper, clock, ns, raw):
    raw.hset(ns.keys.sessions(0), mapping={"s-garbage": b"garbage", b"\xff": b"\xff"})

    await tick(sweeper, clock, 31)

    assert await state(lost) == ("queued", 2, 1)
    assert await read_sessions(ns, 0) == {}
    raw.hdel(ns.keys.sessions(0), b"\xff")


async def test_a_destroyed_group_does_not_stop_the_sweeper(lost, sweeper, clock, ns, raw):
    raw.xgroup_destroy(ns.keys.tasks(0, "default", 5), "weft")

    await tick(sweeper, clock, 31)

    assert await read_sessions(ns, 0) == {}


# --- with a real worker ---------------------------------------------------------------------------


async def test_a_worker_serves_what_a_dead_one_left(add, one_home, die_with, start_worker, short_lease, buried):
    run = await add.enqueue(1, 2)
    await die_with(0)

    worker = await start_worker()

    assert await run.result(10) == 3
    info = await run.info()
    assert (info.delivery, info.attempt, info.crashes) == (2, 1, 1)
    reclaimed = (await run.history())[1]
    assert (reclaimed.type, reclaimed.data["session"], reclaimed.data["by"]) == ("reclaimed", "s-dead", worker.session)
    await buried("s-dead")


async def test_a_step_that_outlives_no_worker_is_poison_after_three(
    add, one_home, die_with, start_worker, short_lease, eventually, buried
):
    # Given a step with which two workers died already.
    run = await add.enqueue(1, 2)
    await start_worker(queues=["none"])
    for n in (1, 2):

        async def queued() -> bool:
            return await run.status() == "queued"

        await eventually(queued)
        await die_with(0, session=f"s-dead-{n}")

    # When it kills a third one.
    await eventually(queued)
    await die_with(0, session="s-dead-3")

    # Then it is not tried again.
    with pytest.raises(StepFailed, match="3 workers died") as caught:
        await run.result(10)
    assert caught.value.type == "Poisoned"
    assert (await run.info()).crashes == 3
    await buried("s-dead-3")


async def test_one_worker_of_the_fleet_sweeps_and_hands_over_when_it_leaves(start_worker, ns, raw, eventually):
    first = await start_worker()
    await eventually(lambda: raw.get(ns.keys.lock(0, "sweeper")) == first.session.encode())
    second = await start_worker()
    assert raw.get(ns.keys.lock(0, "sweeper")) == first.session.encode()

    await first.stop()

    await eventually(lambda: raw.get(ns.keys.lock(0, "sweeper")) == second.session.encode())


@pytest.mark.parametrize(("lease", "most"), [("500ms", 500), ("2s", 2_000), ("30s", 3_000)])
async def test_whoever_keeps_house_is_replaced_as_soon_as_a_worker_is(
    lease, most, app, start_worker, raw, eventually, monkeypatch
):
    monkeypatch.setenv("WEFT_LEASE", lease)
    worker = await start_worker()
    lock = app.engine().ns.keys.lock(0, "sweeper")

    # It is renewed after a third: one that lasts longer is never seen with so little left.
    await eventually(lambda: raw.get(lock) == worker.session.encode() and most * 0.3 < raw.pttl(lock) <= most)
