"""What a durable engine is judged by, each with code that stays in memory and with code that is made anew at every turn."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from weft import AlreadyRunning, Conflict, Context, RunCancelled, StepFailed, Weft, current
from weft.ids import partition_of


@pytest.fixture(autouse=True)
def both(memory: str) -> None:
    """Every test here runs twice."""


async def test_the_exact_history_of_a_simple_workflow(app: Weft):
    async def charge() -> int:
        return 1

    @app.task
    async def pack() -> int:
        return 2

    @app.workflow
    async def simple(ctx: Context) -> int:
        a = await ctx.step(charge)
        await ctx.sleep("5ms")
        return a + await ctx.call(pack)

    async with app.worker():
        run = await simple.start()
        assert await run.result(timeout=10) == 3
    assert [(event.type, event.step) for event in await run.history()] == [
        ("queued", ""),
        ("began", ""),
        ("step_completed", "charge"),
        ("timer_fired", "$sleep"),
        ("step_opened", "pack"),
        ("step_completed", "pack"),
        ("resumed", ""),
        ("completed", ""),
    ]


async def test_a_hundred_parallel_calls_race(app: Weft):
    @app.task
    async def wait(n: int) -> int:
        await asyncio.sleep(3600 if n != 7 else 0)
        return n

    @app.workflow
    async def race(ctx: Context) -> list[object]:
        i, value = await ctx.race(*(ctx.call(wait, n) for n in range(100)))
        return [i, value]

    async with app.worker(concurrency=150):
        assert await (await race.start()).result(timeout=30) == [7, 7]


async def test_what_no_worker_has_rests_until_one_registers(server, namespace, eventually, short_lease, raw):
    """The workflow is unknown first, then the task that it calls."""

    def beside(name: str) -> Weft:
        return Weft(name, redis_url=server.url, namespace=namespace)

    apps = beside("neither"), beside("flow"), beside("both")

    @apps[2].task
    async def pack() -> str:
        return "packed"

    async def flow(ctx: Context) -> str:
        return await ctx.call(pack)

    for one in apps[1:]:
        one.workflow(flow)

    def rests(id: str) -> bool:
        return any(member.endswith(f" {id}".encode()) for member in raw.zrange(keys.unserved(p), 0, -1))

    async with contextlib.AsyncExitStack() as stack:
        for one in apps:
            await stack.enter_async_context(one)
        run = await apps[2].workflows["flow"].start()
        p, keys = partition_of(run.id), apps[2].engine().ns.keys
        await stack.enter_async_context(apps[0].worker())
        await eventually(lambda: rests(run.id))
        why = await run.explain()
        assert (why.reason, "it rests until one registers" in why.text) == ("no_worker", True)
        await stack.enter_async_context(apps[1].worker())
        await eventually(lambda: rests(f"{run.id}/pack"))
        await stack.enter_async_context(apps[2].worker())
        assert await run.result(timeout=15) == "packed"
        await eventually(lambda: not raw.exists(keys.unserved(p)))


async def test_arguments_that_do_not_fit_the_code_any_more_fail_the_run(app: Weft):
    @app.workflow(name="flow")
    async def old(ctx: Context, n: int) -> int:
        return n

    run = await old.start(5)
    del app.workflows["flow"]

    @app.workflow(name="flow")
    async def new(ctx: Context, text: str) -> str:
        return text

    async with app.worker():
        with pytest.raises(StepFailed, match="text: str") as caught:
            await run.result(timeout=10)
        assert caught.value.type == "InvalidArguments"


async def test_signals_before_the_start_while_it_runs_and_after_its_end(app: Weft):
    @app.workflow
    async def flow(ctx: Context) -> list[int]:
        return [await ctx.receive("n") for _ in range(2)]

    run = await flow.start()
    await run.signal("n", 1)
    async with app.worker():
        while await run.status() != "waiting":
            pass
        await run.signal("n", 2)
        assert await run.result(timeout=10) == [1, 2]
        with pytest.raises(Conflict, match="has ended"):
            await run.signal("n", 3)


async def test_ids_of_children_that_are_taken_and_that_are_free_again(app: Weft, quiet):
    @app.workflow
    async def below(ctx: Context) -> str:
        return str(await ctx.receive("go"))

    @app.workflow
    async def above(ctx: Context) -> list[str]:
        first = ctx.options(id="one").child(below)
        await first.signal("go", "a")  # it has its id by then
        held = ctx.options(id="two").child(below)
        await held.signal("other")
        found = []
        try:
            await ctx.options(id="two").child(below)
        except AlreadyRunning as error:
            found.append(type(error).__name__)
        found.append(await first)
        again = ctx.options(id="one").child(below)
        await again.signal("go", "b")
        found.append(await again)
        await held.signal("go", "c")
        return [*found, await held]

    async with app.worker():
        run = await above.start()
        assert await run.result(timeout=15) == ["AlreadyRunning", "a", "b", "c"]
        await quiet()
        outside = await below.options(id="one").start()
        with pytest.raises(AlreadyRunning):
            await below.options(id="one").start()
        await outside.signal("go", "d")
        assert await outside.result(timeout=10) == "d"


async def test_a_child_is_cancelled_before_it_starts_and_one_runs_on_another_queue(app: Weft, quiet):
    ran: list[str] = []

    @app.workflow(queue="nobody")
    async def below(ctx: Context) -> None:
        ran.append("below")

    @app.workflow
    async def elsewhere(ctx: Context) -> str:
        return "there"

    @app.workflow
    async def above(ctx: Context) -> list[str]:
        child = ctx.child(below)
        await ctx.race(child, ctx.sleep("30ms"))
        return [child.id, await ctx.options(queue="other").child(elsewhere)]

    async with app.worker(queues=["default", "other"]):
        child, there = await (await above.start()).result(timeout=15)
        assert there == "there"
        with pytest.raises(RunCancelled):
            await app.runs.get(child).result(timeout=10)
        await quiet()
    assert not ran


async def test_errors_keep_type_message_and_causes(app: Weft):
    class Empty(Exception): ...

    async def charge() -> None:
        try:
            raise KeyError("account")
        except KeyError as error:
            raise Empty("no money") from error

    @app.workflow
    async def flow(ctx: Context) -> list[object]:
        try:
            await ctx.step(charge)
        except StepFailed as error:
            await ctx.sleep("1ms")
            return [error.type, error.causes[0]["type"], "Empty: no money" in str(error), "charge" in error.traceback]
        return []

    async with app.worker():
        assert await (await flow.start()).result(timeout=10) == ["Empty", "KeyError", True, True]


async def test_what_several_tasks_failed_with_is_told_one_by_one(app: Weft):
    async def burst(word: str) -> None:
        raise ValueError(word)

    @app.workflow
    async def flow(ctx: Context) -> None:
        async def one(word: str) -> None:
            async with ctx.shield():  # the first failure does not end the other
                await ctx.sleep("1ms")
                await ctx.step(burst, word)

        async with asyncio.TaskGroup() as group:
            for word in ("left", "right"):
                group.create_task(one(word))

    async with app.worker():
        with pytest.raises(StepFailed) as caught:
            await (await flow.start()).result(timeout=10)
    assert caught.value.type == "ExceptionGroup"
    assert [cause["message"] for cause in caught.value.causes] == ["ValueError: left", "ValueError: right"]


async def test_steps_and_calls_see_their_attempt_and_long_ones_tell_that_they_live(app: Weft):
    seen: list[int] = []

    async def step() -> int:
        seen.append(current().attempt)
        if current().attempt < 3:
            raise ValueError
        return current().attempt

    @app.task(retries=2, retry_delay="1ms", jitter=False)
    async def task() -> int:
        current().heartbeat()
        current().progress(0.5, "half")
        if current().attempt < 3:
            raise ValueError
        return current().attempt

    @app.workflow
    async def flow(ctx: Context) -> list[int]:
        inline = await ctx.options(retries=2, retry_delay="1ms", jitter=False).step(step)
        return [inline, await ctx.call(task)]

    async with app.worker():
        assert await (await flow.start()).result(timeout=15) == [3, 3]
    assert seen == [1, 2, 3]


async def test_timers_are_cancelled_before_and_when_and_after_they_fire(app: Weft, quiet):
    @app.workflow
    async def flow(ctx: Context) -> list[object]:
        never = ctx.sleep("1h")
        never.cancel()  # before it is known anywhere
        waiting = ctx.sleep("1h")
        await ctx.sleep("5ms")
        waiting.cancel()  # while it runs
        short, other = ctx.sleep("5ms"), ctx.sleep("5ms")
        await short
        late = other.cancel()  # it fires at the same moment
        done = short.cancel()  # it has fired
        await ctx.sleep("5ms")
        return [never.cancelled(), waiting.cancelled(), done, late or other.done()]

    async with app.worker():
        assert await (await flow.start()).result(timeout=10) == [True, True, False, True]
        await quiet()


async def test_what_a_run_had_goes_with_it(app: Weft, raw, quiet):
    @app.workflow(keep_result="2s")
    async def flow(ctx: Context) -> int:
        ctx.on_update("n", lambda: 1)
        await ctx.receive("go")
        return 1

    async with app.worker():
        run = await flow.start()
        assert await run.update("n", timeout=10) == 1
        await run.signal("go")
        await run.result(timeout=10)
        await quiet()
        own = [key for key in raw.scan_iter(f"{app.engine().ns.keys.namespace}:*") if run.id.encode() in key]
        assert own and all(0 < raw.pttl(key) <= 2_000 for key in own)
