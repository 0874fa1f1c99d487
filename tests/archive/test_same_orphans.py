"""Runs whose workers died, once or until they were poison, are told the same by both stores."""

from __future__ import annotations

import asyncio

import msgspec
import pytest
from views import told_apart, views_of

from weft import Context, Weft
from weft.core.model import SessionInfo
from weft.engine.housekeeping import sweeper as module
from weft.engine.housekeeping.sweeper import Sweeper
from weft.store.sessions import renew_session
from weft.store.steps import begin_suspect, claim_steps

pytestmark = pytest.mark.leaves("history", "pending")

#: Seconds of the sweepers' leases.
LEASE = 30.0


class Clock:
    """What the sweepers take for the time."""

    now = 1_000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
async def die(app: Weft, monkeypatch):
    """Plays a worker that claims what there is in a queue, and dies."""
    clock, sweepers = Clock(), []
    monkeypatch.setattr(module, "time", clock)

    async def claim(queue: str, session: str) -> None:
        ns = app.engine().ns
        if not sweepers:
            sweepers.extend(
                Sweeper(ns, p, "s-sweeper", lease=LEASE, retention_ms=3_600_000) for p in range(ns.partitions)
            )
        about = msgspec.msgpack.encode(SessionInfo(session, "test", "elsewhere", 1, [queue], [], 10, 0))
        for p in range(ns.partitions):
            await renew_session(ns, p, session=session, lease_ms=60_000, about=about)
            for token in await claim_steps(ns, p, session=session, queues=(queue,), room=10):
                assert not token.crashes or await begin_suspect(ns, p, token, session=session)
            await ns.caller.execute_command("DEL", ns.keys.session(p, session))  # what expiry does
        for _ in range(round(2 * LEASE)):
            clock.now += 1
            for each in sweepers:
                await each.tick()

    return claim


async def test_runs_of_dead_workers_are_told_the_same(app, die, start_worker, archive, forget, quiet):
    @app.task
    async def add(a: int) -> int:
        return a

    @app.workflow
    async def flow(ctx: Context) -> int:
        ctx.set_state(phase="on")
        return await ctx.call(add, 1)

    graph = app.graph("graph")
    graph.task("step", call="add", with_={"a": 1}, queue="once")
    await app.open()
    made = {
        "task": await add.options(queue="once").enqueue(1),
        "cancelled": await add.options(queue="once").enqueue(3),
        "graph": await graph.start(),
        "poison": await add.options(queue="often").enqueue(2),
    }
    await die("once", "s-dead")
    await made["cancelled"].cancel("too late")
    for n in range(3):
        await die("often", f"s-dead-{n}")
    await start_worker(queues=["default", "once", "often"])
    made["flow"] = await flow.start()
    await asyncio.gather(*(run.result(20) for run in made.values()), return_exceptions=True)
    await quiet()
    hot = await views_of(app, made)
    assert hot["poison"]["info"]["crashes"] == 3 and hot["task"]["info"]["crashes"] == 1
    await archive(1)
    forget(*made.values())

    assert told_apart(hot, await views_of(app, made)) == ([], {"times of steps"})
