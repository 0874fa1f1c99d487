"""emit_lost_steps: gives open runs back what an operator or a fault tore away, and leaves healthy ones alone."""

import pytest
from partition import completed, retrying

from weft.core.model import Limit
from weft.store.keys import GROUP
from weft.store.lost import emit_lost_steps, read_lost
from weft.store.runs import read_runs

pytestmark = pytest.mark.leaves("open runs")


async def cure(part, *runs: str) -> list[str]:
    """Reads the runs as the reconciler does and gives all of them to the script."""
    rows = [row for row in await read_runs(part.ns, part.p, runs) if row]
    return await emit_lost_steps(part.ns, part.p, rows, by="s-sweeper")


async def suspected(part, *runs: str) -> list[str]:
    rows = [row for row in await read_runs(part.ns, part.p, runs) if row]
    return [row.id for row in await read_lost(part.ns, part.p, rows)]


def holders(part, gate: str) -> list[str]:
    return [run.decode() for run in part.raw.zrange(part.keys.gate(part.p, gate), 0, -1)]


async def test_a_run_whose_stream_was_deleted_gets_a_new_token(part, p):
    (run,) = await part.start()
    lost = part.run(run)["open"]
    part.raw.delete(part.keys.tasks(p, "default", 5))
    part.take_pebbles()

    assert await suspected(part, run) == [run]
    assert await cure(part, run) == ["emitted"]

    ((entry, fields),) = part.stream()
    assert fields == {"r": run, "n": "2:1"}
    assert part.run(run)["open"] == f"2:{entry}"
    assert part.pebbles() == 1
    last = part.events(run)[-1]
    assert (last.seq, last.type, last.facts) == (2, "recovered", {"lost": lost.partition(":")[2]})


async def test_the_old_holder_of_a_lost_token_is_refused(part, p):
    token = await part.claimed()
    part.raw.delete(part.keys.tasks(p, "default", 5))

    assert await cure(part, token.run) == ["emitted"]

    assert await part.commit(completed(token)) == ["stale"]


async def test_a_token_whose_consumer_was_deleted_is_emitted_anew(part, p):
    # Given a delivered token that, with its consumer, fell out of the pending list.
    token = await part.claimed("s-1")
    part.raw.xgroup_delconsumer(part.keys.tasks(p, "default", 5), GROUP, "s-1")
    assert part.pending() == []

    assert await suspected(part, token.run) == [token.run]
    assert await cure(part, token.run) == ["emitted"]

    ((entry, fields),) = part.stream()
    assert entry != token.entry
    assert fields["n"] == "2:1"


async def test_a_single_entry_deleted_from_a_stream_is_emitted_anew_in_front_of_nobody(part, p):
    first, second = await part.start(2)
    ((entry, _), _) = part.stream()
    part.raw.xdel(part.keys.tasks(p, "default", 5), entry)

    assert await cure(part, first, second) == ["emitted", "stale"]

    assert [fields["r"] for _, fields in part.stream()] == [second, first]


async def test_a_timer_that_vanished_is_set_again_for_the_same_moment(part, p):
    (run,) = await part.start(delay_ms=60_000)
    before = part.timers()
    part.raw.delete(part.keys.timers(p))
    part.take_pebbles()

    assert await suspected(part, run) == [run]
    assert await cure(part, run) == ["armed"]

    assert part.timers() == before
    assert part.timer_pebbles() == 1
    # A timer is no new token: nothing happened to the run.
    assert [e.seq for e in part.events(run)] == [1]


async def test_a_lost_retry_keeps_its_attempt(part, p):
    token = await part.claimed()
    await part.commit(retrying(token))
    part.raw.delete(part.keys.tasks(p, "default", 5))

    await cure(part, token.run)

    ((_, fields),) = part.stream()
    assert fields["n"] == "3:2"


async def test_a_run_that_still_has_its_slot_keeps_it(part, p):
    (run, waiter) = await part.start(2, limits=[Limit("task|job", 1)])
    part.raw.delete(part.keys.tasks(p, "default", 5))

    assert await cure(part, run, waiter) == ["emitted", "stale"]

    (token,) = await part.claim("s-1")
    assert (token.run, token.gates) == (run, "task|job")
    assert holders(part, "task|job") == [run]
    # And it gives it back: nothing leaks.
    await part.commit(completed(token))
    assert holders(part, "task|job") == []


