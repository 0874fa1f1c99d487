"""end_session: a session leaves once it holds nothing, and its consumers go with it."""

import pytest
from partition import completed

from weft.errors import SessionAlive
from weft.store.lost import TOMBSTONE_MS
from weft.store.sessions import end_session
from weft.store.steps import queue_streams


def consumers(part, p: int) -> list[str]:
    stream = part.keys.tasks(p, "default", 5)
    return [each["name"].decode() for each in part.raw.xinfo_consumers(stream, "weft")]


async def end(ns, p: int, session: str = "s-1", *, swept: bool = False) -> int:
    return await end_session(ns, p, session=session, streams=queue_streams(ns, p, ["default"]), swept=swept)


async def test_a_session_that_holds_nothing_leaves_no_trace(part, ns, p):
    await part.session("s-1")
    token = await part.claimed("s-1")
    await part.commit(completed(token))
    assert consumers(part, p) == ["s-1"]

    assert await end(ns, p) == 0

    assert consumers(part, p) == []
    assert not part.raw.exists(part.keys.session(p, "s-1"))
    assert not part.raw.exists(part.keys.sessions(p))


@pytest.mark.leaves("open runs", "pending", "sessions")
async def test_a_session_that_holds_tokens_stays_until_they_are_taken(part, ns, p):
    await part.session("s-1")
    await part.claimed("s-1")

    assert await end(ns, p) == 1

    assert consumers(part, p) == ["s-1"]
    assert part.raw.get(part.keys.session(p, "s-1")) == b"alive"
    assert part.raw.hexists(part.keys.sessions(p), "s-1")


@pytest.mark.parametrize("state", ["dead", None])
async def test_a_swept_session_leaves_a_tombstone_whatever_it_held(part, ns, p, state):
    # Without one a sleeper that held nothing could claim, as it wakes, under a name nobody looks for any more.
    await part.session("s-1")
    part.raw.delete(part.keys.session(p, "s-1"))
    if state:
        part.raw.set(part.keys.session(p, "s-1"), state, px=60_000)

    assert await end(ns, p, swept=True) == 0

    assert part.raw.get(part.keys.session(p, "s-1")) == b"dead"
    assert 0 < part.raw.pttl(part.keys.session(p, "s-1")) <= TOMBSTONE_MS
    assert not part.raw.exists(part.keys.sessions(p))


@pytest.mark.leaves("sessions")
async def test_a_session_that_came_back_is_not_swept(part, ns, p):
    await part.session("s-1")
    before = part.snapshot()

    with pytest.raises(SessionAlive):
        await end(ns, p, swept=True)

    assert part.snapshot() == before


@pytest.mark.leaves("open runs", "pending", "sessions")
async def test_other_sessions_are_left_alone(part, ns, p):
    await part.session("s-1")
    await part.session("s-2")
    await part.claimed("s-2")

    assert await end(ns, p, "s-1") == 0

    assert consumers(part, p) == ["s-2"]
    assert part.raw.hkeys(part.keys.sessions(p)) == [b"s-2"]


async def test_ending_twice_changes_nothing(part, ns, p):
    await part.session("s-1")
    await end(ns, p)
    before = part.snapshot()

    assert await end(ns, p) == 0

    assert part.snapshot() == before


@pytest.mark.leaves("sessions")
async def test_it_refuses_other_epochs(part, ns, p, refuses_other_epochs):
    await part.session("s-1")
    await refuses_other_epochs(lambda: end(ns, p))
