"""The log in Redis: reads a run's events by the pointers its hash keeps, and trims what is too old."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from weft.store.namespace import Namespace


@dataclass(slots=True, frozen=True)
class RawEvent:
    """One event as it stands in the log."""

    entry: str
    run: str
    seq: int
    type: str
    at_ms: int
    by: str
    facts: dict[str, str]
    payload: bytes


def parse_entry(entry: str, fields: Sequence[bytes]) -> Iterable[RawEvent]:
    """Unpacks one log entry into its events."""
    # An event without a time of its own has that of its entry's id.
    at_ms, by = int(fields[1] or entry.partition("-")[0]), fields[3].decode()
    for i in range(4, len(fields), 2):
        seq, kind, facts, payload = fields[i + 1].split(b"|", 3)
        pairs = (fact.partition("=") for fact in facts.decode().split(",") if fact)
        yield RawEvent(
            entry, fields[i].decode(), int(seq), kind.decode(), at_ms, by, {k: v for k, _, v in pairs}, payload
        )


async def read_events(ns: Namespace, p: int, run: str, pointers: Sequence[str]) -> list[RawEvent]:
    """Returns the events of one run that the log has at the given moments (ms), in order; what was trimmed is left out."""
    replies = await ns.read_many([("XRANGE", ns.keys.log(p), at_ms, at_ms) for at_ms in pointers], p=p)
    found = {e.seq: e for reply in replies for e in _of_run(run, reply)}
    return [found[seq] for seq in sorted(found)]


async def scan_events(ns: Namespace, p: int, run: str, first: str, last: str, *, page: int = 200) -> list[RawEvent]:
    """Returns the events of one run between two moments by reading the whole log there. Slow; only when pointers lack."""
    found: dict[int, RawEvent] = {}
    start = first
    while True:
        reply = await ns.read("XRANGE", ns.keys.log(p), start, last, "COUNT", page, p=p)
        found.update((e.seq, e) for e in _of_run(run, reply))
        if len(reply) < page:
            return [found[seq] for seq in sorted(found)]
        start = "(" + reply[-1][0].decode()


def _of_run(run: str, reply: Any) -> Iterable[RawEvent]:
    if isinstance(reply, Exception) or not reply:
        return
    for entry, fields in reply:
        yield from (e for e in parse_entry(entry.decode(), fields) if e.run == run)


async def trim_log(ns: Namespace, p: int, *, before_ms: int, limit: int) -> int:
    """Removes log entries older than a moment, at most about `limit` at once; returns how many went."""
    return int(await ns.read("XTRIM", ns.keys.log(p), "MINID", "~", before_ms, "LIMIT", limit, p=p))
