"""Approvals in Redis: read, change, close; and the key that signs links to them."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import AsyncIterator, Sequence
from typing import Any

import msgspec
from redis.exceptions import RedisError

from weft.core.approvals import Ask, Change, Record, State
from weft.core.effects import run_of
from weft.core.model import ROUTES
from weft.store.keys import TIMER_WAKE
from weft.store.namespace import Namespace
from weft.store.records import ROUTE_PRIORITY
from weft.store.scripts import Arg

#: How long a decision may take to reach the disk, in ms, before it is said to be in memory only.
FSYNC_MS = 3_000
#: Approvals of an ended run that one script call closes.
CLOSE_BATCH = 500

_asks, _states = msgspec.json.Decoder(Ask), msgspec.json.Decoder(State)
_pack = msgspec.json.Encoder().encode


async def change_approval(
    ns: Namespace, p: int, record: Record, change: Change, *, given: bytes, digest: str, due_ms: int | None, by: str
) -> str:
    """Changes an approval that is still as it was read; returns a word (see change_approval.lua)."""
    keys, run = ns.keys, run_of(record.id)
    reply = await ns.call(
        "change_approval",
        p,
        {
            "log": keys.log(p),
            "timers": keys.timers(p),
            "queues": keys.queues(p),
            "wake": [keys.wake(p, TIMER_WAKE), keys.wake(p, ROUTES)],
            "wf.tasks": keys.tasks(p, ROUTES, ROUTE_PRIORITY),
            "approval": keys.approval(p, record.id),
            "pending_approvals": keys.pending_approvals(p),
            "run": [keys.run(p, run), keys.run(p, record.id)],
        },
        {
            "by": by,
            "rev": record.rev,
            "opened": record.opened_ms,
            "digest": digest,
            "due": "" if due_ms is None else due_ms,
            "status": change.status,
            "state": _pack(change.state),
            "given": given,
            "look_at": "" if change.next_ms is None else change.next_ms,
        },
        [(word, _pack(told)) for word, told in change.events],
    )
    return str(reply.decode())


async def read_approvals(ns: Namespace, p: int, ids: Sequence[str]) -> list[Record | None]:
    """Reads approvals of one partition in one round trip; None where there is none."""
    replies = await ns.read_many([("HGETALL", ns.keys.approval(p, id)) for id in ids], p=p)
    return [_record(id, reply) for id, reply in zip(ids, replies, strict=True)]


def _record(id: str, reply: Any) -> Record | None:
    if not reply or isinstance(reply, Exception):
        return None
    fields = {key.decode(): value for key, value in zip(reply[::2], reply[1::2], strict=True)}
    return Record(
        id=id,
        ask=_asks.decode(fields["about"]),
        show=fields["show"],
        digest=fields["digest"].decode(),
        state=_states.decode(fields["state"]),
        status=fields["status"].decode(),
        rev=int(fields["rev"]),
        opened_ms=int(fields["opened"]),
        decided_ms=int(fields.get("decided", 0)),
    )


async def walk_pending(ns: Namespace, p: int, *, oldest_ms: int, page: int) -> AsyncIterator[list[tuple[int, str]]]:
    """Yields (opened ms, id) of approvals of a partition that nobody has decided, the oldest first, a page at a time.

    Within a millisecond by id. What is opened or decided meanwhile shifts nothing: pages go by time, not by position.
    """
    key, oldest = ns.keys.pending_approvals(p), str(oldest_ms)
    while True:
        found = await _range(ns, p, key, oldest, "+inf", "LIMIT", 0, page)
        if len(found) < page:
            if found:
                yield found
            return
        # The page may end in the middle of a millisecond: take the whole of it, and go on behind it.
        last = found[-1][0]
        yield [each for each in found if each[0] != last] + await _range(ns, p, key, str(last), str(last))
        oldest = f"({last}"


async def _range(ns: Namespace, p: int, key: str, oldest: str, newest: str, *limit: Arg) -> list[tuple[int, str]]:
    reply: list[Any] = await ns.read("ZRANGE", key, oldest, newest, "BYSCORE", *limit, "WITHSCORES", p=p)
    return [(int(float(reply[i + 1])), reply[i].decode()) for i in range(0, len(reply), 2)]


async def close_approvals(ns: Namespace, p: int, run: str, steps: Sequence[str], *, seq: int = 0) -> None:
    """Notes that the approvals of an ended run will not be decided any more.

    With `seq`, the newest event of it that the caller saw, only if the run was not opened again since: then they may be asked
    anew.
    """
    keys = ns.keys
    for at in range(0, len(steps), CLOSE_BATCH):
        records = [keys.approval(p, f"{run}/{step}") for step in steps[at : at + CLOSE_BATCH]]
        about = {"run": keys.run(p, run), "pending_approvals": keys.pending_approvals(p), "approval": records}
        await ns.call("close_approvals", p, about, {"seq": seq})


async def is_fsynced(ns: Namespace, p: int) -> bool:
    """Waits until everything written so far is on the server's disk; False where the server cannot tell.

    WAITAOF holds up its connection, so it has one of its own. A Cluster's client picks connections itself: no promise there.
    """
    if ns.server.clustered:
        return False
    caller = ns.server.caller(timeout=FSYNC_MS / 1000 + 5)
    try:
        # WAITAOF waits for the last write of its own connection (measured: after a read it answers at once), and the file is
        # written in order: a write behind the decision takes it along.
        write = ("HINCRBY", ns.keys.epoch(p), "flushes", 1)
        replies = await caller.execute_many([write, ("WAITAOF", 1, 0, FSYNC_MS)])
        return isinstance(replies[1], list) and int(replies[1][0]) >= 1
    except (RedisError, OSError):
        return False
    finally:
        with contextlib.suppress(RedisError, OSError):
            await caller.aclose()


async def secret_of(ns: Namespace) -> bytes:
    """Returns the namespace's own key; makes it at first use."""
    fresh = secrets.token_hex(32)
    held = await ns.read("SET", ns.keys.secret(), fresh, "NX", "GET", p=0)
    return bytes(held) if held is not None else fresh.encode()
