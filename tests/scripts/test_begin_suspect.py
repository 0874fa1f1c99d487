"""begin_suspect: notes that a suspect begins, so that a death while it runs is charged to it."""

import pytest
from partition import returned

from weft.errors import SessionLost
from weft.store.steps import begin_suspect


async def begin(part, token, session: str = "s-1") -> bool:
    return await begin_suspect(part.ns, part.p, token, session=session)


@pytest.mark.leaves("open runs", "pending")
async def test_it_notes_the_delivery_and_changes_nothing_else(part):
    token = await part.claimed("s-1")
    before = part.run(token.run)

    assert await begin(part, token)

    assert part.run(token.run) == {**before, "begun": "1"}
    assert [event.type for event in part.events(token.run)] == ["queued"]


@pytest.mark.leaves("open runs", "pending")
async def test_twice_is_as_good_as_once(part):
    token = await part.claimed("s-1")

    assert await begin(part, token)
    before = part.snapshot()
    assert await begin(part, token)

    assert part.snapshot() == before


@pytest.mark.leaves("open runs")
async def test_a_step_that_was_handed_on_is_not_begun(part):
    token = await part.claimed("s-1")
    await part.commit(returned(token))
    before = part.snapshot()

    assert not await begin(part, token)

    assert part.snapshot() == before


@pytest.mark.leaves("broken keys", "pending", "history")
async def test_a_run_that_is_gone_is_not_made_anew(part, p):
    token = await part.claimed("s-1")
    part.raw.delete(part.keys.run(p, token.run))

    assert not await begin(part, token)

    assert not part.raw.exists(part.keys.run(p, token.run))


@pytest.mark.leaves("open runs", "pending")
async def test_a_swept_session_is_refused(part, p):
    token = await part.claimed("s-1")
    part.raw.set(part.keys.session(p, "s-1"), "dead", px=60_000)
    before = part.snapshot()

    with pytest.raises(SessionLost):
        await begin(part, token)

    assert part.snapshot() == before


@pytest.mark.leaves("broken keys", "pending", "history")
async def test_a_run_of_the_wrong_type_is_left_to_its_commit(part, p):
    token = await part.claimed("s-1")
    part.raw.delete(part.keys.run(p, token.run))
    part.raw.lpush(part.keys.run(p, token.run), "x")
    before = part.snapshot()

    assert await begin(part, token)

    assert part.snapshot() == before


@pytest.mark.leaves("open runs", "pending")
async def test_it_refuses_other_epochs(part, refuses_other_epochs):
    token = await part.claimed("s-1")
    await refuses_other_epochs(lambda: begin(part, token))
