"""Worker sessions in Redis: leases renewed by a thread of their own, and the directory of who serves what."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from redis.exceptions import NoScriptError, RedisError

from weft.core.model import SESSION_DECODER, SessionInfo
from weft.store import connection
from weft.store.faults import translate
from weft.store.keys import GROUP
from weft.store.lost import TOMBSTONE_MS
from weft.store.namespace import Namespace
from weft.store.scripts import load


def renew_session_sync(client: Any, ns: Namespace, p: int, *, session: str, lease_ms: int, about: bytes) -> None:
    """Renews a lease from the lease thread, with a blocking client; raises when the session was declared dead."""
    script = load("renew_session")
    keys = ns.keys
    packed = script.pack(
        {"epoch": keys.epoch(p), "session": keys.session(p, session), "sessions": keys.sessions(p)},
        {"epoch": ns.epochs[p], "session": session, "lease_ms": lease_ms, "about": about},
    )
    connection.boundary("before", script.name)
    try:
        try:
            client.execute_command("EVALSHA", script.sha, *packed)
        except NoScriptError:
            client.execute_command("EVAL", script.source, *packed)
    except (RedisError, OSError) as error:
        raise translate(error, script) from error
    connection.boundary("after", script.name)


async def renew_session(ns: Namespace, p: int, *, session: str, lease_ms: int, about: bytes) -> None:
    """Opens or renews a session."""
    await ns.call(
        "renew_session",
        p,
        {"session": ns.keys.session(p, session), "sessions": ns.keys.sessions(p)},
        {"session": session, "lease_ms": lease_ms, "about": about},
    )


async def end_session(ns: Namespace, p: int, *, session: str, streams: Sequence[str], swept: bool) -> int:
    """Takes a session out of the directory; returns how many streams it still holds tokens in (then it stays)."""
    held = await ns.call(
        "end_session",
        p,
        {"session": ns.keys.session(p, session), "sessions": ns.keys.sessions(p), "wf.tasks": list(streams)},
        {"group": GROUP, "session": session, "swept": int(swept), "tombstone_ms": TOMBSTONE_MS},
    )
    return int(held)


async def read_sessions(ns: Namespace, p: int) -> dict[str, tuple[SessionInfo, bool]]:
    """Returns every session of a partition with what it serves and whether its lease is alive.

    An entry that nobody can read is taken for that of a session that may hold steps of any queue; a name that is none is left
    out.
    """
    reply = await ns.read("HGETALL", ns.keys.sessions(p), p=p)
    pairs = [(sid.decode(), about) for sid, about in zip(reply[::2], reply[1::2], strict=True) if sid.isascii()]
    states = await ns.read_many([("GET", ns.keys.session(p, sid)) for sid, _ in pairs], p=p)
    found = {}
    for (sid, about), state in zip(pairs, states, strict=True):
        try:
            told = SESSION_DECODER.decode(about)
        except msgspec.DecodeError:
            queues = [name.decode(errors="replace") for name in await ns.read("SMEMBERS", ns.keys.queues(p), p=p)]
            told = SessionInfo(sid, "", "unknown", 0, sorted(queues), [], 0, 0)
        found[sid] = told, state == b"alive"
    return found
