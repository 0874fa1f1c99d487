"""What tests of steps that wait share: looking at nodes and approvals until they stand as wanted."""

from __future__ import annotations

import asyncio
from typing import Any

from weft import Approval, Weft
from weft.sdk.graphrun import GraphRun


async def node_of(run: GraphRun, node: str, *statuses: str) -> dict[str, Any]:
    """Waits until a node stands like this, and returns what is said of it."""
    async with asyncio.timeout(20):
        while True:
            about: dict[str, Any] = (await run.graph())["nodes"][node]
            if about["status"] in statuses:
                return about
            await asyncio.sleep(0.01)


async def approval_of(app: Weft, run: GraphRun, node: str = "review") -> Approval:
    """Waits until a node asks people, and returns what it asks."""
    about = await node_of(run, node, "waiting")
    return await app.approvals.get(about["approval"])


async def timers_gone(app: Weft) -> None:
    """Waits until no timer is left: what ended runs left behind is put away."""
    ns = app.engine().ns
    async with asyncio.timeout(20):
        while any([await ns.read("ZCARD", ns.keys.timers(p), p=p) for p in range(ns.partitions)]):
            await asyncio.sleep(0.01)
