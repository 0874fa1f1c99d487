"""What a workflow's code leaves running when it ends is cancelled and tidies up, as at the end of `asyncio.run`."""

from __future__ import annotations

import asyncio
import contextlib
import gc

import pytest

from weft import Conflict, Context, ForeignAwait, RunCancelled, RunStatus, StepFailed, Weft
from weft.core.flow import Entry, Told
from weft.core.model import RunSpec

pytestmark = pytest.mark.usefixtures("memory")


async def test_tasks_that_are_left_tidy_up_whatever_the_end(app: Weft, eventually):
    did: list[str] = []

    async def note(what: str) -> None:
        did.append(what)

    async def beside(ctx: Context) -> None:
        try:
            await ctx.sleep("1h")
        finally:
            await ctx.sleep("10ms")
            await ctx.step(note, "released")

    @app.workflow
    async def flow(ctx: Context, end: str) -> str:
        kept = asyncio.create_task(beside(ctx))
        await ctx.sleep("10ms")
        if end == "fails":
            raise ValueError("no")
        if end == "is cancelled":
            await ctx.receive("never")
        if end == "goes on":
            await ctx.continue_as_new("returns")
        return f"{end} {kept.done()}"

    async with app.worker():
        assert await (await flow.start("returns")).result(timeout=10) == "returns False"
        assert did == ["released"]
        with pytest.raises(StepFailed, match="ValueError: no"):
            await (await flow.start("fails")).result(timeout=10)
        assert did == ["released"] * 2
        run = await flow.start("is cancelled")
        await eventually(lambda: _waits(run))
        await run.cancel()
        with pytest.raises(RunCancelled):
            await run.result(timeout=10)
        assert did == ["released"] * 3
        await (await flow.start("goes on")).result(timeout=10)
        assert did == ["released"] * 5


async def test_what_a_task_still_does_while_its_run_fails_is_undone_too(app: Weft):
    did: list[str] = []

    async def book(what: str) -> None:
        did.append(f"+{what}")

    async def cancel(what: str) -> None:
        did.append(f"-{what}")

    async def hotel(ctx: Context) -> None:
        try:
            await ctx.sleep("1h")
        finally:  # what cannot be stopped any more
            await ctx.step(book, "hotel")
            ctx.on_failure(cancel, "hotel")

    async def flight(ctx: Context) -> None:
        await ctx.step(book, "flight")
        ctx.on_failure(cancel, "flight")
        raise ValueError("full")

    @app.workflow
    async def trip(ctx: Context) -> None:
        await asyncio.gather(hotel(ctx), flight(ctx))

    async with app.worker():
        with pytest.raises(StepFailed, match="full"):
            await (await trip.start()).result(timeout=10)
    assert did == ["+flight", "+hotel", "-hotel", "-flight"]


async def test_handlers_of_updates_tidy_up_when_their_run_is_cancelled(app: Weft, eventually):
    did: list[str] = []

    async def note(what: str) -> None:
        did.append(what)

    @app.workflow
    async def flow(ctx: Context) -> None:
        async def ask(value: int) -> int:
            await ctx.step(note, "begun")
            try:
                await ctx.receive("never")
            finally:
                await ctx.step(note, "released")
            return value

        ctx.on_update("ask", ask)
        await ctx.receive("also_never")

    async with app.worker():
        run = await flow.start()
        asked = asyncio.create_task(run.update("ask", 1))

        await eventually(lambda: did)
        await run.cancel()
        with pytest.raises(RunCancelled):
            await run.result(timeout=10)
        with pytest.raises(Conflict, match="has ended without an answer"):
            await asked
    assert did == ["begun", "released"]


async def test_a_task_that_does_not_let_itself_be_cancelled_is_waited_for(app: Weft):
    @app.workflow
    async def flow(ctx: Context) -> list[str]:
        left: list[str] = []

        async def beside() -> None:
            try:
                await ctx.sleep("1h")
            except asyncio.CancelledError:
                left.append("asked to end")
                await ctx.receive("end", timeout="20ms")

        asyncio.create_task(beside())  # noqa: RUF006 - that nobody keeps it is what this is about
        await ctx.sleep("10ms")
        return left

    async with app.worker():
        assert await (await flow.start()).result(timeout=10) == ["asked to end"]


async def _waits(run: object) -> bool:
    return await run.status() == RunStatus.WAITING  # type: ignore[attr-defined,no-any-return]


