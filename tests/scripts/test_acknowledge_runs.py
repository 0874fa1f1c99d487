"""acknowledge_runs: notes a level on the runs that are there."""

import pytest

from weft.store.durability import acknowledge_runs

pytestmark = pytest.mark.leaves("open runs")


async def test_runs_that_are_there_are_noted_and_others_stay_gone(part):
    (run,) = await part.start()
    before = part.snapshot()
    assert await acknowledge_runs(part.ns, part.p, [run, "r0-gone"], "fsync") == 1

    assert part.raw.hget(part.keys.run(part.p, run), "kept") == b"fsync"
    part.raw.hdel(part.keys.run(part.p, run), "kept")
    assert part.snapshot() == before


async def test_it_refuses_other_epochs(part, refuses_other_epochs):
    (run,) = await part.start()
    await refuses_other_epochs(lambda: acknowledge_runs(part.ns, part.p, [run], "fsync"))
