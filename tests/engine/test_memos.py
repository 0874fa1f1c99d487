"""Nodes with `cache`: a step that was made before gives its output without being executed again."""

from __future__ import annotations

import asyncio

import pytest

from weft import StepFailed, Weft
from weft.cli.tree import about_node
from weft.engine import memos
from weft.sdk.graph import Graph


@pytest.fixture
async def worker(start_worker):
    return await start_worker()


@pytest.fixture
def calls() -> list:
    """What was executed, in order."""
    return []


@pytest.fixture
def report(app: Weft, calls: list, one_home) -> Graph:
    report = app.graph("report")

    @report.node(cache="1h")
    async def fetch(url: str) -> dict:
        calls.append(url)
        return {"url": url, "pages": [1, 2]}

    @report.node(after=fetch, when="size(fetch.pages) > 1")
    async def count(fetch: dict) -> int:
        return len(fetch["pages"])

    return report


async def test_an_equal_step_takes_what_the_first_one_gave(app, report, calls, worker, quiet):
    first = await report.start({"url": "a"})
    assert await first.result(timeout=30) == 2

    second = await report.start({"url": "a"})

    assert await second.result(timeout=30) == 2
    assert calls == ["a"]
    told = (await second.graph())["nodes"]["fetch"]
    assert (told["status"], told["cached"], told["output"]) == ("completed", True, {"url": "a", "pages": [1, 2]})
    assert about_node(told) == "cached"
    assert "cached" not in (await first.graph())["nodes"]["fetch"]
    (event,) = [event for event in await second.history() if event.type == "step_cached"]
    assert event.step == "fetch" and event.data["result"]["url"] == "a"
    await quiet()


async def test_other_arguments_are_another_step(app, report, calls, worker, quiet):
    for url in ["a", "b", "a", "b"]:
        await (await report.start({"url": url})).result(timeout=30)

    assert calls == ["a", "b"]
    await quiet()


async def test_a_key_decides_instead_of_the_arguments(app, calls, worker, quiet, one_home):
    graph = app.graph("keyed")

    @graph.node(cache={"ttl": "1h", "key": "${input.customer}"})
    async def load(customer: str, attempt: int) -> int:
        calls.append((customer, attempt))
        return attempt

    results = []
    for customer, attempt in [("ann", 1), ("ann", 2), ("bob", 3)]:
        run = await graph.start({"customer": customer, "attempt": attempt})
        results.append(await run.result(timeout=30))

    assert results == [1, 1, 3] and calls == [("ann", 1), ("bob", 3)]
    await quiet()


async def test_another_definition_of_the_node_is_another_step(app, calls, worker, quiet, one_home):
    @app.task
    async def load() -> str:
        calls.append("load")
        return "x"

    for retries in (1, 2, 1):
        graph = Graph(app, "changing")
        graph.task("one", load, cache="1h", retries=retries)
        await (await graph.start()).result(timeout=30)

    assert len(calls) == 2
    await quiet()


async def test_what_is_kept_expires(app, calls, worker, eventually, quiet, one_home):
    graph = app.graph("brief")

    @graph.node(cache="20ms")
    async def load() -> int:
        calls.append(1)
        return 1

    await (await graph.start()).result(timeout=30)

    async def gone() -> bool:
        return not await listed(app)

    await eventually(gone)
    await (await graph.start()).result(timeout=30)

    assert len(calls) == 2
    await quiet()


async def test_failures_are_not_kept(app, calls, worker, quiet, one_home):
    graph = app.graph("shaky")

    @graph.node(cache="1h")
    async def shaky() -> int:
        calls.append(1)
        if len(calls) == 1:
            raise ValueError("not now")
        return 7

    with pytest.raises(StepFailed):
        await (await graph.start()).result(timeout=30)

    assert await (await graph.start()).result(timeout=30) == 7
    await quiet()


@pytest.mark.parametrize("gather", ["all", "first(2)"])
async def test_items_of_a_map_are_kept_one_by_one(app, calls, worker, quiet, one_home, gather):
    graph = app.graph("items")

    @graph.node(map="input.items", cache="1h", max_parallel=2, gather=gather)
    async def each(item: int) -> int:
        calls.append(item)
        return item * 10

    graph.transform("last", "${each}", after="each")
    assert await (await graph.start({"items": [1, 2]})).result(timeout=30) == [10, 20]

    run = await graph.start({"items": [1, 2, 3, 1, 4]})
    found = await run.result(timeout=30)

    if gather == "all":
        assert found == [10, 20, 30, 10, 40] and sorted(calls) == [1, 2, 3, 4]
        cached = [event.step for event in await run.history() if event.type == "step_cached"]
        assert cached == ["each#0", "each#1", "each#3"]
        told = (await run.graph())["nodes"]["each"]
        assert (told["items"], told["done"], told["cached"]) == (5, 5, 3)
        assert about_node(told) == "5 of 5 items done, 3 cached"
    else:
        assert found == [10, 20, None, None, None]
    # All of them are kept: no item is executed at all.
    assert await (await graph.start({"items": [2, 1]})).result(timeout=30) == [20, 10]
    await quiet()


async def test_large_outputs_are_kept_too_and_very_large_ones_are_made_anew(app, calls, worker, quiet, one_home):
    graph = app.graph("large")

    @graph.node(cache="1h")
    async def make(n: int) -> str:
        calls.append(n)
        return "x" * n

    for n in (100_000, 100_000, 500_000, 500_000):
        assert len(await (await graph.start({"n": n})).result(timeout=30)) == n

    assert calls == [100_000, 500_000, 500_000]
    await quiet()


