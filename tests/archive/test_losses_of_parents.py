"""The store is lost behind the end of a workflow run, before that has come to its children: they end all the same."""

from __future__ import annotations

from typing import Any

import pytest

from weft import Context, RunStatus, Weft

pytestmark = [pytest.mark.leaves("history", "open runs"), pytest.mark.usefixtures("quick")]


@pytest.fixture(params=[1, 4])
def partitions(request: pytest.FixtureRequest) -> int:
    return int(request.param)


@pytest.fixture
def database_url(tmp_path) -> str:
    """SQLite only: what is looked at here is the store."""
    return f"sqlite:///{tmp_path / 'archive.sqlite'}"


async def test_children_of_a_run_that_has_ended_end_too(
    app: Weft, archive, archivers, raw, start_worker, eventually, monkeypatch: pytest.MonkeyPatch
):
    @app.workflow
    async def below(ctx: Context, id: str) -> None:
        await ctx.receive("go")

    @app.workflow
    async def above(ctx: Context) -> None:
        ended, left = ctx.options(id="a").child(below, "a"), ctx.options(on_parent_close="leave").child(below, "b")
        ctx.set_state(ended=ended.id, left=left.id)
        await ctx.receive("go")

    async def later(*_: Any, **__: Any) -> None:
        return None

    worker = await start_worker()
    with monkeypatch.context() as patched:
        patched.setattr("weft.engine.housekeeping.graphs.close_flows", later)
        run = await above.start()

        async def waits() -> bool:
            return len(await app.runs.list(status="waiting")) == 3

        await eventually(waits)
        state = await run.state()
        ended, left = below.run(state["ended"]), below.run(state["left"])
        await run.signal("go")
        await run.result(timeout=10)
        await worker.stop()
    await archive()
    raw.delete(*raw.scan_iter(match=f"{app.engine().ns.keys.namespace}:*"))
    for each in await archivers():
        assert await each._recover()
    await start_worker()

    async def over() -> bool:
        return await ended.status() == RunStatus.CANCELLED

    await eventually(over)
    assert await run.status() == RunStatus.COMPLETED
    await left.signal("go")  # that one goes on without its parent
    await left.result(timeout=10)
