"""admit_steps: lets the heads of lines through where there is room, one per slot, each verified again."""

import asyncio

import pytest
from partition import completed

from weft.core.gates import needed
from weft.core.model import Limit
from weft.engine import gates as verbs
from weft.engine.gates import HEADS_PER_LINE
from weft.errors import StaleControls
from weft.store.controls import set_control
from weft.store.gates import Head, admit_steps, hold_steps
from weft.store.runs import read_ledgers

ONE = [Limit("task|job", 1)]


async def admit(part, *runs: str, gate: str = "task|job") -> tuple[list[str], list[str]]:
    rows = await read_ledgers(part.ns, part.p, runs)
    heads = [Head(row, gate, needed(row.spec, part.ns.controls[part.p])) for row in rows]
    return await admit_steps(part.ns, part.p, [gate], heads)


def line(part, gate: str = "task|job") -> list[str]:
    return [run.decode() for run in part.raw.zrange(part.keys.line(part.p, gate), 0, -1)]


def holders(part, gate: str = "task|job") -> list[str]:
    return [run.decode() for run in part.raw.zrange(part.keys.gate(part.p, gate), 0, -1)]


@pytest.mark.leaves("open runs", "pending")
async def test_a_freed_slot_admits_exactly_one_in_order(part):
    first, second, third = await part.start(3, limits=ONE)
    assert (holders(part), line(part)) == ([first], [second, third])
    assert part.run(second)["open"] == "1:#task|job"
    (token,) = await part.claim()
    await part.commit(completed(token))
    assert part.raw.smembers(part.keys.admit(part.p)) == {b"task|job"}

    assert await admit(part, second, third) == (["admitted", "blocked"], [])

    assert (holders(part), line(part)) == ([second], [third])
    assert part.run(second)["gates"] == "task|job"
    assert part.raw.smembers(part.keys.admit(part.p)) == set()
    assert part.pebbles() == 1


@pytest.mark.leaves("open runs")
async def test_a_full_gate_admits_nobody(part):
    first, second = await part.start(2, limits=ONE)
    assert await admit(part, second) == (["blocked"], [])
    assert (holders(part), line(part)) == ([first], [second])


@pytest.mark.leaves("open runs")
async def test_admitting_twice_lets_through_once(part):
    first, second = await part.start(2, limits=ONE)
    part.raw.zrem(part.keys.gate(part.p, "task|job"), first)
    rows = await read_ledgers(part.ns, part.p, [second])
    heads = [Head(row, "task|job", ONE) for row in rows]

    assert (await admit_steps(part.ns, part.p, ["task|job"], heads))[0] == ["admitted"]
    assert (await admit_steps(part.ns, part.p, ["task|job"], heads))[0] == ["blocked"]
    assert len(part.stream()) == 2


@pytest.mark.leaves("open runs")
async def test_one_that_another_gate_stops_goes_to_that_line_and_the_next_is_tried(part):
    both = [Limit("key|job|a", 1), Limit("task|job", 2)]
    (holder,) = await part.start(limits=[Limit("key|job|a", 1)])
    part.raw.zadd(part.keys.gate(part.p, "task|job"), {"x": 1, "y": 1})
    (stopped,) = await part.start(limits=[Limit("task|job", 2)])
    spec = both
    rows = await read_ledgers(part.ns, part.p, [stopped])
    part.raw.delete(part.keys.gate(part.p, "task|job"))

    assert (await admit_steps(part.ns, part.p, ["task|job"], [Head(rows[0], "task|job", spec)]))[0] == ["moved"]
    assert line(part, "key|job|a") == [stopped]
    assert part.run(stopped)["open"] == "1:#key|job|a"
    assert holders(part, "key|job|a") == [holder]


@pytest.mark.leaves("open runs")
async def test_what_was_let_through_and_has_not_begun_keeps_its_units(part):
    rate = [Limit("rate|job", 1, 60_000)]
    first, second = await part.start(2, limits=rate)
    await part.advance(600_000)
    assert await admit(part, second, gate="rate|job") == (["blocked"], [])
    assert part.raw.hgetall(part.keys.ratelimit(part.p, "rate|job")) == {f"@{first}".encode(): b"1"}


