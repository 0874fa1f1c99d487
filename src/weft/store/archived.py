"""The log as the archiver reads it, and the mark that says how far it has come."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from redis.exceptions import RedisError

from weft.core.fold import ENDINGS, Entry
from weft.core.portions import portions
from weft.store import connection
from weft.store.connection import Caller
from weft.store.faults import translate
from weft.store.namespace import Namespace
from weft.store.numbers import Numbers
from weft.store.scripts import Arg

#: Seconds a blocking call may outlast its block time before the connection counts as dead.
SLACK = 10.0
#: Blobs that are read without asking for their sizes first, and the bytes of more of them that are asked for at once: each may
#: have 16 MB, and an answer of hundreds of them takes longer than anybody waits.
FEW_BLOBS, ASKED_BYTES = 4, 32_000_000
#: Entries of the log that are read at once to see what they tell of: one may have hundreds of events.
RECENT_PAGE = 32


@dataclass(slots=True)
class Stretch:
    """A stretch of the log: its entries as they came, and the last of them."""

    entries: list[Entry]
    upto: str
    #: The entry it was to follow on is no longer in the log.
    torn: bool = False


async def read_log(ns: Namespace, p: int, after: str, *, limit: int) -> Stretch:
    """Reads what the log has after an entry. `after` itself is read too, to see that the log is still the same one."""
    reply = await ns.read("XRANGE", ns.keys.log(p), after, "+", "COUNT", limit + 1, p=p)
    torn = after != "0-0"
    if reply and reply[0][0].decode() == after:
        torn, reply = False, reply[1:]
    return Stretch(reply, reply[-1][0].decode() if reply else after, torn)


class LogWatch:
    """Blocks until the log grows, on a connection of its own. The writers need not know."""

    def __init__(self, ns: Namespace, p: int, *, seconds: float) -> None:
        self._key, self._caller = ns.keys.log(p), ns.server.caller(timeout=seconds + SLACK)

    async def wait(self, after: str, seconds: float) -> None:
        """Returns when the log has something after an entry, or after the time."""
        caller: Caller = self._caller
        connection.boundary("before", "XREAD")
        try:
            await caller.execute_command(
                "XREAD", "COUNT", 1, "BLOCK", max(1, int(seconds * 1000)), "STREAMS", self._key, after
            )
        except (RedisError, OSError) as error:
            raise translate(error) from error
        connection.boundary("after", "XREAD")

    async def close(self) -> None:
        await self._caller.aclose()


async def mark_archived(
    ns: Namespace, p: int, *, database: str, name: str, entry: str, indexed: str, n: int, hot_ms: int
) -> int:
    """Notes how far the log is archived, and trims what is indexed; returns how many entries went. Raises ForeignArchive."""
    keys = {"log": ns.keys.log(p), "archived": ns.keys.archived(p)}
    args: dict[str, Arg] = {
        "database": database,
        "name": name,
        "entry": entry,
        "indexed": indexed,
        "n": n,
        "hot_ms": hot_ms,
    }
    trimmed = int(await ns.call("mark_archived", p, keys, args))
    ns.archived.add(p)
    return trimmed


@dataclass(slots=True)
class Mark:
    """What the hot store knows of its archive. `database` is empty when nobody archives."""

    database: str = ""
    name: str = ""
    entry: str = ""
    at_ms: int = 0
    #: Entries of the log that are not archived, and the age of the oldest of them.
    lag_entries: int = 0
    lag_ms: int = 0
    #: The age of the oldest entry whose run has no row of it yet.
    index_ms: int = 0


async def read_mark(ns: Namespace, p: int) -> Mark:
    """Reads how far a log is archived."""
    log = ns.keys.log(p)
    got, about = await ns.read_many(
        [
            ("HMGET", ns.keys.archived(p), "database", "name", "entry", "at", "passed", "indexed"),
            ("XINFO", "STREAM", log),
        ],
        p=p,
    )
    if isinstance(got, Exception) or not got[0]:
        return Mark()
    ns.archived.add(p)
    mark = Mark(got[0].decode(), got[1].decode(), got[2].decode(), int(got[3]))
    added = _field(about, b"entries-added")
    mark.lag_entries = max(0, int(added) - int(got[4])) if added is not None else 0
    after = [mark.entry, got[5].decode() if got[5] else mark.entry]
    asked = [("XRANGE", log, "(" + entry, "+", "COUNT", 1) for entry in after]
    first, unindexed, now = await ns.read_many([*asked, ("TIME",)], p=p)
    mark.lag_ms, mark.index_ms = _age(first, now), _age(unindexed, now)
    if not first:
        mark.lag_entries = 0
    return mark


@dataclass(slots=True)
class Recent:
    """What the log tells of that is not indexed: which runs, and which of them (or which steps) have such an end in it."""

    database: str
    runs: set[str]
    ends: dict[str, set[str]]


async def read_recent(ns: Namespace, p: int, *, most: int) -> Recent | None:
    """Reads what the log tells of that is not indexed in the archive.

    None when the archive may not know of every run, or when more than `most` runs are told of.
    """
    database, after, whole = await ns.read("HMGET", ns.keys.archived(p), "database", "indexed", "whole", p=p)
    if not (database and after and whole):
        return None
    found = Recent(database.decode(), set(), {status: set() for status in ENDINGS})
    kinds = {status.encode(): ended for status, ended in found.ends.items()}
    while len(found.runs) <= most:
        entries = await ns.read("XRANGE", ns.keys.log(p), b"(" + after, "+", "COUNT", RECENT_PAGE, p=p)
        for _, told in entries:
            for name, event in zip(told[4::2], told[5::2], strict=True):
                if name[:1] != b"r":
                    continue  # settings and tasks elsewhere have names that no run has
                run = name.decode()
                if (ended := kinds.get(event.split(b"|", 2)[1])) is not None:
                    ended.add(run)
                found.runs.add(run.partition("/")[0])
        if len(entries) < RECENT_PAGE:
            return found
        after = entries[-1][0]
    return None


async def forget_whole(ns: Namespace, p: int) -> None:
    """Notes that entries went before they were archived."""
    await ns.read("HDEL", ns.keys.archived(p), "whole", p=p)


def _age(found: Any, now: Any) -> int:
    """Returns how long ago the first of some entries was written; 0 when there is none."""
    if not found or isinstance(found, Exception):
        return 0
    return max(0, int(now[0]) * 1000 + int(now[1]) // 1000 - int(found[0][0].partition(b"-")[0]))


def _field(reply: Any, name: bytes) -> Any:
    if isinstance(reply, Exception):
        return None
    pairs = reply.items() if isinstance(reply, dict) else zip(reply[::2], reply[1::2], strict=False)
    return next((value for key, value in pairs if key in (name, name.decode())), None)


async def set_behind(ns: Namespace, p: int, why: str) -> None:
    """Stops new runs of a partition, for a reason that whoever starts one is told; without one they are taken again."""
    if why:
        await ns.read("HSET", ns.keys.epoch(p), "behind", why, p=p)
    else:
        await ns.read("HDEL", ns.keys.epoch(p), "behind", p=p)


async def read_behind(ns: Namespace, p: int) -> str:
    """Returns why a partition takes no new runs; nothing: it does."""
    why = await ns.read("HGET", ns.keys.epoch(p), "behind", p=p)
    return why.decode() if why else ""


async def read_memory(ns: Namespace, p: int) -> tuple[int, int]:
    """Returns what the server of a partition uses, and what it may use: its maxmemory, else all that the machine has."""
    about = await ns.info("memory", p)
    most = int(about.get("maxmemory", 0)) or int(about.get("total_system_memory", 0))
    return int(about.get("used_memory", 0)), most


async def forget_mark(ns: Namespace, p: int) -> bool:
    """Forgets that a log is archived; returns whether it was."""
    ns.archived.discard(p)
    # On purpose: whoever archives next must not take it for a loss.
    await ns.read("HSET", ns.keys.epoch(p), "retired", 1, p=p)
    return int(await ns.read("DEL", ns.keys.archived(p), p=p)) == 1


@dataclass(frozen=True, slots=True)
class Ended:
    """A finished, archived task: its newest event, digests of input and result, and how many of its log lines are archived."""

    id: str
    seq: int
    given: str = ""
    result: str = ""
    logged: int = 0

    def with_lines(self, n: int) -> Ended:
        return replace(self, logged=n)


async def release_runs(ns: Namespace, p: int, runs: Sequence[Ended], *, hot_ms: int) -> list[str]:
    """Lets finished, archived tasks expire early; returns a word each (see release_runs.lua)."""
    blobs, lists, keys = Numbers(), Numbers(), ns.keys
    items = [
        (
            run.seq,
            blobs.of(keys.blob(p, run.id, run.given)) if run.given else 0,
            blobs.of(keys.blob(p, run.id, run.result)) if run.result else 0,
            lists.of(keys.tasklog(p, run.id)) if run.logged else 0,
            run.logged or "",
        )
        for run in runs
    ]
    reply = await ns.call(
        "release_runs",
        p,
        {"run": [keys.run(p, run.id) for run in runs], "blob": blobs, "tasklog": lists},
        {"hot_ms": hot_ms},
        items,
    )
    return [word.decode() for word in reply]


async def has_entry(ns: Namespace, p: int, entry: str) -> bool:
    """Tells whether the log still has an entry."""
    return bool(await ns.read("XRANGE", ns.keys.log(p), entry, entry, "COUNT", 1, p=p))


async def read_sizes(ns: Namespace, p: int, wanted: Sequence[tuple[str, str]]) -> list[int]:
    """Returns how many bytes blobs have, for (run, digest) each; 0 for those that are gone."""
    replies = await ns.read_many([("STRLEN", ns.keys.blob(p, run, digest)) for run, digest in wanted], p=p)
    return [reply if isinstance(reply, int) else 0 for reply in replies]


async def read_blobs(ns: Namespace, p: int, wanted: Sequence[tuple[str, str]]) -> dict[str, bytes]:
    """Returns blobs by digest, for (run, digest) each; those that are gone are left out."""
    sizes = await read_sizes(ns, p, wanted) if len(wanted) > FEW_BLOBS else [0] * len(wanted)
    found: dict[str, bytes] = {}
    for some in portions(zip(wanted, sizes, strict=True), ASKED_BYTES):
        replies = await ns.read_many([("GET", ns.keys.blob(p, run, digest)) for run, digest in some], p=p)
        for (_, digest), data in zip(some, replies, strict=True):
            if isinstance(data, bytes):
                found[digest] = bytes(data)
    return found


async def read_definitions(ns: Namespace, p: int, digests: Sequence[str]) -> dict[str, bytes]:
    """Returns definitions of graphs by digest; those that are gone are left out."""
    replies = await ns.read_many([("GET", ns.keys.ir(p, digest)) for digest in digests], p=p)
    return {digest: bytes(data) for digest, data in zip(digests, replies, strict=True) if isinstance(data, bytes)}


async def read_whole_items(ns: Namespace, p: int, run: str, step: str) -> dict[str, bytes]:
    """Returns the items of a map as they are kept, by chunk; nothing when they are gone."""
    flat = await ns.read("HGETALL", ns.keys.items(p, run, step), p=p)
    return {chunk.decode(): items for chunk, items in zip(flat[::2], flat[1::2], strict=True)}
