"""hold_steps: takes claimed steps through gates that were set up after they were queued, or back to wait."""

import pytest
from partition import completed

from weft.core.model import Limit
from weft.errors import SessionLost, StaleControls
from weft.store.controls import set_control
from weft.store.gates import hold_steps
from weft.store.steps import claim_steps

SHUT = [Limit("pause|job", 0)]


async def hold(part, *stopped) -> list[str]:
    return await hold_steps(part.ns, part.p, stopped, session="s-1")


@pytest.mark.leaves("open runs")
async def test_a_step_that_cannot_pass_goes_back_to_wait_and_its_token_is_worth_nothing(part):
    token = await part.claimed()

    assert await hold(part, (token, SHUT)) == ["held"]

    assert part.run(token.run)["open"] == "2:#pause|job"
    assert part.pending() == []
    assert part.stream() == []
    assert [event.type for event in part.events(token.run)] == ["queued", "held"]
    assert await part.commit(completed(token)) == ["stale"]
    assert await hold(part, (token, SHUT)) == ["stale"]


@pytest.mark.leaves("open runs")
async def test_what_goes_back_stands_in_the_order_of_its_stream_before_later_arrivals(part):
    # Given steps that two workers claimed, younger ones that came to the line since, and one of a higher priority.
    queued = await part.start(300)
    mine, theirs = await part.claim("s-1", room=150), await part.claim("s-2", room=150)
    later = await part.start(2, limits=SHUT)
    urgent = await part.claimed("s-1", priority=9)

    # When the one who has the younger steps sends them back first.
    for session, tokens in (("s-2", theirs), ("s-1", mine[::-1]), ("s-1", [urgent])):
        stopped = [(token, SHUT) for token in tokens]
        assert set(await hold_steps(part.ns, part.p, stopped, session=session)) == {"held"}

    line = [run.decode() for run in part.raw.zrange(part.keys.line(part.p, "pause|job"), 0, -1)]
    assert line[0] == urgent.run and line[301:] == later
    # Exact among 256 of one millisecond; the start of all 300 was one call.
    assert line[1:251] == queued[:250] and sorted(line[251:301]) == sorted(queued[250:])


@pytest.mark.leaves("open runs", "pending")
async def test_a_step_that_can_pass_goes_on_and_counts(part):
    token = await part.claimed()
    assert await hold(part, (token, [Limit("queue|default", 1)])) == ["go queue|default"]
    assert part.run(token.run)["gates"] == "queue|default"
    assert part.raw.zrange(part.keys.gate(part.p, "queue|default"), 0, -1) == [token.run.encode()]


async def test_a_slot_that_was_taken_in_a_lost_reply_is_given_back_all_the_same(part):
    # Given a step that passed a gate, told in a reply that never arrived.
    token = await part.claimed()
    await hold(part, (token, [Limit("queue|default", 1)]))

    # When its session lists what it holds, after the limit was lifted, and ends it.
    (own,) = await claim_steps(part.ns, part.p, session="s-1", queues=["default"], room=10, after="0")
    assert own.gates == "queue|default"
    assert await part.commit(completed(own)) == ["ok"]

    # Then nobody holds a slot.
    assert part.raw.exists(part.keys.gate(part.p, "queue|default")) == 0


@pytest.mark.leaves("open runs")
async def test_a_step_that_goes_back_gives_up_the_slots_it_has(part):
    token = await part.claimed(limits=[Limit("task|job", 1)])
    assert token.gates == "task|job"
    (waiter,) = await part.start(limits=[Limit("task|job", 1)])

    assert await hold(part, (token, SHUT)) == ["held"]
    assert part.raw.exists(part.keys.gate(part.p, "task|job")) == 0
    assert part.raw.smembers(part.keys.admit(part.p)) == {b"task|job"}
    assert part.timer_pebbles() == 1
    assert "gates" not in part.run(token.run)
    assert waiter


@pytest.mark.leaves("open runs", "pending")
async def test_a_session_that_was_swept_takes_no_slot(part):
    token = await part.claimed()
    part.raw.set(part.keys.session(part.p, "s-1"), "dead", px=60_000)
    with pytest.raises(SessionLost):
        await hold(part, (token, [Limit("queue|default", 1)]))
    assert part.raw.exists(part.keys.gate(part.p, "queue|default")) == 0


@pytest.mark.leaves("open runs", "pending")
async def test_a_caller_that_does_not_know_what_operators_set_is_refused(part):
    token = await part.claimed()
    await set_control(part.ns, part.p, "limit:task|job", {"value": 2}, gates=[], queues=[])
    with pytest.raises(StaleControls):
        await hold(part, (token, SHUT))
    assert len(part.pending()) == 1


@pytest.mark.leaves("open runs", "pending")
async def test_it_refuses_other_epochs(part, refuses_other_epochs):
    token = await part.claimed()
    await refuses_other_epochs(lambda: hold(part, (token, SHUT)))


@pytest.mark.leaves("open runs", "pending", "broken keys")
async def test_a_run_of_the_wrong_type_costs_only_itself(part):
    broken, sound = await part.claimed(), await part.claimed()
    part.raw.delete(part.keys.run(part.p, broken.run))
    part.raw.set(part.keys.run(part.p, broken.run), "x")
    assert await hold(part, (broken, SHUT), (sound, SHUT)) == ["go ", "held"]
