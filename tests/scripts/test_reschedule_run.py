"""reschedule_run: moves the due time of a run that waits, and refuses every other run."""

import pytest
from partition import completed, failed, retrying

from weft.errors import Conflict, NotFound
from weft.store.runs import reschedule_run
from weft.store.timers import fire_timers


async def move(part, run: str, when: str) -> int:
    return await reschedule_run(part.ns, part.p, run, when, by="c-1")


@pytest.mark.leaves("open runs")
async def test_a_delay_is_made_longer(part):
    (run,) = await part.start(delay_ms=60_000)
    part.take_pebbles()
    before = part.timers()[f"open:{run}"]

    due = await move(part, run, "120000")

    assert part.timers() == {f"open:{run}": due}
    assert due >= before + 60_000
    assert part.run(run)["open"] == f"1:@{due}"
    last = part.events(run)[-1]
    assert (last.seq, last.type, last.by, last.facts) == (2, "rescheduled", "c-1", {"due": str(due)})
    assert part.timer_pebbles() == 1


@pytest.mark.leaves("open runs")
async def test_a_moment_in_the_past_is_now_and_the_timer_fires(part, spec):
    (run,) = await part.start(delay_ms=60_000)

    due = await move(part, run, "@1000")

    assert due > 1_000_000_000_000
    assert await fire_timers(part.ns, part.p, [(run, spec())]) == ["fired"]
    assert [fields["r"] for _, fields in part.stream()] == [run]


@pytest.mark.leaves("open runs")
async def test_a_moment_to_come_is_kept_to_the_millisecond(part):
    (run,) = await part.start(delay_ms=60_000)
    assert await move(part, run, "@4102444800123") == 4102444800123
    assert part.timers() == {f"open:{run}": 4102444800123}


@pytest.mark.leaves("open runs", "pending")
async def test_a_back_off_is_cut_short_and_the_attempt_stays(part):
    token = await part.claimed()
    await part.commit(retrying(token, after_ms=60_000))

    await move(part, token.run, "0")

    assert await fire_timers(part.ns, part.p, [(token.run, token.spec)]) == ["fired"]
    (again,) = await part.claim()
    assert (again.delivery, again.attempt) == (2, 2)
    assert [event.seq for event in part.events(token.run)] == [1, 2, 3]


@pytest.mark.leaves("open runs", "pending")
async def test_a_queued_or_running_run_is_a_conflict(part):
    (run,) = await part.start()
    for _ in range(2):
        before = part.snapshot()
        with pytest.raises(Conflict, match=f"{run} waits for no delay.*queued or running"):
            await move(part, run, "5000")
        assert part.snapshot() == before
        await part.claim()


@pytest.mark.parametrize(("end", "word"), [(completed, "completed"), (failed, "failed")])
async def test_a_finished_run_is_a_conflict(part, end, word):
    token = await part.claimed()
    await part.commit(end(token))
    with pytest.raises(Conflict, match=f"has ended .{word}."):
        await move(part, token.run, "5000")


async def test_an_unknown_run_is_not_found(part, p):
    with pytest.raises(NotFound):
        await move(part, f"r{p}-0000000000000000000000", "5000")
    assert part.timers() == {}


@pytest.mark.leaves("open runs")
async def test_it_refuses_other_epochs(part, refuses_other_epochs):
    (run,) = await part.start(delay_ms=60_000)
    await refuses_other_epochs(lambda: move(part, run, "0"))
