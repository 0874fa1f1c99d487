"""drop_holders: takes slots from runs that do not have them any more, and from nobody else."""

import pytest

from weft.store.gates import drop_holders, read_gate, read_holders_of

GATE = "key|job|bob"


def put(part, *members, heir=None):
    part.raw.zadd(part.keys.gate(part.p, GATE), dict.fromkeys(members, 1))
    if heir:
        part.raw.hset(part.keys.heirs(part.p), GATE, heir)


def left(part):
    return part.raw.zrange(part.keys.gate(part.p, GATE), 0, -1), part.raw.hgetall(part.keys.heirs(part.p))


async def drop(part, *runs):
    await drop_holders(part.ns, part.p, GATE, runs)


async def test_holders_are_named_whoever_has_the_slot_that_is_handed_on(part):
    put(part, ">", "r0-b", heir="r0-a")
    assert await read_holders_of(part.ns, part.p, GATE, limit=10) == ["r0-a", "r0-b"]
    assert await read_gate(part.ns, part.p, GATE, shown=1) == (2, ["r0-a"], 0)
    await drop(part, "r0-a", "r0-b")
    assert left(part) == ([], {})


async def test_a_slot_that_was_handed_on_meanwhile_is_its_heir_s(part):
    put(part, ">", heir="r0-b")
    await drop(part, "r0-a", ">")
    assert left(part) == ([b">"], {GATE.encode(): b"r0-b"})
    await drop(part, "r0-b")
    assert left(part) == ([], {})


async def test_a_slot_without_an_heir_is_nobody_s(part):
    put(part, ">")
    assert await read_holders_of(part.ns, part.p, GATE, limit=10) == [">"]
    await drop(part, ">")
    assert left(part) == ([], {})


@pytest.mark.parametrize("run", ["r0-a", ">"])
async def test_it_refuses_other_epochs(part, refuses_other_epochs, run):
    put(part, "r0-a")
    await refuses_other_epochs(lambda: drop(part, run))
    await drop(part, "r0-a")
