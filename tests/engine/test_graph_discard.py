"""A step of a graph that discards itself has not failed: it is skipped, in a map its place is null."""

from __future__ import annotations

import pytest

from weft import Discard, Fatal, StepFailed, Weft
from weft.cli.tree import about_node


@pytest.fixture
def discards(app: Weft):
    @app.task
    async def maybe(n: int = 0) -> int:
        if n % 2 == 0:
            raise Discard(f"{n} is not needed")
        return n

    return maybe


@pytest.mark.parametrize("on_error", [None, "continue", "dead_letter", "fail"])
async def test_a_node_that_is_discarded_is_skipped_and_so_is_what_only_follows_it(
    app: Weft, start_worker, discards, on_error
):
    graph = app.graph("g", output="${told}")
    graph.task("gone", discards, **({} if on_error is None else {"on_error": on_error}))
    graph.task("kept", discards, with_={"n": 1})
    graph.task("behind", discards, after="gone", with_={"n": 3})
    graph.task("joined", discards, after=["gone", "kept"], with_={"n": 5})
    look = "${[status.gone, errors.gone, gone, status.behind, status.kept, joined]}"
    graph.transform("told", look, after=["behind", "joined"])
    await start_worker()

    run = await graph.start()

    assert await run.result(10) == ["skipped", None, None, "skipped", "completed", 5]
    node = (await run.graph())["nodes"]["gone"]
    assert (node["status"], node["reason"], about_node(node)) == (
        "skipped",
        "0 is not needed",
        "skipped: 0 is not needed",
    )
    (event,) = [event for event in await run.history() if event.step == "gone"]
    assert (event.type, event.data["reason"]) == ("step_skipped", "0 is not needed")
    assert (await app.dlq.list()).letters == []


async def test_a_run_whose_last_node_is_discarded_completes_with_null(app: Weft, start_worker, discards):
    graph = app.graph("g")
    graph.task("gone", discards)
    await start_worker()
    run = await graph.start()
    assert await run.result(10) is None
    assert await run.status() == "completed"


async def test_an_item_that_is_discarded_is_null_and_no_error(app: Weft, start_worker, discards):
    graph = app.graph("g")
    graph.task("each", discards, map="[1, 2, 3, 4]", with_={"n": "${item}"})
    graph.transform("told", "${[each, errors.each]}", after="each")
    await start_worker()
    run = await graph.start()
    assert await run.result(10) == [[1, None, 3, None], None]
    node = (await run.graph())["nodes"]["each"]
    assert (node["done"], node["failed"]) == (4, 0)


async def test_an_item_that_is_discarded_is_no_answer(app: Weft, start_worker, discards):
    graph = app.graph("g")
    graph.task("each", discards, map="input.items", with_={"n": "${item}"}, gather="first(2)", max_parallel=1)
    await start_worker()
    assert await (await graph.start({"items": [2, 1, 4, 3, 5]})).result(10) == [None, 1, None, 3, None]
    with pytest.raises(StepFailed, match="needed 2 of 3 items, and only 1 completed"):
        await (await graph.start({"items": [2, 1, 4]})).result(10)


async def test_a_compensation_that_is_discarded_had_nothing_to_undo(app: Weft, start_worker, discards):
    graph = app.graph("g")
    graph.task("one", discards, with_={"n": 1}, compensate={"call": discards, "with": {"n": 2}})

    @graph.node(after="one")
    async def bad() -> None:
        raise Fatal("no")

    await start_worker()
    run = await graph.start()
    with pytest.raises(StepFailed, match="no") as failed:
        await run.result(10)
    assert failed.value.facts.get("causes", []) == []
    last = (await run.history())[-1]
    assert (last.data["compensated"], last.data["uncompensated"]) == (1, 0)
