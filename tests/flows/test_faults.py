"""Workflows and the faults of workers, stores and operators."""

from __future__ import annotations

import asyncio

import pytest

from weft import Context, RunStatus, Snooze, StepFailed, Weft, current
from weft.testing import Harness


async def _until(run, status: str, eventually) -> None:
    async def reached() -> bool:
        return (await run.status()) == status

    await eventually(reached)


async def test_thirty_days_take_milliseconds_on_a_virtual_clock(app: Weft, weft_worker, weft_clock):
    @app.workflow
    async def month(ctx: Context) -> float:
        began = ctx.now()
        for _ in range(30):
            await ctx.sleep("1d")
        return (ctx.now() - began).total_seconds() / 86_400

    run = await month.start()
    await weft_worker.run_until_idle(advance=True)
    assert 30 <= await run.result(timeout=5) < 30.1


async def test_a_worker_that_stops_hands_its_flows_to_the_next(app: Weft):
    ran: list[int] = []
    entered = asyncio.Event()

    async def step(n: int) -> int:
        ran.append(n)
        if n == 2 and ran.count(2) == 1:
            entered.set()
            await asyncio.sleep(60)
        return n

    @app.workflow
    async def flow(ctx: Context) -> list[int]:
        return [await ctx.step(step, n) for n in range(4)]

    async with app.worker(grace=0.05):
        run = await flow.start()
        await entered.wait()
    assert (await run.status()) == RunStatus.QUEUED
    async with app.worker():
        assert await run.result(timeout=10) == [0, 1, 2, 3]
    # What was committed is not run again; what was cut off is.
    assert ran == [0, 1, 2, 2, 3]
    assert (await run.info()).crashes == 0


async def test_a_stopping_worker_leaves_a_long_flow_at_the_next_boundary(app: Weft):
    entered = asyncio.Event()

    async def step(n: int) -> int:
        entered.set()
        await asyncio.sleep(0.002)
        return n

    @app.workflow
    async def flow(ctx: Context) -> int:
        return sum([await ctx.step(step, n) for n in range(300)])

    async with app.worker(grace=30):
        run = await flow.start()
        await entered.wait()
    assert (await run.status()) == RunStatus.QUEUED
    async with app.worker():
        assert await run.result(timeout=30) == sum(range(300))


async def test_what_the_code_shows_and_logs_behind_the_boundary_where_a_worker_left_is_seen(app: Weft, eventually):
    begun = asyncio.Event()

    async def slow() -> None:
        begun.set()
        await asyncio.sleep(0.1)

    @app.workflow
    async def flow(ctx: Context) -> None:
        ctx.log.info("before")
        await ctx.step(slow)
        ctx.set_state(phase="behind")
        ctx.log.info("behind")
        await ctx.receive("go")

    async with app.worker():
        run = await flow.start()
        await begun.wait()
    assert await run.state() == {}
    async with app.worker():

        async def shown() -> bool:
            return await run.state() == {"phase": "behind"}

        await eventually(shown)
        await run.signal("go")
        await run.result(timeout=10)
    assert [line.message for line in await run.logs()] == ["before", "behind"]


async def test_two_workers_share_the_turns_of_one_run(app: Weft, memory: str):
    ran: list[int] = []

    async def step(n: int) -> int:
        ran.append(n)
        return n

    @app.task
    async def add(n: int) -> int:
        return n + 1

    @app.workflow
    async def flow(ctx: Context) -> list[int]:
        got = []
        for n in range(8):
            got.append(await ctx.call(add, await ctx.step(step, n)))
        return got

    async with app.worker(), app.worker():
        runs = [await flow.start() for _ in range(5)]
        for run in runs:
            assert await run.result(timeout=30) == list(range(1, 9))
    assert sorted(ran) == sorted(list(range(8)) * 5)


async def test_a_worker_that_lost_its_session_changes_nothing(app: Weft, monkeypatch: pytest.MonkeyPatch, raw):
    """The token is taken from a worker in the middle of a step, as the sweeper does; its commit is refused."""
    entered, go = asyncio.Event(), asyncio.Event()
    ran: list[str] = []

    async def step() -> str:
        ran.append("step")
        if len(ran) == 1:
            entered.set()
            await go.wait()
        return f"run {len(ran)}"

    @app.workflow
    async def flow(ctx: Context) -> str:
        return await ctx.step(step)

    async with app.worker():
        run = await flow.start()
        await entered.wait()
        ns = app.engine().ns
        p = 0 if ns.partitions == 1 else int(run.id[1 : run.id.index("-")])
        key = ns.keys.run(p, run.id)
        token = raw.hget(key, "open").decode()
        entry = raw.xadd(ns.keys.tasks(p, "default", 5), {"r": run.id, "s": raw.hget(key, "spec"), "n": "2:1"}).decode()
        raw.hset(key, "open", f"2:{entry}")
        raw.xack(ns.keys.tasks(p, "default", 5), "weft", token.partition(":")[2])
        raw.xdel(ns.keys.tasks(p, "default", 5), token.partition(":")[2])
        go.set()
        assert await run.result(timeout=15) == "run 2"


