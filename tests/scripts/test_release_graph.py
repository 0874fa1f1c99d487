"""release_graph: what an ended, archived run of many steps left goes early, and only when nobody needs it any more."""

import graph_runs
import pytest
from partition import ERROR

from weft.store.ended import Left, MapKeys, put_away_graph, release_graph
from weft.store.runs import end_run, read_runs

pytestmark = pytest.mark.leaves("open runs", "broken keys")

HOUR = 3_600_000


async def ended(part, *, put_away: bool = True) -> str:
    """An ended run with one of nearly everything that a run can have."""
    run, keys, p = await graph_runs.start(part, "a"), part.keys, part.p
    part.raw.hset(keys.context(p, run), "a", "x")
    part.raw.hset(keys.approval(p, f"{run}/review"), "status", "approved")
    part.raw.hset(keys.signals(p, run), "#go", "1 1")
    part.raw.rpush(keys.undo(p, run), "a")
    for key in (keys.journal(p, run), keys.mail(p, run)):
        part.raw.rpush(key, "x")
        part.raw.pexpire(key, HOUR)
    part.raw.set(keys.blob(p, run, "b"), "x")
    part.raw.hset(keys.map(p, run, "m"), "n", 1)
    part.raw.hset(keys.results(p, run, "m", 0), "0", "x")
    (row,) = await read_runs(part.ns, p, [run])
    await end_run(part.ns, p, row, kind="failed", value=ERROR, keep_ms=HOUR, by="c-3")
    if put_away:
        (row,) = await read_runs(part.ns, p, [run])
        left = left_of(part, run)
        assert await put_away_graph(
            part.ns, p, row, blobs=left.blobs, maps=left.maps, approvals=left.approvals, keep_ms=HOUR
        )
    return run


def left_of(part, run) -> Left:
    maps = MapKeys()
    maps.add(part.keys, part.p, run, "m", 1)
    return Left(["b"], maps, ["review"])


async def release(part, run, *, logged="", whole=True, seq=None, hot_ms=60_000) -> str:
    (row,) = await read_runs(part.ns, part.p, [run])
    if seq is not None:
        row.fields["seq"] = str(seq).encode()
    return await release_graph(part.ns, part.p, row, left_of(part, run), logged=logged, whole=whole, hot_ms=hot_ms)


def keys_of(part, run) -> dict[str, int]:
    """Returns the keys of a run, its steps apart, with their time to live."""
    prefix = part.keys.prefix(part.p)
    keys = [bytes(key).decode() for key in part.raw.scan_iter(f"{prefix}*{run}*")]
    return {key: part.raw.pttl(key) for key in keys if not key.startswith(f"{prefix}run:{run}/")}


async def test_everything_goes_early_and_the_run_says_until_when_it_stands(part):
    run = await ended(part)
    assert await release(part, run) == "released"

    left = keys_of(part, run)
    assert len(left) >= 10 and all(0 < ttl <= 60_000 for ttl in left.values()), left
    assert int(part.raw.hget(part.keys.run(part.p, run), "away")) <= int(part.raw.time()[0]) * 1000 + 61_000

    assert await release(part, run, hot_ms=HOUR) == "released"
    assert all(ttl <= 60_000 for ttl in keys_of(part, run).values())


async def test_of_a_dead_letter_the_run_itself_stays(part):
    run = await ended(part)
    assert await release(part, run, whole=False) == "released"
    left = keys_of(part, run)
    assert left.pop(part.keys.run(part.p, run)) > 60_000
    assert all(0 < ttl <= 60_000 for ttl in left.values())


async def test_nothing_goes_while_somebody_needs_it(part):
    run = await ended(part, put_away=False)
    key = part.keys.run(part.p, run)
    assert await release(part, run) == "closing"
    part.raw.zrem(part.keys.timers(part.p), f"close:{run}")
    assert await release(part, run, seq=99) == "kept"
    part.raw.hset(key, "logged", 2)
    assert await release(part, run) == "logged 2"
    above = part.keys.run(part.p, "r0-above/step")
    part.raw.hset(key, "parent", "r0-above/step")
    part.raw.hset(above, "open", "1:-")
    assert await release(part, run, logged="2") == "awaited"
    assert not part.raw.hexists(key, "away") and part.raw.pttl(key) > 60_000

    part.raw.hset(above, "open", "=1:-")
    part.raw.pexpire(above, HOUR)
    assert await release(part, run, logged="2") == "released"
    assert part.raw.pttl(above) > 60_000


async def test_an_open_run_is_kept_and_one_that_is_gone_does_no_harm(part):
    run = await graph_runs.start(part, "a")
    assert await release(part, run) == "kept"
    (row,) = await read_runs(part.ns, part.p, [run])
    row.id = "r0-gone"
    word = await release_graph(part.ns, part.p, row, Left([], MapKeys(), []), logged="", whole=True, hot_ms=1)
    assert word == "gone"


async def test_more_keys_than_one_call_takes_go_too(part, monkeypatch):
    monkeypatch.setattr("weft.store.ended.MAX_KEYS", 2)
    run = await ended(part)
    assert await release(part, run) == "released"
    assert all(0 < ttl <= 60_000 for ttl in keys_of(part, run).values())


async def test_it_refuses_other_epochs(part, refuses_other_epochs):
    run = await ended(part)
    await refuses_other_epochs(lambda: release(part, run))
