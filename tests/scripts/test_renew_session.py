"""renew_session: keeps a session alive, unless its steps were given to others."""

import pytest

from weft.core.model import SESSION_DECODER
from weft.errors import SessionLost
from weft.store.connection import Server
from weft.store.sessions import read_sessions, renew_session, renew_session_sync

pytestmark = pytest.mark.leaves("sessions")


async def test_a_session_opens_with_a_lease_and_a_place_in_the_directory(part, ns, p):
    await part.session("s-1", lease_ms=30_000, queues=["a", "b"])

    key = part.keys.session(p, "s-1")
    assert part.raw.get(key) == b"alive"
    assert 29_000 < part.raw.pttl(key) <= 30_000
    about = SESSION_DECODER.decode(part.raw.hget(part.keys.sessions(p), "s-1"))
    assert (about.id, about.queues) == ("s-1", ["a", "b"])
    assert {session: alive for session, (_, alive) in (await read_sessions(ns, p)).items()} == {"s-1": True}


async def test_renewing_prolongs_the_lease(part, p):
    await part.session("s-1", lease_ms=1_000)

    await part.session("s-1", lease_ms=60_000)

    assert part.raw.pttl(part.keys.session(p, "s-1")) > 1_000


async def test_a_lease_that_ran_out_may_be_renewed_while_nobody_took_the_steps(part, ns, p):
    await part.session("s-1")
    part.raw.delete(part.keys.session(p, "s-1"))  # what expiry does
    assert not (await read_sessions(ns, p))["s-1"][1]

    await part.session("s-1")

    assert (await read_sessions(ns, p))["s-1"][1]


async def test_a_tombstoned_session_is_refused_and_changes_nothing(part, ns, p):
    part.raw.set(part.keys.session(p, "s-1"), "dead", px=60_000)
    before = part.snapshot()

    with pytest.raises(SessionLost):
        await part.session("s-1")

    assert part.snapshot() == before


async def test_the_lease_thread_renews_with_a_blocking_client_also_after_the_scripts_were_flushed(part, ns, p, launch):
    # Given a server of its own, because flushing scripts is everybody's business.
    own = launch()
    from weft.store.namespace import Namespace

    there = Namespace(Server(own.url), "own", partitions=1)
    await there.open()
    with own.client() as raw, there.server.sync_client() as client:
        raw.script_flush()

        renew_session_sync(client, there, 0, session="s-1", lease_ms=5_000, about=b"\x80")

        assert raw.get(there.keys.session(0, "s-1")) == b"alive"
        raw.set(there.keys.session(0, "s-1"), "dead")
        with pytest.raises(SessionLost):
            renew_session_sync(client, there, 0, session="s-1", lease_ms=5_000, about=b"\x80")
    await there.close()


async def test_it_refuses_other_epochs(ns, p, refuses_other_epochs):
    await refuses_other_epochs(lambda: renew_session(ns, p, session="s-1", lease_ms=1_000, about=b"\x80"))
