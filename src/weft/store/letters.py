"""Dead letters in Redis: the index of failed runs, and the scripts that replay, purge and mark them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any

from weft.core.model import RunSpec
from weft.store.namespace import Namespace
from weft.store.numbers import Numbers
from weft.store.scripts import Arg


async def walk_letters(
    ns: Namespace, p: int, *, newest_ms: int | None, oldest_ms: int, page: int
) -> AsyncIterator[list[tuple[int, str]]]:
    """Yields (failed ms, run id) of a partition's dead letters, newest first, a page at a time.

    Within a millisecond by id, downwards. What is added or removed meanwhile shifts nothing: pages go by time, not
    by position.
    """
    key, newest = ns.keys.dlq(p), "+inf" if newest_ms is None else str(newest_ms)
    while True:
        found = await _range(ns, p, key, newest, oldest_ms, "LIMIT", 0, page)
        if len(found) < page:
            if found:
                yield found
            return
        # The page may end in the middle of a millisecond: take the whole of it, and go on below.
        last = found[-1][0]
        yield [each for each in found if each[0] != last] + await _range(ns, p, key, str(last), last)
        newest = f"({last}"


async def _range(ns: Namespace, p: int, key: str, newest: str, oldest_ms: int, *limit: Arg) -> list[tuple[int, str]]:
    reply: list[Any] = await ns.read("ZRANGE", key, newest, oldest_ms, "BYSCORE", "REV", *limit, "WITHSCORES", p=p)
    return [(int(float(reply[i + 1])), reply[i].decode()) for i in range(0, len(reply), 2)]


async def reserve_replays(ns: Namespace, p: int, runs: Sequence[tuple[str, str]], *, force: bool) -> list[str]:
    """Takes an id for the replay of each (dead letter, fresh id); returns a word per letter (see reserve_replays.lua)."""
    reply = await ns.call(
        "reserve_replays",
        p,
        {"run": [ns.keys.run(p, run) for run, _ in runs]},
        {"force": int(force)},
        [(fresh,) for _, fresh in runs],
    )
    return [word.decode() for word in reply]


async def copy_inputs(ns: Namespace, p: int, runs: Sequence[tuple[str, str, str]]) -> list[bool]:
    """Copies the inputs (run that has it, new run, digest) that are blobs, with the expiry that the start takes off.

    Returns whether each is there. A copy that is there stays as it is: its run may be open already.
    """
    copies = [("COPY", ns.keys.blob(p, run, digest), ns.keys.blob(p, fresh, digest)) for run, fresh, digest in runs]
    looks = [("EXISTS", to) for _, _, to in copies]
    replies = await ns.read_many([*copies, *looks], p=p) if runs else []
    return [reply == 1 for reply in replies[len(copies) :]]


async def mark_replays(
    ns: Namespace, p: int, runs: Sequence[tuple[str, str]], *, acts: Sequence[bytes] = (), by: str = ""
) -> list[bool]:
    """Notes that (dead letter, new run) were replayed; returns for each whether this caller was the one.

    `acts` are what the audit is told, one per letter.
    """
    reply = await ns.call(
        "mark_replays",
        p,
        {"log": ns.keys.log(p), "run": [ns.keys.run(p, run) for run, _ in runs]},
        {"by": by},
        [(fresh, act) for (_, fresh), act in zip(runs, acts or [b""] * len(runs), strict=True)],
    )
    return [word == b"marked" for word in reply]


async def purge_letters(
    ns: Namespace, p: int, runs: Sequence[tuple[str, RunSpec]], *, acts: Sequence[bytes] = (), by: str = ""
) -> list[str]:
    """Deletes dead letters; returns a word per letter (see purge_letters.lua). `acts` are what the audit is told."""
    blobs = Numbers()
    items = [
        (blobs.of(ns.keys.blob(p, run, spec.blob)) if spec.blob else 0, act)
        for (run, spec), act in zip(runs, acts or [b""] * len(runs), strict=True)
    ]
    reply = await ns.call(
        "purge_letters",
        p,
        {
            "log": ns.keys.log(p),
            "dlq": ns.keys.dlq(p),
            "run": [ns.keys.run(p, run) for run, _ in runs],
            "tasklog": [ns.keys.tasklog(p, run) for run, _ in runs],
            "blob": blobs,
        },
        {"by": by},
        items,
    )
    return [word.decode() for word in reply]


async def investigate_letter(ns: Namespace, p: int, run: str, *, by: str, note: str, act: bytes = b"") -> None:
    """Marks a dead letter as looked into; an empty note takes the mark back. `act` is what the audit is told."""
    keys = {"log": ns.keys.log(p), "run": ns.keys.run(p, run)}
    await ns.call("investigate_letter", p, keys, {"by": by, "said": note, "act": act})


async def drop_gone_letters(ns: Namespace, p: int, cursor: int, *, count: int) -> int:
    """Takes ids whose run has expired out of the index, some at a time; returns where to go on (0: all were seen)."""
    key = ns.keys.dlq(p)
    cursor, found = await ns.read("ZSCAN", key, cursor, "COUNT", count, p=p)
    ids = [member.decode() for member in found[::2]]
    there = await ns.read_many([("EXISTS", ns.keys.run(p, run)) for run in ids], p=p)
    # No script: an id is never used again, so what is gone stays gone.
    gone = [run for run, reply in zip(ids, there, strict=True) if reply == 0]
    if gone:
        await ns.read("ZREM", key, *gone, p=p)
    return int(cursor)


async def server_ms(ns: Namespace) -> int:
    """Returns the server's time: dead letters are ordered by it."""
    seconds, micros = await ns.read("TIME", p=0)
    return int(seconds) * 1000 + int(micros) // 1000


async def count_letters(ns: Namespace, p: int) -> int:
    """Returns how many dead letters a partition lists."""
    return int(await ns.read("ZCARD", ns.keys.dlq(p), p=p))
