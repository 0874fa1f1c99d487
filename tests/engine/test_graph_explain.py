"""Why a graph run does not go on: every open step with what binds it, and one sentence for the run that agrees with it."""

import asyncio
import json

import msgspec
import pytest

from weft import Fatal, Weft


def steps_of(found) -> dict[str, str]:
    return {step.step: step.reason for step in found.steps}


@pytest.mark.leaves("open runs")
async def test_without_a_worker_the_run_says_that_nobody_serves_its_step(app: Weft):
    graph = app.graph("g")

    @graph.node(queue="slow")
    async def one() -> int:
        return 1

    run = await graph.start()
    found = await run.explain()

    assert (found.reason, found.step, found.queue) == ("no_worker", "one", "slow")
    assert found.text == "one: no live worker serves queue slow"
    assert steps_of(found) == {"one": "no_worker"}
    assert (await (await app.runs.get(run.id)).explain()) == found


@pytest.mark.leaves("open runs")
async def test_a_run_that_begins_with_a_map_waits_for_whoever_decides(app: Weft):
    graph = app.graph("g")

    @graph.node(map="input.items")
    async def each(item: int) -> int:
        return item

    run = await graph.start({"items": [1]})
    assert (await run.explain()).text == "no worker is alive to decide what follows"


async def test_a_running_step_stands_for_the_run_and_the_others_are_told_too(app: Weft, start_worker, eventually):
    go = asyncio.Event()
    graph = app.graph("g")

    @graph.node
    async def busy() -> None:
        await go.wait()

    graph.wait("later", duration="1h")

    @graph.node(queue="elsewhere")
    async def alone() -> None: ...

    worker = await start_worker()
    run = await graph.start()

    async def runs() -> bool:
        return (await run.explain()).reason == "running"

    await eventually(runs)
    found = await run.explain()
    assert found.text.startswith(f"busy: running on worker {worker.session} since ")
    assert found.text.endswith("; 2 other steps are open")
    assert steps_of(found) == {"busy": "running", "later": "delayed", "alone": "no_worker"}
    assert found.open_steps == 3

    # As data it says the same: the step that stands for the run is one of the steps, with its reason.
    told = json.loads(msgspec.json.encode(found))
    (same,) = [step for step in told["steps"] if step["step"] == told["step"]]
    assert same["reason"] == told["reason"] and same["text"] in told["text"]
    go.set()
    assert await run.cancel()


async def test_a_map_is_explained_by_its_items(app: Weft, start_worker, eventually):
    go = asyncio.Event()
    graph = app.graph("g")

    @graph.node(map="input.items", max_parallel=2, concurrency=1)
    async def each(item: int) -> int:
        if item:
            await go.wait()
        return item

    await start_worker()
    run = await graph.start({"items": [0, 1, 2, 3]})

    async def first_is_done() -> bool:
        node = (await run.graph())["nodes"]["each"]
        return (node.get("items"), node.get("done"), node.get("open")) == (4, 1, 2)

    await eventually(first_is_done)

    async def running() -> bool:
        return (await run.explain()).reason == "running"

    await eventually(running)
    found = await run.explain()
    assert found.text.startswith("each: 1 of 4 items are done, 2 open; each#1: running on worker")
    go.set()
    assert await run.result(10) == [0, 1, 2, 3]


async def test_a_step_that_failed_and_waits_says_when_it_is_tried_again(app: Weft, start_worker, eventually):
    graph = app.graph("g")

    @graph.node(retries=3, retry_delay="1h", max_delay="1h")
    async def bad() -> None:
        raise ValueError("not yet")

    await start_worker()
    run = await graph.start()

    async def waits() -> bool:
        return (await run.explain()).reason == "retrying"

    await eventually(waits)
    found = await run.explain()
    assert found.text.startswith("bad: attempt 2 is due at ") and "failed with ValueError" in found.text
    assert found.until is not None and found.until == found.steps[0].until
    node = (await run.graph())["nodes"]["bad"]
    assert (node["status"], node["reason"], node["attempt"]) == ("waiting", "retry", 2)
    assert node["last_error"] == {"type": "ValueError", "message": "not yet"}
    await run.cancel()


