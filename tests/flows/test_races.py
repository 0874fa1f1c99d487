"""Races and signals: what a loser has received is there for the next receiver, in order. And what has no order is refused."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Awaitable, Callable

import pytest

from weft import Context, RunStatus, StepFailed, Weft
from weft.core.flow import Entry, Told
from weft.core.model import RunSpec
from weft.sdk.flowrun import WorkflowRun

pytestmark = pytest.mark.usefixtures("memory")

Both = Callable[[Context], Awaitable[tuple[int, object]]]


def _plain(ctx: Context) -> Awaitable[tuple[int, object]]:
    return ctx.race(ctx.receive("a"), ctx.receive("b"))


def _with_limits(ctx: Context) -> Awaitable[tuple[int, object]]:
    return ctx.race(ctx.receive("a", timeout="1h"), ctx.receive("b", timeout="1h"))


def _of_races(ctx: Context) -> Awaitable[tuple[int, object]]:
    return ctx.race(ctx.receive("a"), ctx.race(ctx.receive("b"), ctx.sleep("1h")))


def _of_gathered(ctx: Context) -> Awaitable[tuple[int, object]]:
    return ctx.race(ctx.receive("a"), asyncio.gather(ctx.receive("b"), ctx.receive("never")))


async def _cancelled_at_once(ctx: Context) -> tuple[int, object]:
    ctx.receive("b", timeout="1h").cancel()
    ctx.race(ctx.receive("b"), ctx.sleep("1h")).cancel()
    await asyncio.sleep(0)
    return 0, await ctx.receive("a")


@pytest.mark.parametrize(
    "both", [_plain, _with_limits, _of_races, _of_gathered, _cancelled_at_once], ids=lambda f: f.__name__
)
async def test_signals_that_losers_of_a_race_received_are_received_by_others(app: Weft, both: Both):
    @app.workflow
    async def flow(ctx: Context) -> list[object]:
        await ctx.receive("begin")
        first = await both(ctx)
        return [first[1], await ctx.receive("b"), await ctx.receive("b")]

    async with app.worker():
        run = await flow.start()
        for name, value in (("a", 1), ("b", 2), ("b", 3), ("begin", None)):
            await run.signal(name, value)
        assert await run.result(timeout=10) == [1, 2, 3]


async def test_a_signal_that_is_given_back_goes_to_who_waits_for_it(app: Weft):
    @app.workflow
    async def flow(ctx: Context) -> list[object]:
        await ctx.receive("begin")
        # The race takes b first; the task has waited for it since.
        racing = ctx.race(ctx.receive("a"), ctx.receive("b"))
        waits = ctx.receive("b")
        return [(await racing)[1], await waits]

    async with app.worker():
        run = await flow.start()
        for name, value in (("a", 1), ("b", 2), ("begin", None)):
            await run.signal(name, value)
        assert await run.result(timeout=10) == [1, 2]


async def test_the_order_in_which_results_come_is_that_of_the_first_time(app: Weft):
    async def same(i: int) -> int:
        return i

    @app.workflow
    async def below(ctx: Context, i: int) -> int:
        await ctx.sleep(f"{30 - 10 * i}ms")
        return i

    @app.workflow
    async def flow(ctx: Context) -> list[list[object]]:
        async def one(i: int) -> list[int]:
            return [i, await ctx.step(same, i)]

        tasks = [asyncio.create_task(one(i)) for i in range(20)]
        pairs = [await each for each in asyncio.as_completed(tasks)]
        children = [await each for each in asyncio.as_completed([ctx.child(below, i) for i in range(3)])]
        await ctx.sleep("10ms")
        return [sorted(pairs), sorted(children)]

    async with app.worker():
        pairs, children = await (await flow.start()).result(timeout=10)
    assert pairs == [[i, i] for i in range(20)]
    assert children == [0, 1, 2]


async def test_coroutines_that_asyncio_would_take_in_any_order_are_refused(app: Weft):
    @app.workflow
    async def flow(ctx: Context) -> None:
        async def one(i: int) -> None:
            await ctx.sleep(f"{i}ms")

        coros = [one(i) for i in range(3)]
        try:
            for each in asyncio.as_completed(coros):
                await each
        finally:
            for coro in coros:
                coro.close()

    async with app.worker():
        with pytest.raises(StepFailed, match=r"as_completed, at .*test_races.py:\d+.*asyncio.create_task") as caught:
            await (await flow.start()).result(timeout=10)
    assert caught.value.type == "ForeignAwait"


async def test_what_is_set_from_outside_is_refused_before_the_code_goes_on_with_it(app: Weft, memory: str, eventually):
    futures: list[asyncio.Future[int]] = []

    @app.workflow
    async def flow(ctx: Context) -> bool:
        futures.append(asyncio.get_running_loop().create_future())
        await asyncio.wait([futures[-1], ctx.receive("go")], return_when=asyncio.FIRST_COMPLETED)
        return futures[-1].done()

    async with app.worker():
        run = await flow.start()
        await eventually(lambda: _is(run, RunStatus.WAITING))
        futures[-1].set_result(1)
        await run.signal("go")
        if memory == "replayed":  # it was set in code that is let go
            assert await run.result(timeout=10) is False
            return
        with pytest.raises(StepFailed, match=r"set from outside of it at .*test_races.py:\d+"):
            await run.result(timeout=10)


async def _is(run: WorkflowRun[bool], status: RunStatus) -> bool:
    return await run.status() == status


async def test_a_foreign_await_is_named_whatever_wraps_it(app: Weft):
    @app.workflow
    async def grouped(ctx: Context) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(asyncio.sleep(1))

    @app.workflow
    async def wrapped(ctx: Context) -> None:
        try:
            await asyncio.sleep(1)
        except Exception as error:
            raise ConnectionError("no way") from error

    async with app.worker():
        for flow in (grouped, wrapped):
            with pytest.raises(StepFailed, match=r"asyncio.sleep at .*test_races.py:\d+") as caught:
                await (await flow.start()).result(timeout=10)
            assert caught.value.type == "ForeignAwait"


async def test_what_is_random_in_one_run_is_not_what_it_is_in_another(app: Weft):
    # Two ids with the same 32-bit checksum: among 77,000 runs there is such a pair more likely than not.
    ids = ["r0-EPNTM8MYKFDJYKHQ88X488", "r0-1AMC48V9DDJM2TWNNEHBA2"]
    assert len({zlib.crc32(id.encode()) for id in ids}) == 1
    found: dict[str, list[object]] = {}

    @app.workflow
    async def flow(ctx: Context) -> None:
        found[ctx.run_id] = [ctx.uuid(), ctx.random()]

    for id in ids:
        flow.program(id, RunSpec("flow"), flow.signature.encode((), {})).replay(Told([Entry(1, "begin", "-", "1 v")]))
    assert not set(found[ids[0]]) & set(found[ids[1]])


async def test_what_a_context_gives_can_be_put_in_tasks(app: Weft):
    did: list[int] = []

    async def double(n: int) -> int:
        did.append(n)
        return 2 * n

    @app.workflow
    async def below(ctx: Context) -> str:
        return "below"

    @app.workflow
    async def flow(ctx: Context) -> list[object]:
        first = asyncio.create_task(ctx.step(double, 1))
        given_up = asyncio.create_task(ctx.step(double, 100))
        given_up.cancel()  # before it begins
        async with asyncio.TaskGroup() as group:
            second = group.create_task(ctx.step(double, 2))
            group.create_task(ctx.sleep("10ms"))
            child = group.create_task(ctx.child(below))
        with pytest.raises(TypeError, match="a coroutine was expected, got 7"):
            asyncio.create_task(7)  # noqa: RUF006
        done, _ = await asyncio.wait([first, given_up])
        return [await first, second.result(), child.result(), given_up.cancelled(), len(done)]

    async with app.worker():
        assert await (await flow.start()).result(timeout=10) == [2, 4, "below", True, 2]
    assert sorted(set(did)) == [1, 2]


async def test_asyncio_waits_for_children_and_gives_up_when_its_time_is_over(app: Weft):
    @app.workflow
    async def child(ctx: Context, ms: int) -> int:
        await ctx.sleep(ms / 1000)
        return ms

    async def sleep(ctx: Context, ms: int) -> int:
        await ctx.sleep(ms / 1000)
        return ms

    @app.workflow
    async def flow(ctx: Context) -> list[object]:
        children = [ctx.child(child, ms) for ms in (60_000, 10)]
        done, left = await asyncio.wait(children, return_when=asyncio.FIRST_COMPLETED)  # type: ignore[type-var]
        told: list[object] = [[one.result() for one in done], [one.done() for one in left]]
        for one in left:
            one.cancel()
        came: list[object] = []
        tasks = [asyncio.create_task(sleep(ctx, ms)) for ms in (60_000, 5)]
        try:
            for first in asyncio.as_completed(tasks, timeout=0.1):
                came.append(await first)
        except TimeoutError:
            came.append("too late")
        return [*told, came]

    async with app.worker():
        assert await (await flow.start()).result(timeout=10) == [[10], [False], [5, "too late"]]
