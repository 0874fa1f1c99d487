"""Handing slots over: a commit lets the run behind it in the line of its key through, or leaves it to the ordinary way."""

import pytest
from partition import ERROR, completed, retrying, returned

from weft.core.model import Limit
from weft.engine.gates import admit
from weft.store.audit_gates import check_gates, check_waiting
from weft.store.controls import informed, set_control
from weft.store.findings import Key
from weft.store.keys import FAMILIES
from weft.store.lost import emit_lost_steps
from weft.store.runs import end_run, read_runs
from weft.store.steps import commit_steps
from weft.store.timers import fire_timers

GATE = "key|job|bob"
ONE = [Limit(GATE, 1)]

pytestmark = pytest.mark.leaves("open runs", "pending")


def heir(part):
    return part.raw.hget(part.keys.heirs(part.p), GATE)


def holders(part):
    members = part.raw.zrange(part.keys.gate(part.p, GATE), 0, -1)
    assert (b">" in members) == (heir(part) is not None)
    return [(heir(part) if member == b">" else member).decode() for member in members]


def waiting(part):
    return [run.decode() for run in part.raw.zrange(part.keys.line(part.p, GATE), 0, -1)]


def marked(part):
    return {gate.decode() for gate in part.raw.smembers(part.keys.admit(part.p))}


async def commit(part, *outcomes):
    return await commit_steps(part.ns, part.p, outcomes, session="s-1")


async def calls(part, *outcomes):
    """Returns how many commands the server ran to commit some outcomes."""

    def count():
        return sum(about["calls"] for name, about in part.raw.info("commandstats").items() if name != "cmdstat_info")

    before = count()
    assert (await commit(part, *outcomes))[0] == ["ok"] * len(outcomes)
    return count() - before


async def with_heirs(part, n, key="bob"):
    """Starts runs of one key and returns the token of the second, which knows who stands behind it, and those behind."""
    runs = await part.start(n, limits=[Limit(f"key|job|{key}", 1)])
    (first,) = await part.claim()
    await commit(part, completed(first))
    assert await admit(part.ns, part.p) == 1
    (token,) = await part.claim()
    assert token.run == runs[1]
    return token, runs[2:]


async def test_a_token_tells_who_stands_behind_it_and_its_commit_lets_that_run_through(part):
    token, (third, fourth) = await with_heirs(part, 4)
    assert token.gates == GATE
    assert token.heirs == f"{third} {fourth}"
    part.take_pebbles()

    words, awaited = await commit(part, completed(token))

    assert (words, awaited) == (["ok"], False)
    assert holders(part) == [third]
    assert waiting(part) == [fourth]
    ((entry, fields),) = part.stream()
    assert (fields["r"], fields["n"]) == (third, f"1:1 {GATE} >{fourth}")
    assert part.run(third)["open"] == f"1:{entry}"
    assert part.run(third)["gates"] == GATE
    assert part.pebbles() == 1
    assert marked(part) == set()


async def test_the_ledger_of_who_waits_tells_what_it_is_like_and_who_reads_it_knows_the_gate(part):
    _, waits = await part.start(2, limits=ONE)

    (row,) = await read_runs(part.ns, part.p, [waits])

    assert (row.text("open"), row.line) == (f"1:#{GATE} default|5", GATE)
    assert (await end_run(part.ns, part.p, row, kind="cancelled", value=b"", keep_ms=1000, by="c-1"))[1]
    assert waiting(part) == []


async def test_a_line_is_handed_through_to_its_end_and_forgotten(part):
    token, behind = await with_heirs(part, 24)

    served = []
    while True:
        assert await commit(part, completed(token)) == (["ok"], False)
        if not holders(part):
            break
        (token,) = await part.claim()
        assert holders(part) == [token.run]
        served.append(token.run)

    assert served == behind
    assert part.raw.exists(part.keys.lines(part.p)) == 0
    assert part.raw.exists(part.keys.line(part.p, GATE)) == 0


