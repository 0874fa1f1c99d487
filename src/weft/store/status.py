"""The status of work elsewhere, in Redis: observations are written by one script, and read as they stand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from weft.core.status import (
    MARK,
    Observation,
    Seen,
    content_of,
    digest_of,
    event_digest,
    pack_seen,
    read_seen,
    unpack,
)
from weft.store.namespace import Namespace
from weft.store.recovery import Closed, write_plain
from weft.store.scripts import Arg


@dataclass(frozen=True, slots=True)
class Bounds:
    """How long and how much of it is kept."""

    keep_ms: int
    seen_ms: int
    history: int
    feed: int


#: A place in the feed before its first entry.
NOWHERE = "0-0"


@dataclass(frozen=True, slots=True)
class Answer:
    """What became of an observation: `published`, `known`, `other_event` or `other_parent`."""

    word: str
    entry: str
    at_ms: int
    parent: str


async def publish_status(ns: Namespace, p: int, seen: Seen, bounds: Bounds, *, by: str, near: bool) -> Answer:
    """Keeps an observation, or finds that it is known. `near`: its parent lives in the same partition."""
    digest, content = digest_of(seen.task), content_of(seen)
    keys: dict[str, str | Sequence[str]] = {
        "log": ns.keys.log(p),
        "status": ns.keys.status(p, digest),
        "status_history": ns.keys.status_history(p, digest),
        "status_feed": ns.keys.status_feed(p),
        "status_event": [ns.keys.status_event(p, event_digest(seen))] if seen.event else [],
        "status_children": [ns.keys.status_children(p, digest_of(seen.parent))] if seen.parent and near else [],
    }
    args: dict[str, Arg] = {
        "by": by,
        "name": MARK + digest,
        "task": seen.task,
        "parent": seen.parent,
        "content": content,
        "facts": f"content={content}" + (f",parent={digest_of(seen.parent)}" if seen.parent else ""),
        "payload": pack_seen(seen),
        "keep_ms": bounds.keep_ms,
        "seen_ms": bounds.seen_ms,
        "n_history": bounds.history,
        "n_feed": bounds.feed,
    }
    word, entry, at, parent = await ns.call("publish_status", p, keys, args)
    return Answer(word.decode(), entry.decode(), int(at or 0), parent.decode())


async def adopt_status(ns: Namespace, p: int, parent: str, task: str, *, keep_ms: int) -> bool:
    """Notes a child with its parent, which lives in this partition; returns whether it was new there."""
    keys = {"status_children": ns.keys.status_children(p, digest_of(parent))}
    return bool(await ns.call("adopt_status", p, keys, {"task": task, "keep_ms": keep_ms}))


async def restore_statuses(
    ns: Closed, p: int, rows: Sequence[tuple[tuple[int, int], int, bytes]], bounds: Bounds, *, now_ms: int, whole: bool
) -> None:
    """Writes observations of a partition (place, ms and what was seen), the oldest first. `whole`: there were none before.

    Children are left to the archive, which readers ask too.
    """
    commands: list[tuple[Arg, ...]] = []
    feed, born, newest, parents = ns.keys.status_feed(p), dict[str, int](), dict[str, int](), dict[str, str]()
    for (moment, number), at_ms, payload in rows:
        seen = read_seen(payload)
        entry, digest = f"{moment}-{number}", digest_of(seen.task)
        head = f"{entry} {at_ms} {content_of(seen)}"
        item = head.encode() + b" " + payload
        commands += [("LPUSH", ns.keys.status_history(p, digest), item), ("XADD", feed, entry, "o", item)]
        if seen.event and (left_ms := at_ms + bounds.seen_ms - now_ms) > 0:
            commands.append(("SET", ns.keys.status_event(p, event_digest(seen)), head, "PX", left_ms))
        if digest not in born:
            born[digest] = at_ms
            commands.append(("HSET", ns.keys.status(p, digest), "task", seen.task, "born", at_ms))
        newest[digest] = at_ms
        if seen.parent:
            parents.setdefault(digest, seen.parent)
        commands.append(("HINCRBY", ns.keys.status(p, digest), "n", 1))
    commands += [("HSET", ns.keys.status(p, digest), "parent", parent) for digest, parent in parents.items()]
    for digest, at_ms in newest.items():
        keep_ms = max(1, at_ms + bounds.keep_ms - now_ms)
        commands.append(("LTRIM", ns.keys.status_history(p, digest), 0, bounds.history - 1))
        commands += [("PEXPIRE", key(p, digest), keep_ms) for key in (ns.keys.status, ns.keys.status_history)]
    if rows and not whole:
        # Readers tell by the number that were ever added that the feed does not begin with its first.
        commands.append(("XSETID", feed, f"{rows[-1][0][0]}-{rows[-1][0][1]}", "ENTRIESADDED", len(rows) + 1))
    await write_plain(ns, p, commands)


async def read_statuses(ns: Namespace, p: int, tasks: Sequence[str]) -> list[Observation | None]:
    """Returns how tasks of a partition stand: the newest observation of each, None where there is none."""
    digests = [digest_of(task) for task in tasks]
    commands: list[tuple[Arg, ...]] = []
    for digest in digests:
        commands += [("LINDEX", ns.keys.status_history(p, digest), 0), ("HGET", ns.keys.status(p, digest), "parent")]
    replies = await ns.read_many(commands, p=p)
    return [_observation(item, parent) for item, parent in zip(replies[::2], replies[1::2], strict=True)]


async def read_observations(ns: Namespace, p: int, task: str, *, limit: int) -> list[Observation]:
    """Returns what was observed of a task, the newest first."""
    digest = digest_of(task)
    items, parent = await ns.read_many(
        [("LRANGE", ns.keys.status_history(p, digest), 0, limit - 1), ("HGET", ns.keys.status(p, digest), "parent")],
        p=p,
    )
    found = [_observation(item, parent) for item in items or ()]
    return [each for each in found if each is not None]


async def read_children(ns: Namespace, p: int, parent: str, *, limit: int) -> list[str]:
    """Returns the ids of a task's children, those that were observed first in front."""
    reply = await ns.read("ZRANGE", ns.keys.status_children(p, digest_of(parent)), 0, limit - 1, p=p)
    return [task.decode() for task in reply]


