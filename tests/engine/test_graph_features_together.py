"""What graph runs can do, together: subgraphs and compensations in runs that are retried, patched, or wait for people."""

from __future__ import annotations

import asyncio

import pytest
from graph_keys import closed, remains

from weft import Conflict, RunCancelled, StepFailed, Weft


@pytest.fixture
def undone(app: Weft) -> list[str]:
    found: list[str] = []

    @app.task
    async def undo(what: str) -> None:
        found.append(what)

    return found


def undo(what: str) -> dict:
    return {"call": "undo", "with": {"what": what}}


async def test_a_retried_run_starts_its_subgraph_anew(app, raw, start_worker, eventually):
    await start_worker()
    inner, broken = app.graph("inner"), [True]

    @inner.node
    async def work() -> int:
        if broken[0]:
            raise ValueError("broken")
        return 7

    outer = app.graph("outer")
    outer.subgraph("child", inner)
    run = await outer.start()
    with pytest.raises(StepFailed, match="broken"):
        await run.result(30)
    await closed(run, eventually)
    first = (await run.graph())["nodes"]["child"]["child"]
    broken[0] = False

    await run.retry(reason="fixed")

    assert await run.result(30) == 7
    second = (await run.graph())["nodes"]["child"]["child"]
    assert second != first
    assert await app.graphs["inner"].run(second).result(5) == 7
    with pytest.raises(StepFailed):
        await app.graphs["inner"].run(first).result(5)
    await closed(run, eventually)
    assert await remains(app, raw) == []


async def test_a_cancelled_subgraph_ends_with_its_run_and_starts_anew_with_a_retry(app, raw, start_worker, eventually):
    await start_worker()
    inner, begun, go = app.graph("inner"), asyncio.Event(), asyncio.Event()

    @inner.node(timeout="60s")
    async def work() -> int:
        begun.set()
        await go.wait()
        return 7

    outer = app.graph("outer")
    outer.subgraph("child", inner)
    run = await outer.start()
    await asyncio.wait_for(begun.wait(), 30)
    child = app.graphs["inner"].run((await run.graph())["nodes"]["child"]["child"])

    await run.cancel()

    with pytest.raises(RunCancelled):
        await child.result(30)
    await closed(run, eventually)
    await closed(child, eventually)
    go.set()
    await run.retry()
    assert await run.result(30) == 7
    await closed(run, eventually)
    assert await remains(app, raw) == []


async def test_what_a_run_has_undone_it_cannot_go_on_from(app, undone, start_worker, eventually):
    await start_worker()
    graph = app.graph("trip")

    @graph.node(compensate=undo("flight"))
    async def flight() -> int:
        return 1

    @graph.node(after=flight)
    async def hotel() -> None:
        raise ValueError("no hotel")

    run = await graph.start()
    with pytest.raises(StepFailed, match="no hotel"):
        await run.result(30)
    await closed(run, eventually)
    assert undone == ["flight"]
    with pytest.raises(Conflict, match=r"has undone what it did \(flight\)"):
        await run.retry()
    with pytest.raises(Conflict, match="has undone what it did"):
        await run.fork(from_step="hotel")


async def test_what_ran_twice_is_undone_once_also_when_the_run_was_retried(app, raw, undone, start_worker, eventually):
    await start_worker()
    graph, begun, fails = app.graph("trip"), asyncio.Event(), []

    @graph.node(compensate=undo("flight ${flight}"))
    async def flight() -> str:
        return "x" * 3

    @graph.node(after=flight, compensate=undo("${hotel}"))
    async def hotel() -> str:
        return "h" * 50_000

    @graph.node(after=hotel, timeout="60s")
    async def last() -> None:
        begun.set()
        if fails:
            raise ValueError("no")
        await asyncio.sleep(50)

    run = await graph.start()
    await asyncio.wait_for(begun.wait(), 30)
    await run.cancel()
    await closed(run, eventually)
    assert undone == []  # whoever cancels a run undoes nothing
    fails.append(1)

    await run.retry(from_step="hotel")

    with pytest.raises(StepFailed, match="no"):
        await run.result(30)
    assert undone == ["h" * 50_000, "flight xxx"]
    await closed(run, eventually)
    assert await remains(app, raw) == []


async def test_errors_of_a_maps_items_are_no_compensations(app, undone, start_worker, eventually):
    await start_worker()
    graph = app.graph("seats")

    @graph.node(map="input.seats", on_error="continue", compensate=undo("${item}"))
    async def seat(item: str) -> str:
        if item == "b":
            raise ValueError("taken")
        return item

    @graph.node(after=seat)
    async def count(errors: dict) -> None:
        raise ValueError(f"{len(errors['seat'])} taken")

    run = await graph.start({"seats": ["a", "b"]})
    with pytest.raises(StepFailed, match="1 taken"):
        await run.result(30)
    assert undone == ["a"]
    last = (await run.history())[-1]
    assert (last.data["compensated"], last.data["uncompensated"]) == (1, 0)
    await closed(run, eventually)


async def test_a_patch_adds_a_subgraph_and_what_undoes_a_node(app, raw, undone, start_worker, eventually):
    await start_worker()
    inner = app.graph("inner")

    @inner.node
    async def work(n: int) -> int:
        if n < 0:
            raise ValueError("negative")
        return n

    graph, begun, go = app.graph("line"), asyncio.Event(), asyncio.Event()

    @graph.node(timeout="60s", compensate=undo("a"))
    async def a() -> int:
        begun.set()
        await go.wait()
        return 1

    run = await graph.start()
    await asyncio.wait_for(begun.wait(), 30)
    more = {
        "b": {"type": "task", "call": "undo", "with": {"what": "b"}, "compensate": undo("not b"), "after": ["a"]},
        "c": {"type": "subgraph", "graph": "inner", "with": {"n": -1}, "after": ["b"]},
    }

    await run.patch([{"op": "add", "path": f"/nodes/{id}", "value": value} for id, value in more.items()])
    go.set()

    with pytest.raises(StepFailed, match="negative"):
        await run.result(30)
    assert undone == ["b", "not b", "a"]
    await closed(run, eventually)
    assert await remains(app, raw) == []


async def test_a_failing_run_takes_no_patch_and_its_approvals_are_closed(app, raw, start_worker, eventually):
    await start_worker()
    begun, go = asyncio.Event(), asyncio.Event()

    @app.task(timeout="60s")
    async def undo_slowly() -> None:
        begun.set()
        await go.wait()

    graph = app.graph("wait")

    @graph.node(compensate="undo_slowly")
    async def a() -> None: ...

    graph.approval("review", after="a", approvers=["ann"])

    @graph.node(after=a)
    async def bad() -> None:
        while not await app.approvals.list():
            await asyncio.sleep(0.01)
        raise ValueError("bad")

    run = await graph.start()
    await asyncio.wait_for(begun.wait(), 30)

    with pytest.raises(Conflict, match="is failing, and undoes what it did"):
        await run.patch([{"op": "add", "path": "/nodes/d", "value": {"type": "transform", "value": "x"}}])
    assert (await run.info()).status == "running"
    assert (await run.graph())["failing"]["message"] == "bad"
    go.set()
    with pytest.raises(StepFailed, match="bad"):
        await run.result(30)
    await closed(run, eventually)
    assert not await app.approvals.list()
    assert await remains(app, raw) == []
