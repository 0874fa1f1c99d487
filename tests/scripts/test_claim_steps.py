"""claim_steps: hands tokens to a session, in exact order of priority, up to its free slots."""

import asyncio

import pytest

from weft.core.model import RunSpec
from weft.errors import SessionLost, StaleControls
from weft.store.controls import set_control
from weft.store.keys import GROUP
from weft.store.steps import await_steps, claim_steps
from weft.store.timers import fire_timers
from weft.store.wake import Pebbles

pytestmark = pytest.mark.leaves("open runs", "pending")


async def test_a_token_carries_everything_a_worker_needs(part, ns, p):
    (run,) = await part.start(name="send", input=b"\x81\xa1a\x01", priority=3)

    (token,) = await part.claim("s-1")

    ((entry, _),) = part.stream(priority=3)
    assert (token.partition, token.epoch, token.run, token.entry) == (p, ns.epoch(p), run, entry)
    assert (token.delivery, token.attempt) == (1, 1)
    assert token.spec == RunSpec("send", input=b"\x81\xa1a\x01", priority=3)
    assert part.pending(priority=3) == [(entry, "s-1")]
    # Claiming writes nothing into the run: "running" is the pending list.
    assert part.run(run)["open"] == f"1:{entry}"


async def test_the_first_claim_creates_the_group_and_misses_nothing_emitted_before(part, p):
    runs = await part.start(3)
    assert part.raw.xinfo_groups(part.keys.tasks(p, "default", 5)) == []

    tokens = await part.claim()

    assert [token.run for token in tokens] == runs
    (group,) = part.raw.xinfo_groups(part.keys.tasks(p, "default", 5))
    assert group["name"] == GROUP.encode()


async def test_an_empty_queue_gives_nothing_and_creates_nothing(part):
    before = part.snapshot()

    assert await part.claim() == []

    assert part.snapshot() == before


async def test_priorities_are_exact_and_age_decides_within_one(part):
    # Given runs that came in no particular order of priority.
    came = [(priority, (await part.start(priority=priority))[0]) for priority in (5, 1, 10, 5, 9, 10, 1, 2)]

    # When they are claimed one by one and in groups.
    claimed = [token.run for room in (1, 1, 3, 10) for token in await part.claim(room=room)]

    # Then the highest priority came first, and the oldest first among equals.
    assert claimed == [run for _, run in sorted(came, key=lambda each: -each[0])]


async def test_a_later_run_of_higher_priority_goes_first(part):
    low = await part.start(2, priority=1)
    assert [token.run for token in await part.claim(room=1)] == low[:1]

    high = await part.start(1, priority=2)

    assert [token.run for token in await part.claim()] == [*high, *low[1:]]


async def test_queues_are_emptied_in_the_order_the_worker_names_them(part):
    (low,) = await part.start(queue="other", priority=1)
    (high,) = await part.start(queue="default", priority=10)

    tokens = await part.claim(queues=["other", "default"])

    assert [token.run for token in tokens] == [low, high]


async def test_no_more_than_the_free_slots_are_taken_over_all_streams(part):
    await part.start(3, priority=9)
    await part.start(3, priority=1)

    assert len(await part.claim(room=4)) == 4
    assert len(await part.claim(room=4)) == 2


async def test_work_left_behind_leaves_a_pebble_for_the_next_worker(part):
    await part.start(2)
    part.take_pebbles()

    await part.claim(room=1)
    assert part.pebbles() == 1

    # A pebble lies there already: no second one.
    await part.claim(room=1)
    assert part.pebbles() == 1


async def test_taking_everything_leaves_no_pebble(part):
    await part.start(2)
    part.take_pebbles()

    await part.claim(room=3)

    assert part.pebbles() == 0


async def test_a_claim_without_room_only_passes_the_pebble_on(part):
    await part.start()
    part.take_pebbles()

    assert await part.claim(room=0) == []

    assert part.pebbles() == 1
    assert len(part.stream()) == 1


async def test_a_session_lists_its_own_pending_tokens_and_nobody_elses(part, ns, p):
    runs = await part.start(3)
    (mine,) = await part.claim("s-1", room=1)
    await part.claim("s-2", room=1)

    own = await claim_steps(ns, p, session="s-1", queues=["default"], room=100, after="0")

    assert [(token.run, token.entry, token.spec.name) for token in own] == [(runs[0], mine.entry, "job")]
    # Listing takes nothing new.
    assert len(part.pending()) == 2


async def test_a_large_spec_is_read_from_the_run(part):
    await part.start(name="job", input=b"x" * 1000)

    (token,) = await part.claim()

    assert token.spec.input == b"x" * 1000


