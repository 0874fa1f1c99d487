"""Children of workflows, ids that are unique while they are used, and deadlines."""

from __future__ import annotations

import asyncio

import pytest

from weft import (
    AlreadyRunning,
    Context,
    DefinitionError,
    InvalidArguments,
    InvalidOption,
    RunCancelled,
    RunStatus,
    StepFailed,
    Weft,
)


async def test_a_parent_sees_the_result_of_its_child(app: Weft, memory: str):
    @app.workflow
    async def below(ctx: Context, n: int) -> int:
        await ctx.sleep("10ms")
        return n + await ctx.receive("more", type=int)

    @app.workflow
    async def above(ctx: Context) -> list[object]:
        child = ctx.child(below, 5)
        await child.signal("more", 2)
        return [child.id, await child]

    async with app.worker():
        run = await above.start()
        child, result = await run.result(timeout=15)
        assert result == 7
        assert (await app.runs.get(child).info()).name == "below"


async def test_a_parent_sees_the_failure_of_its_child(app: Weft, memory: str):
    @app.workflow
    async def below(ctx: Context) -> None:
        raise ValueError("no")

    @app.workflow
    async def above(ctx: Context) -> str:
        try:
            await ctx.child(below)
        except StepFailed as error:
            return error.type
        return "?"

    async with app.worker():
        assert await (await above.start()).result(timeout=15) == "ValueError"


async def test_cancellation_goes_down(app: Weft, memory: str, eventually):
    seen: list[str] = []

    @app.workflow
    async def below(ctx: Context) -> None:
        seen.append(ctx.run_id)
        await ctx.receive("never")

    @app.workflow
    async def above(ctx: Context) -> None:
        await ctx.child(below)

    async with app.worker():
        run = await above.start()

        async def waits() -> bool:
            return bool(seen) and (await app.runs.get(seen[0]).status()) == "waiting"

        await eventually(waits)
        await run.cancel()
        with pytest.raises(RunCancelled):
            await run.result(timeout=10)

        async def ended() -> bool:
            return (await app.runs.get(seen[0]).status()) == "cancelled"

        await eventually(ended)


async def test_children_that_are_left_outlive_their_parent(app: Weft, quiet):
    @app.workflow
    async def below(ctx: Context, time: str) -> str:
        await ctx.sleep(time)
        return "done"

    @app.workflow
    async def above(ctx: Context, policy: str) -> str:
        return ctx.options(on_parent_close=policy).child(below, "100ms" if policy == "leave" else "1h").id

    async with app.worker():
        left = app.runs.get(await (await above.start("leave")).result(timeout=10))
        assert await left.result(timeout=10) == "done"
        ended = app.runs.get(await (await above.start("cancel")).result(timeout=10))
        with pytest.raises(RunCancelled):
            await ended.result(timeout=10)
        await quiet()


async def test_a_child_that_is_left_outlives_a_parent_that_is_cancelled_while_it_waits_for_it(
    app: Weft, memory: str, eventually
):
    @app.workflow
    async def below(ctx: Context) -> str:
        return str(await ctx.receive("go"))

    @app.workflow
    async def above(ctx: Context, ends: bool) -> None:
        child = ctx.options(on_parent_close="leave").child(below)
        ctx.set_state(child=child.id)
        await child.signal("hello")
        try:
            await child
        except asyncio.CancelledError:
            if ends:
                child = ctx.options(on_parent_close="leave").child(below)
                ctx.set_state(other=child.id)
                async with ctx.shield():
                    await child.signal("hello")
                child.cancel()
            raise

    async with app.worker():
        for ends in (False, True):
            run = await above.start(ends)

            async def waits(run=run) -> bool:
                return (await run.status()) == RunStatus.WAITING

            await eventually(waits)
            await run.cancel()
            with pytest.raises(RunCancelled):
                await run.result(timeout=10)
            state = await run.state()
            left = below.run(state["child"])
            await left.signal("go", "on")
            assert await left.result(timeout=10) == "on"
            if ends:  # the code asked for that itself
                with pytest.raises(RunCancelled):
                    await below.run(state["other"]).result(timeout=10)


