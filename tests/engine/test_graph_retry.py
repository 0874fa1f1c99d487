"""Retrying and forking graph runs: what is finished is kept, what is behind runs anew, and nothing is left over."""

import asyncio

import pytest
from graph_keys import closed, remains
from waiting import approval_of

from weft import Conflict, InvalidArguments, NotFound, RunCancelled, StepFailed
from weft.ids import partition_of


@pytest.fixture
def steps(app):
    """a -> b -> c beside x, all joined in end; b fails while `broken`."""
    graph = app.graph("steps", output="${end}")
    graph.broken, graph.ran = True, []

    @graph.node
    async def a(input: dict) -> int:
        graph.ran.append("a")
        return int(input.get("n", 1))

    @graph.node(after=a)
    async def b(a: int) -> int:
        graph.ran.append("b")
        if graph.broken:
            raise ValueError("broken")
        return a + 1

    @graph.node(after=b)
    async def c(b: int) -> int:
        graph.ran.append("c")
        return b + 1

    @graph.node
    async def x() -> str:
        graph.ran.append("x")
        return "x" * 10_000

    @graph.node(after=[c, x])
    async def end(c: int, x: str, input: dict) -> int:
        graph.ran.append("end")
        return c + len(x) + int(input.get("plus", 0))

    return graph


async def failed(graph, eventually, input=None):
    run = await graph.start(input or {})
    with pytest.raises(StepFailed):
        await run.result(10)
    await closed(run, eventually)
    return run


async def test_a_failed_run_goes_on_from_what_failed(steps, app, raw, start_worker, eventually):
    await start_worker()
    run = await failed(steps, eventually)
    steps.broken = False
    before = sorted(steps.ran)

    again = await run.retry(reason="fixed")

    assert await run.result(10) == 10_003
    assert [name for name in steps.ran[len(before) :] if name != "x"] == ["b", "c", "end"]
    assert steps.ran.count("a") == 1
    assert {"b", "c", "end"} <= set(again) and "a" not in again
    history = await run.history()
    (event,) = [event for event in history if event.type == "retried"]
    assert event.data["reason"] == "fixed"
    assert [event.seq for event in history] == list(range(1, len(history) + 1))
    await closed(run, eventually)
    assert await remains(app, raw) == []


async def test_it_goes_on_from_an_earlier_step_when_asked(steps, start_worker, eventually):
    await start_worker()
    run = await failed(steps, eventually)
    steps.broken = False

    assert set(await run.retry(from_step="a")) >= {"a", "b", "c", "end"}

    assert await run.result(10) == 10_003
    assert steps.ran.count("a") == 2
    await closed(run, eventually)


async def test_a_cancelled_run_goes_on_with_what_was_cut_off(app, raw, start_worker, eventually):
    graph = app.graph("cut", output="${both}")
    began, go, ran = asyncio.Semaphore(0), asyncio.Event(), []

    @graph.node
    async def first() -> int:
        ran.append("first")
        return 1

    @graph.node(after=first, timeout="60s")
    async def left(first: int) -> int:
        began.release()
        await go.wait()
        ran.append("left")
        return 2

    @graph.node(after=first, timeout="60s", map="[1, 2, 3]")
    async def right(item: int) -> int:
        began.release()
        await go.wait()
        ran.append("right")
        return item

    @graph.node(after=[left, right])
    async def both(left: int, right: list) -> int:
        return left + sum(right)

    await start_worker()
    run = await graph.start()
    for _ in range(4):
        await asyncio.wait_for(began.acquire(), 10)
    await run.cancel()
    with pytest.raises(RunCancelled):
        await run.result(10)
    go.set()

    assert set(await run.retry()) == {"left", "right", "both"}

    assert await run.result(10) == 8
    assert sorted(ran) == ["first", "left", "right", "right", "right"]
    await closed(run, eventually)
    assert await remains(app, raw) == []


async def test_what_is_open_or_completed_or_never_began_is_not_retried(steps, start_worker, eventually):
    run = await steps.start({})
    with pytest.raises(Conflict, match="has not ended"):
        await run.retry()
    await start_worker()
    with pytest.raises(StepFailed):
        await run.result(10)
    with pytest.raises(NotFound, match="no node 'nobody'"):
        await run.retry(from_step="nobody")
    with pytest.raises(Conflict, match="node c never began"):
        await run.retry(from_step="c")
    steps.broken = False
    await run.retry()
    assert await run.result(10) == 10_003
    with pytest.raises(Conflict, match="has completed: fork it"):
        await run.retry()
    await closed(run, eventually)


async def test_of_many_retries_at_once_one_wins(steps, app, raw, start_worker, eventually):
    await start_worker()
    run = await failed(steps, eventually)
    steps.broken = False
    steps.ran.clear()

    said = await asyncio.gather(*(run.retry() for _ in range(10)), return_exceptions=True)

    assert sum(isinstance(one, list) for one in said) == 1
    assert all(isinstance(one, (list, Conflict)) for one in said)
    assert await run.result(10) == 10_003
    assert [name for name in steps.ran if name != "x"] == ["b", "c", "end"]
    await closed(run, eventually)
    assert await remains(app, raw) == []


async def test_a_run_can_fail_and_be_retried_again_and_again(steps, start_worker, eventually):
    await start_worker()
    run = await failed(steps, eventually)
    for _ in range(3):
        await run.retry()
        with pytest.raises(StepFailed):
            await run.result(10)
        await closed(run, eventually)
    steps.broken = False
    await run.retry()
    assert await run.result(10) == 10_003
    assert steps.ran.count("b") == 5
    await closed(run, eventually)


