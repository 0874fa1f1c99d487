"""Maps that are over before all their items are: what is still open is ended, and changes nothing any more."""

from __future__ import annotations

import asyncio

import pytest

from weft import StepFailed, Weft


@pytest.fixture
async def worker(start_worker):
    return await start_worker()


class Field:
    """Items that say when they begin, wait until they are let go, and say when they are stopped."""

    def __init__(self, app: Weft, **options: object) -> None:
        self.begun: set[int] = set()
        self.stopped: set[int] = set()
        self.go = {i: asyncio.Event() for i in range(10)}
        self.graph = app.graph("field")
        field = self

        @self.graph.node(map="input.items", **options)
        async def each(item: int) -> int:
            field.begun.add(item)
            try:
                await field.go[item].wait()
            except asyncio.CancelledError:
                field.stopped.add(item)
                raise
            if item >= 5:
                raise ValueError(f"item {item}")
            return item * 10

        self.graph.transform("last", {"got": "${each}"}, after="each")


@pytest.mark.parametrize(
    ("policy", "finishing", "result"),
    [
        ("any", [2], [None, None, 20, None]),
        ("first(2)", [3, 1], [None, 10, None, 30]),
        ("quorum(50%)", [0, 1], [0, 10, None, None]),
    ],
)
async def test_what_is_not_needed_any_more_is_stopped(app, worker, eventually, quiet, policy, finishing, result):
    field = Field(app, gather=policy)
    run = await field.graph.start({"items": [0, 1, 2, 3]})
    await eventually(lambda: len(field.begun) == 4)

    for item in finishing:
        field.go[item].set()

    assert await run.result(timeout=30) == {"got": result}
    await eventually(lambda: field.stopped == {0, 1, 2, 3} - set(finishing))
    await quiet()


async def test_items_that_wait_for_a_worker_are_ended_too(app, start_worker, eventually, quiet):
    field = Field(app, gather="first(1)", retries=0)
    await start_worker(concurrency=2)
    run = await field.graph.start({"items": [0, 1, 2, 3, 4]})
    await eventually(lambda: len(field.begun) == 2)

    field.go[0].set()

    assert (await run.result(timeout=30))["got"].count(None) == 4
    await eventually(lambda: len(field.stopped) >= 1)
    await quiet()
    assert len(field.begun) <= 4  # what was not claimed by then never began


async def test_a_map_ends_at_its_deadline_with_what_is_there(app, worker, eventually, quiet, weft_clock):
    field = Field(app, gather="deadline(1h)", on_error="continue")
    run = await field.graph.start({"items": [0, 1, 5, 2]})
    await eventually(lambda: len(field.begun) == 4)
    field.go[1].set()
    field.go[5].set()

    async def two_are_done() -> bool:
        about = (await run.graph())["nodes"]["each"]
        return about.get("done") == 1 and about.get("failed") == 1

    await eventually(two_are_done)
    await weft_clock._move(3_600_000)

    assert await run.result(timeout=30) == {"got": [None, 10, None, None]}
    await eventually(lambda: field.stopped == {0, 2})
    await quiet()


async def test_a_map_that_is_done_before_its_deadline_waits_for_nothing(app, worker, quiet):
    field = Field(app, gather="deadline(1h)")
    for event in field.go.values():
        event.set()

    run = await field.graph.start({"items": [0, 1]})

    assert await run.result(timeout=30) == {"got": [0, 10]}
    await quiet()  # the timer is gone too


async def test_more_items_than_may_be_open_when_the_deadline_comes(app, worker, eventually, quiet, weft_clock):
    field = Field(app, gather="deadline(1h)", max_parallel=2)
    field.go[0].set()
    run = await field.graph.start({"items": [0, 1, 2, 3, 4]})
    await eventually(lambda: field.begun == {0, 1, 2})

    await weft_clock._move(3_600_000)

    assert await run.result(timeout=30) == {"got": [0, None, None, None, None]}
    await eventually(lambda: field.stopped == {1, 2})
    await quiet()


