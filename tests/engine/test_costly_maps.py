"""Expressions that are evaluated for each item of a map: what they may cost together, and who has a turn meanwhile."""

from __future__ import annotations

import pytest

from weft import StepFailed, Weft
from weft.engine import maps

COSTLY = "input.l.all(x, input.l.all(y, x * y >= 0))"


@pytest.fixture
async def worker(start_worker):
    return await start_worker()


async def test_a_filter_and_a_grouping_have_one_budget_for_all_items(app: Weft, worker, quiet):
    filtered, grouped = app.graph("filtered"), app.graph("grouped")

    @filtered.node(map="input.l", filter=COSTLY)
    async def each(item: int) -> int:
        return item

    grouped.transform("all", "${input.l}")
    grouped.gather("groups", after="all", group_by=COSTLY)
    for graph in (filtered, grouped):
        assert await (await graph.start({"l": [1, 2, 3]})).result(30)
        with pytest.raises(StepFailed, match="for all items together"):
            await (await graph.start({"l": list(range(250))})).result(30)
    await quiet()


@pytest.mark.parametrize("room", [None, 2])
async def test_items_with_costly_arguments_are_opened_a_few_at_a_time(app: Weft, worker, quiet, monkeypatch, room):
    monkeypatch.setattr(maps, "MAX_SECONDS", 0)
    graph = app.graph("slow")

    @graph.node(map="[0, 1, 2, 3, 4, 5, 6]", max_parallel=room, with_={"n": f"${{{COSTLY} ? item : 0}}"})
    async def each(n: int) -> int:
        return n * 10

    run = await graph.start({"l": [1, 2]})

    assert await run.result(30) == [0, 10, 20, 30, 40, 50, 60]
    deciding = [event for event in await run.history() if event.type == "routed" and event.step.startswith("each+")]
    assert len(deciding) >= 6  # one item each
    await quiet()