@dataclass(frozen=True, slots=True)
class Part:
    """Some of a partition's feed. `torn`: what directly follows the cursor may be gone from it."""

    observations: list[tuple[str, Observation]]
    torn: bool
    #: The oldest entry that the feed still has; empty: it has none.
    first: str


async def read_feed(ns: Namespace, p: int, after: str, *, limit: int) -> Part:
    """Returns what a partition's feed has after an entry, the oldest first, by entry."""
    key = ns.keys.status_feed(p)
    reply, first, there, length, about = await ns.read_many(
        [
            ("XRANGE", key, "(" + after, "+", "COUNT", limit),
            ("XRANGE", key, "-", "+", "COUNT", 1),
            ("XRANGE", key, after, after, "COUNT", 1),
            ("XLEN", key),
            ("XINFO", "STREAM", key),
        ],
        p=p,
    )
    if isinstance(about, Exception):  # it was never made, has expired, or was lost with everything else
        return Part([], torn=after != NOWHERE, first="")
    pairs = about.items() if isinstance(about, dict) else zip(about[::2], about[1::2], strict=False)
    added = next(int(value) for name, value in pairs if name in (b"entries-added", "entries-added"))
    oldest = first[0][0].decode() if first else ""
    # What was added and is no longer there was older than the oldest: the cursor must stand behind it. A cursor that came from
    # an entry must find it: else it was trimmed, or the feed was lost and begun anew.
    torn = (added > int(length) or after != NOWHERE) and not there and bool(oldest) and _order(after) < _order(oldest)
    found = [(entry.decode(), _observation(fields[1], None)) for entry, fields in reply]
    return Part([(entry, each) for entry, each in found if each is not None], torn=torn, first=oldest)


async def newest_of_feed(ns: Namespace, p: int) -> str:
    """Returns the newest entry of a partition's feed."""
    reply = await ns.read("XREVRANGE", ns.keys.status_feed(p), "+", "-", "COUNT", 1, p=p)
    return reply[0][0].decode() if reply else NOWHERE


def _order(entry: str) -> tuple[int, int]:
    ms, _, n = entry.partition("-")
    return int(ms), int(n)


def _observation(item: Any, parent: Any) -> Observation | None:
    if not isinstance(item, bytes):
        return None
    entry, at, _, payload = item.split(b" ", 3)
    known = parent.decode() if isinstance(parent, bytes) else ""
    return unpack(entry.decode(), int(at), payload, parent=known)