async def test_a_failed_map_runs_anew_as_a_whole(app, raw, start_worker, eventually):
    graph = app.graph("mapped", output="${m}")
    broken = True

    @graph.node(map="input.items")
    async def m(item: int) -> int:
        if broken and item == 7:
            raise ValueError("seven")
        return item

    await start_worker()
    run = await failed(graph, eventually, {"items": list(range(10))})
    broken = False
    await run.retry()
    assert await run.result(10) == list(range(10))
    await closed(run, eventually)
    assert await remains(app, raw) == []


async def test_a_loop_goes_on_in_the_iteration_that_failed(app, start_worker, eventually):
    graph = app.graph("loops", output="${again}")
    broken, ran = True, []

    @graph.node
    async def body(iteration: int) -> int:
        ran.append(iteration)
        if broken and iteration == 2:
            raise ValueError("two")
        return iteration

    graph.loop("again", after=body, to=body, while_="iteration < 3", max_iterations=10)
    await start_worker()
    run = await failed(graph, eventually)
    broken = False
    await run.retry()
    assert await run.result(10) == 4
    assert ran == [0, 1, 2, 2, 3]
    await closed(run, eventually)


async def test_a_fork_shares_what_is_finished_and_has_an_input_of_its_own(steps, app, raw, start_worker, eventually):
    steps.broken = False
    await start_worker()
    run = await steps.start({"n": 5})
    assert await run.result(10) == 10_007
    steps.ran.clear()

    fork = await run.fork(from_step="c", input={"n": 5, "plus": 100})

    assert await fork.result(10) == 10_107
    assert steps.ran == ["c", "end"]
    assert (await fork.info()).replay_of == run.id
    assert await run.result(10) == 10_007
    nodes = (await fork.graph())["nodes"]
    assert (nodes["a"]["output"], nodes["b"]["output"]) == (5, 6)
    for one in (run, fork):
        await closed(one, eventually)
    assert await remains(app, raw) == []


async def test_a_fork_of_an_open_run_leaves_it_alone(app, start_worker, eventually):
    graph = app.graph("open", output="${b}")
    go, began = asyncio.Event(), asyncio.Semaphore(0)

    @graph.node
    async def a() -> int:
        return 1

    @graph.node(after=a, timeout="60s")
    async def b(a: int) -> int:
        began.release()
        await go.wait()
        return a + 1

    await start_worker()
    run = await graph.start()
    await asyncio.wait_for(began.acquire(), 10)
    fork = await run.fork("b")
    await asyncio.wait_for(began.acquire(), 10)
    go.set()
    assert [await run.result(10), await fork.result(10)] == [2, 2]
    for one in (run, fork):
        await closed(one, eventually)


async def test_a_fork_refuses_what_does_not_fit(app, start_worker, eventually):
    graph = app.graph("typed", input={"type": "object", "required": ["n"]})

    @graph.node
    async def a(n: int) -> int:
        return n

    await start_worker()
    run = await graph.start({"n": 1})
    assert await run.result(10) == 1
    with pytest.raises(InvalidArguments, match="does not fit graph typed"):
        await run.fork("a", input={})
    with pytest.raises(NotFound):
        await run.fork("nobody")
    fork = await run.fork("a", input={"n": 2})
    assert await fork.result(10) == 2
    for one in (run, fork):
        await closed(one, eventually)


async def test_whoever_follows_a_retried_run_sees_both_its_lives(steps, start_worker, eventually):
    await start_worker()
    run = await failed(steps, eventually)
    first = [event.type async for event in run.events()]
    assert first[-1] == "failed"
    steps.broken = False
    await run.retry()

    types = [event.type async for event in run.events()]

    assert types[: len(first)] == first
    assert types[len(first)] == "retried" and types[-1] == "completed"
    await closed(run, eventually)


async def test_what_a_retried_run_asks_again_waits_as_long_as_it_takes(app, raw, start_worker, eventually):
    """The record of its earlier life was about to expire; that of the new one is not, and nothing is decided yet."""
    graph = app.graph("asked", output="${review.by}")
    graph.wait("first", signal="go", timeout="1h")
    graph.approval("review", after="first", approvers=["ann"])
    await start_worker()
    run = await graph.start()
    await run.signal("go")
    asked = await approval_of(app, run)
    await app.approvals.reject(asked.id, by="ann", digest=asked.digest)
    with pytest.raises(StepFailed):
        await run.result(20)
    await closed(run, eventually)
    keys, p = app.engine().ns.keys, partition_of(run.id)
    own = [keys.approval(p, asked.id), keys.belongings(p, run.id), keys.signals(p, run.id), keys.undo(p, run.id)]
    assert all(raw.pttl(key) > 0 for key in own if raw.exists(key))

    await run.retry()

    again = await approval_of(app, run)
    assert (again.id, again.status, again.decision) == (asked.id, "pending", None)
    assert all(raw.pttl(key) == -1 for key in own if raw.exists(key))
    await app.approvals.approve(again.id, by="ann", digest=again.digest)
    assert await run.result(20) == "ann"
    await closed(run, eventually)
    assert await remains(app, raw) == []


async def test_a_retried_run_gives_its_new_result_and_not_the_failure_it_told_before(steps, start_worker, eventually):
    await start_worker()
    await failed(steps, eventually)  # whoever has waited is told of the runs that it starts next
    run = await steps.start({})

    async def told() -> bool:
        return bool(run._app.engine().waiting._expected.get(run.id))

    await eventually(told)
    steps.broken = False
    await closed(run, eventually)
    await run.retry()

    assert await run.result(10) == 10_003