async def test_handing_on_costs_four_calls_more_than_a_commit_without_a_limit(part):
    plain = [await part.claimed() for _ in range(4)]
    held = [(await with_heirs(part, 12, key=f"k{n}"))[0] for n in range(4)]

    alone = await calls(part, *map(completed, plain))
    first = await calls(part, *map(completed, held))
    second = await calls(part, *map(completed, await part.claim()))

    # Per slot: heir read, line, token, heir written. Per call: who has the slots, whether all are there, who has them now, and
    # one that wakes the queue.
    assert second - alone == 4 * 4 + 4
    # The first time each slot is looked at, taken from its run and made one that is handed on.
    assert first - alone == 4 * (4 + 3) + 4


async def handed(part, n):
    """Starts runs of one key and returns the token of one that was handed its slot, and those behind it."""
    token, behind = await with_heirs(part, n)
    await commit(part, completed(token))
    (token,) = await part.claim()
    assert (part.raw.zrange(part.keys.gate(part.p, GATE), 0, -1), heir(part)) == ([b">"], token.run.encode())
    return token, behind[1:]


async def test_a_slot_that_is_handed_on_is_given_back_as_it_was_taken(part):
    token, (last,) = await handed(part, 4)
    token.heirs = ""

    assert await commit(part, completed(token)) == (["ok"], True)

    assert (holders(part), waiting(part), marked(part)) == ([], [last], {GATE})
    assert not part.raw.exists(part.keys.heirs(part.p))


async def test_who_was_handed_a_slot_and_is_cancelled_gives_it_back(part):
    token, (last,) = await handed(part, 4)
    (row,) = await read_runs(part.ns, part.p, [token.run])

    await end_run(part.ns, part.p, row, kind="cancelled", value=ERROR, keep_ms=60_000, by="c-1")

    assert (holders(part), waiting(part), marked(part)) == ([], [last], {GATE})


async def test_a_lost_token_does_not_cost_its_run_the_slot_it_was_handed(part):
    token, _ = await handed(part, 4)
    part.raw.delete(part.keys.tasks(part.p, "default", 5))
    (row,) = await read_runs(part.ns, part.p, [token.run])

    assert await emit_lost_steps(part.ns, part.p, [row], by="s-sweeper") == ["emitted"]

    assert holders(part) == [token.run]


async def test_without_its_gate_a_slot_that_was_handed_on_is_lost_with_its_token(part):
    token, _ = await handed(part, 4)
    part.raw.delete(part.keys.tasks(part.p, "default", 5), part.keys.gate(part.p, GATE))
    (row,) = await read_runs(part.ns, part.p, [token.run])

    assert await emit_lost_steps(part.ns, part.p, [row], by="s-sweeper") == ["armed"]

    assert not part.raw.exists(part.keys.heirs(part.p))


async def test_the_audit_knows_whose_a_slot_is_that_is_handed_on(part):
    token, _ = await handed(part, 4)
    key = Key(part.keys.gate(part.p, GATE), part.p, FAMILIES["gate"], (GATE,))
    assert await check_gates(part.ns, part.p, [key]) == []

    part.raw.hset(part.keys.heirs(part.p), GATE, "r0-gone")
    (finding,) = await check_gates(part.ns, part.p, [key])
    assert finding.problem == "a slot is held by run r0-gone, which does not have it"
    assert f"HDEL {part.keys.heirs(part.p)} {GATE}" in finding.advice
    part.raw.hset(part.keys.heirs(part.p), GATE, token.run)


async def test_the_audit_finds_nothing_wrong_with_who_waits_for_one_slot(part):
    await handed(part, 4)
    key = Key(part.keys.line(part.p, GATE), part.p, FAMILIES["line"], (GATE,))
    assert waiting(part) and await check_waiting(part.ns, part.p, [key]) == []

    part.raw.zadd(key.text, {"r0-gone": 0})
    (finding,) = await check_waiting(part.ns, part.p, [key])
    part.raw.zrem(key.text, "r0-gone")
    assert finding.problem == "run r0-gone stands in this line, but does not wait here"


async def test_who_came_to_stand_in_front_of_those_who_hand_their_slot_on_is_not_passed_over(part):
    token, (last,) = await handed(part, 4)
    (urgent,) = await part.start(limits=ONE, priority=9)

    assert await commit(part, completed(token)) == (["ok"], True)

    assert (holders(part), waiting(part)) == ([], [urgent, last])
    await admit(part.ns, part.p)
    assert holders(part) == [urgent]


