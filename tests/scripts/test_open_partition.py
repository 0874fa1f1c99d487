"""open_partition: creates the epoch once and notes which server process was verified."""

import time

from weft.store.namespace import execute
from weft.store.scripts import load


async def open_partition(part, incarnation: str, known: str = "") -> list[bytes]:
    script = load("open_partition")
    keys = {"epoch": part.keys.epoch(part.p), "archived": part.keys.archived(part.p)}
    return await execute(part.ns.caller, script, script.pack(keys, {"incarnation": incarnation, "known": known}))


async def test_a_new_partition_gets_an_epoch_that_no_earlier_life_can_have_passed(part, p):
    part.raw.delete(part.keys.epoch(p))

    number, offset, state, archived = await open_partition(part, "run-1")

    assert (offset, state, archived) == (b"0", b"new", b"0")
    assert abs(int(number) - time.time()) < 5
    assert part.raw.hgetall(part.keys.epoch(p)) == {b"number": number, b"incarnation": b"run-1", b"levels": b"5"}


async def test_opening_again_from_the_same_server_process_changes_nothing(part):
    first = await open_partition(part, "run-1")
    before = part.snapshot()

    again = await open_partition(part, "run-1")

    assert again == [first[0], b"0", b"same", b"0"]
    assert part.snapshot() == before


async def test_another_server_process_is_noted_and_the_epoch_stays(part, p):
    first = await open_partition(part, "run-1")

    moved = await open_partition(part, "run-2")

    assert moved == [first[0], b"0", b"moved", b"0"]
    assert part.raw.hget(part.keys.epoch(p), "incarnation") == b"run-2"


async def test_the_clock_offset_is_told(part):
    await part.advance(5_000)

    assert (await open_partition(part, "run-1"))[1] == b"5000"


async def test_an_empty_partition_that_was_archived_is_a_loss_and_is_not_begun_anew(part, p):
    part.raw.delete(part.keys.epoch(p))
    before = part.snapshot()

    assert (await open_partition(part, "run-1", known="1"))[2] == b"lost"

    assert part.snapshot() == before


async def test_a_partition_that_is_being_rebuilt_stays_closed(part, p):
    part.raw.delete(part.keys.epoch(p))
    part.raw.hset(part.keys.epoch(p), "recovering", 77)
    part.raw.hset(part.keys.archived(p), "database", "d")
    before = part.snapshot()

    assert await open_partition(part, "run-1") == [b"77", b"0", b"closed", b"1"]

    assert part.snapshot() == before
    part.raw.delete(part.keys.archived(p), part.keys.epoch(p))