async def test_a_late_failure_of_an_item_that_is_not_needed_does_not_fail_the_run(app, worker, eventually, quiet):
    release = asyncio.Event()
    graph = app.graph("late")

    @graph.node(map="[0, 1]", gather="any")
    def each(item: int) -> int:  # a thread cannot be stopped: it ends when it likes
        if item == 0:
            return 0
        asyncio.run_coroutine_threadsafe(release.wait(), loop).result(30)
        raise ValueError("late")

    loop = asyncio.get_running_loop()

    @graph.node(after=each)
    async def last(each: list) -> list:
        release.set()
        await asyncio.sleep(0.1)
        return each

    run = await graph.start()

    assert await run.result(timeout=30) == [0, None]
    await quiet()


async def test_a_map_that_cannot_reach_its_quorum_fails_and_stops_the_rest(app, worker, eventually, quiet):
    field = Field(app, gather="quorum(80%)", on_error="continue")
    run = await field.graph.start({"items": [0, 1, 5, 6]})
    await eventually(lambda: len(field.begun) == 4)
    field.go[5].set()

    run_result = asyncio.ensure_future(run.result(timeout=30))

    # With `continue` the run goes on behind the map, whose output is null.
    assert await run_result == {"got": None}
    assert (await run.graph())["nodes"]["each"]["error"]["code"] == "gather_failed"
    await eventually(lambda: field.stopped == {0, 1, 6})
    await quiet()


async def test_children_of_items_that_are_not_needed_are_cancelled(app, worker, eventually, quiet):
    inner = app.graph("inner")
    inner.wait("pause", duration="1h", when="input.n > 0")
    outer = app.graph("outer")
    outer.subgraph("each", inner, map="[1, 0, 2]", gather="any", with_={"n": "${item}"})

    run = await outer.start()

    assert await run.result(timeout=30) == [None, None, None]

    async def all_ended() -> bool:
        return all(info.status.finished for info in await app.runs.list())

    await eventually(all_ended)
    await quiet()


async def test_a_failing_item_still_fails_a_map_with_a_deadline(app, worker, quiet):
    field = Field(app, gather="deadline(1h)")
    field.go[5].set()

    run = await field.graph.start({"items": [0, 5]})

    with pytest.raises(StepFailed, match="item 5"):
        await run.result(timeout=30)
    await quiet()


async def test_large_results_of_items_go_with_their_run(app, worker, quiet):
    graph = app.graph("large")

    @graph.node(map="[1, 2, 3]")
    async def each(item: int) -> str:
        return str(item) * 50_000

    graph.transform("last", "${size(each[2])}", after="each")
    run = await graph.start()

    assert await run.result(timeout=30) == 50_000
    await quiet()


async def test_maps_in_a_loop_go_with_their_run(app, worker, quiet):
    graph = app.graph("rounds")

    @graph.node(map="[1, 2]")
    async def each(item: int, iteration: int) -> str:
        return f"{item}.{iteration}" * 3000

    graph.loop("again", after="each", to="each", while_="iteration < 2", max_iterations=3)
    graph.transform("last", "${size(each)}", after="again")
    run = await graph.start()

    assert await run.result(timeout=30) == 2
    await quiet()


async def test_hundreds_of_open_items_go_with_a_cancelled_run(app, worker, eventually, quiet):
    graph = app.graph("wide")

    @graph.node(map="input.items", queue="nobody")
    async def each(item: int) -> int:
        return item

    run = await graph.start({"items": list(range(600))})

    async def all_open() -> bool:
        ns = app.engine().ns
        lengths = [await ns.read("XLEN", ns.keys.tasks(p, "nobody", 5), p=p) for p in range(ns.partitions)]
        return sum(lengths) == 600

    await eventually(all_open)

    assert await run.cancel()

    await quiet()
