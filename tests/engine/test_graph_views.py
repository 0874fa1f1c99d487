"""How graph runs are told: iterations, children that are waited for, compensations under way, maps that failed."""

import asyncio
from datetime import UTC, datetime

import pytest
from graph_keys import closed

from weft import PayloadRefused, StepFailed
from weft.cli.tree import about_node


async def test_a_node_of_a_loop_tells_in_which_iteration_it_ended(app, start_worker):
    graph = app.graph("looped")
    graph.transform("body", "${iteration}")
    graph.loop("again", after="body", to="body", while_="iteration < 2", max_iterations=5)
    graph.transform("behind", "${body}", after="again")
    await start_worker()
    run = await graph.start()
    assert await run.result(10) == 2
    nodes = (await run.graph())["nodes"]
    assert [nodes[id].get("iteration") for id in ("body", "again", "behind")] == [2, 2, None]


async def test_a_map_that_fails_in_a_later_iteration_has_failed_and_not_completed_before(app, start_worker, eventually):
    graph = app.graph("maps")

    @graph.node(map="[0, 1]")
    async def each(item: int, iteration: int) -> int:
        if (item, iteration) == (1, 1):
            raise ValueError("one")
        return item

    graph.loop("again", after=each, to=each, while_="iteration < 3", max_iterations=5)
    await start_worker()
    run = await graph.start()
    with pytest.raises(StepFailed, match="each~1#1: one"):
        await run.result(10)
    await closed(run, eventually)
    node = (await run.graph())["nodes"]["each"]
    assert (node["status"], node["iteration"], node["failed"]) == ("failed", 1, 1)
    assert node["error"] == {"type": "ValueError", "message": "each~1#1: one"}
    assert "output" not in node


async def test_what_waited_took_as_long_as_it_waited(app, start_worker, eventually):
    child, graph = app.graph("child"), app.graph("waiting")
    child.wait("rest", duration="100ms")
    graph.wait("rest", duration="100ms")
    graph.wait("go", signal="go", after="rest")
    graph.approval("ask", after="rest")
    graph.wait("never", signal="never", timeout="100ms", on_timeout="continue")
    graph.subgraph("below", child)
    graph.subgraph("each", child, map="[1, 2]")
    await start_worker()
    run = await graph.start()
    (asked,) = await eventually(lambda: app.approvals.list(run=run.id), 10)
    opened = (await run.graph())["nodes"]["ask"]["opened_ms"]
    await run.signal("go")
    await app.approvals.approve(asked.id, by="ann", digest=asked.digest)
    await run.result(10)

    nodes = (await run.graph())["nodes"]

    assert nodes["ask"]["started_ms"] == opened and nodes["go"]["started_ms"] <= nodes["go"]["ended_ms"]
    for id in ("rest", "never", "below", "each"):
        assert nodes[id]["ended_ms"] - nodes[id]["started_ms"] >= 100, id


async def test_a_step_that_runs_a_subgraph_waits_for_its_child_and_for_no_moment(app, start_worker, eventually):
    child, parent = app.graph("child"), app.graph("parent")
    child.wait("go", signal="go")
    parent.subgraph("below", child)
    await start_worker()
    run = await parent.start()

    async def waits() -> bool:
        return (await run.graph())["nodes"]["below"]["status"] == "waiting"

    await eventually(waits, 10)
    node = (await run.graph())["nodes"]["below"]
    assert node["waits_for"] == f"run:{node['child']}"
    assert not {"due_ms", "reason"} & node.keys()
    await run.cancel()


async def test_a_compensation_under_way_is_told(app, start_worker, eventually):
    graph = app.graph("undone")
    begun = asyncio.Event()

    @app.task
    async def release() -> None:
        begun.set()
        await asyncio.sleep(60)

    @graph.node(compensate={"call": release})
    async def book() -> int:
        return 1

    @graph.node(after=book)
    async def pay() -> None:
        raise ValueError("no money")

    await start_worker()
    run = await graph.start()
    await asyncio.wait_for(begun.wait(), 10)
    node = (await run.graph())["nodes"]["book"]
    assert (node["status"], node["output"]) == ("completed", 1)
    assert [(one["step"], one["status"]) for one in node["compensation"]] == [("book", "running")]
    await run.cancel()
    await closed(run, eventually)


async def test_a_map_that_too_few_items_of_completed_tells_how_they_failed(app, start_worker):
    graph = app.graph("few")

    @graph.node(map="[1, 2, 3]", gather="first(2)")
    async def each(item: int) -> int:
        if item > 1:
            raise ValueError(f"number {item}")
        return item

    await start_worker()
    run = await graph.start()
    with pytest.raises(StepFailed, match="only 1 completed; item 1 failed with ValueError: number 2") as caught:
        await run.result(10)
    assert caught.value.causes == [
        {"type": "ValueError", "message": "item 1: number 2"},
        {"type": "ValueError", "message": "item 2: number 3"},
    ]


async def test_a_map_of_something_that_is_no_list_says_what_it_is(app, start_worker):
    graph = app.graph("none")
    graph.task("each", app.task(name="each")(lambda item: item), map="input.found")
    await start_worker()
    for given, told in ((None, "gave null, not a list"), (3, "gave an int, not a list")):
        run = await graph.start({"found": given})
        with pytest.raises(StepFailed, match=told):
            await run.result(10)


def test_times_of_many_items_are_told_as_theirs_together():
    node = {"status": "completed", "queued_ms": 5_820_000, "items": 50_000, "done": 50_000, "failed": 0}
    assert about_node(node) == "50,000 of 50,000 items done, queued 1h 37m over all items"
    assert about_node({"status": "completed", "queued_ms": 58}) == "queued 58ms"


async def test_an_input_that_is_no_plain_data_is_to_be_handed_over_in_json_form(app):
    graph = app.graph("moments")
    graph.transform("told", "${input}")
    with pytest.raises(PayloadRefused, match=r"`value.at` is of type datetime.*; the input of a graph is in JSON form"):
        await graph.start({"at": datetime.now(UTC)})