async def test_who_comes_in_beside_a_slot_that_was_handed_on_ends_the_handing(part):
    """The limit was raised to two or three meanwhile, and lowered again."""
    token, (last,) = await handed(part, 4)
    part.raw.zrem(part.keys.line(part.p, GATE), last)  # nobody may overtake who waits
    part.raw.srem(part.keys.lines(part.p), GATE)
    others = await part.start(2, limits=[Limit(GATE, 3)])
    assert (heir(part), sorted(holders(part))) == (None, sorted([token.run, *others]))
    part.raw.zadd(part.keys.line(part.p, GATE), {last: 1})
    part.raw.sadd(part.keys.lines(part.p), GATE)

    assert await commit(part, completed(token)) == (["ok"], True)

    assert (sorted(holders(part)), waiting(part)) == (sorted(others), [last])


async def test_who_is_let_through_beside_a_slot_that_was_handed_on_ends_the_handing_too(part):
    token, (last,) = await handed(part, 4)
    await set_control(part.ns, part.p, "limit:key|job", {"value": 2}, gates=[GATE], queues=[])
    await informed(part.ns, part.p, lambda: admit(part.ns, part.p))

    assert (heir(part), sorted(holders(part)), waiting(part)) == (None, sorted([token.run, last]), [])


async def test_of_many_slots_only_those_are_handed_on_that_are_there(part):
    """One gate has lost its slot: the others are not kept waiting."""
    names = [f"key|job|k{n}" for n in range(4)]
    held = [(await with_heirs(part, 5, key=f"k{n}"))[0] for n in range(4)]
    await commit(part, *map(completed, held))
    tokens = await part.claim()
    gates = [part.keys.gate(part.p, name) for name in names]
    part.raw.delete(gates[0])

    assert (await commit(part, *map(completed, tokens)))[0] == ["ok"] * 4

    assert [part.raw.zrange(gate, 0, -1) for gate in gates] == [[], [b">"], [b">"], [b">"]]
    assert sorted(part.raw.hkeys(part.keys.heirs(part.p))) == [name.encode() for name in names[1:]]


async def test_a_step_that_backs_off_hands_its_slot_over_and_one_that_goes_on_keeps_it(part):
    token, (third, fourth) = await with_heirs(part, 4)
    await commit(part, returned(token))
    assert holders(part) == [token.run]
    (token,) = await part.claim()
    assert token.heirs == ""
    await commit(part, completed(token))
    assert await admit(part.ns, part.p) == 1
    (token,) = await part.claim()
    assert token.run == third

    await commit(part, retrying(token, after_ms=60_000))

    assert holders(part) == [fourth]
    assert "gates" not in part.run(third)


async def test_who_came_to_stand_in_front_meanwhile_is_not_passed_over(part):
    token, (third,) = await with_heirs(part, 3)
    (urgent,) = await part.start(limits=ONE, priority=9)
    before = part.raw.zrange(part.keys.line(part.p, GATE), 0, -1, withscores=True)

    assert await commit(part, completed(token)) == (["ok"], True)

    assert holders(part) == []
    assert part.raw.zrange(part.keys.line(part.p, GATE), 0, -1, withscores=True) == before
    assert marked(part) == {GATE}
    await admit(part.ns, part.p)
    assert holders(part) == [urgent]
    assert waiting(part) == [third]


async def test_an_heir_of_another_queue_or_priority_is_left_to_the_ordinary_way(part):
    token, _ = await with_heirs(part, 2)
    (low,) = await part.start(limits=ONE, queue="slow")
    token.heirs = low

    assert await commit(part, completed(token)) == (["ok"], True)

    assert (holders(part), waiting(part)) == ([], [low])
    await admit(part.ns, part.p)
    assert [fields["r"] for _, fields in part.stream("slow")] == [low]


async def test_an_heir_with_other_limits_is_left_to_the_ordinary_way(part):
    token, _ = await with_heirs(part, 2)
    (other,) = await part.start(limits=[*ONE, Limit("task|job", 1)])
    token.heirs = other

    assert await commit(part, completed(token)) == (["ok"], True)
    assert (holders(part), waiting(part)) == ([], [other])