@pytest.mark.leaves("history")
async def test_a_token_whose_run_is_gone_is_dropped_and_its_neighbours_are_given(part, p):
    gone, fine = await part.start(2, input=b"x" * 1000)
    part.raw.delete(part.keys.run(p, gone))

    assert [token.run for token in await part.claim()] == [fine]

    # Nobody else would ever take it off the pending list.
    assert [consumer for _, consumer in part.pending()] == ["s-1"]
    assert len(part.stream()) == 1


async def test_attempt_and_delivery_ride_with_the_token(part):
    from partition import retrying

    await part.commit(retrying(await part.claimed()))

    (token,) = await part.claim()

    assert (token.delivery, token.attempt) == (2, 2)


async def test_a_token_deleted_behind_our_back_is_dropped_from_the_pending_list(part, ns, p):
    token = await part.claimed()
    part.raw.xdel(part.keys.tasks(p, "default", 5), token.entry)
    await part.start()  # an empty stream is not even looked at

    own = await claim_steps(ns, p, session="s-1", queues=["default"], room=100, after="0")

    assert own == []
    assert part.pending() == []
    part.raw.delete(part.keys.run(p, token.run))


async def test_a_tombstoned_session_gets_nothing(part, p):
    await part.start()
    part.raw.set(part.keys.session(p, "s-1"), "dead", px=60_000)
    before = part.snapshot()

    with pytest.raises(SessionLost):
        await part.claim("s-1")

    assert part.snapshot() == before
    assert len(await part.claim("s-2")) == 1


async def test_the_fence_of_a_token_rises_with_every_delivery(part):
    from partition import returned

    first = await part.claimed()
    await part.commit(returned(first))
    (second,) = await part.claim()

    assert second.fence > first.fence
    assert first.fence >> 20 == first.epoch


async def test_it_refuses_other_epochs(part, refuses_other_epochs):
    await part.start()
    await refuses_other_epochs(part.claim)


@pytest.mark.leaves("open runs", "pending")
async def test_a_claim_learns_what_operators_set_before_it_takes_anything(part):
    await part.start(queue="mail")
    await part.start(queue="other")
    await set_control(part.ns, part.p, "pause:queue|mail", {}, gates=[], queues=[])

    with pytest.raises(StaleControls):
        await part.ns.call(*await raw_claim(part))
    tokens = await part.claim(queues=["mail", "other"])

    assert [token.spec.queue for token in tokens] == ["other"]
    assert len(part.stream("mail")) == 1


async def raw_claim(part):
    keys = {"session": part.keys.session(part.p, "s-1"), "wake": [], "wf.tasks": [part.keys.tasks(part.p, "mail", 5)]}
    args = {"controls": "0", "levels": "5", "group": GROUP, "consumer": "s-1", "room": 1, "aging_ms": 0, "after": ">"}
    return "claim_steps", part.p, keys, args


async def test_a_claim_looks_at_the_priorities_in_use_alone_and_learns_of_others(part, ns, p):
    (usual,) = await part.start()
    assert part.raw.hget(part.keys.epoch(p), "levels") == b"5"

    # The first of a priority is noted by each way of starting: one run, several, one that waited.
    (one,) = await part.start(priority=9)
    several = await part.start(2, priority=10)
    (late,) = await part.start(priority=7, delay_ms=1000)
    assert part.raw.hget(part.keys.epoch(p), "levels") == b"10 9 5"
    await part.advance(2000)
    await fire_timers(ns, p, [(late, RunSpec("job", priority=7))])
    assert part.raw.hget(part.keys.epoch(p), "levels") == b"10 9 7 5"

    # A worker that has known none of them misses none.
    assert ns.levels[p] == "5"
    assert [token.run for token in await part.claim()] == [*several, one, late, usual]
    assert ns.levels[p] == "10 9 7 5"


async def test_a_claim_that_waits_in_the_server_learns_of_priorities_too(part, ns, p):
    pebbles = Pebbles(ns, p, ["default"], seconds=5)
    claim = await_steps(ns, p, session="s-1", queues=["default"], room=1, pebbles=pebbles)
    try:
        waiting = asyncio.create_task(claim)
        while part.raw.info("clients")["blocked_clients"] == 0:
            await asyncio.sleep(0.01)
        (run,) = await part.start(priority=8)

        assert [token.run for token in await waiting] == [run]
        assert ns.levels[p] == "8 5"
    finally:
        await pebbles.close()


async def test_a_partition_that_does_not_tell_its_priorities_may_use_any(part, p):
    part.raw.hdel(part.keys.epoch(p), "levels")
    (low,) = await part.start(priority=2)
    (high,) = await part.start(priority=9)

    assert [token.run for token in await part.claim()] == [high, low]
    assert part.raw.hget(part.keys.epoch(p), "levels") is None