async def test_a_task_that_nobody_holds_runs_on(app: Weft, memory: str):
    told: list[str] = []

    async def feed() -> None:
        queue: asyncio.Queue[int] = asyncio.Queue(1)
        try:
            for n in range(3):
                await queue.put(n)
        finally:
            told.append("fed")

    async def tidy() -> list[str]:
        gc.collect()
        return list(told)

    @app.workflow
    async def flow(ctx: Context) -> list[str]:
        asyncio.create_task(feed())  # noqa: RUF006
        return await ctx.step(tidy)

    async with app.worker():
        # Only what it waits for holds it, and that only it: asyncio would let it go whenever memory is tidied.
        assert await (await flow.start()).result(timeout=10) == []


async def test_code_that_waits_for_nothing_and_does_not_give_in_fails(app: Weft, memory: str):
    @app.workflow
    async def stubborn(ctx: Context) -> None:
        while True:
            with contextlib.suppress(ForeignAwait):
                await asyncio.Event().wait()

    @app.workflow
    async def shielded(ctx: Context) -> str:
        async def forever() -> None:
            async with ctx.shield():
                await asyncio.Event().wait()

        asyncio.create_task(forever())  # noqa: RUF006
        await ctx.sleep("1ms")
        return "done"

    async with app.worker():
        for flow in (stubborn, shielded):
            run = await flow.start()
            with pytest.raises(StepFailed, match=r"nobody will ever set at .*test_left_running.py:\d+") as caught:
                await run.result(timeout=10)
            assert caught.value.type == "ForeignAwait"


async def test_an_error_that_nobody_awaits_is_told_once(app: Weft, eventually, caplog: pytest.LogCaptureFixture):
    async def wrong() -> None:
        raise ValueError("unseen")

    @app.workflow
    async def flow(ctx: Context) -> str:
        asyncio.create_task(wrong())  # noqa: RUF006
        return str(await ctx.receive("go"))

    async with app.worker():
        run = await flow.start()
        await eventually(lambda: _waits(run))
        await run.signal("go", "done")  # which is a second turn, or a replay
        assert await run.result(timeout=10) == "done"
    told = [record.getMessage() for record in caplog.records if "nobody awaited it" in record.getMessage()]
    assert len(told) == 1 and "unseen" in told[0] and run.id in told[0]


def test_code_that_nobody_let_go_ends_in_silence(app: Weft):
    told: list[str] = []

    @app.workflow
    async def flow(ctx: Context) -> None:
        asyncio.create_task(ctx.sleep("1h"))  # noqa: RUF006
        try:
            await ctx.receive("go")
        finally:
            told.append("out")

    program = flow.program("1-1", RunSpec("flow"), flow.signature.encode((), {}))
    program.replay(Told([Entry(1, "begin", "-", "1 v")]))
    assert not program.done
    del program
    gc.collect()  # a coroutine that waits on its way out is an error that pytest shows
    assert told == ["out"]


@pytest.mark.parametrize("how", ["gather", "task", "group", "limit", "thread", "timer", "earlier"])
async def test_code_that_is_let_go_reaches_nothing_on_its_way_out(app: Weft, eventually, how: str):
    reached: list[str] = []

    async def note(ctx: Context) -> None:
        if ctx.is_closed:
            reached.append("a task of its own")
        await ctx.sleep("1ms")

    @app.workflow
    async def flow(ctx: Context) -> str:
        before = asyncio.create_task(ctx.receive("never"))
        try:
            await ctx.receive("go")
        finally:
            if not ctx.is_closed:
                return "done"  # noqa: B012
            if how == "gather":
                await asyncio.gather(note(ctx), note(ctx))
            elif how == "task":
                await asyncio.create_task(note(ctx))
            elif how == "group":
                async with asyncio.TaskGroup() as group:
                    group.create_task(note(ctx))
            elif how == "limit":
                async with asyncio.timeout(0.01):
                    reached.append("a time limit")
            elif how == "thread":
                await asyncio.to_thread(reached.append, "a thread")
            elif how == "timer":
                asyncio.get_running_loop().call_later(0, reached.append, "a timer")
            else:
                await before
            reached.append("the next line")

    async with app.worker():
        run = await flow.start()
        await eventually(lambda: _waits(run))
        await asyncio.sleep(0.02)
    gc.collect()  # tasks that failed and were not awaited are told of then, which pytest shows
    assert reached == []
    async with app.worker():
        await run.signal("go")
        assert await run.result(timeout=10) == "done"


async def test_code_that_is_let_go_logs_nothing(app: Weft, eventually, caplog: pytest.LogCaptureFixture):
    @app.workflow
    async def flow(ctx: Context) -> None:
        try:
            await ctx.receive("go")
        finally:
            ctx.log.warning("it is over")

    async with app.worker():
        run = await flow.start()
        await eventually(lambda: _waits(run))
    assert "it is over" not in caplog.text
    async with app.worker():
        await run.signal("go")
        await run.result(timeout=10)
    assert caplog.text.count("it is over") == 1
    assert [line.message for line in await run.logs()] == ["it is over"]
