"""Blocks: stretches of the log, packed and compressed as they came. Nothing in them is decoded until somebody reads it."""

from __future__ import annotations

import zlib
from collections.abc import Collection, Iterable, Sequence

import msgspec

from weft.core.fold import Entry, Logged, split_entry

#: How hard to compress: the lowest level saves most of what there is to save at a fraction of the time.
LEVEL = 1

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[tuple[bytes, list[bytes]]]).decode


def pack(entries: Sequence[Entry]) -> bytes:
    """Returns a block of log entries."""
    return zlib.compress(_encode(entries), LEVEL)


def unpack(data: bytes) -> list[tuple[bytes, list[bytes]]]:
    """Returns the entries of a block."""
    return _decode(zlib.decompress(data))


def events_of(blocks: Iterable[bytes], run: str) -> list[Logged]:
    """Returns the events of a run, and of its steps, that blocks tell of, in order."""
    name, step = run.encode(), f"{run}/".encode()
    found: list[Logged] = []
    for data in blocks:
        for entry, fields in unpack(data):
            # Nothing else of an entry is looked at: a block tells of very many runs.
            if any(key == name or key.startswith(step) for key in fields[4::2]):
                events, _ = split_entry(entry, fields)
                found += [event for event in events if event.run == run or event.run.startswith(f"{run}/")]
    return found


def events_of_many(blocks: Iterable[bytes], runs: Collection[str]) -> dict[str, list[Logged]]:
    """Returns the events of runs, and of their steps, that blocks tell of, by run and in order: each block is read once."""
    names = {run.encode() for run in runs}
    found: dict[str, list[Logged]] = {}
    for data in blocks:
        for entry, fields in unpack(data):
            if any(key.partition(b"/")[0] in names for key in fields[4::2]):
                for event in split_entry(entry, fields)[0]:
                    run = event.run.partition("/")[0]
                    if run in runs:
                        found.setdefault(run, []).append(event)
    return found


def without_runs(data: bytes, runs: Collection[str]) -> bytes | None:
    """Returns a block without what it tells of runs and of their steps; None when nothing is left of it."""
    gone = {run.encode() for run in runs}
    entries = unpack(data)
    kept: list[tuple[bytes, list[bytes]]] = []
    for entry, fields in entries:
        left = [i for i in range(4, len(fields) - 1, 2) if fields[i].partition(b"/")[0] not in gone]
        if left:
            kept.append((entry, [*fields[:4], *(field for i in left for field in fields[i : i + 2])]))
    if kept == entries:
        return data
    return pack(kept) if kept else None
