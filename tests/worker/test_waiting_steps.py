"""The reconciler and steps that wait for something from outside: nothing stands for them, and that is right."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from weft import Weft
from weft.core.model import ROUTES
from weft.engine.housekeeping.sweeper import Sweeper
from weft.store.runs import read_ledgers
from weft.store.waits import rearm_waits
from weft.worker.worker import Worker


async def test_a_waiting_step_is_not_lost_and_its_timer_comes_back(
    app: Weft, start_worker: Callable[..., Awaitable[Worker]]
) -> None:
    graph = app.graph("order", output="${paid}")
    graph.wait("paid", signal="paid", timeout="1h")
    graph.wait("free", signal="free")
    worker = await start_worker()
    run = await graph.start({})
    nodes: dict[str, Any] = {}
    async with asyncio.timeout(20):
        while {node["status"] for node in nodes.values()} != {"waiting"}:
            nodes = (await run.graph())["nodes"]
            await asyncio.sleep(0.01)
    await worker.stop(grace=0)
    ns = app.engine().ns
    p = int(run.id[1 : run.id.index("-")])
    timers = ns.keys.timers(p)
    due = await ns.read("ZSCORE", timers, f"wait:{run.id}/paid", p=p)
    await ns.read("DEL", timers, p=p)

    sweeper = Sweeper(ns, p, "s-test", lease=30.0, retention_ms=3_600_000)
    for _ in range(6):  # two rounds over all runs, and more
        await sweeper._reconcile(set())

    # The one timer is back, and nobody was given a token.
    assert await ns.read("ZRANGE", timers, 0, -1, p=p) == [f"wait:{run.id}/paid".encode()]
    assert await ns.read("ZSCORE", timers, f"wait:{run.id}/paid", p=p) == due
    assert await ns.read("XLEN", ns.keys.tasks(p, ROUTES, 5), p=p) == 0
    await start_worker()
    assert await run.signal("paid", 1) and await run.signal("free", 2)
    assert await run.result(timeout=20) == 1


@pytest.mark.parametrize("ends", [True, False])
async def test_a_step_that_got_its_signal_since_it_was_read_gets_no_timer(
    app: Weft, start_worker: Callable[..., Awaitable[Worker]], eventually: Any, ends: bool
) -> None:
    graph = app.graph("order")
    graph.wait("paid", signal="paid", timeout="1h")
    worker = await start_worker()
    run = await graph.start({})
    ns, p = app.engine().ns, int(run.id[1 : run.id.index("-")])

    async def read() -> Any:
        return [row for row in await read_ledgers(ns, p, [f"{run.id}/paid"]) if row.waits]

    async def timers() -> Any:
        return await ns.read("ZRANGE", ns.keys.timers(p), 0, -1, p=p)

    rows = await eventually(read)
    if not ends:
        await worker.stop()
    await run.signal("paid", 1)
    if ends:
        await run.result(timeout=20)

    async def gone() -> bool:
        return not await timers()

    await eventually(gone)

    await rearm_waits(ns, p, rows)

    assert await timers() == []
    if not ends:
        await start_worker()
        await run.result(timeout=20)
