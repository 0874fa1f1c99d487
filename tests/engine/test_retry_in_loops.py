"""Retrying and forking runs that ended within an iteration: it is gone on with, with what the one before gave."""

import asyncio

import pytest
from graph_keys import closed, remains

from weft import ResultExpired, RunCancelled, StepFailed
from weft.ids import partition_of


@pytest.fixture
def loops(app):
    """ask -> work -> again: `ask` ends the loop in iteration 1, in which `work` hangs or fails while `broken`."""
    graph = app.graph("loops", output="${work}")
    graph.ran, graph.broken, graph.hangs, graph.begun = [], True, False, asyncio.Event()

    @graph.node
    async def ask(iteration: int) -> dict:
        graph.ran.append(("ask", iteration))
        return {"more": iteration < 1}

    @graph.node(after=ask)
    async def work(work: list | None, iteration: int) -> list:
        graph.ran.append(("work", iteration))
        if iteration == 1 and graph.hangs:
            graph.begun.set()
            await asyncio.sleep(60)
        if iteration == 1 and graph.broken:
            raise ValueError("one")
        return [*(work or []), iteration]

    graph.loop("again", after=work, to=ask, while_="ask.more", max_iterations=10)
    return graph


async def cancelled(graph, eventually):
    graph.hangs = True
    run = await graph.start()
    await asyncio.wait_for(graph.begun.wait(), 10)
    await run.cancel()
    with pytest.raises(RunCancelled):
        await run.result(10)
    await closed(run, eventually)
    graph.hangs = graph.broken = False
    graph.ran.clear()
    return run


async def test_a_step_that_was_cut_off_in_an_iteration_runs_in_it(loops, start_worker, eventually):
    await start_worker()
    run = await cancelled(loops, eventually)
    assert await run.retry() == ["work", "again"]
    assert await run.result(10) == [0, 1]
    assert loops.ran == [("work", 1)]
    await closed(run, eventually)


async def test_a_fork_of_a_run_that_was_cut_off_in_an_iteration_goes_on_in_it(loops, start_worker, eventually):
    await start_worker()
    run = await cancelled(loops, eventually)
    fork = await run.fork(from_step="work")
    assert await fork.result(10) == [0, 1]
    assert loops.ran == [("work", 1)]
    for one in (run, fork):
        await closed(one, eventually)


async def test_a_map_that_failed_in_an_iteration_runs_in_it(app, start_worker, eventually):
    graph = app.graph("maps", output="${each}")
    broken, ran = True, []

    @graph.node
    async def ask(iteration: int) -> dict:
        ran.append(("ask", iteration))
        return {"more": iteration < 1}

    @graph.node(after=ask, map="[1, 2]")
    async def each(item: int, iteration: int) -> list:
        ran.append((item, iteration))
        if broken and (item, iteration) == (2, 1):
            raise ValueError("one")
        return [item, iteration]

    graph.loop("again", after=each, to=ask, while_="ask.more", max_iterations=10)
    await start_worker()
    run = await graph.start()
    with pytest.raises(StepFailed):
        await run.result(10)
    await closed(run, eventually)
    broken = False
    ran.clear()
    assert await run.retry() == ["each", "again"]
    assert await run.result(10) == [[1, 1], [2, 1]]
    assert sorted(ran) == [(1, 1), (2, 1)]
    await closed(run, eventually)


@pytest.fixture
def growing(app):
    """grow -> tell -> again: `grow` reads itself and `tell` of the iteration before, and fails in its third while `broken`."""
    graph = app.graph("growing", output="${grow.seen}")
    graph.broken = True

    @graph.node
    async def grow(grow: dict | None, tell: str | None, iteration: int) -> dict:
        if graph.broken and iteration == 2:
            raise ValueError("two")
        before = grow or {"seen": []}
        return {"seen": [*before["seen"], [iteration, tell and tell[0]]], "weight": "x" * 100_000}

    @graph.node(after=grow)
    async def tell(iteration: int) -> str:
        return str(iteration) * 100_000

    graph.loop("again", after=tell, to=grow, while_="iteration < 3", max_iterations=10)
    return graph


GROWN = [[0, None], [1, "0"], [2, "1"], [3, "2"]]


async def test_a_step_that_runs_anew_reads_what_the_iteration_before_gave(growing, start_worker, eventually, app, raw):
    await start_worker()
    run = await growing.start()
    with pytest.raises(StepFailed):
        await run.result(10)
    await closed(run, eventually)
    growing.broken = False
    assert await run.retry() == ["grow", "tell", "again"]
    assert await run.result(10) == GROWN
    told = [(event.type, event.step) for event in await run.history()]
    at = told.index(("retried", ""))
    assert told[at + 1] == ("node_completed", "grow~1")
    assert [event.seq for event in await run.history()] == list(range(1, len(told) + 1))
    await closed(run, eventually)
    assert await remains(app, raw) == []


async def test_forks_of_forks_read_what_the_iteration_before_gave(growing, start_worker, eventually, app, raw):
    await start_worker()
    growing.broken = False
    run = await growing.start()
    assert await run.result(10) == GROWN
    runs = [run]
    for step in ("tell", "grow", "grow"):
        runs.append(await runs[-1].fork(from_step=step))
        assert await runs[-1].result(10) == GROWN
    for one in runs:
        await closed(one, eventually)
    assert await remains(app, raw) == []


async def test_a_retry_that_needs_an_iteration_nobody_has_any_more_is_refused(
    growing, start_worker, eventually, app, raw
):
    await start_worker()
    run = await growing.start()
    with pytest.raises(StepFailed):
        await run.result(10)
    await closed(run, eventually)
    ns, p = app.engine().ns, partition_of(run.id)
    raw.xtrim(ns.keys.log(p), maxlen=0)
    with pytest.raises(ResultExpired, match=r"what grow of run .* gave in the iteration before is no longer kept"):
        await run.retry()
    assert await run.status() == "failed"


async def test_what_ran_beside_the_step_that_failed_in_an_iteration_runs_in_it_too(app, start_worker, eventually):
    graph = app.graph("beside", output="${both}")
    broken, ran = True, []
    begun = asyncio.Event()

    @graph.node
    async def first(iteration: int) -> int:
        return iteration

    @graph.node(after=first)
    async def left(iteration: int) -> str:
        if iteration == 1 and broken:
            await asyncio.wait_for(begun.wait(), 10)
            raise ValueError("one")
        return f"left {iteration}"

    @graph.node(after=first)
    async def right(iteration: int) -> str:
        ran.append(iteration)
        if iteration == 1 and broken:
            begun.set()
            await asyncio.sleep(60)
        return f"right {iteration}"

    @graph.node(after=[left, right])
    async def both(left: str, right: str) -> list:
        return [left, right]

    graph.loop("again", after=both, to=first, while_="iteration < 1", max_iterations=10)
    await start_worker()
    run = await graph.start()
    with pytest.raises(StepFailed):
        await run.result(10)
    await closed(run, eventually)
    broken = False
    assert await run.retry() == ["left", "right", "both", "again"]
    assert await run.result(10) == ["left 1", "right 1"]
    assert ran == [0, 1, 1]
    await closed(run, eventually)
