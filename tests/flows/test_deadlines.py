"""The deadline of a workflow run: its code is cancelled where it waits, has some time to tidy up, and the run has failed."""

from __future__ import annotations

import asyncio

import pytest

from weft import Context, RunCancelled, StepFailed, Weft


async def test_code_is_cancelled_where_it_waits_and_tidies_up(app: Weft, memory: str):
    done: list[str] = []

    async def note(what: str) -> None:
        done.append(what)

    @app.workflow
    async def flow(ctx: Context) -> str:
        ctx.on_failure(note, "undone")
        try:
            await ctx.receive("never")
        except asyncio.CancelledError as error:
            await ctx.step(note, str(error))
            raise
        finally:
            async with ctx.shield():
                await ctx.sleep("5ms")
                await ctx.step(note, "tidy")
        return "?"

    async with app.worker():
        run = await flow.options(deadline="300ms").start()
        with pytest.raises(StepFailed, match="deadline") as caught:
            await run.result(timeout=15)
    assert (caught.value.type, await run.status()) == ("DeadlineExceeded", "failed")
    assert done == ["the run did not finish before its deadline", "tidy", "undone"]
    types = [event.type for event in await run.history()]
    assert types.count("overdue") == 1 and types[-1] == "failed"


@pytest.mark.parametrize("how", ["returns", "raises", "continues"])
async def test_a_run_past_its_deadline_has_failed_whatever_its_code_makes_of_it(app: Weft, how: str):
    @app.workflow
    async def flow(ctx: Context) -> str:
        try:
            await ctx.receive("never")
        except asyncio.CancelledError:
            if how == "raises":
                raise ValueError("no tidying") from None
            if how == "continues":
                ctx.continue_as_new()
        return "late"

    async with app.worker():
        run = await flow.options(deadline="200ms").start()
        with pytest.raises(StepFailed) as caught:
            await run.result(timeout=15)
    assert caught.value.type == "DeadlineExceeded"
    assert [cause["type"] for cause in caught.value.causes] == {
        "returns": [],
        "raises": ["ValueError"],
        "continues": ["ContinuedAsNew", "CancelledError"],
    }[how]


async def test_clean_up_that_does_not_end_is_ended(app: Weft, monkeypatch: pytest.MonkeyPatch, quiet):
    monkeypatch.setattr("weft.store.flows.GRACE_MS", 300)

    @app.workflow
    async def flow(ctx: Context) -> None:
        async with ctx.shield():
            await ctx.receive("never")

    async with app.worker():
        run = await flow.options(deadline="100ms").start()
        with pytest.raises(StepFailed, match="deadline"):
            await run.result(timeout=15)
        await quiet()


async def test_a_deadline_does_not_disturb_the_clean_up_of_a_cancelled_run(app: Weft, memory: str, eventually):
    done: list[str] = []

    async def note(what: str) -> None:
        done.append(what)

    @app.workflow
    async def flow(ctx: Context) -> None:
        try:
            await ctx.receive("never")
        finally:
            await ctx.receive("tidied")
            await ctx.step(note, "tidy")

    async with app.worker():
        run = await flow.options(deadline="700ms").start()

        async def waits() -> bool:
            return await run.status() == "waiting"

        await eventually(waits)
        await run.cancel("enough")

        async def overdue() -> bool:
            return any(event.type == "overdue" for event in await run.history())

        await eventually(overdue)
        await run.signal("tidied")
        with pytest.raises(RunCancelled, match="enough"):
            await run.result(timeout=10)
    assert done == ["tidy"]


async def test_a_run_that_has_not_begun_fails_at_once(app: Weft, quiet):
    @app.workflow(queue="nobody")
    async def flow(ctx: Context) -> None: ...

    async with app.worker(queues=["default"]):
        run = await flow.options(deadline="50ms").start()
        with pytest.raises(StepFailed, match="deadline"):
            await run.result(timeout=10)
        assert "overdue" not in [event.type for event in await run.history()]
        await quiet()


async def test_a_parent_sees_that_its_child_was_too_slow(app: Weft, memory: str):
    @app.workflow
    async def below(ctx: Context) -> None:
        await ctx.receive("never")

    @app.workflow
    async def above(ctx: Context) -> str:
        try:
            await ctx.options(deadline="150ms").child(below)
        except StepFailed as error:
            return error.type
        return "?"

    async with app.worker():
        assert await (await above.start()).result(timeout=15) == "DeadlineExceeded"


async def test_a_deadline_counts_from_the_start_over_all_lives(app: Weft, memory: str):
    @app.workflow
    async def endless(ctx: Context, n: int = 0) -> None:
        await ctx.sleep("20ms")
        ctx.continue_as_new(n + 1)

    async with app.worker():
        run = await endless.options(deadline="400ms").start()
        with pytest.raises(StepFailed, match="deadline"):
            await run.result(timeout=15)
    assert any(event.type == "continued" for event in await run.history())


async def test_a_deadline_of_a_month_takes_milliseconds_on_a_virtual_clock(app: Weft, weft_worker):
    done: list[str] = []

    async def note(what: str) -> None:
        done.append(what)

    @app.workflow
    async def flow(ctx: Context) -> None:
        began = ctx.now()
        try:
            await ctx.sleep("90d")
        finally:
            days = (ctx.now() - began).total_seconds() / 86_400
            async with ctx.shield():
                await ctx.step(note, f"{days:.0f}")

    run = await flow.options(deadline="30d").start()
    await weft_worker.run_until_idle(advance=True)
    with pytest.raises(StepFailed, match="deadline"):
        await run.result(timeout=5)
    assert done == ["30"]
