"""Patches by steps in the archive: which step, by every way there is to ask; and how many there were, when a run comes back."""

from __future__ import annotations

from typing import Any

import pytest

from weft import PatchLimit, current


@pytest.mark.leaves("history")
async def test_a_run_that_comes_back_remembers_which_steps_patched_it_and_how_often(
    app, start_worker, archive, forget, monkeypatch
):
    graph: Any = app.graph("planned", output="${end}")
    refused: list[dict[str, Any]] = []
    tried: list[str] = []

    @graph.node
    async def plan() -> str:
        value = {"type": "transform", "value": 1, "after": ["plan"]}
        run: Any = await app.runs.get(current().run_id)
        tried.append(run.id)
        try:
            await run.patch([{"op": "add", "path": f"/nodes/more{len(tried)}", "value": value}], author="planner")
        except PatchLimit as error:
            refused.append(error.facts)
        return f"{run.id}/plan"

    @graph.node(after=plan)
    async def end(plan: str) -> str:
        if not refused:
            raise ValueError("not yet")
        return plan

    await start_worker()
    run = await graph.start()
    while await run.status() != "failed":
        pass
    hot = await run.patches()
    await archive()
    forget(run)

    step = f"{run.id}/plan"
    assert [(one.author, one.step) for one in hot] == [("planner", step)]
    assert await run.patches() == hot == list(await app.definitions.patches(run=run.id))
    (act,) = (await app.audit.list(run=run.id, action="run.patch")).entries
    assert (act.actor, act.via) == ("planner", f"step:{step}")

    monkeypatch.setenv("WEFT_AGENT_PATCHES", "1")
    await run.retry(from_step="plan")
    assert await run.result(20) == step
    assert [(facts["limit"], facts["count"]) for facts in refused] == [(1, 1)]
    assert len(await run.patches()) == 1


@pytest.mark.leaves("history")
async def test_the_last_patch_of_a_run_that_comes_back_is_undone(app, start_worker, archive, forget, eventually):
    graph: Any = app.graph("undone", output="${end}")
    graph.wait("go", signal="go")
    broken = [True]

    @graph.node(after="go")
    async def end(go: int) -> int:
        if broken:
            raise ValueError("not yet")
        return go

    async def waits() -> bool:
        return (await run.graph())["nodes"]["go"]["status"] == "waiting"

    await start_worker()
    run = await graph.start()
    await eventually(waits)
    value = {"type": "transform", "value": 1, "after": ["end"]}
    await run.patch([{"op": "add", "path": "/nodes/more", "value": value}])
    await run.signal("go", 1)
    while await run.status() != "failed":
        pass
    await archive()
    forget(run)

    broken.clear()
    await run.retry(from_step="go")
    await eventually(waits)
    await run.undo_patch()
    await run.signal("go", 2)

    assert await run.result(20) == 2
    assert [one.revision for one in await run.patches()] == [2, 3]
    assert "more" not in (await run.graph())["nodes"]
