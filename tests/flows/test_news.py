"""News reaches a run wherever its code is, and code that waits stands in nobody's way."""

from __future__ import annotations

from weft import Context, RunStatus, Weft


async def test_code_that_is_made_anew_in_the_middle_gives_its_slot_back_when_it_waits(app: Weft, eventually):
    """As after other workers went on with a run whose code this one still has: it holds slots for no run that waits."""

    @app.workflow
    async def flow(ctx: Context) -> list[int]:
        return [await ctx.receive("word", type=int) for _ in range(3)]

    async with app.worker() as worker:
        flows, slots = worker.executor.flows, worker.slots

        async def waits() -> bool:
            return run.id in flows._waiting and await run.status() == RunStatus.WAITING

        run = await flow.start()
        await eventually(waits)
        old = flows._waiting.pop(run.id)
        await run.signal("word", 1)
        await eventually(waits)
        flows._waiting.pop(run.id).let_go()
        flows._waiting[run.id] = old
        await run.signal("word", 2)
        await eventually(waits)
        await eventually(lambda: slots.free == slots.size)
        await run.signal("word", 3)
        assert await run.result(timeout=10) == [1, 2, 3]
