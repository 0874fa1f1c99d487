"""A stretch of the log, taken apart: the blocks it is kept as, its events, and what of it stands elsewhere in the store."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from weft.core.acts import ACTS
from weft.core.fold import Entry, Logged, Unreadable, blob_of, definition_of, maps_of, split_entry
from weft.core.model import SPEC_DECODER
from weft.core.status import MARK

#: Bytes of a block before it is compressed, about: whoever reads one event of it unpacks that much.
BLOCK_BYTES = 256_000

_ACTS = ACTS.encode()


@dataclass(slots=True)
class Told:
    """What blocks tell."""

    #: Number of the first block.
    block: int
    events: list[Logged] = field(default_factory=list)
    #: The first event of each block.
    firsts: list[int] = field(default_factory=list)
    #: What was observed of tasks elsewhere: it stands in entries of its own.
    statuses: list[Logged] = field(default_factory=list)
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


def in_blocks(entries: Sequence[Entry]) -> list[Sequence[Entry]]:
    """Divides entries into blocks."""
    blocks: list[Sequence[Entry]] = []
    begin = size = 0
    for at, (_, fields) in enumerate(entries):
        size += sum(map(len, fields))
        if size >= BLOCK_BYTES or at == len(entries) - 1:
            blocks.append(entries[begin : at + 1])
            begin, size = at + 1, 0
    return blocks


def read_blocks(blocks: Iterable[Sequence[Entry]], *, first: int) -> Told:
    """Takes blocks apart, numbered on from the first."""
    told = Told(first)
    for entries in blocks:
        told.firsts.append(len(told.events))
        for id, fields in entries:
            found, wrong = split_entry(id, fields)
            if found and found[0].run.startswith(MARK):
                told.statuses += found
            elif _ACTS in fields[4::2]:
                told.acts += [event for event in found if event.run == ACTS]
                told.events += [event for event in found if event.run != ACTS]
            else:
                told.events += found
            told.unreadable += wrong
    return told


def needs_of(events: Iterable[Logged]) -> Needs:
    """Returns what events name. One that cannot be read names nothing: whoever folds it will say so."""
    needs = Needs()
    for event in events:
        run, _, step = event.run.partition("/")
        try:
            if event.type in ("queued", "debounced"):
                spec = SPEC_DECODER.decode(event.payload)
                if spec.blob:
                    needs.blobs.append((run, spec.blob))
                if spec.definition and not step:
                    needs.definitions.add(spec.definition)
            elif not step:
                if digest := blob_of(event):
                    needs.blobs.append((run, digest))
                needs.definitions |= definition_of(event)
                needs.maps += maps_of(event)
        except Exception:  # noqa: BLE001 - whatever is wrong with an event is wrong with that event alone
            continue
    return needs