async def test_an_id_is_unique_while_its_run_is_in_progress(app: Weft, eventually):
    @app.workflow
    async def order(ctx: Context) -> str:
        return str(await ctx.receive("go"))

    async with app.worker():
        run = await order.options(id="order-1").start()
        with pytest.raises(AlreadyRunning, match=run.id):
            await order.options(id="order-1").start()
        other = await order.options(id="order-2").start()
        await run.signal("go", "a")
        assert await run.result(timeout=10) == "a"
        again = await order.options(id="order-1").start()
        for one in (again, other):
            await one.signal("go", "b")
            assert await one.result(timeout=10) == "b"


async def test_a_deadline_fails_the_run(app: Weft):
    @app.workflow
    async def order(ctx: Context) -> None:
        await ctx.receive("never")

    async with app.worker():
        run = await order.options(deadline="50ms").start()
        with pytest.raises(StepFailed, match="deadline"):
            await run.result(timeout=10)


async def test_what_is_not_built_or_senseless_is_refused(app: Weft):
    @app.workflow
    async def order(ctx: Context, n: int) -> None: ...

    with pytest.raises(InvalidArguments, match="order"):
        await order.start("one")
    with pytest.raises(InvalidOption, match="attempts of a step"):
        app.workflow(retries=3)(_named("other"))
    with pytest.raises(InvalidOption):
        order.options(unheard_of=1)
    with pytest.raises(Exception, match="first parameter"):
        app.workflow(_without_context)


def _named(name: str):
    async def flow(ctx: Context) -> None: ...

    flow.__name__ = name
    return flow


async def _without_context() -> None: ...


async def test_the_large_result_of_a_child_outlives_the_child(app: Weft, memory: str, raw, quiet):
    @app.workflow
    async def below(ctx: Context) -> str:
        return "x" * 50_000

    @app.workflow
    async def above(ctx: Context) -> int:
        text = await ctx.child(below)
        await ctx.receive("go")
        return len(text)

    async with app.worker():
        run = await above.start()
        while (await run.status()) != "waiting" or not any(e.type == "child_completed" for e in await run.history()):
            pass
        ns = app.engine().ns
        p = 0 if ns.partitions == 1 else int(run.id[1 : run.id.index("-")])
        kept = list(raw.scan_iter(ns.keys.blob(p, run.id, "*")))
        assert kept and all(raw.pttl(key) == -1 for key in kept)
        await run.signal("go")
        assert await run.result(timeout=10) == 50_000
        await quiet()


async def test_workflows_and_contexts_in_the_wrong_place_are_told_where_they_belong(app: Weft):
    @app.workflow
    async def below(ctx: Context) -> int:
        return 1

    @app.workflow
    async def flow(ctx: Context) -> list[str]:
        told = []
        for ask in (ctx.step, ctx.call):
            try:
                ask(below)
            except InvalidArguments as error:
                told.append(str(error).partition(": ")[2])
        return told

    with pytest.raises(
        DefinitionError,
        match=r"below is a workflow: a schedule starts a task, whose function can start it \(below.start",
    ):
        app.cron("* * * * *")(below)
    with pytest.raises(InvalidArguments, match="not <workflow below>: let a task start it"):
        await app.schedules.create("s", "* * * * *", below)
    with pytest.raises(InvalidOption, match=r"it belongs to the definition, @app.workflow\(concurrency=…\)"):
        below.options(concurrency=1)  # type: ignore[call-arg]
    with pytest.raises(InvalidOption, match="no option 'retrie' of a start; known are deadline"):
        below.options(retrie=1)  # type: ignore[call-arg]

    async def alone(ctx: Context) -> None: ...

    with pytest.raises(
        DefinitionError, match=r"only the first parameter of a function under @app.workflow is a context"
    ):
        app.task(alone)
    async with app.worker():
        assert await (await flow.start()).result(timeout=10) == ["it runs by ctx.child"] * 2
