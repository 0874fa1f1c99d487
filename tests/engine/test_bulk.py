"""Changing many runs by a filter: counted first, then done to those it can be done to."""

import pytest
from graph_keys import closed

from weft import InvalidOption, StepFailed


@pytest.fixture
def graph(app):
    graph = app.graph("many")
    graph.broken = False

    @graph.node
    async def only() -> int:
        if graph.broken:
            raise ValueError("no")
        return 1

    return graph


async def test_runs_are_counted_then_paused_resumed_and_cancelled(app, graph, add, start_worker, eventually):
    runs = [await graph.options(tags={"team": "a"}).start() for _ in range(5)]
    other = await graph.start()
    task = await add.enqueue(1, 2)

    told = await app.runs.change("pause", tag=("team", "a"), dry_run=True)
    assert (told.matched, set(told.runs), told.done) == (5, {run.id for run in runs}, [])
    assert {str(await run.status()) for run in runs} == {"running"}
    paused = await app.runs.change("pause", tag=("team", "a"), reason="all")
    assert (paused.matched, set(paused.done), paused.refused) == (5, {run.id for run in runs}, {})
    assert {str(await run.status()) for run in runs} == {"paused"}
    assert str(await other.status()) == "running"
    assert (await app.runs.change("pause", tag=("team", "a"))).matched == 0
    assert (await app.runs.change("pause", name="add")).matched == 0, "a task is no graph"
    assert len((await app.runs.change("resume", status="paused", limit=2)).done) == 2
    cancelled = await app.runs.change("cancel", tag=("team", "a"))
    assert len(cancelled.done) == 5
    assert (await app.runs.change("cancel", name="add")).done == [task.id]
    await start_worker()
    assert await other.result(10) == 1
    for run in [*runs, other]:
        await closed(run, eventually)


async def test_all_that_failed_are_retried(app, graph, start_worker, eventually):
    graph.broken = True
    await start_worker()
    runs = [await graph.start() for _ in range(5)]
    for run in runs:
        with pytest.raises(StepFailed):
            await run.result(10)
    graph.broken = False

    told = await app.runs.change("retry", name="many", status="failed")

    assert len(told.done) == 5
    assert [await run.result(10) for run in runs] == [1] * 5
    for run in runs:
        await closed(run, eventually)


@pytest.mark.parametrize(
    ("action", "options"),
    [("explode", {"name": "x"}), ("cancel", {}), ("cancel", {"status": "odd"}), ("cancel", {"name": "x", "limit": 0})],
)
async def test_what_makes_no_sense_is_refused(app, action, options):
    with pytest.raises(InvalidOption):
        await app.runs.change(action, **options)
