"""The history of a graph run has the attempts of its steps, in order: what began, failed, was put off or taken away."""

from __future__ import annotations

import asyncio

import pytest

from weft import Retry, Snooze


@pytest.fixture
async def worker(start_worker):
    return await start_worker()


def told(events, *steps):
    return [(event.type, event.step, event.data.get("attempt")) for event in events if event.step in steps]


async def test_retries_and_snoozes_stand_between_what_came_before_and_after(app, worker):
    graph = app.graph("stubborn")
    calls = 0

    @graph.node
    async def first() -> None: ...

    @graph.node(after=first, retries=2, retry_delay="1ms")
    async def tries(input: dict) -> int:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise ValueError("not yet")
        if calls == 2:
            raise Snooze("1ms")
        if calls == 3:
            raise Retry("once more", after="1ms")
        return calls

    run = await graph.start({})
    live = [event async for event in run.events()]

    assert await run.result(timeout=30) == 4
    events = await run.history()
    assert [event.seq for event in events] == list(range(1, len(events) + 1))
    assert [(event.type, event.seq) for event in live] == [(event.type, event.seq) for event in events]
    assert told(events, "first", "tries") == [
        ("step_completed", "first", 1),
        ("step_retrying", "tries", 1),
        ("step_snoozed", "tries", 2),
        ("step_retrying", "tries", 2),
        ("step_completed", "tries", 3),
    ]
    failed = next(event for event in events if event.type == "step_retrying")
    assert (failed.data["error"]["type"], failed.data["error"]["message"]) == ("ValueError", "not yet")
    assert "Traceback" in failed.data["error"]["traceback"]
    assert failed.data["started"] > 0 and "after_ms" in failed.data


async def test_items_of_a_map_are_told_by_their_index(app, worker):
    graph = app.graph("many")
    failed: set[int] = set()

    @graph.node(map="[0, 1, 2]", retries=1, retry_delay="1ms")
    async def each(item: int) -> int:
        if item != 1 and item not in failed:
            failed.add(item)
            raise ValueError(f"item {item}")
        return item

    run = await graph.start()
    await run.result(timeout=30)

    events = [event for event in await run.history() if event.type == "step_retrying"]
    assert sorted((event.step, event.data["error"]["message"]) for event in events) == [
        ("each#0", "item 0"),
        ("each#2", "item 2"),
    ]


async def test_a_step_without_retries_costs_no_event_and_a_subgraph_is_not_told_at_every_look(app, worker, weft_clock):
    inner = app.graph("inner")

    @inner.node
    async def one() -> int:
        return 1

    outer = app.graph("outer")
    outer.subgraph("child", inner)
    inner.wait("pause", duration="20s", after="one")
    run = await outer.start()
    for _ in range(4):  # the step looks after its child
        await weft_clock.advance("10s")
        await asyncio.sleep(0.05)

    await run.result(timeout=30)

    assert told(await run.history(), "child") == [("step_completed", "child", 1)]


async def test_a_step_that_takes_long_says_when_it_began(app, start_worker, short_lease, eventually):
    graph = app.graph("long")
    go = asyncio.Event()

    @graph.node
    async def waits() -> None:
        await go.wait()

    await start_worker()
    run = await graph.start()

    async def begun() -> bool:
        return any(event.type == "step_started" for event in await run.history())

    await eventually(begun, 30)
    go.set()
    await run.result(timeout=30)
    assert told(await run.history(), "waits") == [("step_started", "waits", 1), ("step_completed", "waits", 1)]


async def test_the_attempts_of_a_step_whose_run_has_ended_change_nothing(app, worker, eventually):
    graph = app.graph("late")
    go, begun = asyncio.Event(), asyncio.Event()

    @graph.node(retries=5, retry_delay="1ms")
    async def slow() -> None:
        begun.set()
        try:
            await go.wait()
        except asyncio.CancelledError:
            raise ValueError("stopped") from None

    run = await graph.start()
    await begun.wait()
    await run.cancel()
    go.set()
    await asyncio.sleep(0.1)

    assert (await run.history())[-1].type == "cancelled"
