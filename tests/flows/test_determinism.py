"""What a workflow's code must not wait for, and what happens when it does not fit what it did before."""

from __future__ import annotations

import asyncio
import re

import pytest

from weft import Context, ForeignAwait, RunStatus, StepFailed, Weft
from weft.errors import UserError
from weft.sdk.checking import check_runs


async def _sleep() -> None:
    await asyncio.sleep(1)


async def _thread() -> None:
    await asyncio.to_thread(print)


async def _socket() -> None:
    await asyncio.open_connection("127.0.0.1", 9)


async def _process() -> None:
    await asyncio.create_subprocess_exec("true")


async def _name_server() -> None:
    await asyncio.get_running_loop().getaddrinfo("localhost", 80)


async def _nobody() -> None:
    await asyncio.Event().wait()


@pytest.mark.parametrize("wait", [_sleep, _thread, _socket, _process, _name_server, _nobody], ids=lambda f: f.__name__)
async def test_foreign_awaits_are_refused_with_their_place(app: Weft, wait):
    @app.workflow
    async def flow(ctx: Context) -> None:
        await wait()

    async with app.worker():
        with pytest.raises(StepFailed) as caught:
            await (await flow.start()).result(timeout=10)
    assert caught.value.type == "ForeignAwait"
    line = wait.__code__.co_firstlineno + 1
    assert f"test_determinism.py:{line}" in str(caught.value)


async def test_a_future_of_another_loop_is_refused(app: Weft):
    outside = asyncio.get_running_loop().create_future()

    @app.workflow
    async def flow(ctx: Context) -> str:
        try:
            await outside
        except ForeignAwait as error:
            return str(error)
        return "?"

    async with app.worker():
        text = await (await flow.start()).result(timeout=10)
    assert re.search(r"awaits a Future of another event loop at .*test_determinism.py:\d+", text)


async def test_an_event_that_is_set_from_outside_is_refused(app: Weft, eventually):
    event: list[asyncio.Event] = []

    @app.workflow
    async def flow(ctx: Context) -> str:
        event.append(asyncio.Event())
        try:
            await ctx.race(event[0].wait(), ctx.sleep("1h"))
        except ForeignAwait as error:
            return error.code
        return "?"

    async with app.worker():
        run = await flow.start()

        async def waits() -> bool:
            return (await run.status()) == RunStatus.WAITING

        await eventually(waits)
        event[0].set()
        await run.signal("look")
        assert await run.result(timeout=10) == "foreign_await"


async def test_an_event_that_a_step_sets_is_refused_where_it_is_awaited(app: Weft):
    @app.workflow
    async def flow(ctx: Context) -> None:
        event = asyncio.Event()

        async def set_it() -> None:
            event.set()

        step = ctx.step(set_it)
        await event.wait()
        await step

    async with app.worker():
        with pytest.raises(
            StepFailed, match=r"something that is set from outside of it at .*test_determinism.py:\d+"
        ) as caught:
            await (await flow.start()).result(timeout=10)
    assert caught.value.type == "ForeignAwait"


async def test_what_others_use_too_is_refused(app: Weft):
    """A lock that tasks of the worker's loop wait for; the store, by verbs of the app; the same without a loop."""
    lock = asyncio.Lock()
    await lock.acquire()
    waiter = asyncio.ensure_future(lock.acquire())
    await asyncio.sleep(0)

    @app.task
    async def ping() -> None: ...

    @app.workflow
    async def flow(ctx: Context, what: str) -> None:
        if what == "lock":
            await lock.acquire()
        elif what == "store":
            await ping.enqueue()
        else:
            ping.sync.enqueue()

    async with app.worker():
        for what, said in (("lock", "Lock"), ("store", "the store"), ("sync", "a .sync verb")):
            with pytest.raises(StepFailed, match=rf"awaits .*{said}.* at .*test_determinism.py:\d+") as caught:
                await (await flow.start(what)).result(timeout=10)
            assert caught.value.type == "ForeignAwait"
        assert await app.runs.list(name="ping") == []
    waiter.cancel()


async def test_events_and_queues_between_tasks_of_one_workflow_work(app: Weft):
    @app.workflow
    async def flow(ctx: Context) -> list[int]:
        queue: asyncio.Queue[int] = asyncio.Queue(1)
        ready = asyncio.Event()

        async def produce() -> None:
            await ready.wait()
            for n in range(3):
                await ctx.sleep("5ms")
                await queue.put(n)

        task = asyncio.ensure_future(produce())
        ready.set()
        got = [await queue.get() for _ in range(3)]
        await task
        return got

    async with app.worker():
        assert await (await flow.start()).result(timeout=10) == [0, 1, 2]


async def test_a_generator_that_is_left_tidies_up_within_the_workflow(app: Weft, memory: str):
    @app.workflow
    async def flow(ctx: Context) -> list[str]:
        said: list[str] = []

        async def words():
            try:
                for word in ("a", "b", "c"):
                    yield await ctx.step(say, word)
            finally:
                said.append(await ctx.step(say, "tidy"))

        async for word in words():
            said.append(word)
            if word == "b":
                break
        await ctx.sleep("1ms")
        return said

    async with app.worker():
        assert await (await flow.start()).result(timeout=10) == ["a", "b", "tidy"]


async def say(word: str) -> str:
    return word


