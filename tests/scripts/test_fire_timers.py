"""fire_timers: emits what is due, each once, never early; verifies every timer again before it fires."""

import pytest
from partition import completed, retrying

from weft.core.model import RunSpec
from weft.errors import ScriptError, StaleControls
from weft.store.controls import set_control
from weft.store.timers import fire_timers


@pytest.mark.leaves("open runs")
async def test_a_due_run_gets_its_token_and_loses_its_timer(part, ns, p):
    (run,) = await part.start(delay_ms=60_000, queue="other", priority=8)
    await part.advance(60_001)
    part.take_pebbles()

    words = await fire_timers(ns, p, [(run, RunSpec("job", queue="other", priority=8))])

    assert words == ["fired"]
    ((entry, fields),) = part.stream("other", 8)
    assert fields == {"r": run, "n": "1:1"}
    assert part.run(run)["open"] == f"1:{entry}"
    assert part.timers() == {}
    assert part.pebbles("other") == 1
    assert part.raw.smembers(part.keys.queues(p)) == {b"other"}


@pytest.mark.leaves("open runs")
async def test_a_timer_never_fires_early(part, ns, p):
    (run,) = await part.start(delay_ms=60_000)
    await part.advance(50_000)
    before = part.snapshot()

    assert await fire_timers(ns, p, [(run, RunSpec("job"))]) == ["early"]

    assert part.snapshot() == before


@pytest.mark.leaves("open runs")
async def test_firing_twice_emits_once(part, ns, p):
    (run,) = await part.start(delay_ms=60_000)
    await part.advance(60_001)
    await fire_timers(ns, p, [(run, RunSpec("job"))])

    assert await fire_timers(ns, p, [(run, RunSpec("job"))]) == ["gone"]

    assert len(part.stream()) == 1


@pytest.mark.leaves("open runs")
async def test_a_retry_comes_back_with_its_attempt_and_is_no_longer_waiting(part, ns, p):
    token = await part.claimed()
    await part.commit(retrying(token, after_ms=60_000))
    assert part.run(token.run)["status"] == "waiting"
    await part.advance(60_001)

    assert await fire_timers(ns, p, [(token.run, token.spec)]) == ["fired"]

    ((entry, fields),) = part.stream()
    assert fields["n"] == "2:2"
    assert "status" not in part.run(token.run)
    assert part.run(token.run)["open"] == f"2:{entry}"


async def test_a_timer_whose_run_is_gone_or_finished_is_removed(part, ns, p):
    token = await part.claimed()
    await part.commit(completed(token))
    part.raw.zadd(part.keys.timers(p), {f"open:{token.run}": 1, f"open:r{p}-0000000000000000000000": 1})

    words = await fire_timers(ns, p, [(token.run, RunSpec("job")), (f"r{p}-0000000000000000000000", RunSpec("job"))])

    assert words == ["gone", "gone"]
    assert part.timers() == {}
    assert part.stream() == []


@pytest.mark.leaves("open runs")
async def test_items_of_one_call_are_judged_one_by_one(part, ns, p):
    (due,) = await part.start(delay_ms=1_000)
    (later,) = await part.start(delay_ms=3_600_000)
    await part.advance(2_000)

    words = await fire_timers(ns, p, [(later, RunSpec("job")), (due, RunSpec("job"))])

    assert words == ["early", "fired"]
    assert list(part.timers()) == [f"open:{later}"]


@pytest.mark.leaves("open runs")
async def test_many_runs_cost_three_calls_each_and_what_they_share_once(part, ns, p):
    """Not timed: what a run costs the server is the calls that are made for it."""
    runs = await part.start(20, delay_ms=1_000)
    other = await part.start(5, delay_ms=1_000, queue="other")
    await part.advance(2_000)
    part.take_pebbles()
    before = part.raw.info("commandstats")

    specs = [(run, RunSpec("job")) for run in runs] + [(run, RunSpec("job", queue="other")) for run in other]
    assert await fire_timers(ns, p, specs) == ["fired"] * 25

    after = part.raw.info("commandstats")
    made = {
        name: after[f"cmdstat_{name}"]["calls"] - before.get(f"cmdstat_{name}", {"calls": 0})["calls"]
        for name in ("hmget", "xadd", "hset", "zrem", "sadd", "lpush")
    }
    # One HMGET more is the fence.
    assert made == {"hmget": 26, "xadd": 25, "hset": 25, "zrem": 1, "sadd": 2, "lpush": 2}
    assert [fields["r"] for _, fields in part.stream()] == runs
    assert [fields["r"] for _, fields in part.stream("other")] == other
    assert part.timers() == {}
    assert (part.pebbles(), part.pebbles("other")) == (1, 1)


@pytest.mark.leaves("open runs")
async def test_a_call_that_fails_on_the_way_leaves_no_run_without_its_timer(part, ns, p):
    # Given two due runs, and a queue whose stream is something else.
    (first,) = await part.start(delay_ms=1_000)
    (second,) = await part.start(delay_ms=1_000, queue="broken")
    await part.advance(2_000)
    part.raw.set(part.keys.tasks(p, "broken", 5), "no stream")
    specs = [(first, RunSpec("job")), (second, RunSpec("job", queue="broken"))]

    # When they are fired: the first has its token before the second fails.
    with pytest.raises(ScriptError):
        await fire_timers(ns, p, specs)
    assert sorted(part.timers()) == sorted([f"open:{first}", f"open:{second}"])

    # Then, once that is mended, each has exactly one token.
    part.raw.delete(part.keys.tasks(p, "broken", 5))
    assert await fire_timers(ns, p, specs) == ["gone", "fired"]
    assert len(part.stream()) == len(part.stream("broken")) == 1
    assert part.timers() == {}


@pytest.mark.leaves("open runs")
async def test_it_refuses_other_epochs(part, ns, p, refuses_other_epochs):
    (run,) = await part.start(delay_ms=1)
    await part.advance(1_000)
    await refuses_other_epochs(lambda: fire_timers(ns, p, [(run, RunSpec("job"))]))


@pytest.mark.leaves("open runs")
async def test_a_caller_that_does_not_know_what_operators_set_is_refused_and_nothing_changes(part):
    (run,) = await part.start(delay_ms=1)
    await set_control(part.ns, part.p, "pause:queue|mail", {}, gates=[], queues=[])
    before = part.snapshot()
    with pytest.raises(StaleControls):
        await fire_timers(part.ns, part.p, [(run, RunSpec("job"))])
    assert part.snapshot() == before
