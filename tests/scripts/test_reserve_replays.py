"""reserve_replays: one replay at a time, whoever comes and wherever they die."""

import pytest
from partition import completed

from weft.ids import new_run_id
from weft.store.letters import mark_replays, reserve_replays


async def reserve(part, run: str, new: str, *, force: bool = False) -> str:
    return (await reserve_replays(part.ns, part.p, [(run, new)], force=force))[0]


async def mark(part, run: str, new: str) -> bool:
    return (await mark_replays(part.ns, part.p, [(run, new)], by="c-1"))[0]


async def test_the_first_takes_the_id_and_others_are_given_the_same(part):
    run, one, two = await part.dead(), new_run_id(part.p), new_run_id(part.p)
    ttl = part.ttl(run)
    assert await reserve(part, run, one) == f"reserved {one}"
    assert await reserve(part, run, two) == f"reserved {one}"
    assert await mark(part, run, one) is True
    assert await mark(part, run, one) is False
    assert part.run(run)["replayed"] == one and "replaying" not in part.run(run)
    assert 0 < part.ttl(run) <= ttl


async def test_after_the_mark_only_force_replays_again(part):
    run, one, two = await part.dead(), new_run_id(part.p), new_run_id(part.p)
    await reserve(part, run, one)
    await mark(part, run, one)
    assert await reserve(part, run, two) == f"replayed {one}"
    assert await reserve(part, run, two, force=True) == f"reserved {two}"
    # A forced replay under way does not open the door to one that is not.
    assert await reserve(part, run, new_run_id(part.p)) == f"replayed {one}"
    assert await mark(part, run, two) is True
    assert part.run(run)["replayed"] == two


@pytest.mark.leaves("open runs")
async def test_what_has_not_failed_is_left_alone(part, p):
    (open_run,) = await part.start()
    token = await part.claimed(queue="other")
    await part.commit(completed(token))
    unknown = "r0-0000000000000000000000"
    before = part.snapshot()
    runs = [(run, new_run_id(p)) for run in (open_run, token.run, unknown)]
    assert await reserve_replays(part.ns, p, runs, force=True) == ["other", "other", "gone"]
    assert await mark_replays(part.ns, p, runs, by="c-1") == [False] * 3
    assert part.snapshot() == before


async def test_it_refuses_other_epochs(part, refuses_other_epochs):
    run = await part.dead()
    await refuses_other_epochs(lambda: reserve(part, run, new_run_id(part.p)))
