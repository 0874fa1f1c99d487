"""open_partition: creates the epoch once and notes which server process was verified."""

import time

from weft.store.namespace import execute
from weft.store.scripts import load


async def open_partition(part, incarnation: str) -> list[bytes]:
    script = load("open_partition")
    packed = script.pack({"epoch": part.keys.epoch(part.p)}, {"incarnation": incarnation})
    return await execute(part.ns.caller, script, packed)


async def test_a_new_partition_gets_an_epoch_that_no_earlier_life_can_have_passed(part, p):
    part.raw.delete(part.keys.epoch(p))

    number, offset, state = await open_partition(part, "run-1")

    assert (offset, state) == (b"0", b"new")
    assert abs(int(number) - time.time()) < 5
    assert part.raw.hgetall(part.keys.epoch(p)) == {b"number": number, b"incarnation": b"run-1"}


async def test_opening_again_from_the_same_server_process_changes_nothing(part):
    first = await open_partition(part, "run-1")
    before = part.snapshot()

    again = await open_partition(part, "run-1")

    assert again == [first[0], b"0", b"same"]
    assert part.snapshot() == before


async def test_another_server_process_is_noted_and_the_epoch_stays(part, p):
    first = await open_partition(part, "run-1")

    moved = await open_partition(part, "run-2")

    assert moved == [first[0], b"0", b"moved"]
    assert part.raw.hget(part.keys.epoch(p), "incarnation") == b"run-2"


async def test_the_clock_offset_is_told(part):
    await part.advance(5_000)

    assert (await open_partition(part, "run-1"))[1] == b"5000"
