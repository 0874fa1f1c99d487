"""Cancelling a graph run: its steps are told, their late results refused, and nothing of it is left open."""

import asyncio

import pytest
from graph_keys import closed, remains

from weft import RunCancelled


async def test_running_steps_are_told_at_once_and_their_results_refused(app, raw, start_worker, eventually):
    graph = app.graph("two")
    began, told = asyncio.Semaphore(0), asyncio.Semaphore(0)
    later = []

    @graph.node(timeout="60s")
    async def kind() -> int:
        began.release()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            told.release()
            raise
        return 1

    @graph.node(timeout="60s")
    async def stubborn() -> int:
        began.release()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            told.release()
        return 2

    @graph.node(after=[kind, stubborn])
    async def last(kind: int, stubborn: int) -> int:
        later.append(1)
        return 3

    worker = await start_worker()
    run = await graph.start()
    for _ in range(2):
        await asyncio.wait_for(began.acquire(), 10)

    assert await run.cancel("no more") is True

    for _ in range(2):
        await asyncio.wait_for(told.acquire(), 5)
    with pytest.raises(RunCancelled, match="no more"):
        await run.result(10)
    await eventually(lambda: not worker.running)
    await closed(run, eventually)
    assert later == []
    assert [event.type for event in await run.history()] == ["queued", "routed", "cancelled"]
    assert await remains(app, raw) == []


async def test_whoever_cancels_ends_the_steps_even_when_no_timer_service_lives(app, raw, start_worker, eventually):
    graph = app.graph("queued")

    @graph.node
    async def only() -> None: ...

    run = await graph.start()

    assert await run.cancel() is True

    ns = app.engine().ns
    assert not [key for key in raw.scan_iter(ns.keys.pattern()) if b"wf.tasks" in key and raw.xlen(key)]
    await start_worker()
    await closed(run, eventually)
    assert await remains(app, raw) == []


async def test_a_map_with_more_open_items_than_one_round_ends(app, raw, start_worker, eventually):
    graph = app.graph("wide")

    @graph.node(map="input.items", queue="nobody")
    async def one(item: int) -> int:
        return item

    await start_worker()
    run = await graph.start({"items": list(range(1500))})

    async def all_open() -> bool:
        return sum(raw.xlen(key) for key in raw.scan_iter("*nobody*") if b"wf.tasks" in key) == 1000

    await eventually(all_open)

    assert await run.cancel() is True

    await closed(run, eventually)
    assert await remains(app, raw) == []


async def test_timers_lines_and_retries_go_too(app, raw, start_worker, eventually):
    graph = app.graph("idle")
    failed = asyncio.Event()
    graph.wait("nap", duration="1h")

    @graph.node(retries=5, retry_delay="1h", max_delay="1h", jitter=False)
    async def fails() -> None:
        failed.set()
        raise ValueError("no")

    @graph.node(concurrency=1, map="input.items", timeout="60s")
    async def narrow(item: int) -> None:
        await asyncio.sleep(60)

    await start_worker()
    run = await graph.start({"items": [1, 2, 3]})
    await asyncio.wait_for(failed.wait(), 10)

    async def retries() -> bool:
        nodes = (await run.graph())["nodes"]
        return nodes["fails"]["status"] == "waiting" and nodes["narrow"]["status"] == "running"

    await eventually(retries)

    assert await run.cancel() is True

    await closed(run, eventually)
    await eventually(lambda: remains_sync(raw, app) == [])


def remains_sync(raw, app):
    ns = app.engine().ns
    return [key for key in raw.scan_iter(ns.keys.pattern()) if b":line:" in key or b":gate:" in key]


async def test_cancelling_against_commits_has_one_winner(app, raw, start_worker, eventually):
    graph = app.graph("quick", output="${b}")

    @graph.node
    async def a() -> int:
        return 1

    @graph.node(map="[1, 2, 3]", after=a)
    async def m(item: int) -> int:
        return item

    @graph.node(after=m)
    async def b(m: list) -> int:
        return sum(m)

    await start_worker()
    runs = [await graph.start() for _ in range(100)]

    async def cancel_later(i: int) -> bool:
        for _ in range(i):
            await asyncio.sleep(0)
        return await runs[i].cancel()

    said = await asyncio.gather(*map(cancel_later, range(100)))

    for run, cancelled in zip(runs, said, strict=True):
        if cancelled:
            with pytest.raises(RunCancelled):
                await run.result(10)
        else:
            assert await run.result(10) == 6
        assert [event.terminal for event in await run.history()].count(True) == 1
        await closed(run, eventually)
    assert await remains(app, raw) == []
