"""put_away_graph: what an ended graph run left expires with it; an open one is left alone."""

import graph_runs
import pytest
from partition import ERROR

from weft.store.ended import MapKeys, put_away_graph
from weft.store.runs import end_run, read_runs

pytestmark = pytest.mark.leaves("open runs", "broken keys")


async def away(part, run):
    (row,) = await read_runs(part.ns, part.p, [run])
    maps = MapKeys([part.keys.map(part.p, run, "m")], [part.keys.items(part.p, run, "m")], [])
    return await put_away_graph(part.ns, part.p, row, blobs=[], maps=maps, approvals=["review"], keep_ms=5000)


async def end(part, run):
    (row,) = await read_runs(part.ns, part.p, [run])
    await end_run(part.ns, part.p, row, kind="failed", value=ERROR, keep_ms=5000, by="c-3")


async def test_maps_expire_and_ledger_and_timer_go(part):
    run = await graph_runs.start(part, "a")
    part.raw.hset(part.keys.map(part.p, run, "m"), "n", 1)
    await end(part, run)

    assert await away(part, run) is True

    assert 0 < part.ttl_of(part.keys.map(part.p, run, "m")) <= 5000
    assert not part.raw.exists(part.keys.ledger(part.p, run))
    assert part.timers() == {}


async def test_everything_of_the_run_expires_with_the_timer_in_one_call(part):
    """Whoever dies behind it leaves nothing: nobody would look at the run again."""
    run, keys, p = await graph_runs.start(part, "a"), part.keys, part.p
    part.raw.hset(keys.approval(p, f"{run}/review"), "status", "approved")
    part.raw.hset(keys.signals(p, run), "#go", "1 1")
    part.raw.sadd(keys.belongings(p, run), "map m 1")
    part.raw.rpush(keys.undo(p, run), "a")
    await end(part, run)

    assert await away(part, run) is True

    left = [keys.approval(p, f"{run}/review"), keys.signals(p, run), keys.belongings(p, run), keys.undo(p, run)]
    assert all(0 < part.ttl_of(key) <= 5000 for key in left)


async def test_timers_of_its_maps_go_with_it(part):
    run = await graph_runs.start(part, "a")
    await end(part, run)
    part.raw.zadd(part.keys.timers(part.p), {f"hedge:{run}/m": 2e12, "hedge:r0-other/m": 2e12})
    (row,) = await read_runs(part.ns, part.p, [run])

    assert await put_away_graph(part.ns, part.p, row, blobs=[], maps=MapKeys(), timers=[f"hedge:{run}/m"], keep_ms=5000)

    assert list(part.timers()) == ["hedge:r0-other/m"]


async def test_an_open_run_is_left_alone(part):
    run = await graph_runs.start(part, "a")
    assert await away(part, run) is False
    assert part.raw.exists(part.keys.ledger(part.p, run))


async def test_it_refuses_other_epochs(part, refuses_other_epochs):
    run = await graph_runs.start(part, "a")
    await end(part, run)
    await refuses_other_epochs(lambda: away(part, run))