async def test_code_that_spins_fails_its_run_and_nothing_else(app: Weft, memory: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("weft.sdk.flowloop.MAX_CALLBACKS", 1_000)

    @app.workflow
    async def flow(ctx: Context, first: bool) -> None:
        if not first:
            await ctx.sleep("1ms")
        while True:
            await asyncio.sleep(0)

    async with app.worker(concurrency=1):
        for first in (True, False):
            with pytest.raises(StepFailed, match=r"a loop that never waits for a command at .*test_determinism.py:\d+"):
                await (await flow.start(first)).result(timeout=10)


async def test_a_context_is_of_no_use_inside_a_step(app: Weft):
    kept: list[Context] = []

    async def step() -> str:
        try:
            await kept[0].sleep(1)
        except UserError as error:
            return str(error)
        return "?"

    @app.workflow
    async def flow(ctx: Context) -> str:
        kept.append(ctx)
        return await ctx.step(step)

    async with app.worker():
        assert "outside of its code" in await (await flow.start()).result(timeout=10)


async def test_a_run_whose_code_was_changed_waits_with_a_diff_and_goes_on_with_the_right_code(
    app: Weft, memory: str, eventually
):
    ran: list[str] = []

    async def charge() -> str:
        ran.append("charge")
        return "paid"

    async def check() -> str:
        ran.append("check")
        return "ok"

    version = 1

    @app.workflow
    async def flow(ctx: Context) -> str:
        if version == 2:
            await ctx.step(check)
        paid = await ctx.step(charge)
        await ctx.receive("go")
        return paid

    run = await flow.start()

    async def waits() -> bool:
        return (await run.info()).status == RunStatus.WAITING

    async with app.worker():
        await eventually(waits)
    version = 2
    async with app.worker():
        await run.signal("go")

        async def diverged() -> bool:
            return (await run.explain()).reason == "diverged"

        await eventually(diverged)
        text = (await run.explain()).text
        assert "- step charge, completed" in text
        assert "+ step check" in text
        assert "test_determinism.py:" in text
        assert (await run.status()) == RunStatus.WAITING
    version = 1
    async with app.worker():
        await run.signal("look")
        assert await run.result(timeout=10) == "paid"
    assert ran == ["charge"]


async def test_a_marked_change_leaves_the_old_way_to_runs_that_were_there_before(app: Weft, eventually):
    ran: list[str] = []
    version = 1

    async def old() -> str:
        ran.append("old")
        return "old"

    async def new() -> str:
        ran.append("new")
        return "new"

    @app.workflow
    async def flow(ctx: Context) -> list[str]:
        got = []
        for _ in range(2):
            if version == 2 and ctx.changed("tax"):
                got.append(await ctx.step(new))
            else:
                got.append(await ctx.step(old))
            await ctx.receive("go")
        return got

    async def waits(run) -> None:
        async def waiting() -> bool:
            return (await run.info()).status == RunStatus.WAITING

        await eventually(waiting)

    async with app.worker():
        before = await flow.start()
        await waits(before)
    version = 2
    for _ in range(2):  # a worker of its own for every turn: nothing is in memory
        async with app.worker():
            if _ == 0:
                after = await flow.start()
                await waits(after)
            await before.signal("go")
            await after.signal("go")
            if _ == 0:
                await waits(before)
                await waits(after)
            else:
                assert await before.result(timeout=10) == ["old", "old"]
                assert await after.result(timeout=10) == ["new", "new"]
    assert sorted(ran) == ["new", "new", "old", "old"]
    assert [event.data["marker"] for event in await after.history() if event.type == "changed"] == ["tax"]


async def test_a_run_that_sleeps_behind_a_change_was_there_before_it(app: Weft, eventually):
    ran: list[str] = []
    version = 1

    async def old() -> None:
        ran.append("old")

    async def new() -> None:
        ran.append("new")

    @app.workflow
    async def flow(ctx: Context) -> float:
        await ctx.step(old)
        begun = ctx.now()
        if version == 2 and ctx.changed("tax"):
            await ctx.step(new)
        await ctx.sleep("1s")
        return (ctx.now() - begun).total_seconds()

    async with app.worker():
        run = await flow.start()

        async def waiting() -> bool:
            return (await run.info()).status == RunStatus.WAITING

        await eventually(waiting)
    version = 2
    assert [one.verdict for one in await check_runs(app)] == ["compatible"]
    async with app.worker():
        # Nothing in its journal tells that it came by: its last commit does.
        assert await run.result(timeout=10) < 2
    assert ran == ["old"]


@pytest.mark.leaves("open runs")
async def test_a_misfit_behind_a_change_is_told_by_the_way_that_the_run_goes(app: Weft, eventually):
    version = 1

    async def old() -> None: ...

    async def new() -> None: ...

    @app.workflow
    async def flow(ctx: Context) -> None:
        await ctx.step(old)
        if version == 2 and ctx.changed("tax"):
            await ctx.step(new)
        await ctx.receive("go" if version == 1 else "start")

    async def has(word: str) -> bool:
        return word in (await run.explain()).text

    async with app.worker():
        run = await flow.start()
        await eventually(lambda: has("receive signal:go"))
    version = 2
    (checked,) = await check_runs(app)
    assert "+ receive signal:start" in checked.text
    async with app.worker():
        await run.signal("go")
        await eventually(lambda: has("+ receive signal:start"))
