"""Workflow runs and calls that a dead worker held: they are taken up again, whichever queue they stand in."""

from __future__ import annotations

import pytest

from weft import Context, Weft


@pytest.mark.parametrize("kept", [2_000, 0], ids=["kept", "replayed"])
async def test_what_a_dead_worker_held_goes_on_on_every_queue(
    app: Weft, one_home, die_with, start_worker, short_lease, buried, eventually, monkeypatch, kept: int
):
    monkeypatch.setattr("weft.worker.flows.MAX_KEPT", kept)

    @app.task(queue="calls")
    async def double(n: int) -> int:
        return 2 * n

    @app.workflow(queue="children")
    async def below(ctx: Context, n: int) -> int:
        return await ctx.call(double, n)

    @app.workflow(queue="parents")
    async def above(ctx: Context, n: int) -> int:
        return await ctx.child(below, n) + await ctx.call(double, n)

    # Given a worker each that dies with the parent, with its child, and with the first call.
    run = await above.start(1)
    ns = app.engine().ns
    for queue, next_queue in (("parents", "children"), ("children", "calls"), ("calls", "")):
        dead = f"s-dead-{queue}"

        async def died(queue: str = queue, dead: str = dead) -> object:
            return await die_with(0, session=dead, queues=(queue,))

        await eventually(died)
        if next_queue:  # somebody brings it to where the next one dies
            worker = await start_worker(queues=[queue])
            await buried(dead)

            async def stands(key: str = ns.keys.tasks(0, next_queue, 5)) -> object:
                return await ns.caller.execute_command("XLEN", key)

            await eventually(stands)
            await worker.stop()

    await start_worker(queues=["parents", "children", "calls"])

    assert await run.result(10) == 4
    await buried("s-dead-calls")
