"""Graphs that run within graphs: children with ids of their own, whose ends are the ends of steps."""

from __future__ import annotations

import asyncio
import itertools

import pytest

from weft import RunStatus, StepFailed, Weft
from weft.engine.definitions import Definitions
from weft.errors import DefinitionError
from weft.sdk.graph import Graph


@pytest.fixture
async def worker(start_worker):
    return await start_worker()


@pytest.fixture
def square(app: Weft) -> Graph:
    """Squares `n`; fails for a negative one."""
    square = app.graph("square", input={"type": "object", "required": ["n"], "properties": {"n": {"type": "integer"}}})

    @square.node
    async def multiply(n: int) -> int:
        if n < 0:
            raise ValueError(f"{n} is negative")
        return n * n

    return square


async def test_a_subgraph_is_a_run_of_its_own_whose_result_is_the_output(app, square, worker, quiet):
    outer = app.graph("outer")
    outer.subgraph("inner", square, with_={"n": "${input.n}"})
    outer.transform("last", "got ${inner}", after="inner")

    run = await outer.options(tags={"team": "a"}).start({"n": 7})

    assert await run.result(timeout=30) == "got 49"
    child = app.graphs["square"].run((await run.graph())["nodes"]["inner"]["child"])
    info = await child.info()
    assert (info.name, info.parent, info.tags) == ("square", f"{run.id}/inner", {"team": "a"})
    assert await child.result() == 49
    await quiet()


async def test_a_map_over_subgraphs_gives_their_results_in_order(app, square, worker, quiet):
    middle = app.graph("middle")
    middle.subgraph("each", square, map="input.numbers", max_parallel=2, with_={"n": "${item}"})
    outer = app.graph("outer")
    outer.subgraph("rows", middle, map="input.rows", with_={"numbers": "${item}"})

    run = await outer.start({"rows": [[1, 2, 3], [], [4, 5]]})

    assert await run.result(timeout=60) == [[1, 4, 9], [], [16, 25]]
    await quiet()


async def test_a_tree_has_the_runs_of_subgraphs_and_theirs(app, square, worker, quiet):
    middle = app.graph("middle")
    middle.subgraph("each", square, map="input.numbers", with_={"n": "${item}"})
    outer = app.graph("outer")
    outer.subgraph("rows", middle, with_={"numbers": [1, 2]})
    outer.subgraph("one", square, with_={"n": 3})
    run = await outer.start({})
    await run.result(timeout=30)

    tree = await run.tree()

    assert (tree.id, tree.name, tree.status) == (run.id, "outer", RunStatus.COMPLETED)
    below = {child.step: child for child in tree.children}
    assert {step: child.name for step, child in below.items()} == {"rows": "middle", "one": "square"}
    assert sorted(child.step for child in below["rows"].children) == ["each#0", "each#1"]
    assert not below["one"].children
    await quiet()


async def test_a_large_result_of_a_child_is_the_parents_too(app, worker, quiet):
    inner = app.graph("inner")

    @inner.node
    async def much() -> str:
        return "x" * 100_000

    outer = app.graph("outer")
    outer.subgraph("child", inner)
    outer.transform("size", "${size(child)}", after="child")

    run = await outer.start()

    assert await run.result(timeout=30) == 100_000
    await quiet()


async def test_a_child_that_has_nothing_to_do_ends_at_once(app, worker, quiet):
    inner = app.graph("inner")
    inner.transform("value", "${input.x}")
    outer = app.graph("outer")
    outer.subgraph("child", inner, with_={"x": 3})

    assert await (await outer.start()).result(timeout=30) == 3
    await quiet()


async def test_the_failure_of_a_child_is_the_failure_of_the_step(app, square, worker, quiet):
    outer = app.graph("outer")
    outer.subgraph("inner", square, with_={"n": -1})

    run = await outer.start()

    with pytest.raises(StepFailed, match="-1 is negative") as failure:
        await run.result(timeout=30)
    assert failure.value.type == "ValueError"
    await quiet()


async def test_on_error_and_retries_of_a_subgraph(app, worker, quiet):
    attempts: list[str] = []
    inner = app.graph("inner")

    @inner.node
    async def shaky() -> None:
        attempts.append("x")
        raise ValueError("shaky")

    outer = app.graph("outer")
    outer.subgraph("child", inner, retries=2, retry_delay="1ms", on_error="continue")
    outer.transform("last", "${errors.child.type} ${status.child}", after="child")

    run = await outer.start()

    assert await run.result(timeout=30) == "ValueError failed"
    assert len(attempts) == 3
    await quiet()


