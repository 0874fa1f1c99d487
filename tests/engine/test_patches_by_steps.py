"""Patches that the code of a step makes, as agents do: bounded, counted, and known by the step that made them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from graph_keys import closed

from weft import Conflict, PatchLimit, current


def noting(*ids: str, after: str = "plan") -> list[dict[str, Any]]:
    value = {"type": "task", "call": "note", "after": [after]}
    return [{"op": "add", "path": f"/nodes/{id}", "value": {**value, "with": {"text": id}}} for id in ids]


@pytest.fixture
def planned(app):
    """A graph whose first node does what it is told to its own run; its result is what became of that."""
    graph: Any = app.graph("planned", output="${plan}")

    @app.task
    async def note(text: str) -> str:
        return text

    @graph.node(timeout="60s")
    async def plan() -> Any:
        try:
            return await graph.act(await app.runs.get(current().run_id))
        except PatchLimit as error:
            return {**error.facts, "said": error.message}

    return graph


async def test_a_patch_by_a_step_says_which_step_made_it(planned, start_worker, eventually):
    await start_worker()

    async def act(run):
        await run.patch(noting("one"), reason="it is needed")
        await run.patch(noting("two"), author="planner")
        await run.undo_patch()

    planned.act = act
    run = await planned.start()
    await run.result(20)

    mine = f"{run.id}/plan"
    assert [(one.author, one.step) for one in await run.patches()] == [
        (f"step:{mine}", mine),
        ("planner", mine),
        (f"step:{mine}", mine),
    ]
    told = [event.data for event in await run.history() if event.type == "patched"]
    assert [data["step"] for data in told] == [mine] * 3
    await closed(run, eventually)


@pytest.mark.parametrize("way", ["async", "sync", "thread", "task"])
async def test_a_step_is_known_by_whatever_way_its_code_patches(planned, app, start_worker, eventually, way):
    await start_worker()

    async def act(run):
        if way == "async":
            return await run.patch(noting("x"))
        if way == "task":
            return await asyncio.create_task(run.patch(noting("x")))
        if way == "thread":
            return await asyncio.to_thread(lambda: run.sync.patch(noting("x")))
        return None

    planned.act = act

    @app.task
    def plain(run: str) -> None:
        app.runs.sync.get(run).patch(noting("x"))

    run = await planned.start()
    await run.result(20)
    target = run
    if way == "sync":
        ready = asyncio.Event()
        planned.act = lambda _: ready.wait()
        target = await planned.start()
        await (await plain.enqueue(target.id)).result(20)
        ready.set()
        await target.result(20)
    (one,) = await target.patches()
    assert one.step.startswith("r") and (one.step == f"{run.id}/plan") is (way != "sync")
    for each in (run, target):
        await closed(each, eventually)


async def test_how_many_nodes_a_step_may_touch(planned, start_worker, eventually, monkeypatch):
    await start_worker()

    async def act(run):
        return await run.patch(noting(*(f"n{i}" for i in range(33))))

    planned.act = act
    run = await planned.start()
    refused = await run.result(20)
    assert (refused["limit"], refused["count"], refused["setting"]) == (32, 33, "WEFT_AGENT_PATCH_NODES")
    assert "make a smaller one" in refused["said"] and await run.patches() == []

    async def fits(run):
        return len((await run.patch(noting(*(f"n{i}" for i in range(32)))))["added"])

    planned.act = fits
    second = await planned.start()
    assert await second.result(20) == 32
    # People may do more, and what they do is not counted.
    hold = asyncio.Event()
    planned.act = lambda _: hold.wait()
    third = await planned.start()
    told = await third.patch(noting(*(f"n{i}" for i in range(100))), dry_run=True)
    assert len(told["added"]) == 100
    hold.set()
    await third.result(20)
    for each in (run, second, third):
        await closed(each, eventually)


async def test_twenty_steps_at_once_cannot_exceed_together_what_steps_may_patch(
    app, start_worker, eventually, monkeypatch
):
    monkeypatch.setenv("WEFT_AGENT_PATCHES", "5")
    graph = app.graph("crowd", output="${each}")
    began: list[int] = []
    all_there = asyncio.Event()

    @app.task
    async def note(text: str) -> str:
        return text

    @graph.node
    async def plan() -> list[int]:
        return list(range(20))

    @graph.node(after=plan, map="plan", max_parallel=20, timeout="60s")
    async def each(item: int) -> str:
        began.append(item)
        if len(began) == 20:
            all_there.set()
        await all_there.wait()
        run: Any = await app.runs.get(current().run_id)
        while True:
            try:
                await run.patch(noting(f"n{item}"))
                return "patched"
            except PatchLimit as error:
                assert (error.facts["limit"], error.facts["count"]) == (5, 5)
                return "refused"
            except Conflict:
                await asyncio.sleep(0.001 * item)

    await start_worker()
    run = await graph.start()
    said = await run.result(60)

    assert sorted(said) == ["patched"] * 5 + ["refused"] * 15
    patches = await run.patches()
    assert len({one.step for one in patches}) == 5 == len(patches)
    graph_of = await run.graph()
    assert graph_of["revision"] == 6 and sum(id.startswith("n") for id in graph_of["nodes"]) == 5
    await closed(run, eventually)


async def test_patches_of_people_are_not_counted_and_zero_forbids_steps_to_patch(
    planned, start_worker, eventually, monkeypatch
):
    monkeypatch.setenv("WEFT_AGENT_PATCHES", "0")
    await start_worker()
    go = asyncio.Event()

    async def act(run):
        await go.wait()
        return await run.patch(noting("mine"))

    planned.act = act
    run = await planned.start()
    for i in range(3):
        await run.patch(noting(f"n{i}"))
    go.set()
    refused = await run.result(20)
    assert (refused["limit"], refused["count"]) == (0, 0) and "a person can" in refused["said"]
    assert [one.step for one in await run.patches()] == [""] * 3
    await closed(run, eventually)