async def test_cached_nodes_in_a_row_are_passed_in_one_go(app, calls, worker, quiet, one_home):
    graph = app.graph("row")

    @graph.node
    async def before(n: int) -> int:
        return n

    @graph.node(after=before, cache="1h")
    async def one(before: int) -> int:
        calls.append("one")
        return before + 1

    @graph.node(after=one, cache="1h")
    async def two(one: int, before: int) -> int:
        calls.append("two")
        return one + before

    @graph.node(after=[two, before])
    async def last(before: int, one: int, two: int) -> list[int]:
        return [before, one, two]

    for _ in range(2):
        run = await graph.start({"n": 3})
        assert await run.result(timeout=30) == [3, 4, 7]

    assert calls == ["one", "two"]
    kinds = [event.type for event in await run.history()]
    assert kinds.count("step_cached") == 2
    await quiet()


async def test_equal_steps_at_once_are_both_right(app, calls, worker, quiet, one_home):
    graph = app.graph("twins")

    @graph.node(map="[5, 5, 5]", cache="1h")
    async def each(item: int) -> int:
        calls.append(item)
        await asyncio.sleep(0.01)
        return item + 1

    runs = [await graph.start() for _ in range(3)]

    assert [await run.result(timeout=30) for run in runs] == [[6, 6, 6]] * 3
    await quiet()


@pytest.fixture
def undone(app: Weft) -> list[str]:
    undone: list[str] = []

    @app.task
    async def undo(what: str) -> None:
        undone.append(what)

    return undone


async def test_a_step_that_was_recalled_is_not_undone(app, undone, worker, quiet, one_home):
    graph = app.graph("saga")

    @graph.node(cache="1h", compensate={"call": "undo", "with": {"what": "one"}})
    async def one() -> int:
        return 1

    @graph.node(after=one)
    async def two(fail: bool) -> None:
        if fail:
            raise ValueError("two")

    await (await graph.start({"fail": False})).result(timeout=30)
    with pytest.raises(StepFailed, match="two"):
        await (await graph.start({"fail": True})).result(timeout=30)

    assert undone == []  # the first run did it, and has completed
    assert [info.node for info in await listed(app)] == ["one"]
    await quiet()


async def test_what_was_undone_is_not_recalled(app, calls, undone, worker, quiet, one_home):
    graph = app.graph("saga")

    @graph.node
    async def before(n: int) -> int:
        return n

    @graph.node(after=before, cache="1h", compensate={"call": "undo", "with": {"what": "book ${before}"}})
    async def book(before: int) -> str:
        calls.append("book")
        return f"booked {before}"

    @graph.node(
        after=book,
        map="[1, 2]",
        cache={"ttl": "1h", "key": "${item}"},
        compensate={"call": "undo", "with": {"what": "room ${item}"}},
    )
    async def room(item: int) -> int:
        calls.append(item)
        return item

    @graph.node(after=room, cache="1h")
    async def look() -> str:
        calls.append("look")
        return "seen"

    @graph.node(after=look)
    async def pay(fail: bool) -> str:
        if fail:
            raise ValueError("no money")
        return "paid"

    with pytest.raises(StepFailed, match="no money"):
        await (await graph.start({"n": 7, "fail": True})).result(timeout=30)
    assert sorted(undone) == ["book 7", "room 1", "room 2"]
    assert [info.node for info in await listed(app)] == ["look"]
    calls.clear()
    run = await graph.start({"n": 7, "fail": False})

    assert await run.result(timeout=30) == "paid"
    assert sorted(map(str, calls)) == ["1", "2", "book"]
    await quiet()


async def listed(app: Weft, **which: str) -> list:
    return [info async for _, info in memos.entries(app.engine(), **which)]


# --- listing, forgetting --------------------------------------------------------------------------


async def test_what_is_kept_is_listed_and_forgotten(app, report, calls, worker, quiet):
    graph = app.graph("keyed")

    @graph.node(cache={"ttl": "1h", "key": "${input.customer}"})
    async def load(customer: str) -> str:
        calls.append(customer)
        return customer

    run = await report.start({"url": "a"})
    await run.result(timeout=30)
    for customer in ("ann", "bob"):
        await (await graph.start({"customer": customer})).result(timeout=30)

    (entry,) = await listed(app, graph="report")
    assert (entry.graph, entry.node, entry.key, entry.run_id) == ("report", "fetch", "", run.id)
    assert entry.expires_at > entry.made_at and entry.size > 0
    assert sorted(info.key for info in await listed(app, graph="keyed", node="load")) == ['"ann"', '"bob"']

    assert await memos.forget(app.engine(), graph="keyed", key="ann") == 1
    assert await memos.forget(app.engine(), key=entry.digest) == 1
    assert [info.key for info in await listed(app)] == ['"bob"']

    await (await report.start({"url": "a"})).result(timeout=30)
    assert calls == ["a", "ann", "bob", "a"]
    await quiet()


async def test_in_a_loop_the_next_iteration_takes_what_this_one_just_gave(app, calls, worker, quiet, one_home):
    graph = app.graph("looped", output="${[fetch, again]}")

    @graph.node(cache="1h", with_={"url": "the same"})
    async def fetch(url: str) -> str:
        calls.append(url)
        return url

    graph.loop("again", after=fetch, to=fetch, while_="iteration < 300", max_iterations=400)
    run = await graph.start()
    assert await run.result(timeout=30) == ["the same", 301]
    assert calls == ["the same"]
    cached = [
        event.step for event in await run.history() if event.type == "node_completed" and event.data.get("cached")
    ]
    assert len(cached) == len(set(cached))