async def test_a_run_whose_slot_is_gone_too_passes_its_gates_again(part, p):
    # Given a run whose token and slot were deleted, and somebody who took the slot since.
    (run,) = await part.start(limits=[Limit("task|job", 1), Limit("key|job|a", 1)])
    # Emptied, not deleted: a new stream may give the same id again within the same millisecond.
    part.raw.xtrim(part.keys.tasks(p, "default", 5), maxlen=0, approximate=False)
    part.raw.zrem(part.keys.gate(p, "task|job"), run)
    (other,) = await part.start(limits=[Limit("task|job", 1)])
    part.take_pebbles()

    assert await cure(part, run) == ["armed"]

    # Then it holds nothing, has no token, and its timer takes it to its gates like a retry.
    assert (holders(part, "task|job"), holders(part, "key|job|a")) == ([other], [])
    assert part.run(run)["open"].startswith("2:@") and "gates" not in part.run(run)
    assert list(part.timers()) == [f"open:{run}"]
    assert [fields["r"] for _, fields in part.stream()] == [other]
    assert part.timer_pebbles() == 1
    assert [event.type for event in part.events(run)] == ["queued", "recovered"]


async def test_a_start_that_a_rate_counted_is_counted_again(part, p):
    (run,) = await part.start(limits=[Limit("rate|job", 5, 60_000)])
    part.raw.delete(part.keys.tasks(p, "default", 5))

    assert await cure(part, run) == ["armed"]

    assert part.raw.hgetall(part.keys.ratelimit(p, "rate|job")) == {}


async def test_gates_that_were_passed_since_the_run_was_read_are_a_reason_to_read_again(part, p):
    (run,) = await part.start(limits=[Limit("task|job", 1)])
    part.raw.delete(part.keys.tasks(p, "default", 5))
    rows = await read_runs(part.ns, p, [run])
    part.raw.hset(part.keys.run(p, run), "gates", "task|job queue|default")

    assert await emit_lost_steps(part.ns, p, rows, by="s-sweeper") == ["stale"]
    assert await cure(part, run) == ["armed"]


@pytest.mark.leaves("pending")
async def test_healthy_runs_are_left_alone(part, p):
    # Given one run that is running, one that waits in its queue and one that is delayed.
    running = await part.claimed("s-1")
    (queued,) = await part.start()
    (delayed,) = await part.start(delay_ms=60_000)
    before = part.snapshot()

    # When all are given to the script as suspects.
    assert await cure(part, running.run, queued, delayed) == ["stale"] * 3

    # Then nothing changed.
    assert part.snapshot() == before
    assert await suspected(part, running.run, delayed) == []


async def test_a_queued_run_is_left_alone_when_its_group_was_destroyed(part, p):
    # The next claim makes the group anew, from the beginning of the stream.
    token = await part.claimed("s-1")
    part.raw.xgroup_destroy(part.keys.tasks(p, "default", 5), GROUP)

    assert await cure(part, token.run) == ["stale"]

    assert [again.run for again in await part.claim("s-2")] == [token.run]
    await part.commit(completed(token))


async def test_a_ledger_that_moved_on_since_it_was_read_is_stale(part, p):
    token = await part.claimed()
    rows = await read_runs(part.ns, p, [token.run])
    await part.commit(retrying(token))
    before = part.snapshot()

    assert await emit_lost_steps(part.ns, p, rows, by="s-sweeper") == ["stale"]

    assert part.snapshot() == before


async def test_it_refuses_other_epochs(part, p, refuses_other_epochs):
    (run,) = await part.start()
    part.raw.delete(part.keys.tasks(p, "default", 5))
    rows = await read_runs(part.ns, p, [run])
    try:
        await refuses_other_epochs(lambda: emit_lost_steps(part.ns, p, rows, by="s-sweeper"))
    finally:
        await cure(part, run)