@pytest.mark.parametrize("fate", ["ended", "gone", "broken"])
async def test_an_heir_that_stands_there_no_more_costs_the_next_nothing(part, fate):
    token, (third, fourth) = await with_heirs(part, 4)
    key = part.keys.run(part.p, third)
    if fate == "ended":
        part.raw.hset(key, "open", "=1:#" + GATE)
        part.raw.zrem(part.keys.line(part.p, GATE), third)
    else:
        part.raw.delete(key)
        part.raw.zrem(part.keys.line(part.p, GATE), third)
        if fate == "broken":
            part.raw.set(key, "x")

    assert await commit(part, completed(token)) == (["ok"], True)

    assert (holders(part), waiting(part)) == ([], [fourth])
    assert marked(part) == {GATE}
    part.raw.delete(key)


async def test_a_slot_above_a_limit_that_was_lowered_is_not_handed_over(part):
    token, (third,) = await with_heirs(part, 3)
    others = {"r0-a": 1, "r0-b": 2, "r0-z": 9e12}
    part.raw.zadd(part.keys.gate(part.p, GATE), others)

    assert await commit(part, completed(token)) == (["ok"], True)

    assert dict(part.raw.zrange(part.keys.gate(part.p, GATE), 0, -1, withscores=True)) == {
        run.encode(): at for run, at in others.items()
    }
    assert waiting(part) == [third]
    part.raw.delete(part.keys.gate(part.p, GATE))


async def test_with_a_limit_that_was_raised_nobody_inherits(part):
    token, (third, fourth) = await with_heirs(part, 4)
    await set_control(part.ns, part.p, "limit:key|job", {"value": 2}, gates=[], queues=[])
    await informed(part.ns, part.p, part.claim)

    assert await commit(part, completed(token)) == (["ok"], True)

    assert (holders(part), waiting(part)) == ([], [third, fourth])
    await admit(part.ns, part.p)
    assert set(holders(part)) == {third, fourth}


async def test_a_slot_that_the_gate_lost_is_not_handed_over(part):
    token, (third,) = await with_heirs(part, 3)
    part.raw.delete(part.keys.gate(part.p, GATE))

    assert await commit(part, completed(token)) == (["ok"], False)

    # Nothing was freed, so nobody is let through here: whoever mends lines finds it.
    assert (holders(part), waiting(part)) == ([], [third])


@pytest.mark.parametrize("control", ["pause:task|job", "strike:x"])
async def test_nobody_is_let_through_past_what_an_operator_has_set(part, control):
    token, (third,) = await with_heirs(part, 3)
    await set_control(part.ns, part.p, control, {"id": "x", "task": "job"}, gates=[], queues=[])

    # The worker does not know it yet, then it does.
    assert await commit(part, completed(token)) == (["ok"], True)
    assert (holders(part), waiting(part)) == ([], [third])
    await admit(part.ns, part.p)
    assert holders(part) == []


async def test_a_worker_that_knows_of_a_pause_names_no_heir(part):
    token, (third,) = await with_heirs(part, 3)
    await set_control(part.ns, part.p, "pause:task|job", {}, gates=[], queues=[])
    await informed(part.ns, part.p, part.claim)

    assert await commit(part, completed(token)) == (["ok"], True)
    assert (holders(part), waiting(part)) == ([], [third])


async def test_a_repeated_commit_hands_nothing_over_twice(part):
    token, (third, fourth) = await with_heirs(part, 4)
    await commit(part, completed(token))

    assert (await commit(part, completed(token)))[0] == ["done"]

    assert (holders(part), waiting(part)) == ([third], [fourth])


async def test_a_delayed_run_inherits_like_others(part):
    token, _ = await with_heirs(part, 2)
    (late,) = await part.start(limits=ONE, delay_ms=1_000)
    await part.advance(1_001)
    spec = token.spec
    assert await fire_timers(part.ns, part.p, [(late, spec)]) == ["lined"]
    token.heirs = late

    assert await commit(part, completed(token)) == (["ok"], False)
    assert holders(part) == [late]