@pytest.mark.leaves("open runs", "pending")
async def test_a_rate_that_is_spent_sets_a_timer_for_when_it_opens(part):
    rate = [Limit("rate|job", 1, 60_000)]
    _, second = await part.start(2, limits=rate)
    assert line(part, "rate|job") == [second]
    (token,) = await part.claim()
    assert await hold_steps(part.ns, part.p, [(token, rate)], session="s-1") == ["go rate|job"]
    part.raw.zrem(part.keys.timers(part.p), "gate:rate|job")

    assert await admit(part, second, gate="rate|job") == (["blocked"], [])
    assert part.timers()["gate:rate|job"] > token.claimed_ms + 60_000
    await part.advance(62_000)
    assert await admit(part, second, gate="rate|job") == (["admitted"], [])
    assert part.ttl_of(part.keys.ratelimit(part.p, "rate|job")) > 0


@pytest.mark.leaves("open runs")
async def test_a_caller_that_does_not_know_what_operators_set_is_refused(part):
    _, second = await part.start(2, limits=ONE)
    await set_control(part.ns, part.p, "limit:task|job", {"value": 2}, gates=[], queues=[])
    with pytest.raises(StaleControls):
        await admit(part, second)
    assert line(part) == [second]


@pytest.mark.leaves("open runs")
async def test_it_refuses_other_epochs(part, refuses_other_epochs):
    _, second = await part.start(2, limits=ONE)
    rows = await read_ledgers(part.ns, part.p, [second])
    heads = [Head(row, "task|job", [Limit("task|job", 5)]) for row in rows]
    await refuses_other_epochs(lambda: admit_steps(part.ns, part.p, ["task|job"], heads))


@pytest.mark.leaves("open runs")
@pytest.mark.parametrize("looked", [["key|job|a", "task|job"], ["task|job", "key|job|a"]], ids="-".join)
async def test_the_heads_of_two_lines_do_not_give_way_to_each_other_for_ever(part, looked):
    # Given more runs of one key than one look takes in, both in the line of the task and in that of the key.
    both = [Limit("key|job|a", 1), Limit("task|job", 1)]
    part.raw.zadd(part.keys.gate(part.p, "task|job"), {"x": 1})
    first, *_ = await part.start(HEADS_PER_LINE + 10, limits=both)
    part.raw.zadd(part.keys.gate(part.p, "key|job|a"), {"x": 1})
    later = await part.start(HEADS_PER_LINE + 10, limits=both)
    assert (line(part)[0], line(part, "key|job|a")) == (first, later)

    # When both gates become free.
    part.raw.delete(part.keys.gate(part.p, "task|job"), part.keys.gate(part.p, "key|job|a"))
    admitted = await asyncio.wait_for(verbs.admit(part.ns, part.p, looked), 20)

    # Then the one that waited longest goes, and nobody else.
    assert admitted == 1
    assert holders(part) == holders(part, "key|job|a") == [first]


@pytest.mark.leaves("open runs", "broken keys")
async def test_no_more_go_on_to_a_later_line_than_have_room_where_they_wait(part):
    both = [Limit("key|job|a", 2), Limit("task|job", 1)]
    part.raw.zadd(part.keys.gate(part.p, "task|job"), {"x": 1})
    part.raw.zadd(part.keys.gate(part.p, "key|job|a"), {"x": 1, "y": 1})
    waiting = await part.start(5, limits=both)
    part.raw.delete(part.keys.gate(part.p, "key|job|a"))

    words, more = await admit(part, *waiting, gate="key|job|a")

    assert (words, more) == (["moved", "moved", "blocked", "blocked", "blocked"], [])
    assert (line(part), line(part, "key|job|a")) == (waiting[:2], waiting[2:])