async def test_a_call_that_outlives_the_lease_of_its_worker_is_given_to_another(
    app: Weft, start_worker, short_lease, memory: str, eventually
):
    """Its worker falls silent in the middle of the work and goes on later: what it says then is refused."""
    entered, go, refused = asyncio.Event(), asyncio.Event(), asyncio.Event()

    @app.task(queue="far")
    async def long() -> int:
        delivery = current().delivery
        if delivery == 1:
            entered.set()
            try:
                await go.wait()
            finally:
                refused.set()
        return delivery

    @app.workflow
    async def flow(ctx: Context) -> list[int]:
        return [await ctx.call(long), await ctx.call(long)]

    await start_worker()
    silent = await start_worker(queues=["far"])
    run = await flow.start()
    await entered.wait()
    silent._pulse.stop()
    for lane in silent.lanes:
        await lane.stop_claiming()
    other = await start_worker(queues=["far"])

    # The second call is delivered once only, to whoever is there.
    go_on = asyncio.ensure_future(run.result(timeout=20))
    await eventually(lambda: go_on.done() or any(e.token.run.endswith("long~1") for e in other.running.values()))
    go.set()
    await refused.wait()
    assert await go_on == [2, 1]
    events = [(event.type, event.step) for event in await run.history()]
    assert events.count(("step_completed", "long")) == 1
    assert events.index(("step_opened", "long")) < events.index(("step_reclaimed", "long"))
    assert events.index(("step_reclaimed", "long")) < events.index(("step_completed", "long"))


async def test_attempts_of_calls_are_told_by_their_workflow(app: Weft):
    @app.task(retries=1, retry_delay="10ms")
    async def moody() -> int:
        if current().delivery == 1:
            raise Snooze("10ms")
        if current().attempt == 1:
            raise ValueError("not now")
        return current().attempt

    @app.workflow
    async def flow(ctx: Context) -> int:
        return await ctx.call(moody)

    async with app.worker():
        run = await flow.start()
        assert await run.result(timeout=10) == 2
    steps = [event for event in await run.history() if event.step == "moody"]
    assert [event.type for event in steps] == ["step_opened", "step_snoozed", "step_retrying", "step_completed"]
    assert [(span.kind, span.status, span.attempt) for span in await run.timeline()] == [
        ("call", "retrying", 1),
        ("call", "completed", 2),
    ]


async def test_operators_pause_and_limit_workflows(app: Weft, one_home, eventually):
    running = most = 0

    async def step() -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.01)
        running -= 1

    @app.workflow
    async def flow(ctx: Context) -> int:
        for _ in range(3):
            await ctx.step(step)
            await ctx.sleep("5ms")
        return 1

    await app.controls.pause(task="flow")
    async with app.worker():
        runs = [await flow.start() for _ in range(4)]
        await asyncio.sleep(0.1)
        assert most == 0
        await app.controls.limit(task="flow", concurrency=1)
        await app.controls.resume(task="flow")
        for run in runs:
            assert await run.result(timeout=20) == 1
        await app.controls.unlimit(task="flow")
    assert most == 1


async def test_a_call_that_kills_its_workers_fails_the_step_not_the_worker(app: Weft, raw):
    """The sweeper ends a poisoned call; its workflow is told like of any failure."""

    @app.task
    async def pack() -> None: ...

    @app.workflow
    async def flow(ctx: Context) -> str:
        try:
            await ctx.call(pack)
        except StepFailed as error:
            return error.type
        return "?"

    from weft.engine.housekeeping.graphs import tend

    app.tasks.pop("pack")
    app.workflows["flow"].fn = _calling(pack)
    async with app.worker(queues=["default"]) as worker:
        run = await flow.start()
        ns = app.engine().ns
        p = 0 if ns.partitions == 1 else int(run.id[1 : run.id.index("-")])
        key = ns.keys.run(p, f"{run.id}/pack")
        for _ in range(500):
            if raw.exists(key) and raw.hget(key, "open") and b"@" in raw.hget(key, "open"):
                break
            await asyncio.sleep(0.01)
        # Ended from elsewhere, as poison is: closed, and a timer that tells its run.
        import msgspec

        from weft.core.model import ErrorRecord

        ledger = raw.hget(key, "open").decode()
        error = msgspec.msgpack.encode(ErrorRecord("Poisoned", "three workers died"))
        raw.hset(key, mapping={"open": f"={ledger}", "status": "failed", "error": error})
        raw.pexpire(key, 60_000)
        raw.zrem(ns.keys.timers(p), f"open:{run.id}/pack")
        raw.zadd(ns.keys.timers(p), {f"route:{run.id}/pack": 1})
        await tend(ns, p, [], [f"{run.id}/pack"], by=worker.session, seen_ms=1)
        assert await run.result(timeout=15) == "Poisoned"


