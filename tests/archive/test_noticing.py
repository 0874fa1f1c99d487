"""Everybody notices that the store lost everything: who waits, who reads along, who is idle, and who holds work of before."""

from __future__ import annotations

import asyncio
import time

import pytest

from weft import Weft
from weft.engine import waiting
from weft.engine.housekeeping.recovery import recover_all
from weft.errors import Unavailable

pytestmark = pytest.mark.leaves("history", "open runs")

#: Seconds in which everybody must have noticed; and what a slow machine may take besides.
WITHIN, SLACK = 5.0, 3.0


@pytest.fixture
def database_url(tmp_path) -> str:
    """SQLite only: what is looked at here is the store."""
    return f"sqlite:///{tmp_path / 'archive.sqlite'}"


async def test_blocked_readers_and_idle_clients_notice_within_seconds(app, archive, archivers, start_worker, raw):
    gate = asyncio.Event()

    @app.task
    async def hold(n: int) -> int:
        await gate.wait()
        return n

    @app.task(queue="other")
    async def later(n: int) -> int:
        return n

    clients = [Weft(app.name, redis_url=app._redis_url, namespace=app._namespace) for _ in range(3)]
    waits, reads, idle = clients
    await start_worker(queues=["default"])
    run, queued = await hold.enqueue(7), await later.enqueue(8)
    result = asyncio.create_task((await waits.runs.get(queued.id)).result(30))
    seen: list[str] = []

    async def follow() -> None:
        async for event in (await reads.runs.get(run.id)).events():
            seen.append(event.type)

    following = asyncio.create_task(follow())
    await idle.runs.get(queued.id)
    while "queued" not in seen:
        await asyncio.sleep(0.01)
    await archive()
    archiving = await archivers()
    for each in archiving:
        each.start()
    epochs = [list(client.engine().ns.epochs) for client in (app, waits, reads)]
    keys = [*raw.scan_iter(match=f"{app.engine().ns.keys.namespace}:*")]

    lost_at = time.monotonic()
    raw.delete(*keys)

    for client, before in zip((app, waits, reads), epochs, strict=True):
        while list(client.engine().ns.epochs) == before:
            assert time.monotonic() - lost_at < WITHIN + SLACK, client
            await asyncio.sleep(0.02)
    # Nobody asked anything of the idle one: its next call is served.
    assert (await (await idle.runs.get(queued.id)).info()).status == "queued"
    gate.set()
    await start_worker(queues=["other"])
    assert await result == 8
    await asyncio.wait_for(following, 30)
    # The reader got every event once, over the loss.
    assert seen[0] == "queued" and seen.count("queued") == seen.count("completed") == 1 and "recovered" in seen
    await asyncio.gather(*(each.stop() for each in archiving))
    for client in clients:
        await client.close()


def test_nobody_waits_longer_before_it_looks_again():
    assert waiting.RECHECK <= WITHIN


async def test_a_client_that_was_to_be_told_of_an_end_asks_within_its_time_as_the_loss_forgot_it(
    app, archive, start_worker, raw
):
    @app.task
    async def work(n: int) -> int:
        return n

    await start_worker(queues=["default"])
    await (await work.enqueue(1)).result(20)
    # Whoever has waited before is told of the next end without asking.
    run = await work.options(queue="other").enqueue(2)
    engine = app.engine()
    assert run.id in engine.waiting._expected
    await archive()
    raw.delete(*raw.scan_iter(match=f"{engine.ns.keys.namespace}:*"))
    await recover_all(engine.ns, engine.cold, "a-1", hot_ms=1000, dry_run=False)
    await start_worker(queues=["other"])
    while await run.status() != "completed":
        await asyncio.sleep(0.02)

    assert await run.result(timeout=4) == 2


async def test_work_that_was_held_before_the_loss_is_not_heard(app, archive, start_worker, raw, eventually):
    gates, ran, stopped = [asyncio.Event(), asyncio.Event()], [], []

    @app.task
    async def hold() -> str:
        ran.append(len(ran))
        mine = ran[-1]
        try:
            await gates[mine].wait()
        except asyncio.CancelledError:
            stopped.append(mine)
        return f"delivery {mine}"

    await start_worker()
    run = await hold.enqueue()
    await eventually(lambda: ran)
    await archive()
    engine = app.engine()
    raw.delete(*raw.scan_iter(match=f"{engine.ns.keys.namespace}:*"))
    await recover_all(engine.ns, engine.cold, "a-1", hot_ms=1000, dry_run=False)
    await eventually(lambda: len(ran) == 2)

    # Who held it before is told to stop. It gives something all the same.
    await eventually(lambda: stopped == [0])

    with pytest.raises(TimeoutError):
        await run.result(0.2)
    gates[1].set()
    assert await run.result(20) == "delivery 1"


@pytest.mark.parametrize("partitions", [1])
async def test_calls_of_a_client_wait_for_the_recovery_or_are_told_to_come_again(app, archive, raw):
    @app.task
    async def work(n: int) -> int:
        return n

    run = await work.enqueue(1)
    await archive()
    engine = app.engine()
    raw.delete(*raw.scan_iter(match=f"{engine.ns.keys.namespace}:*"))
    with pytest.raises(Unavailable, match="rebuilds it"):
        await work.enqueue(2)
    with pytest.raises(Unavailable, match="weft recover"):
        await run.info()
    (told,) = await recover_all(engine.ns, engine.cold, "a-1", hot_ms=1000, dry_run=True)
    assert told is not None and (told.lost, told.runs) == ("it is empty", 1)
    assert raw.keys(f"{engine.ns.keys.namespace}:*") == []
    await recover_all(engine.ns, engine.cold, "a-1", hot_ms=1000, dry_run=False)
    assert (await run.info()).status == "queued" and await work.enqueue(2)
