"""bring_back_graph: an ended graph run is written as the archive has it, whole, and never over one that went on."""

import graph_runs
import pytest
from partition import ERROR

from weft.ids import new_run_id
from weft.store.retries import Brought, bring_back_graph
from weft.store.runs import end_run, read_runs

pytestmark = pytest.mark.leaves("open runs", "broken keys", "history")


def brought(run: str, **more) -> Brought:
    fields = {"open": b"=1:*", "seq": b"5", "status": b"failed", "spec": b"s", **more}
    return Brought(
        5, fields, {"a": b"x"}, {"j": "a+"}, {"#go": "1 2"}, ["map m 1"], [b"a\n1", b"b\n2"], [b"l"], {"m": {"0": b"i"}}
    )


async def back(part, run, found=None, keep_ms=60_000):
    return await bring_back_graph(part.ns, part.p, run, found or brought(run), keep_ms=keep_ms)


async def test_everything_is_there_for_a_while_and_says_until_when(part, monkeypatch):
    monkeypatch.setattr("weft.store.retries.PAGE", 2)
    run, raw, keys, p = new_run_id(part.p), part.raw, part.keys, part.p
    assert await back(part, run) == "written"

    assert raw.hgetall(keys.context(p, run)) == {b"a": b"x"} and raw.hgetall(keys.arrivals(p, run)) == {b"j": b"a+"}
    assert raw.lrange(keys.undo(p, run), 0, -1) == [b"a\n1", b"b\n2"] and raw.llen(keys.tasklog(p, run)) == 1
    assert raw.hgetall(keys.items(p, run, "m")) == {b"0": b"i"}
    found = list(raw.scan_iter(f"{keys.prefix(p)}*{run}*"))
    assert len(found) == 8 and all(0 < raw.pttl(key) <= 60_000 for key in found)
    assert int(raw.hget(keys.run(p, run), "away")) > int(raw.time()[0]) * 1000


async def test_what_is_there_whole_is_left_alone_and_what_is_away_is_written_anew(part):
    run, raw, keys, p = new_run_id(part.p), part.raw, part.keys, part.p
    await back(part, run)
    raw.hset(keys.context(p, run), "a", "mine")
    assert await back(part, run) == "exists"
    assert raw.hget(keys.context(p, run), "a") == b"mine"

    raw.hset(keys.run(p, run), "away", 1)
    raw.delete(keys.context(p, run))
    assert await back(part, run) == "written"
    assert raw.hget(keys.context(p, run), "a") == b"x" and raw.llen(keys.undo(p, run)) == 2


async def test_a_run_that_went_on_is_left_alone(part):
    run = await graph_runs.start(part, "a")
    before = part.snapshot()
    assert await back(part, run) == "moved"
    assert part.snapshot() == before
    (row,) = await read_runs(part.ns, part.p, [run])
    await end_run(part.ns, part.p, row, kind="failed", value=ERROR, keep_ms=5000, by="c-3")
    part.raw.hset(part.keys.run(part.p, run), "away", 1)
    assert await back(part, run) == "moved"  # other events than the archive knew


async def test_it_refuses_other_epochs(part, refuses_other_epochs):
    await refuses_other_epochs(lambda: back(part, new_run_id(part.p)))
