"""Pausing a graph run: running steps finish, nothing else begins, and resuming loses and doubles nothing."""

import asyncio

import pytest
from graph_keys import closed
from held_graphs import held_line, started

from weft import Conflict, NotFound, RunCancelled


@pytest.fixture
def held(app):
    """a -> b -> c, where a runs until it is let go."""
    return held_line(app, "held")


async def test_running_steps_finish_and_what_follows_waits_until_it_is_resumed(held, start_worker, eventually):
    await start_worker()
    run = await started(held)

    assert await run.pause("looking at it") is True
    held.go.set()

    async def a_done() -> bool:
        return (await run.graph())["nodes"]["a"]["status"] == "completed"

    await eventually(a_done)
    assert await run.status() == "paused"
    assert (await run.graph())["nodes"]["b"]["status"] == "waiting"
    assert held.ran == ["a"]

    assert await run.resume() is True
    assert await run.result(10) == 3
    assert held.ran == ["a", "b", "c"]
    types = [event.type for event in await run.history()]
    assert types == [
        "queued",
        "routed",
        "paused",
        "step_completed",
        "resumed",
        "step_completed",
        "step_completed",
        "completed",
    ]
    await closed(run, eventually)


async def test_what_is_queued_but_not_delivered_is_held(held, start_worker, eventually):
    held.go.set()
    run = await held.start()
    await run.pause()
    await start_worker()

    async def waits() -> bool:
        return (await run.graph())["nodes"]["a"]["status"] == "waiting"

    await eventually(waits)
    assert not held.began.is_set()
    await run.resume()
    assert await run.result(10) == 3
    await closed(run, eventually)


async def test_it_says_who_paused_it_and_why(held, start_worker, eventually):
    run = await held.start()
    await run.pause("too early")

    said = await run.explain()

    assert said.reason == "run_paused"
    assert "the run is paused since" in said.text and "(too early)" in said.text
    assert said.by == run._app.engine().actor and said.since is not None
    paused = (await run.history())[-1]
    assert (paused.type, paused.data["reason"], paused.data["by"]) == ("paused", "too early", said.by)
    await run.cancel()
    await start_worker()
    await closed(run, eventually)


async def test_pausing_and_resuming_twice_is_one_event_each(held, start_worker, eventually):
    held.go.set()
    run = await held.start()
    assert [await run.pause(), await run.pause()] == [True, True]
    assert [await run.resume(), await run.resume()] == [True, True]
    assert [event.type for event in await run.history()] == ["queued", "routed", "paused", "resumed"]
    await start_worker()
    assert await run.result(10) == 3
    await closed(run, eventually)
    assert [await run.pause(), await run.resume()] == [False, False]


async def test_a_timer_that_comes_due_while_paused_waits(app, start_worker, advance, eventually):
    graph = app.graph("waits")
    graph.wait("nap", duration="1h")
    graph.transform("done", "${1 + 1}", after="nap")
    await start_worker()
    run = await graph.start()
    await run.pause()

    await advance(7_200_000)

    async def held_at_its_gate() -> bool:
        ns = app.engine().ns
        p = int(run.id[1 : run.id.index("-")])
        return await ns.read("ZCARD", ns.keys.line(p, f"run|{run.id}"), p=p) == 1

    await eventually(held_at_its_gate)
    assert await run.status() == "paused"
    await run.resume()
    assert await run.result(10) == 2
    await closed(run, eventually)


async def test_a_paused_run_can_be_cancelled_and_leaves_no_pause(held, app, start_worker, eventually):
    await start_worker()
    run = await started(held)
    await run.pause()

    assert await run.cancel() is True

    with pytest.raises(RunCancelled):
        await run.result(10)
    await closed(run, eventually)
    ns = app.engine().ns
    assert [await ns.read("HLEN", ns.keys.controls(p), p=p) for p in range(ns.partitions)] == [0] * ns.partitions


async def test_maps_are_held_too(app, start_worker, eventually):
    graph = app.graph("many", output="${twice}")
    began, go, ran = asyncio.Event(), asyncio.Event(), []

    @graph.node(map="input.items", max_parallel=3, timeout="60s")
    async def twice(item: int) -> int:
        began.set()
        await go.wait()
        ran.append(item)
        return 2 * item

    await start_worker()
    run = await graph.start({"items": list(range(20))})
    await asyncio.wait_for(began.wait(), 10)
    await run.pause()
    go.set()

    async def rest() -> bool:
        about = (await run.graph())["nodes"]["twice"]
        return about.get("done") == len(ran) > 0

    await eventually(rest)
    assert len(ran) < 20
    await run.resume()
    assert await run.result(10) == [2 * i for i in range(20)]
    assert sorted(ran) == list(range(20))
    await closed(run, eventually)


async def test_a_run_of_a_task_is_no_graph(app, add):
    run = await add.enqueue(1, 2)
    graph = app.graph("any")
    with pytest.raises(Conflict, match="is one task"):
        await graph.run(run.id).pause()
    with pytest.raises(NotFound):
        await graph.run("r0-01J00000000000000000000000").pause()
    await run.cancel()


async def test_pausing_against_completion_loses_nothing(app, start_worker, eventually):
    graph = app.graph("quick", output="${b}")

    @graph.node
    async def a() -> int:
        return 1

    @graph.node(after=a)
    async def b(a: int) -> int:
        return a + 1

    await start_worker()
    runs = [await graph.start() for _ in range(50)]

    paused = await asyncio.gather(*(run.pause() for run in runs))
    await asyncio.gather(*(run.resume() for run, was in zip(runs, paused, strict=True) if was))

    assert [await run.result(10) for run in runs] == [2] * 50
    for run in runs:
        await closed(run, eventually)
