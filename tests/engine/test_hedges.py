"""Items of a map that take long are started a second time: the first to end one wins, and each has one result."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

from weft import DefinitionError, Discard, StepFailed, Weft, current
from weft.cli.tree import about_node
from weft.engine.housekeeping import hedges


class Slow:
    """A map whose items wait until they are let go, each time they are called, and say when they are stopped."""

    def __init__(self, app: Weft, **options: Any) -> None:
        self.calls: Counter[int] = Counter()
        self.go: dict[tuple[int, int], asyncio.Future[Any]] = {}
        self.stopped: set[tuple[int, int]] = set()
        self.keys: dict[int, set[str]] = {}
        self.steps: set[str] = set()
        self.most = self.now = 0
        self.graph = app.graph("slow")
        slow = self

        @self.graph.node(map="input.items", **{"hedge": "150ms", **options})
        async def each(item: int) -> Any:
            slow.calls[item] += 1
            call = (item, slow.calls[item])
            slow.keys.setdefault(item, set()).add(current().effect_key)
            slow.steps.add(current().step)
            slow.now += 1
            slow.most = max(slow.most, slow.now)
            try:
                return await slow.door(*call)
            except asyncio.CancelledError:
                slow.stopped.add(call)
                raise
            finally:
                slow.now -= 1

        self.graph.transform("last", {"got": "${each}", "errors": "${errors.each}"}, after="each")

    def door(self, item: int, call: int) -> asyncio.Future[Any]:
        return self.go.setdefault((item, call), asyncio.get_running_loop().create_future())

    def let(self, item: int, call: int, value: Any = None) -> None:
        door = self.door(item, call)
        door.set_exception(value) if isinstance(value, Exception) else door.set_result(value)


async def types(run: Any) -> Counter[str]:
    return Counter(event.type for event in await run.history())


@pytest.fixture
async def worker(start_worker):
    return await start_worker()


async def test_the_second_start_wins_and_the_first_is_stopped(app, worker, eventually, quiet):
    slow = Slow(app)
    slow.let(0, 1, "a")
    run = await slow.graph.start({"items": [0, 1]})
    await eventually(lambda: slow.calls[1] == 2)
    about = (await run.graph())["nodes"]["each"]
    assert (about["done"], about["open"], about["hedged"]) == (1, 1, 1)
    assert about_node(about) == "1 of 2 items done, 1 started twice"
    assert "(1 started twice)" in (await run.explain()).text

    slow.let(1, 2, "b")

    assert (await run.result(timeout=30))["got"] == ["a", "b"]
    await eventually(lambda: slow.stopped == {(1, 1)})
    await quiet()
    assert slow.calls == {0: 1, 1: 2}
    # Whatever has an effect outside does it under one key.
    assert {item: len(keys) for item, keys in slow.keys.items()} == {0: 1, 1: 1}
    assert slow.steps == {"each#0", "each#1"}
    told = {(event.type, event.step): event.data for event in await run.history()}
    assert ("step_hedged", "each#1") in told
    assert told["step_completed", "each#1"]["copy"] == 1
    assert "copy" not in told["step_completed", "each#0"]
    assert (await run.graph())["nodes"]["each"]["hedged"] == 1


async def test_the_first_start_wins_and_the_second_is_stopped(app, worker, eventually, quiet):
    slow = Slow(app)
    run = await slow.graph.start({"items": [7]})
    await eventually(lambda: slow.calls[7] == 2)

    slow.let(7, 1, "mine")

    assert (await run.result(timeout=30))["got"] == ["mine"]
    await eventually(lambda: slow.stopped == {(7, 2)})
    await quiet()


async def test_both_end_at_once_and_one_result_counts(app, worker, eventually, quiet):
    slow = Slow(app)
    items = list(range(20))
    run = await slow.graph.start({"items": items})
    await eventually(lambda: all(slow.calls[item] == 2 for item in items))

    for item in items:
        slow.let(item, 1, [item, 1])
        slow.let(item, 2, [item, 2])

    got = (await run.result(timeout=30))["got"]
    assert [one[0] for one in got] == items
    await quiet()
    seen = await types(run)
    assert (seen["step_completed"], seen["step_hedged"]) == (20, 20)
    assert slow.now == 0


async def test_what_ended_in_time_is_not_started_again(app, worker, quiet):
    slow = Slow(app, hedge="20s")
    for item in range(50):
        slow.let(item, 1, item)
    run = await slow.graph.start({"items": list(range(50))})

    assert (await run.result(timeout=30))["got"] == list(range(50))
    await quiet()  # the look that was planned is off
    assert set(slow.calls.values()) == {1}


async def test_a_failure_counts_only_when_nobody_is_at_the_item_any_more(app, worker, eventually, quiet):
    slow = Slow(app)
    run = await slow.graph.start({"items": [1]})
    await eventually(lambda: slow.calls[1] == 2)

    slow.let(1, 1, ValueError("no luck"))
    await eventually(lambda: _yielded(run))
    slow.let(1, 2, "fine")

    assert (await run.result(timeout=30))["got"] == ["fine"]
    await quiet()
    (told,) = [event for event in await run.history() if event.type == "step_yielded"]
    assert (told.step, told.data["error"]["message"]) == ("each#0", "no luck")


async def _yielded(run: Any) -> bool:
    return (await types(run))["step_yielded"] > 0


@pytest.mark.parametrize("first", [1, 2])
async def test_an_item_fails_when_both_have(app, worker, eventually, quiet, first):
    slow = Slow(app)
    run = await slow.graph.start({"items": [1]})
    await eventually(lambda: slow.calls[1] == 2)

    slow.let(1, first, ValueError("one"))
    await eventually(lambda: _yielded(run))
    slow.let(1, 3 - first, ValueError("two"))

    with pytest.raises(StepFailed, match="each#0: two"):
        await run.result(timeout=30)
    await quiet()
    assert slow.calls == {1: 2}


async def test_an_item_that_fails_is_not_started_a_third_time(app, worker, eventually, quiet):
    slow = Slow(app, on_error="continue")
    run = await slow.graph.start({"items": [1]})
    await eventually(lambda: slow.calls[1] == 2)
    slow.let(1, 2, ValueError("the copy"))
    await eventually(lambda: _yielded(run))

    await asyncio.sleep(0.5)  # more than one look later
    assert slow.calls == {1: 2}
    slow.let(1, 1, ValueError("the item"))

    result = await run.result(timeout=30)
    assert result["got"] == [None]
    assert result["errors"] == [{"index": 0, "type": "ValueError", "message": "the item"}]
    await quiet()


async def test_a_discard_ends_the_item_for_both(app, worker, eventually, quiet):
    slow = Slow(app, on_error="continue")
    run = await slow.graph.start({"items": [1]})
    await eventually(lambda: slow.calls[1] == 2)

    slow.let(1, 2, Discard("not needed"))

    assert (await run.result(timeout=30))["got"] == [None]
    await eventually(lambda: slow.stopped == {(1, 1)})
    await quiet()


async def test_retries_of_both_are_their_own(app, worker, eventually, quiet):
    slow = Slow(app, retries=2, retry_delay="1ms")
    run = await slow.graph.start({"items": [1]})
    await eventually(lambda: slow.calls[1] == 2)

    slow.let(1, 2, ValueError("again"))
    await eventually(lambda: slow.calls[1] == 3)
    slow.let(1, 3, "at last")

    assert (await run.result(timeout=30))["got"] == ["at last"]
    await eventually(lambda: slow.stopped == {(1, 1)})
    await quiet()


async def test_items_that_wait_for_a_worker_are_not_started_twice(app, start_worker, eventually, quiet):
    slow = Slow(app)
    await start_worker(concurrency=2)
    run = await slow.graph.start({"items": [0, 1, 2, 3]})

    async def two_are_hedged() -> bool:
        return (await run.graph())["nodes"]["each"].get("hedged") == 2

    await eventually(two_are_hedged)
    await asyncio.sleep(0.5)
    assert await two_are_hedged()  # the other two have waited for longer than that, but nobody runs them

    for item in range(4):
        slow.let(item, 1, item)
        slow.let(item, 2, item)
    assert (await run.result(timeout=30))["got"] == [0, 1, 2, 3]
    await quiet()


async def test_copies_take_only_what_max_parallel_leaves(app, worker, eventually, quiet):
    slow = Slow(app, max_parallel=2)
    slow.let(1, 1, 1)
    run = await slow.graph.start({"items": [0, 1, 2]})
    await eventually(lambda: slow.calls[2] == 1)
    await asyncio.sleep(0.5)
    assert slow.calls == {0: 1, 1: 1, 2: 1}  # both places are taken

    slow.let(2, 1, 2)
    await eventually(lambda: slow.calls[0] == 2)
    slow.let(0, 2, 0)

    assert (await run.result(timeout=30))["got"] == [0, 1, 2]
    await quiet()
    assert slow.most == 2


async def test_a_map_that_is_over_stops_copies_too(app, worker, eventually, quiet):
    slow = Slow(app, gather="any")
    run = await slow.graph.start({"items": [0, 1, 2]})
    await eventually(lambda: slow.calls.total() == 6)

    slow.let(1, 2, "quick")

    assert (await run.result(timeout=30))["got"] == [None, "quick", None]
    await eventually(lambda: len(slow.stopped) == 5)
    await quiet()


async def test_cancelling_the_run_stops_copies_too(app, worker, eventually, quiet):
    slow = Slow(app)
    run = await slow.graph.start({"items": [0, 1]})
    await eventually(lambda: slow.calls.total() == 4)

    assert await run.cancel()

    await eventually(lambda: len(slow.stopped) == 4)
    await quiet()


async def test_a_paused_run_starts_nothing_a_second_time(app, worker, eventually, quiet, monkeypatch):
    async def nobody(*_: Any) -> dict[str, int]:
        return {}

    slow = Slow(app)
    with monkeypatch.context() as patched:
        patched.setattr(hedges, "read_running_ms", nobody)  # nothing is late before the run is paused
        run = await slow.graph.start({"items": [0]})
        await eventually(lambda: slow.calls[0] == 1)
        await run.pause()
    await asyncio.sleep(1.2)  # a look later
    assert slow.calls == {0: 1}

    await run.resume()
    await eventually(lambda: slow.calls[0] == 2)
    slow.let(0, 2, "b")

    assert (await run.result(timeout=30))["got"] == ["b"]
    await quiet()


async def test_what_the_winner_did_is_undone_once(app, worker, eventually, quiet):
    undone: list[Any] = []

    @app.task
    async def put_back(item: int, each: str) -> None:
        undone.append((item, each))

    slow = Slow(app, compensate={"call": "put_back"})

    @slow.graph.node(after="last")
    async def fails() -> None:
        raise ValueError("in the end")

    run = await slow.graph.start({"items": [5]})
    await eventually(lambda: slow.calls[5] == 2)
    slow.let(5, 2, "taken")

    with pytest.raises(StepFailed, match="in the end"):
        await run.result(timeout=30)
    assert undone == [(5, "taken")]
    await quiet()


async def test_a_hedge_that_never_comes_is_refused(app):
    app.graph("g").task("never", hedge="1m", map="input.items", call=app.task(_noop, name="noop"))
    with pytest.raises(DefinitionError, match=r"hedge after 1m never comes.*timeout of 30 s"):
        await app.graphs["g"].start({"items": [1]})


async def _noop(item: int) -> None: ...


async def test_yaml_says_the_same(app, worker, eventually, quiet, tmp_path):
    calls: Counter[int] = Counter()

    @app.task
    async def ask(item: int) -> int:
        calls[item] += 1
        if calls[item] == 1 and item == 2:
            await asyncio.sleep(60)
        return item * 10

    file = tmp_path / "g.yaml"
    file.write_text("name: asks\nnodes:\n  ask: {type: task, call: ask, map: input.items, timeout: 2m, hedge: 100ms}\n")
    (graph,) = app.load(file)

    assert await (await graph.start({"items": [1, 2]})).result(timeout=30) == [10, 20]
    assert calls == {1: 1, 2: 2}
    await quiet()
