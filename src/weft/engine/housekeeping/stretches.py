"""A stretch of the log, taken apart: the blocks it is kept as, its events, and what of it stands elsewhere in the store."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import msgspec

from weft.core.acts import ACTS
from weft.core.fold import (
    SHORTEST_BLOB,
    Entry,
    Logged,
    Unreadable,
    blob_of,
    definition_of,
    maps_of,
    split_entry,
)
from weft.core.status import MARK

#: Bytes of a block before it is compressed, about: whoever reads one event of it unpacks that much.
BLOCK_BYTES = 256_000

_MARK, _ACTS = MARK.encode(), ACTS.encode()
#: Events that carry a spec, and what facts have that tell of a map.
_ASKING, _TRACE = frozenset((b"queued", b"debounced")), b",trace="


@dataclass(slots=True)
class Told:
    """What blocks tell."""

    #: Number of the first block.
    block: int
    events: list[Logged] = field(default_factory=list)
    #: The first event of each block.
    firsts: list[int] = field(default_factory=list)
    #: What people did, which stands under a name that no run has.
    acts: list[Logged] = field(default_factory=list)
    unreadable: list[Unreadable] = field(default_factory=list)


@dataclass(slots=True)
class Needs:
    """What events only name: it must be read while the store still has it."""

    #: Run and digest each.
    blobs: list[tuple[str, str]] = field(default_factory=list)
    definitions: set[str] = field(default_factory=set)
    #: Maps that began: run and step each.
    maps: list[tuple[str, str]] = field(default_factory=list)
    #: People did something.
    acts: bool = False


class _Named(msgspec.Struct, rename={"blob": "b", "definition": "v"}):
    """What of a RunSpec stands elsewhere."""

    blob: str = ""
    definition: str = ""


_NAMED = msgspec.msgpack.Decoder(_Named)


def in_blocks(entries: Sequence[Entry]) -> tuple[list[list[Entry]], list[Entry]]:
    """Divides entries into blocks; those that tell of tasks elsewhere are left out, and become rows."""
    blocks: list[list[Entry]] = []
    seen: list[Entry] = []
    size = BLOCK_BYTES
    for entry in entries:
        _, fields = entry
        if len(fields) > 4 and fields[4].startswith(_MARK):
            seen.append(entry)
            continue
        if size >= BLOCK_BYTES:
            blocks.append([])
            size = 0
        blocks[-1].append(entry)
        size += sum(map(len, fields))
    return blocks, seen


def statuses_of(entries: Iterable[Entry]) -> tuple[list[Logged], list[Unreadable]]:
    """Returns what was observed of tasks elsewhere, and what cannot be read of it."""
    found: list[Logged] = []
    unreadable: list[Unreadable] = []
    for id, fields in entries:
        right, wrong = split_entry(id, fields)
        found += right
        unreadable += wrong
    return found, unreadable


def read_blocks(blocks: Iterable[Sequence[Entry]], *, first: int) -> Told:
    """Takes blocks apart, numbered on from the first."""
    told = Told(first)
    for entries in blocks:
        told.firsts.append(len(told.events))
        for id, fields in entries:
            found, wrong = split_entry(id, fields)
            told.unreadable += wrong
            if _ACTS in fields[4::2]:
                told.acts += [event for event in found if event.run == ACTS]
                found = [event for event in found if event.run != ACTS]
            told.events += found
    return told


def needs_of(blocks: Iterable[Sequence[Entry]]) -> Needs:
    """Returns what events name. One that cannot be read names nothing: whoever folds it will say so.

    At full load this is all that is done with blocks: most events are seen to name nothing without being taken apart.
    """
    needs = Needs()
    for entries in blocks:
        for id, fields in entries:
            for i in range(4, len(fields) - 1, 2):
                if fields[i] == _ACTS:
                    needs.acts = True
                    continue
                try:
                    _, kind, facts, payload = fields[i + 1].split(b"|", 3)
                    if kind in _ASKING:
                        named = _NAMED.decode(payload)
                        if named.blob or named.definition:
                            _note_spec(needs, fields[i].decode(), named)
                    elif len(payload) >= SHORTEST_BLOB or _TRACE in facts:
                        _note_event(needs, split_entry(id, [*fields[:4], *fields[i : i + 2]])[0][0])
                except Exception:  # noqa: BLE001 - whatever is wrong with an event is wrong with that event alone
                    continue
    return needs


def _note_spec(needs: Needs, name: str, named: _Named) -> None:
    run, _, step = name.partition("/")
    if named.blob:
        needs.blobs.append((run, named.blob))
    if named.definition and not step:
        needs.definitions.add(named.definition)


def _note_event(needs: Needs, event: Logged) -> None:
    if "/" in event.run:
        return
    if digest := blob_of(event):
        needs.blobs.append((event.run, digest))
    needs.definitions |= definition_of(event)
    needs.maps += maps_of(event)


def count_events(blocks: Iterable[Sequence[Entry]]) -> int:
    """Returns of how many events blocks tell."""
    return sum((len(fields) - 4) // 2 for entries in blocks for _, fields in entries)
