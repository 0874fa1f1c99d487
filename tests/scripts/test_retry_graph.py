"""retry_graph and put_away_graph: an ended graph run is put away once, and opens again as a whole or not at all."""

import graph_runs
import pytest
from partition import ERROR

from weft.core.effects import Arrive, Mark, Open, route_spec
from weft.errors import NotFound, StaleControls
from weft.ids import new_run_id
from weft.store.blobs import stage_blob
from weft.store.controls import set_control
from weft.store.ended import MapKeys, put_away_graph
from weft.store.graphs import read_arrivals, read_open_steps, read_whole_context
from weft.store.retries import read_joins, retry_graph
from weft.store.runs import end_run, read_runs

pytestmark = pytest.mark.leaves("open runs", "broken keys")

STEP = Open("$retry4>", route_spec(graph_runs.DEFINITION))
BEGINS = [Mark("kept", "kept", "completed", b"1"), Mark("old", "old", "failed", b"2"), Arrive("j", "old+", 3)]


async def ended(part, *, put_away: bool = True, **options) -> str:
    run = await graph_runs.start(part, effects=[Open("$start>", route_spec(graph_runs.DEFINITION)), *BEGINS], **options)
    (row,) = await read_runs(part.ns, part.p, [run])
    await end_run(part.ns, part.p, row, kind="failed", value=ERROR, keep_ms=5000, by="c-3")
    (step,) = await read_runs(part.ns, part.p, [f"{run}/$start>"])
    await end_run(part.ns, part.p, step, kind="cancelled", value=ERROR, keep_ms=5000, by="c-3")
    if put_away:
        assert await away(part, run)
    return run


async def away(part, run, **options) -> bool:
    (row,) = await read_runs(part.ns, part.p, [run])
    return await put_away_graph(part.ns, part.p, row, **{"blobs": [], "maps": MapKeys(), "keep_ms": 5000, **options})


async def retry(part, run, **options) -> str:
    given = {
        "seq": 5,
        "deadline_ms": 0,
        "forget": ["old"],
        "reset": ["j"],
        "opens": STEP,
        "blobs": [],
        "payload": b"{}",
        "by": "c-1",
        **options,
    }
    return await retry_graph(part.ns, part.p, run, **given)


async def test_what_is_put_away_expires_with_its_run_and_its_timer_is_gone(part):
    run = await ended(part, put_away=False)
    assert f"close:{run}" in part.timers()

    assert await away(part, run)

    assert part.timers() == {}
    assert not part.raw.exists(part.keys.ledger(part.p, run))
    for key in (part.keys.context(part.p, run), part.keys.arrivals(part.p, run)):
        assert 0 < part.ttl_of(key) <= 5000


async def test_the_run_is_open_again_without_what_was_forgotten(part):
    run = await ended(part)

    assert await retry(part, run, deadline_ms=60_000) == "retried"

    after = part.run(run)
    assert after["open"] == "1:*" and part.ttl(run) == -1
    assert not {"status", "error", "ended"} & after.keys()
    assert part.ttl_of(part.keys.context(part.p, run)) == -1
    assert set(await read_whole_context(part.ns, part.p, run)) == {"kept"}
    assert await read_arrivals(part.ns, part.p, run, "j") == {} and await read_joins(part.ns, part.p, run) == []
    assert set(await read_open_steps(part.ns, part.p, run)) == {"$retry4>"}
    assert part.timers() == {f"deadline:{run}": int(after["deadline"])}
    last = part.events(run)[-1]
    assert (last.seq, last.type, last.facts) == (6, "retried", {"opened": "$retry4>"})


async def test_a_step_of_its_earlier_life_makes_room(part):
    run = await ended(part)
    assert part.run(f"{run}/$start>")["open"].startswith("=")
    assert await retry(part, run, opens=Open("$start>", route_spec(graph_runs.DEFINITION))) == "retried"
    assert part.run(f"{run}/$start>")["open"].startswith("1:")
    assert part.ttl(f"{run}/$start>") == -1


