"""What an ended workflow run left in Redis goes with it, whatever its code did, however it ended."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from weft import Context, RunCancelled, StepFailed
from weft.store.keys import Lifetime


@pytest.fixture
def lasting(app, raw, eventually):
    """Returns the keys that belong to runs and have no expiry, once all ended runs are put away."""

    async def look():
        ns = app.engine().ns

        async def closed():
            members = [m for p in range(ns.partitions) for m in await ns.read("ZRANGE", ns.keys.timers(p), 0, -1, p=p)]
            return not any(member.startswith((b"close:", b"route:", b"shut:")) for member in members)

        await eventually(closed)
        parsed = {key.decode(): ns.keys.parse(key.decode()) for key in raw.scan_iter(ns.keys.pattern())}
        kept = {key: found[1] for key, found in parsed.items() if found and found[1].lifetime == Lifetime.WITH_RUN}
        return len(kept), sorted(key for key in kept if raw.pttl(key) == -1)

    return look


@pytest.fixture
def flows(app):
    @app.task
    async def large(n: int) -> str:
        return "x" * n

    @app.task(retries=1, retry_delay="1ms")
    async def fails() -> None:
        raise ValueError("never")

    @app.workflow
    async def child(ctx: Context, n: int) -> str:
        return str(await ctx.call(large, n))

    @app.workflow
    async def all_of_it(ctx: Context, how: str, filler: str) -> str:
        ctx.on_update("add", lambda n: n + 1)
        ctx.set_state(phase="begun")
        await ctx.step(large, 9_000)
        await ctx.call(large, 9_000)
        await ctx.map(large, [1, 5_000, 3])
        await ctx.child(child, 6_000)
        with contextlib.suppress(StepFailed):
            await ctx.call(fails)
        await ctx.race(ctx.sleep("1h"), ctx.receive("go"))
        await ctx.approve("Fine?", show={"how": how}, approvers=["ops"])
        if how == "fails":
            raise ValueError("on purpose")
        if how == "waits":
            left = ctx.approve("Still?", approvers=["ops"])
            ctx.call(large, 10)
            await ctx.receive("never", type=str)
            await left
        return filler

    return all_of_it


@pytest.mark.parametrize("how", ["completes", "fails", "waits"])
async def test_no_key_of_an_ended_workflow_run_lasts(app, flows, start_worker, lasting, eventually, how):
    await start_worker()
    run = await flows.start(how, "y" * 9_000)
    await run.signal("early", {"x": 1})
    await run.signal("go", "z" * 9_000)
    await run.update("add", 1)

    async def asked():
        return [one for one in await app.approvals.list() if one.run_id == run.id]

    (ask,) = await eventually(asked)
    await app.approvals.approve(ask.id, by="ops", digest=ask.digest)
    if how == "waits":
        await eventually(asked)
        await run.cancel("enough")
    done = await asyncio.gather(run.result(20), return_exceptions=True)
    assert isinstance(done[0], {"completes": str, "fails": StepFailed, "waits": RunCancelled}[how])

    n, left = await lasting()

    assert n > 8 and left == []