async def test_a_cancelled_child_fails_its_step_without_another_attempt(app, worker, quiet):
    inner = app.graph("inner")
    inner.wait("long", duration="1h")
    outer = app.graph("outer")
    outer.subgraph("child", inner, retries=5)
    run = await outer.start()
    child = inner.run(await child_of(run, "child"))

    assert await child.cancel()

    with pytest.raises(StepFailed) as failure:
        await run.result(timeout=30)
    assert failure.value.type == "RunCancelled"
    await quiet()


async def child_of(run, node: str) -> str:
    """Waits until a node's child runs."""
    while True:
        about = (await run.graph())["nodes"][node]
        if about["status"] == "waiting":
            return about["child"]
        await asyncio.sleep(0.005)


async def test_cancelling_the_parent_cancels_children_and_their_children(app, worker, eventually, quiet):
    begun = asyncio.Event()
    stopped = asyncio.Event()
    lowest = app.graph("lowest")

    @lowest.node
    async def long() -> None:
        begun.set()
        try:
            await asyncio.sleep(60)
        finally:
            stopped.set()

    middle = app.graph("middle")
    middle.subgraph("down", lowest)
    outer = app.graph("outer")
    outer.subgraph("down", middle)
    run = await outer.start()
    await asyncio.wait_for(begun.wait(), 30)
    child = middle.run(await child_of(run, "down"))
    grandchild = lowest.run(await child_of(child, "down"))

    assert await run.cancel()

    await asyncio.wait_for(stopped.wait(), 30)

    async def all_cancelled() -> bool:
        return {await one.status() for one in (child, grandchild)} == {RunStatus.CANCELLED}

    await eventually(all_cancelled)
    await quiet()


async def test_a_timeout_of_a_subgraph_is_the_deadline_of_its_child(app, worker, quiet):
    inner = app.graph("inner")
    inner.wait("long", duration="1h")
    outer = app.graph("outer")
    outer.subgraph("child", inner, timeout="50ms")

    run = await outer.start()

    with pytest.raises(StepFailed) as failure:
        await run.result(timeout=30)
    assert failure.value.type == "DeadlineExceeded"
    await quiet()


async def test_an_input_that_does_not_fit_fails_the_step_and_starts_no_child(app, square, worker, quiet):
    outer = app.graph("outer")
    outer.subgraph("inner", square, with_={"n": "${input.n}"}, retries=3)

    run = await outer.start({"n": "seven"})

    with pytest.raises(StepFailed, match="does not fit graph square"):
        await run.result(timeout=30)
    assert [info.name for info in await app.runs.list()] == ["outer"]
    await quiet()


async def test_workers_need_no_graph_code(app, square, start_worker, quiet, monkeypatch):
    outer = app.graph("outer")
    outer.subgraph("inner", square, with_={"n": 3})
    run = await outer.start()
    monkeypatch.setattr(app, "graphs", {})
    monkeypatch.setattr("weft.engine.definitions.definitions", Definitions())

    await start_worker()

    assert await run.result(timeout=30) == 9
    await quiet()


# --- what is refused ------------------------------------------------------------------------------


async def test_what_cannot_run_is_refused_at_the_start(app, square):
    for options, why in [
        ({"graph": "nobody"}, "has no graph 'nobody'"),
        ({"graph": "square", "version": "2"}, "version none, not 2"),
        ({"graph": "square", "queue": "high"}, "a subgraph has no queue"),
        ({"graph": "square", "concurrency": 3}, "a subgraph has no concurrency"),
        ({"graph": "square", "on_error": "dead_letter"}, "a subgraph makes none"),
    ]:
        outer = Graph(app, "outer")
        outer.subgraph("inner", **options)
        with pytest.raises(DefinitionError, match=why):
            await outer.start()


async def test_a_graph_within_itself_is_refused(app):
    one, two = app.graph("one"), app.graph("two")
    one.subgraph("down", two)
    two.subgraph("down", one)

    with pytest.raises(DefinitionError, match=r"within itself \(one > two > one"):
        await one.start()


async def test_too_many_levels_are_refused(app):
    graphs = [app.graph(f"level{i}") for i in range(20)]
    graphs[-1].transform("value", 1)
    for upper, lower in itertools.pairwise(graphs):
        upper.subgraph("down", lower)

    with pytest.raises(DefinitionError, match="nested more than 16 deep"):
        await graphs[0].start()
