"""mark_replays: of all who replayed a dead letter under one reserved id, one is told that it was them."""

from partition import acts_of

from weft.ids import new_run_id
from weft.store.letters import mark_replays, reserve_replays


async def reserve(part, run: str, new: str, *, force: bool = False) -> str:
    return (await reserve_replays(part.ns, part.p, [(run, new)], force=force))[0]


async def mark(part, run: str, new: str) -> bool:
    return (await mark_replays(part.ns, part.p, [(run, new)], by="c-1"))[0]


async def test_the_first_to_mark_wins_and_the_reservation_is_gone(part):
    run, new = await part.dead(), new_run_id(part.p)
    await reserve(part, run, new)

    assert [await mark(part, run, new) for _ in range(3)] == [True, False, False]

    assert part.run(run)["replayed"] == new
    assert "replaying" not in part.run(run)
    assert part.ttl(run) > 0


async def test_the_act_of_who_won_is_told(part):
    run, new = await part.dead(), new_run_id(part.p)
    await reserve(part, run, new)
    for _ in range(2):
        await mark_replays(part.ns, part.p, [(run, new)], acts=[b"ACT"], by="c-1")
    (event,) = acts_of(part)
    assert event.payload == new.encode() + b"ACT" and event.facts["before"] == "0"


async def test_what_was_never_reserved_is_not_marked(part):
    run = await part.dead()
    before = part.snapshot()
    assert await mark(part, run, new_run_id(part.p)) is False
    assert await mark(part, f"r{part.p}-0000000000000000000000", new_run_id(part.p)) is False
    assert part.snapshot() == before


async def test_it_refuses_other_epochs(part, refuses_other_epochs):
    run = await part.dead()
    await refuses_other_epochs(lambda: mark(part, run, new_run_id(part.p)))
