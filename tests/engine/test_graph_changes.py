"""All changes of graph runs at once, at random: every run ends once, every node gives one result, nothing is left over."""

import asyncio
import random

import pytest
from graph_keys import closed, remains

from weft import Conflict, RunCancelled, StepFailed


@pytest.fixture
def busy(app):
    """A join, a map, a branch, a loop and a wait; `shaky` fails now and then."""
    graph = app.graph("busy", output="${end}")
    chance = random.Random(7)

    @app.task
    async def note(text: str) -> str:
        await asyncio.sleep(0)
        return text

    @graph.node
    async def a() -> list:
        return [1, 2, 3, 4, 5]

    @graph.node(after=a, map="a", max_parallel=2)
    async def m(item: int) -> int:
        await asyncio.sleep(chance.random() / 200)
        return item

    @graph.node(after=a)
    async def shaky() -> int:
        if chance.random() < 0.2:
            raise ValueError("shaky")
        return 1

    graph.wait("nap", duration="10ms", after=a)
    graph.transform("sum", "${size(m)}", after=["m"])

    @graph.node(after="sum")
    async def body(iteration: int) -> int:
        return iteration

    graph.loop("again", after=body, to=body, while_="iteration < 2", max_iterations=5)

    @graph.node(after=["again", shaky, "nap"])
    async def end(sum: int) -> int:
        return sum

    return graph


async def meddle(run, chance: random.Random, n: int) -> None:
    """Does some random things to a run, then lets it go on."""
    for i in range(n):
        await asyncio.sleep(chance.random() / 50)
        what = chance.choice(["pause", "resume", "patch", "undo", "retry", "cancel", "resume", "patch"])
        try:
            if what == "pause":
                await run.pause()
            elif what == "resume":
                await run.resume()
            elif what == "patch":
                after = chance.choice([["a"], ["m"], ["a", "sum"], ["again"], ["nap", "a"]])
                node = {"type": "task", "call": "note", "with": {"text": f"n{i}"}, "after": after}
                await run.patch([{"op": "add", "path": f"/nodes/n{i}", "value": node}])
            elif what == "undo":
                await run.undo_patch()
            elif what == "retry":
                await run.retry()
            elif chance.random() < 0.5:
                await run.cancel()
        except Conflict:
            pass
    await run.resume()


async def settle(run) -> str:
    """Retries a run until it completes; returns how often that was needed."""
    for _ in range(30):
        try:
            assert await run.result(20) == 5
            return "completed"
        except (StepFailed, RunCancelled):
            await run.retry()
    raise AssertionError("it never completed")


@pytest.mark.parametrize("seed", range(3))
async def test_whatever_is_done_to_them_runs_complete_once_and_leave_nothing(
    busy, app, raw, start_worker, eventually, seed
):
    for _ in range(2):
        await start_worker(concurrency=20)
    runs = [await busy.start() for _ in range(15)]

    await asyncio.gather(*(meddle(run, random.Random(100 * seed + i), 8) for i, run in enumerate(runs)))
    await asyncio.gather(*(settle(run) for run in runs))

    for run in runs:
        history = await run.history()
        assert [event.seq for event in history] == list(range(1, len(history) + 1))
        # Between two retries each step is completed once.
        lives: list[list[str]] = [[]]
        for event in history:
            if event.type == "retried":
                lives.append([])
            elif event.type == "step_completed" and "#" not in event.step:
                lives[-1].append(event.step)
        assert all(len(life) == len(set(life)) for life in lives)
        graph = await run.graph()
        assert {node["status"] for node in graph["nodes"].values()} == {"completed"}
        await closed(run, eventually)
    assert await remains(app, raw) == []