async def test_a_run_that_failed_names_the_node(app: Weft, start_worker):
    graph = app.graph("g")

    @graph.node
    async def first() -> None: ...

    @graph.node(after=first)
    async def bad() -> None:
        raise Fatal("no such page")

    @graph.node(after=bad)
    async def never() -> None: ...

    await start_worker()
    run = await graph.start()
    with pytest.raises(Exception, match="no such page"):
        await run.result(10)

    found = await run.explain()
    assert (found.reason, found.step) == ("finished", "bad")
    assert found.text.endswith("no such page (node bad)")
    nodes = (await run.graph())["nodes"]
    assert {id: node["status"] for id, node in nodes.items()} == {
        "first": "completed", "bad": "failed", "never": "cancelled"
    }  # fmt: skip


async def test_a_map_that_broke_the_run_is_told_as_failed(app: Weft, start_worker):
    graph = app.graph("g")

    @graph.node(map="input.items")
    async def each(item: int) -> int:
        if item == 2:
            raise Fatal("two is bad")
        return item

    await start_worker()
    run = await graph.start({"items": [1, 2]})
    with pytest.raises(Exception, match="two is bad"):
        await run.result(10)
    node = (await run.graph())["nodes"]["each"]
    assert (node["status"], node["items"], node["failed"]) == ("failed", 2, 1)
    assert "two is bad" in node["error"]["message"]


@pytest.mark.leaves("open runs")
async def test_of_very_many_open_steps_some_are_explained_and_all_counted(app: Weft):
    graph = app.graph("g")

    @app.task
    async def work() -> None: ...

    for i in range(30):
        graph.task(f"n{i}", work)
    run = await graph.start()
    found = await run.explain()
    assert (found.open_steps, len(found.steps)) == (30, 20)
    assert found.text.endswith("; 29 other steps are open")


async def test_a_step_that_waits_for_another_run_says_what_that_one_waits_for(app: Weft, start_worker, eventually):
    inner, middle, outer = app.graph("inner"), app.graph("middle"), app.graph("outer")
    inner.wait("news", signal="go")
    middle.subgraph("down", inner)
    outer.subgraph("one", middle)
    outer.subgraph("many", inner, map="[1, 2]")
    await start_worker()
    run = await outer.start()

    async def waits() -> bool:
        return steps_of(await run.explain()) == {"one": "signal", "many": "signal"}

    await eventually(waits)
    found = {step.step: step for step in (await run.explain()).steps}
    child = (await run.graph())["nodes"]["one"]["child"]
    grandchild = (await middle.run(child).graph())["nodes"]["down"]["child"]
    assert found["one"].text == (
        f"waits for run {child} of graph middle: down: waits for run {grandchild} of graph inner: news waits for signal go"
    )
    assert found["one"].until is None and found["one"].run_id == run.id
    assert found["many"].text.startswith("0 of 2 items are done, 2 open; many#0: waits for run ")
    assert await run.cancel()

    async def all_ended() -> bool:
        return await app.runs.count() == {"cancelled": 5}

    await eventually(all_ended)


async def test_steps_that_decide_are_told_by_the_node_they_decide_for(app: Weft, eventually):
    graph = app.graph("g", input={"type": "object"})
    graph.transform("first", "${input.items}")

    @graph.node(after="first", map="first", gather="deadline(1h)", max_parallel=1)
    async def each(item: int) -> int:
        return item

    run = await graph.start({"items": [1, 2, 3]})
    seen = set()
    async with app.worker(queues=["elsewhere"]):  # it decides, and does not work

        async def opened() -> bool:
            found = await run.explain()
            seen.update(step.step for step in found.steps)
            return found.step == "each" and found.reason == "no_worker"

        await eventually(opened)
    found = await run.explain()
    assert seen <= {"", "first", "each"}
    assert [step.step for step in found.steps] == ["each"] and found.open_steps == 1
    assert await run.cancel()
