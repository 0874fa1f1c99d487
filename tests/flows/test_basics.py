"""The life of a workflow run: steps, sleeps, calls, results."""

from __future__ import annotations

import pytest

from weft import Context, StepFailed, Weft


async def test_steps_run_in_order_and_the_result_comes_back(app: Weft):
    ran: list[str] = []

    async def charge(order: str) -> str:
        ran.append(f"charge {order}")
        return f"paid {order}"

    def pack(order: str) -> str:
        ran.append(f"pack {order}")
        return f"packed {order}"

    @app.workflow
    async def order(ctx: Context, id: str) -> list[str]:
        paid = await ctx.step(charge, id)
        packed = await ctx.step(pack, id)
        return [paid, packed]

    async with app.worker():
        run = await order.start("o-1")
        assert await run.result(timeout=10) == ["paid o-1", "packed o-1"]
    assert ran == ["charge o-1", "pack o-1"]
    events = await run.history()
    assert [(e.type, e.step) for e in events] == [
        ("queued", ""),
        ("began", ""),
        ("step_completed", "charge"),
        ("step_completed", "pack"),
        ("completed", ""),
    ]


async def test_a_call_runs_as_a_step_of_the_run(app: Weft):
    from weft import current

    @app.task
    async def where(n: int) -> str:
        return f"{n} {current().run_id} {current().step}"

    @app.workflow
    async def flow(ctx: Context) -> list[str]:
        return list(await ctx.gather(ctx.call(where, 1), ctx.call(where, 2)))

    async with app.worker():
        run = await flow.start()
        assert await run.result(timeout=10) == [f"1 {run.id} where", f"2 {run.id} where~1"]


async def test_a_sleeping_run_holds_no_slot_and_goes_on_in_memory(app: Weft):
    begun = 0

    async def note() -> int:
        return 1

    @app.workflow
    async def nap(ctx: Context) -> int:
        nonlocal begun
        begun += 1
        await ctx.sleep("300ms")
        return await ctx.step(note)

    async with app.worker(concurrency=1):
        runs = [await nap.start() for _ in range(20)]
        for run in runs:
            assert await run.result(timeout=10) == 1
    assert begun == 20


async def test_a_failed_step_comes_with_type_message_and_traceback(app: Weft):
    class CardDeclined(Exception):
        pass

    async def charge() -> None:
        try:
            raise KeyError("card")
        except KeyError as error:
            raise CardDeclined("no money") from error

    @app.workflow
    async def order(ctx: Context) -> None:
        await ctx.step(charge)

    async with app.worker():
        run = await order.start()
        with pytest.raises(StepFailed, match="no money") as caught:
            await run.result(timeout=10)
    assert caught.value.type == "CardDeclined"
    assert caught.value.causes == [{"type": "KeyError", "message": "'card'"}]
    assert "raise CardDeclined" in caught.value.traceback


async def test_signals_that_come_early_wait_in_order(app: Weft):
    @app.workflow
    async def listen(ctx: Context) -> list[int]:
        await ctx.sleep("50ms")
        return [await ctx.receive("n", type=int) for _ in range(3)]

    async with app.worker():
        run = await listen.start()
        for n in range(3):
            await run.signal("n", n)
        assert await run.result(timeout=10) == [0, 1, 2]


async def test_an_empty_name_of_a_step_is_refused(app: Weft):
    async def charge() -> None:
        return None

    @app.workflow
    async def flow(ctx: Context) -> None:
        await ctx.options(name="").step(charge)

    async with app.worker():
        with pytest.raises(StepFailed, match="name: '' is not a name"):
            await (await flow.start()).result(timeout=10)