async def test_it_opens_once(part):
    run = await ended(part)
    assert [await retry(part, run), await retry(part, run)] == ["retried", "open"]
    assert not await away(part, run), "what belongs to an open run is not put away"
    assert part.raw.exists(part.keys.ledger(part.p, run))


async def test_what_changed_since_or_is_still_put_away_is_refused_and_nothing_is_written(part):
    run = await ended(part, put_away=False)
    assert await retry(part, run) == "closing"
    assert await away(part, run)
    assert await retry(part, run, seq=2) == "moved"
    assert await retry(part, run, blobs=["0" * 64]) == "blob_gone"
    assert part.run(run)["status"] == "failed"
    assert set(await read_whole_context(part.ns, part.p, run)) == {"kept", "old"}
    with pytest.raises(NotFound):
        await retry(part, new_run_id(part.p))


async def test_values_that_are_needed_stay(part):
    run = await ended(part)
    digest = await stage_blob(part.ns, part.p, run, b"large")
    assert await retry(part, run, blobs=[digest]) == "retried"
    assert part.ttl_of(part.keys.blob(part.p, run, digest)) == -1


async def test_they_refuse_other_epochs(part, refuses_other_epochs):
    run = await ended(part)
    await refuses_other_epochs(lambda: retry(part, run))
    await refuses_other_epochs(lambda: away(part, run))


async def test_it_refuses_whoever_does_not_know_what_operators_set(part):
    run = await ended(part)
    await set_control(part.ns, part.p, "pause:queue|mail", {"by": "me"}, gates=[], queues=[])
    with pytest.raises(StaleControls):
        await retry(part, run)
    assert part.run(run)["status"] == "failed"


async def test_what_is_about_to_go_stays_for_a_retry_and_what_is_gone_is_not_retried(part):
    run, keys, p = await ended(part), part.keys, part.p
    seconds, _ = part.raw.time()
    part.raw.hset(keys.run(p, run), "away", 1)
    part.raw.hset(keys.items(p, run, "m"), "0", "x")
    for key in (keys.items(p, run, "m"), keys.context(p, run)):
        part.raw.pexpire(key, 60_000)
    assert await retry(part, run) == "away"
    assert part.raw.hget(keys.run(p, run), "open").startswith(b"=")

    part.raw.hset(keys.run(p, run), "away", (seconds + 60) * 1000)
    assert await retry(part, run, maps=["m"]) == "retried"
    assert part.raw.ttl(keys.items(p, run, "m")) == part.raw.ttl(keys.context(p, run)) == -1
    assert part.raw.hmget(keys.run(p, run), "away", "lives") == [None, b"1"]


async def test_what_was_given_in_the_iteration_before_is_recalled_and_told(part):
    run = await ended(part)
    digest = await stage_blob(part.ns, part.p, run, b"large")

    recalled = [Mark("old", "old~1", "completed", b"before"), Mark("late", "late", "skipped", b"")]
    assert await retry(part, run, recall=recalled, blobs=[digest]) == "retried"

    given = await read_whole_context(part.ns, part.p, run)
    assert {name: (one.status, one.step, one.value) for name, one in given.items()} == {
        "kept": ("completed", "kept", b"1"),
        "old": ("completed", "old~1", b"before"),
        "late": ("skipped", "late", b""),
    }
    told = [(event.seq, event.type, event.facts.get("step")) for event in part.events(run)[-3:]]
    assert told == [(6, "retried", None), (7, "node_completed", "old~1"), (8, "node_skipped", "late")]
    assert part.run(run)["seq"] == "8"
    assert part.ttl_of(part.keys.blob(part.p, run, digest)) == -1
    assert f"blob {digest}".encode() in {
        one if isinstance(one, bytes) else one.encode() for one in part.raw.smembers(part.keys.belongings(part.p, run))
    }
