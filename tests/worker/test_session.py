"""Sessions: a lease renewed by a thread of its own; a worker that was declared dead begins anew."""

import asyncio
import time

import msgspec
import pytest

from weft import current
from weft.engine.steps import completed_inline
from weft.store.lost import reclaim_steps
from weft.store.sessions import read_sessions
from weft.store.steps import commit_steps


async def test_the_lease_is_renewed_while_the_event_loop_is_blocked(app, start_worker, short_lease, server, ns):
    # Given a step that blocks the loop for three leases.
    @app.task
    async def block() -> bytes:
        time.sleep(3 * short_lease)
        with server.client() as raw:
            return raw.get(ns.keys.session(0, worker.session)) or b"expired"

    worker = await start_worker()
    run = await block.enqueue()

    # Then its worker is alive all the time.
    assert await run.result(20) == b"alive"
    assert (await run.info()).crashes == 0


async def test_a_session_tells_what_it_serves(app, add, start_worker, ns):
    worker = await start_worker(queues=["high", "default"], concurrency=7)

    about, alive = (await read_sessions(ns, 0))[worker.session]

    assert alive
    assert (about.app, about.queues, about.concurrency, about.tasks) == ("testing", ["high", "default"], 7, ["add"])


async def test_a_worker_declared_dead_drops_its_steps_and_begins_a_new_session(
    held, add, start_worker, short_lease, ns, raw, eventually, buried, caplog
):
    # Given a worker that runs a step.
    worker = await start_worker()
    first = worker.session
    run = await held.running()

    # When its session is tombstoned, as the sweeper does after a long silence.
    for p in range(ns.partitions):
        raw.set(ns.keys.session(p, first), "dead", px=60_000)

    # Then it stops the step, takes another name and goes on working.
    await eventually(lambda: worker.session != first and held.cancelled == 1)
    assert await (await add.enqueue(1, 2)).result(10) == 3
    # And the step it lost is run again, by whoever gets it.
    held.release.set()
    assert await run.result(10) == "delivery 2"
    info = await run.info()
    assert (info.attempt, info.crashes) == (1, 1)
    assert "this worker was declared dead" in caplog.text
    await buried(first)


async def test_a_zombie_cannot_commit_what_was_given_to_others(held, start_worker, ns, raw):
    # Given a worker whose step was taken from it while it runs, with a lease so long that nobody tells it.
    worker = await start_worker(concurrency=1)
    run = await held.running()
    (execution,) = worker.running.values()
    token = execution.token
    raw.delete(ns.keys.session(token.partition, worker.session))
    words = await reclaim_steps(
        ns,
        token.partition,
        dead=worker.session,
        queue="default",
        stream=ns.keys.tasks(token.partition, "default", 5),
        held=[(token.entry, token.run, token.spec, "")],
        keep_ms=lambda spec: spec.keep_ms,
        by="s-sweeper",
        max_crashes=3,
        poison=b"",
    )
    assert words == ["emitted"]

    # When its result is committed, it is refused.
    forged = completed_inline(token, msgspec.msgpack.encode("delivery 1"), token.claimed_ms)
    assert await commit_steps(ns, token.partition, [forged], session=worker.session) == (["stale"], False)

    # And when it finishes by itself, the run is completed by the second delivery alone.
    held.release.set()
    assert await run.result(20) == "delivery 2"
    assert held.deliveries == [1, 2]
    assert [event.type for event in await run.history()] == ["queued", "reclaimed", "completed"]


async def test_a_worker_goes_on_after_the_epoch_moved(add, start_worker, ns, raw):
    await start_worker()
    assert await (await add.enqueue(1, 2)).result(10) == 3

    for p in range(ns.partitions):
        raw.hincrby(ns.keys.epoch(p), "number", 1)

    assert await (await add.enqueue(2, 3)).result(10) == 5


async def test_the_fence_rises_across_epochs(app, start_worker, ns, raw):
    @app.task
    async def fence() -> int:
        return current().fence

    await start_worker()
    before = await (await fence.enqueue()).result(10)
    for p in range(ns.partitions):
        raw.hincrby(ns.keys.epoch(p), "number", 1)

    assert await (await fence.enqueue()).result(10) > before


async def test_a_worker_goes_on_after_its_namespace_was_wiped(add, start_worker, ns, raw, short_lease, eventually):
    worker = await start_worker()
    assert await (await add.enqueue(1, 2)).result(10) == 3

    raw.delete(*raw.scan_iter(ns.keys.pattern()))

    run = await add.enqueue(2, 3)
    assert await run.result(10) == 5

    # And its session is known again, so that its steps would be taken if it died.
    async def known() -> bool:
        return all([worker.session in await read_sessions(ns, p) for p in range(ns.partitions)])

    await eventually(known)


async def test_stopping_while_a_new_session_is_taken_leaves_nothing_behind(add, start_worker, ns, raw, short_lease):
    worker = await start_worker()
    for p in range(ns.partitions):
        raw.set(ns.keys.session(p, worker.session), "dead", px=1_000)
    worker._begin_anew(ValueError("test"))
    await asyncio.sleep(0)

    await worker.stop(grace=0)

    for p in range(ns.partitions):
        assert await read_sessions(ns, p) == {}


@pytest.mark.parametrize("lease", ["100ms", "nonsense", "-5s"])
async def test_a_senseless_lease_is_refused(app, monkeypatch, lease):
    from weft import SettingsError

    monkeypatch.setenv("WEFT_LEASE", lease)
    with pytest.raises(SettingsError, match="WEFT_LEASE"):
        app.worker()
