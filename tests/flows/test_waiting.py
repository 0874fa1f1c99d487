"""What a workflow's code may wait for, and that it comes to the same end with and without its code in memory."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from weft import Context, Fatal, NotFound, Retry, RunCancelled, StepFailed, Weft, current
from weft.engine import flows as verbs
from weft.ids import partition_of

pytestmark = pytest.mark.usefixtures("memory")


async def test_steps_are_not_run_again(app: Weft):
    ran: list[str] = []

    async def effect(name: str) -> str:
        ran.append(name)
        return name.upper()

    @app.workflow
    async def flow(ctx: Context) -> list[str]:
        a = await ctx.step(effect, "a")
        await ctx.sleep("20ms")
        b = await ctx.step(effect, "b")
        await ctx.sleep("20ms")
        c = await ctx.step(effect, "c")
        return [a, b, c]

    async with app.worker():
        assert await (await flow.start()).result(timeout=10) == ["A", "B", "C"]
    assert ran == ["a", "b", "c"]


async def test_a_race_gives_index_and_value_and_cancels_the_losers(app: Weft):
    @app.task
    async def slow() -> None:
        await asyncio.sleep(60)

    @app.workflow
    async def flow(ctx: Context) -> list[object]:
        first = await ctx.race(ctx.sleep("1h"), ctx.receive("go"), ctx.call(slow))
        second = await ctx.race(ctx.sleep("10ms"), ctx.receive("never"))
        return [first, second]

    async with app.worker():
        run = await flow.start()
        await run.signal("go", "now")
        assert await run.result(timeout=10) == [[1, "now"], [0, None]]


async def test_a_receive_times_out(app: Weft):
    @app.workflow
    async def flow(ctx: Context) -> str:
        try:
            await ctx.receive("paid", timeout="30ms")
        except TimeoutError as error:
            return str(error)
        return "?"

    async with app.worker():
        assert "signal paid did not come within" in await (await flow.start()).result(timeout=10)


async def test_a_workflow_signals_any_run_by_its_id(app: Weft):
    @app.workflow
    async def hears(ctx: Context) -> list[int]:
        return [await ctx.receive("n", type=int) for _ in range(2)]

    @app.workflow
    async def tells(ctx: Context, run: str) -> list[str]:
        refused = []
        await ctx.signal(run, "n", 1)
        await ctx.sleep("5ms")
        await ctx.signal(run, "n", 2)
        try:
            await ctx.signal("nobody", "n")
        except NotFound as error:
            refused.append(error.message[:20])
        return refused

    async with app.worker():
        run = await hears.start()
        assert await (await tells.start(run.id)).result(timeout=10) == ["there is no run 'nob"]
        assert await run.result(timeout=10) == [1, 2]
    assert [event.type for event in await run.history()].count("signalled") == 2


async def test_a_signal_of_another_type_is_refused_where_it_is_received(app: Weft):
    @app.workflow
    async def flow(ctx: Context) -> str:
        try:
            await ctx.receive("n", type=int)
        except Exception as error:
            return type(error).__name__
        return "?"

    async with app.worker():
        run = await flow.start()
        await run.signal("n", "five")
        assert await run.result(timeout=10) == "PayloadRefused"


async def test_gather_task_groups_and_timeouts_of_asyncio_work(app: Weft):
    async def double(n: int) -> int:
        return 2 * n

    @app.task
    async def triple(n: int) -> int:
        return 3 * n

    async def branch(ctx: Context, n: int) -> int:
        await ctx.sleep(n / 200)
        return await ctx.step(double, n) + await ctx.call(triple, n)

    @app.workflow
    async def flow(ctx: Context) -> list[object]:
        gathered = await asyncio.gather(*(branch(ctx, n) for n in (3, 2, 1)))
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(branch(ctx, n)) for n in range(3)]
        late = ""
        try:
            async with asyncio.timeout(0.03):
                await ctx.receive("never")
        except TimeoutError:
            late = "late"
        async with asyncio.timeout(60):
            await ctx.sleep("5ms")
        return [gathered, [task.result() for task in tasks], late]

    async with app.worker():
        assert await (await flow.start()).result(timeout=20) == [[15, 10, 5], [0, 5, 10], "late"]


async def test_a_task_group_fails_as_in_asyncio(app: Weft):
    async def bad() -> None:
        raise Fatal("no")

    @app.workflow
    async def flow(ctx: Context) -> list[str]:
        seen = []
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(_wrapped(ctx.step(bad)))
                group.create_task(_noted(ctx, seen))
        except* StepFailed as failed:
            seen += [error.type for error in failed.exceptions]
        return seen

    async def _wrapped(awaitable):
        return await awaitable

    async def _noted(ctx: Context, seen: list[str]):
        try:
            await ctx.sleep("1h")
        except asyncio.CancelledError:
            seen.append("cancelled")
            raise

    async with app.worker():
        assert await (await flow.start()).result(timeout=10) == ["cancelled", "Fatal"]


async def test_a_map_keeps_order_and_bounds_what_runs(app: Weft):
    running = most = 0

    @app.task
    async def square(n: int) -> int:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.005)
        running -= 1
        return n * n

    @app.workflow
    async def flow(ctx: Context) -> list[int]:
        return await ctx.map(square, range(12), max_parallel=3)

    async with app.worker():
        assert await (await flow.start()).result(timeout=20) == [n * n for n in range(12)]
    assert most <= 3


async def test_steps_are_retried_after_a_durable_back_off(app: Weft):
    attempts: list[int] = []

    async def flaky() -> str:
        attempts.append(current().attempt)
        if len(attempts) < 3:
            raise Retry(after="10ms")
        return "done"

    async def hopeless() -> None:
        raise Fatal("bad input")

    @app.workflow
    async def flow(ctx: Context) -> list[str]:
        done = await ctx.options(retries=5).step(flaky)
        try:
            await ctx.options(retries=5).step(hopeless)
        except StepFailed as error:
            return [done, error.type, error.args[0]]
        return []

    async with app.worker():
        assert await (await flow.start()).result(timeout=10) == ["done", "Fatal", "Fatal: bad input"]
    assert attempts == [1, 2, 3]


async def test_now_uuid_and_random_are_the_same_in_every_replay(app: Weft):
    seen: list[tuple[object, ...]] = []

    @app.workflow
    async def flow(ctx: Context) -> None:
        first = (ctx.now(), ctx.uuid(), ctx.random())
        await ctx.sleep("10ms")
        seen.append((*first, ctx.now(), ctx.uuid()))
        await ctx.sleep("10ms")
        seen.append((*first,))

    async with app.worker():
        await (await flow.start()).result(timeout=10)
    assert seen[0][:3] == seen[-1]
    assert seen[0][3] - seen[0][0] >= timedelta(milliseconds=10)


async def test_the_state_and_the_log_are_seen_from_outside(app: Weft, eventually):
    @app.workflow
    async def flow(ctx: Context) -> None:
        ctx.set_state(phase="packing", n=1)
        ctx.log.info("packing", n=1)
        await ctx.receive("go")
        ctx.set_state(phase="sent")
        ctx.log.info("sent")

    async with app.worker():
        run = await flow.start()

        async def waits() -> bool:
            return (await run.status()) == "waiting"

        await eventually(waits)
        assert await run.state() == {"phase": "packing", "n": 1}
        told = await run.explain()
        assert told.reason == "awaiting" and "signal:go" in told.text and "test_waiting.py:" in told.text
        await run.signal("go")
        await run.result(timeout=10)
        assert (await run.info()).state == {"phase": "sent", "n": 1}
        assert [line.message for line in await run.logs()] == ["packing", "sent"]


async def test_cancellation_is_a_cancelled_error_and_clean_up_runs(app: Weft, eventually):
    done: list[str] = []

    async def clean(name: str) -> None:
        done.append(name)

    @app.workflow
    async def flow(ctx: Context) -> None:
        ctx.on_failure(clean, "first")
        ctx.on_failure(clean, "second")
        try:
            await ctx.receive("never")
        finally:
            async with ctx.shield():
                await ctx.step(clean, "finally")
                await ctx.sleep("10ms")
                await ctx.step(clean, "slept")

    async with app.worker():
        run = await flow.start()

        async def waits() -> bool:
            return (await run.status()) == "waiting"

        await eventually(waits)
        assert await run.cancel("not needed")
        with pytest.raises(RunCancelled, match="not needed"):
            await run.result(timeout=10)
        assert (await run.status()) == "cancelled"
    assert done == ["finally", "slept", "second", "first"]


async def test_a_call_that_begins_with_the_cancellation_ends_with_it(app: Weft, monkeypatch, raw, eventually):
    """The commit that opens it takes the mail that cancels its run; clean-up goes on for long."""
    monkeypatch.setattr("weft.worker.flows.Flows.notify", lambda self, run: None)

    @app.task(queue="nobody")
    async def never() -> None: ...

    async def cancel_itself(run: str) -> None:
        await app.runs.get(run).cancel()

    @app.workflow
    async def flow(ctx: Context) -> None:
        await ctx.step(cancel_itself, ctx.run_id)
        try:
            await ctx.call(never)
        finally:
            async with ctx.shield():
                await ctx.receive("enough")

    async with app.worker():
        run = await flow.start()
        keys, p = app.engine().ns.keys, partition_of(run.id)
        await eventually(lambda: raw.hget(keys.run(p, f"{run.id}/never"), "open") or b"")
        await eventually(lambda: raw.hget(keys.run(p, f"{run.id}/never"), "open").startswith(b"="))
        assert await run.status() == "waiting"
        types = [event.type for event in await run.history()]
        assert types.index("resumed") == types.index("step_opened") - 1
        monkeypatch.undo()
        await run.signal("enough")
        with pytest.raises(RunCancelled):
            await run.result(timeout=10)


async def test_a_run_that_has_not_begun_is_cancelled_at_once(app: Weft):
    @app.workflow
    async def flow(ctx: Context) -> None: ...

    run = await flow.start()
    assert await run.cancel()
    assert (await run.status()) == "cancelled"
    async with app.worker():
        with pytest.raises(RunCancelled):
            await run.result(timeout=5)


async def test_large_values_go_through_steps_calls_and_results(app: Weft):
    size = 100_000

    async def make() -> str:
        return "a" * size

    @app.task
    async def measure(text: str) -> str:
        return text + "b"

    @app.workflow
    async def flow(ctx: Context, text: str) -> str:
        made = await ctx.step(make)
        longer = await ctx.call(measure, made)
        await ctx.sleep("10ms")
        return longer + text

    async with app.worker():
        run = await flow.start("c" * size)
        assert await run.result(timeout=10) == "a" * size + "b" + "c" * size


async def test_the_large_result_of_a_step_is_at_hand_and_need_not_be_read_back(app: Weft, monkeypatch, memory: str):
    monkeypatch.setattr("weft.store.blobs.LARGE", 10_000)  # its digest is made in a thread
    fetched = []
    fetch = verbs.fetch

    async def note(ns, p, run, entries):
        fetched.extend(entry for entry in entries if entry.key == "much")
        await fetch(ns, p, run, entries)

    monkeypatch.setattr(verbs, "fetch", note)

    async def much() -> bytes:
        return b"x" * 50_000

    @app.workflow
    async def flow(ctx: Context) -> list[int]:
        first = await ctx.step(much)
        await ctx.sleep("200ms")
        return [len(first), len(await ctx.step(much))]

    async with app.worker():
        assert await (await flow.start()).result(timeout=10) == [50_000, 50_000]
    # Code that is made anew is told from the journal, which only names it.
    assert bool(fetched) == (memory == "replayed")


async def test_a_step_that_takes_too_long_fails_and_nothing_else_does(app: Weft, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("weft.worker.inline.COARSE_MS", 60)

    async def slow() -> None:
        await asyncio.sleep(60)

    async def swallows() -> str:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            raise ValueError("stopped") from None
        return "?"

    @app.workflow
    async def flow(ctx: Context) -> list[str]:
        said = []
        for limit in ("30ms", "90ms"):
            for fn in (slow, swallows):
                try:
                    await ctx.options(timeout=limit).step(fn)
                except StepFailed as error:
                    said.append(error.type)
        return said

    async with app.worker():
        assert await (await flow.start()).result(timeout=15) == ["TimeoutError"] * 4


async def test_a_run_in_its_first_step_is_cancelled_where_it_waits(app: Weft):
    entered = asyncio.Event()
    seen: list[str] = []

    async def slow() -> None:
        entered.set()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            seen.append("step")
            raise

    async def clean() -> None:
        seen.append("clean")

    @app.workflow
    async def flow(ctx: Context) -> None:
        try:
            await ctx.step(slow)
        except asyncio.CancelledError:
            await ctx.step(clean)
            raise

    async with app.worker():
        run = await flow.start()
        await entered.wait()
        assert await run.cancel("enough")
        with pytest.raises(RunCancelled, match="enough"):
            await run.result(timeout=10)
    assert sorted(seen) == ["clean", "step"]


async def test_code_that_exits_fails_only_its_run(app: Weft):
    @app.workflow
    async def flow(ctx: Context, leave: bool) -> int:
        if leave:
            raise SystemExit(3)
        return 1

    async with app.worker():
        with pytest.raises(StepFailed) as caught:
            await (await flow.start(True)).result(timeout=10)
        assert caught.value.type == "SystemExit"
        assert await (await flow.start(False)).result(timeout=10) == 1


async def test_lines_that_were_sent_ahead_go_with_the_run(app: Weft, monkeypatch: pytest.MonkeyPatch, eventually):
    monkeypatch.setattr("weft.worker.worker.LINES_SECONDS", 0.0)
    go = asyncio.Event()

    async def step() -> None:
        current().log.info("half way")
        await go.wait()

    @app.workflow
    async def flow(ctx: Context) -> None:
        await ctx.step(step)

    async with app.worker():
        run = await flow.start()

        async def told() -> bool:
            return bool(await run.logs())

        await eventually(told)
        go.set()
        await run.result(timeout=10)
        assert [line.message for line in await run.logs()] == ["half way"]
