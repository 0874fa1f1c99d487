"""How safely the store keeps what it has taken: waits until it is on the server's disk, or on a replica."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from dataclasses import dataclass

from redis.exceptions import RedisError, ResponseError

from weft.errors import DurabilityUnmet
from weft.store import connection
from weft.store.namespace import Namespace

#: Milliseconds that a server gets to bring everything to its disk, or to a replica: some five times what it needs.
PATIENCE_MS = 5_000
#: Seconds a connection may outlast that before it counts as dead.
SLACK = 5.0


@dataclass(frozen=True, slots=True)
class Home:
    """A partition as somebody sees it who is about to start runs there."""

    #: Its time, and that of the server's own clock, in ms; and when this process read them.
    now_ms: int
    clock_ms: int
    read_at: float
    #: Its epoch, and the server process that holds it.
    life: str
    #: Why it takes no new runs; empty: it does.
    behind: str
    #: Id and URL of the database it is archived to; empty: nobody archives it.
    database: str
    name: str


async def read_home(ns: Namespace, p: int) -> Home:
    """Reads how a partition stands."""
    read_at = asyncio.get_running_loop().time()
    about, mark, time = await ns.read_many(
        [
            ("HMGET", ns.keys.epoch(p), "number", "incarnation", "behind", "clock_ms"),
            ("HMGET", ns.keys.archived(p), "database", "name"),
            ("TIME",),
        ],
        p=p,
    )
    number, incarnation, behind, offset = ((word or b"").decode() for word in about)
    database, name = ((word or b"").decode() for word in mark)
    clock_ms = int(time[0]) * 1000 + int(time[1]) // 1000
    return Home(clock_ms + int(offset or 0), clock_ms, read_at, f"{number} {incarnation}", behind, database, name)


async def check_level(ns: Namespace, level: str) -> None:
    """Raises DurabilityUnmet, before anything is written, when the store cannot keep what is asked for."""
    if ns.server.clustered:
        raise DurabilityUnmet(
            f"durability={level!r} cannot be acknowledged by a Cluster, whose client picks a connection for each call:"
            " use 'redis'",
            level=level,
        )
    if level == "replicated":
        replicas = (await ns.info("replication")).get("connected_slaves", "0")
        if replicas == "0":
            raise DurabilityUnmet("durability='replicated' needs a replica, and the store has none", level=level)
        return
    caller = ns.server.caller()
    try:
        with connection.bounded("WAITAOF"):
            await caller.execute_command("WAITAOF", 1, 0, 1)
    except ResponseError as error:
        why = (
            "it does not write an append-only file: set `appendonly yes`"
            if "appendonly" in str(error).lower()
            else "it has no WAITAOF: Redis and Valkey have it from 7.2 on"
        )
        raise DurabilityUnmet(f"durability='fsync' cannot be acknowledged by this store; {why}", level=level) from error
    except (RedisError, OSError) as error:
        raise DurabilityUnmet(
            f"the store did not say whether it can keep durability='fsync': {error}", level=level
        ) from error
    finally:
        await _close(caller)


async def is_kept(ns: Namespace, p: int, level: str) -> bool:
    """Waits until everything the partition was given is on the server's disk, or on a replica; False: not in time."""
    caller = ns.server.caller(timeout=PATIENCE_MS / 1000 + SLACK)
    wait = ("WAITAOF", 1, 0, PATIENCE_MS) if level == "fsync" else ("WAIT", 1, PATIENCE_MS)
    try:
        # Both wait for the last write of their own connection, and file and replicas take writes in order: one more takes along
        # everything before it.
        with connection.bounded(wait[0]):
            _, got = await caller.execute_many([("HINCRBY", ns.keys.epoch(p), "flushes", 1), wait])
    except (RedisError, OSError):
        return False
    finally:
        await _close(caller)
    if isinstance(got, Exception):
        return False
    return int(got[0] if isinstance(got, list) else got) >= 1


async def acknowledge_runs(ns: Namespace, p: int, runs: Sequence[str], level: str) -> int:
    """Notes on runs how safely they are kept; returns how many of them there are."""
    keys = {"run": [ns.keys.run(p, run) for run in runs]}
    return int(await ns.call("acknowledge_runs", p, keys, {"level": level}))


async def _close(caller: connection.Caller) -> None:
    with contextlib.suppress(RedisError, OSError):
        await caller.aclose()
