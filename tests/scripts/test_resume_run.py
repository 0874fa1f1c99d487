"""resume_run: lifts the pause of a graph run once; whatever became of the run, no control stays behind."""

import graph_runs
import pytest
from partition import ERROR

from weft.errors import NotFound
from weft.ids import new_run_id
from weft.store.pauses import pause_run, resume_run
from weft.store.runs import end_run, read_runs

pytestmark = pytest.mark.leaves("open runs", "broken keys")


async def resume(part, run):
    return await resume_run(part.ns, part.p, run, by="c-2")


async def test_a_run_that_is_not_paused_goes_on_as_it_does(part):
    run = await graph_runs.start(part, "a")
    assert await resume(part, run) == ("running", False)
    assert [event.type for event in part.events(run)] == ["queued", "routed"]


async def test_the_pause_of_a_run_that_is_gone_is_lifted_all_the_same(part):
    run = await graph_runs.start(part, "a")
    await pause_run(part.ns, part.p, run, by="c-1", reason="", at_ms=1)
    part.raw.delete(part.keys.run(part.p, run))
    with pytest.raises(NotFound):
        await resume(part, run)
    assert part.raw.hlen(part.keys.controls(part.p)) == 0


async def test_who_puts_an_ended_run_away_leaves_the_pause_of_one_that_was_opened_again(part):
    run = await graph_runs.start(part, "a")
    await pause_run(part.ns, part.p, run, by="c-1", reason="", at_ms=1)
    before = part.snapshot()

    assert await resume_run(part.ns, part.p, run, by="s-1", ended=True) == ("paused", False)
    assert part.snapshot() == before

    (row,) = await read_runs(part.ns, part.p, [run])
    await end_run(part.ns, part.p, row, kind="failed", value=ERROR, keep_ms=5000, by="c-3")
    assert await resume_run(part.ns, part.p, run, by="s-1", ended=True) == ("failed", False)
    assert part.raw.hlen(part.keys.controls(part.p)) == 0


async def test_an_unknown_run_is_told(part):
    with pytest.raises(NotFound):
        await resume(part, new_run_id(part.p))


async def test_it_refuses_other_epochs(part, refuses_other_epochs):
    run = await graph_runs.start(part, "a")
    await refuses_other_epochs(lambda: resume(part, run))
