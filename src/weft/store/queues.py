"""Queues in Redis: how long they are, how old, how fast. Reads only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from weft.core.model import SPEC_DECODER
from weft.store.gates import read_lines
from weft.store.keys import GROUP, PRIORITIES
from weft.store.namespace import Namespace
from weft.store.scripts import Arg

#: Waiting runs that are read to tell the queues they will go to.
MAX_WAITING = 2_000


@dataclass(slots=True)
class QueueFacts:
    """One queue in one partition."""

    ready: int = 0
    running: int = 0
    held: int = 0
    #: When the oldest token that nobody has taken was queued, in ms; 0: there is none.
    oldest_ms: int = 0
    #: When the oldest run that waits at a gate began, in ms; 0: there is none.
    oldest_held_ms: int = 0
    #: Tokens that ever came in, and that are still there: the difference has been done.
    added: int = 0
    present: int = 0

    def add(self, other: QueueFacts) -> None:
        self.ready += other.ready
        self.running += other.running
        self.held += other.held
        self.added += other.added
        self.present += other.present
        self.oldest_ms = earlier(self.oldest_ms, other.oldest_ms)
        self.oldest_held_ms = earlier(self.oldest_held_ms, other.oldest_held_ms)


def earlier(one_ms: int, other_ms: int) -> int:
    """Returns the earlier of two moments; 0 stands for none."""
    return min(one_ms, other_ms) if one_ms and other_ms else one_ms or other_ms


async def read_queues(ns: Namespace, p: int) -> dict[str, QueueFacts]:
    """Reads every queue of a partition that was ever used, in three round trips."""
    names = sorted(name.decode() for name in await ns.read("SMEMBERS", ns.keys.queues(p), p=p))
    streams = [(name, ns.keys.tasks(p, name, priority)) for name in names for priority in PRIORITIES]
    commands: list[tuple[Arg, ...]] = []
    for _, stream in streams:
        commands += [("XINFO", "STREAM", stream), ("XINFO", "GROUPS", stream)]
    replies = await ns.read_many(commands, p=p)
    found = {name: QueueFacts() for name in names}
    heads: list[tuple[str, str, str]] = []
    for i, (name, stream) in enumerate(streams):
        about, groups = replies[2 * i : 2 * i + 2]
        if isinstance(about, Exception):
            continue  # no token ever had this priority
        facts, group = _pairs(about), _group(groups)
        running = int(group.get("pending", 0))
        length = int(facts["length"])
        found[name].add(
            QueueFacts(max(0, length - running), running, added=int(facts["entries-added"]), present=length)
        )
        if length > running:
            last = group.get("last-delivered-id", b"0-0").decode()
            heads.append((name, stream, last))
    for name, oldest_ms in await _read_oldest(ns, p, heads):
        found[name].add(QueueFacts(oldest_ms=oldest_ms))
    for name, waiting in (await _read_held(ns, p)).items():
        found.setdefault(name, QueueFacts()).add(waiting)
    return found


async def _read_oldest(ns: Namespace, p: int, heads: Sequence[tuple[str, str, str]]) -> list[tuple[str, int]]:
    """Returns when the first waiting token of each stream (queue, stream, last one read in order) came, in ms.

    Tokens that have overtaken it run already, and stand behind the last one that was read.
    """
    found: list[tuple[str, int]] = []
    at_once = 1
    while heads:
        commands: list[tuple[Arg, ...]] = []
        for _, stream, last in heads:
            commands.append(("XRANGE", stream, f"({last}", "+", "COUNT", at_once))
            commands.append(("XPENDING", stream, GROUP, f"({last}", "+", at_once))
        replies = await ns.read_many(commands, p=p)
        passed: list[tuple[str, str, str]] = []
        for i, (name, stream, _) in enumerate(heads):
            tokens, running = (reply if isinstance(reply, list) else [] for reply in replies[2 * i : 2 * i + 2])
            taken = {row[0] for row in running}
            waiting = next((token for token, _ in tokens if token not in taken), None)
            if waiting is not None:
                found.append((name, int(waiting.partition(b"-")[0])))
            elif tokens:
                passed.append((name, stream, tokens[-1][0].decode()))
        heads, at_once = passed, 100
    return found


async def _read_held(ns: Namespace, p: int) -> dict[str, QueueFacts]:
    """Counts runs that wait at gates, by the queue they will go to; of very many, the first ones."""
    gates = await read_lines(ns, p)
    lines = await ns.read_many([("ZRANGE", ns.keys.line(p, gate), 0, MAX_WAITING) for gate in gates], p=p)
    runs = [run.decode() for line in lines if isinstance(line, list) for run in line][:MAX_WAITING]
    held: dict[str, QueueFacts] = {}
    for reply in await ns.read_many([("HMGET", ns.keys.run(p, run), "spec", "born") for run in runs], p=p):
        if isinstance(reply, list) and reply[0] is not None:
            try:
                queue = SPEC_DECODER.decode(reply[0]).queue
            except msgspec.DecodeError:
                continue  # the sweeper puts it up for repair
            held.setdefault(queue, QueueFacts()).add(QueueFacts(held=1, oldest_held_ms=int(reply[1] or 0)))
    return held


async def read_running(ns: Namespace, p: int, queues: Sequence[str]) -> dict[str, int]:
    """Counts the steps each session holds."""
    streams = [ns.keys.tasks(p, queue, priority) for queue in queues for priority in PRIORITIES]
    running: dict[str, int] = {}
    for reply in await ns.read_many([("XPENDING", stream, GROUP) for stream in streams], p=p):
        if isinstance(reply, list) and reply and reply[3]:
            for session, n in reply[3]:
                running[session.decode()] = running.get(session.decode(), 0) + int(n)
    return running


async def read_delivered(ns: Namespace, p: int, *, limit: int) -> set[str]:
    """Returns the runs whose steps workers have in hand; of very many, so many."""
    queues = await ns.read("SMEMBERS", ns.keys.queues(p), p=p)
    streams = [ns.keys.tasks(p, queue.decode(), priority) for queue in queues for priority in PRIORITIES]
    replies = await ns.read_many([("XPENDING", stream, GROUP, "-", "+", limit) for stream in streams], p=p)
    held = [(s, row[0]) for s, reply in zip(streams, replies, strict=True) if isinstance(reply, list) for row in reply]
    tokens = await ns.read_many([("XRANGE", stream, token, token) for stream, token in held[:limit]], p=p)
    # A token that was acknowledged meanwhile is gone; the first of its fields is the run.
    return {row[1][1].decode().partition("/")[0] for reply in tokens if isinstance(reply, list) for row in reply}


def _group(groups: Any) -> dict[str, Any]:
    if isinstance(groups, Exception):
        return {}
    return next((facts for facts in map(_pairs, groups) if facts["name"] == GROUP.encode()), {})


def _pairs(flat: Any) -> dict[str, Any]:
    return {name.decode(): value for name, value in zip(flat[::2], flat[1::2], strict=True)}


async def read_ahead(ns: Namespace, p: int, queue: str, priority: int, token: str, *, limit: int = 10_000) -> int:
    """Counts the undelivered tokens that come before one: those of higher priority, and older ones of its own.

    One that may overtake (lib/overtake.lua) waits for those that were noted before it, and for one in order behind every two.
    """
    own = ns.keys.tasks(p, queue, priority)
    higher = [ns.keys.tasks(p, queue, level) for level in PRIORITIES if level > priority]
    before = ("XRANGE", own, "-", f"({token}", "COUNT", limit)
    replies = await ns.read_many([before, *_undelivered([own, *higher])], p=p)
    older = {row[0].decode() for row in replies[0]} if isinstance(replies[0], list) else set()
    pending_own, *rest = [(_count(replies[i]), _held(replies[i + 1])) for i in range(1, len(replies), 2)]
    ahead = max(0, len(older) - pending_own[1])
    noted = await _read_noted(ns, p, queue, priority, token)
    if noted is not None:
        ahead = min(ahead, noted + noted // 2 + 1)
    return ahead + sum(max(0, n - held) for n, held in rest)


async def _read_noted(ns: Namespace, p: int, queue: str, priority: int, token: str) -> int | None:
    """Returns how many were noted before a token; None when it is not noted itself."""
    epoch, field = ns.keys.epoch(p), f"fresh:{queue}:{priority}"
    mark = await ns.read("HGET", epoch, field, p=p)
    if mark is None:
        return None
    first, end = (int(number) for number in mark.split()[4:])
    numbers = range(first, min(end, first + MAX_WAITING))
    if not numbers:
        return None
    notes = await ns.read("HMGET", epoch, *[f"{field}:{number:020}" for number in numbers], p=p)
    return notes.index(token.encode()) if token.encode() in notes else None


def _undelivered(streams: Sequence[str]) -> list[tuple[Arg, ...]]:
    commands: list[tuple[Arg, ...]] = []
    for stream in streams:
        commands += [("XLEN", stream), ("XPENDING", stream, GROUP)]
    return commands


def _count(reply: Any) -> int:
    return 0 if isinstance(reply, Exception) else int(reply)


def _held(reply: Any) -> int:
    """How many entries of a stream are delivered; a stream that nobody reads has no group yet."""
    return 0 if isinstance(reply, Exception) or not reply else int(reply[0])
