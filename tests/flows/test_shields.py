"""`ctx.shield()`: what cancels from without waits, what the block itself sets up works."""

from __future__ import annotations

import asyncio

import pytest

from weft import Context, RunCancelled, RunStatus, StepFailed, Weft

pytestmark = pytest.mark.usefixtures("memory")


async def note(word: str) -> str:
    return word


async def burst() -> None:
    raise ValueError("burst")


async def test_time_limits_and_task_groups_work_within_a_shield(app: Weft):
    @app.workflow
    async def flow(ctx: Context) -> list[str]:
        said = []
        async with ctx.shield():
            for limit in (0.02, 0):
                try:
                    async with asyncio.timeout(limit):
                        await ctx.receive("never")
                except TimeoutError:
                    said.append("too late")
            try:
                async with asyncio.TaskGroup() as group:
                    group.create_task(_step(ctx, burst))
                    await ctx.receive("never")
            except* StepFailed:
                said.append("failed")
        return [*said, await ctx.step(note, "went on")]

    async with app.worker():
        run = await flow.start()
        assert await run.result(timeout=10) == ["too late", "too late", "failed", "went on"]


async def test_time_limits_and_task_groups_around_a_shield_wait_for_its_end(app: Weft):
    @app.workflow
    async def flow(ctx: Context) -> list[str]:
        said = []
        try:
            async with asyncio.timeout(0.02), ctx.shield():
                try:
                    async with asyncio.timeout(0.03), ctx.shield():
                        await ctx.sleep("50ms")
                        said.append("inner")
                except TimeoutError:
                    said.append("inner too late")
                said.append(await ctx.step(note, "outer"))
        except TimeoutError:
            said.append("outer too late")
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(_step(ctx, burst))
                async with ctx.shield():
                    await ctx.sleep("20ms")
                    said.append("whole")
                said.append("never")
        except* StepFailed:
            said.append("failed")
        return said

    async with app.worker():
        run = await flow.start()
        said = await run.result(timeout=10)
    assert said == ["inner", "inner too late", "outer", "outer too late", "whole", "failed"]


async def test_a_time_limit_does_not_swallow_the_cancellation_of_the_run(app: Weft):
    """Both wait for the end of the block: the run is cancelled, and not taken for one that was too slow."""

    @app.workflow
    async def flow(ctx: Context) -> str:
        try:
            async with asyncio.timeout(0.02), ctx.shield():
                await ctx.receive("late")
                await ctx.receive("go")
        except TimeoutError:
            return "too late"
        return "?"

    async with app.worker():
        run = await flow.start()
        while (await run.status()) != RunStatus.WAITING:
            await asyncio.sleep(0)
        await asyncio.sleep(0.03)
        await run.signal("late")
        await run.cancel()
        await run.signal("go")
        with pytest.raises(RunCancelled):
            await run.result(timeout=10)


async def _step(ctx: Context, fn) -> None:
    await ctx.step(fn)


async def test_a_step_that_is_cancelled_tidies_up_before_the_code_does(app: Weft, memory: str, eventually):
    told: list[str] = []

    async def pay() -> None:
        told.append("pays")
        try:
            await asyncio.sleep(30)
        finally:
            told.append("pays no more")

    async def refund() -> None:
        told.append("refunds")

    @app.workflow
    async def flow(ctx: Context) -> None:
        try:
            await ctx.step(pay)
        finally:
            async with ctx.shield():
                await ctx.step(refund)

    async def paying() -> bool:
        return told == ["pays"]

    async with app.worker():
        run = await flow.start()
        await eventually(paying)
        await run.cancel()
        with pytest.raises(RunCancelled):
            await run.result(timeout=10)
    assert told == ["pays", "pays no more", "refunds"]