def _calling(pack):
    async def flow(ctx: Context) -> str:
        try:
            await ctx.call(pack)
        except StepFailed as error:
            return error.type
        return "?"

    return flow


async def test_a_lost_token_is_found_again(app: Weft, raw, eventually, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("WEFT_LEASE", "1s")

    @app.workflow
    async def flow(ctx: Context) -> int:
        await ctx.sleep("1h")
        return 1

    async with app.worker():
        run = await flow.start()
        await _until(run, "waiting", eventually)
        ns = app.engine().ns
        p = 0 if ns.partitions == 1 else int(run.id[1 : run.id.index("-")])
        raw.zrem(ns.keys.timers(p), f"open:{run.id}")

        async def armed() -> bool:
            return raw.zscore(ns.keys.timers(p), f"open:{run.id}") is not None

        await eventually(armed)
        await run.cancel()
        with pytest.raises(Exception, match="cancelled"):
            await run.result(timeout=10)


async def test_many_flows_wait_without_a_slot(app: Weft, eventually):
    @app.workflow
    async def flow(ctx: Context, n: int) -> int:
        return n + await ctx.receive("go", type=int)

    async with app.worker(concurrency=2):
        runs = [await flow.start(n) for n in range(30)]
        for run in runs:
            await _until(run, "waiting", eventually)
        for run in reversed(runs):
            await run.signal("go", 100)
        assert [await run.result(timeout=20) for run in runs] == [100 + n for n in range(30)]


async def test_a_signal_is_received_once_however_often_it_is_sent(app: Weft):
    @app.workflow
    async def flow(ctx: Context) -> list[object]:
        first = await ctx.receive("go")
        second = await ctx.receive("go")
        return [first, second]

    async with app.worker():
        run = await flow.start()
        for _ in range(3):
            await run.signal("go", 1, request_id="same")
        await run.signal("go", 2)
        assert await run.result(timeout=10) == [1, 2]


def test_the_harness_runs_workflows_without_pytest():
    app = Weft("harness")

    @app.workflow
    async def flow(ctx: Context) -> int:
        await ctx.sleep("30d")
        return 7

    with Harness(app) as harness:
        run = flow.sync.start()
        harness.worker.sync.run_until_idle(advance=True)
        assert run.result(timeout=5) == 7


@pytest.mark.leaves("open runs", "pending")
async def test_flows_whose_commits_are_refused_as_a_whole_leave_their_slots(app: Weft, monkeypatch, eventually):
    from weft.errors import StaleEpoch
    from weft.worker import commit

    go = asyncio.Event()

    async def step() -> None:
        await go.wait()

    @app.workflow
    async def flow(ctx: Context) -> None:
        await ctx.step(step)

    async def refuse(*args, **options):
        raise StaleEpoch("another epoch")

    async with app.worker(concurrency=5) as worker:
        for _ in range(5):
            await flow.start()
        await eventually(lambda: len(worker.running) == 5)
        monkeypatch.setattr(commit, "commit_flows", refuse)
        go.set()
        await eventually(lambda: not worker.running)
        await eventually(lambda: worker.slots.free == 5)
        monkeypatch.undo()


async def test_a_bad_commit_costs_only_its_own_flow(app: Weft, monkeypatch):
    """A group that fails as a whole is committed one by one."""
    from weft.errors import ScriptError
    from weft.worker import commit

    real, failed = commit.commit_flows, []

    async def fail_once(ns, p, records, **options):
        if len(records) > 1 and not failed:
            failed.append(len(records))
            raise ScriptError("broken")
        return await real(ns, p, records, **options)

    monkeypatch.setattr(commit, "commit_flows", fail_once)
    go = asyncio.Event()

    async def step(n: int) -> int:
        await go.wait()
        return n

    @app.workflow
    async def flow(ctx: Context, n: int) -> int:
        return await ctx.step(step, n)

    async with app.worker() as worker:
        runs = [await flow.start(n) for n in range(5)]
        while len(worker.running) < 5:
            await asyncio.sleep(0.005)
        go.set()
        assert [await run.result(timeout=10) for run in runs] == list(range(5))
    assert failed


async def test_code_that_sleeps_in_a_loop_is_tested_for_as_long_as_is_said(app: Weft, weft_worker):
    ran: list[int] = []

    async def look(day: int) -> None:
        ran.append(day)

    @app.workflow
    async def watch(ctx: Context) -> None:
        day = 0
        while True:
            await ctx.step(look, day)
            await ctx.sleep("1d")
            day += 1

    run = await watch.start()
    assert await weft_worker.run_until_idle(advance="5d") == []
    assert ran == [0, 1, 2, 3, 4, 5]
    with pytest.raises(TimeoutError, match=r"the clock jumped \d+ times, .*advance=.1h"):
        await weft_worker.run_until_idle(advance=True, timeout=1.5)
    await run.cancel()
    await weft_worker.run_until_idle()
