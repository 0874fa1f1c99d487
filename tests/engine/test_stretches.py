"""What blocks name is found without taking every event apart."""

from __future__ import annotations

import msgspec
import pytest

from weft.core.acts import ACTS
from weft.core.model import RunSpec, Value
from weft.engine.housekeeping.stretches import count_events, needs_of, read_blocks

DIGEST, OTHER = "a" * 64, "b" * 64

_pack = msgspec.msgpack.Encoder().encode


def block(*events: tuple[str, bytes]) -> list[tuple[bytes, list[bytes]]]:
    fields = [b"at", b"1700000000000", b"by", b"s0"]
    for run, told in events:
        fields += [run.encode(), told]
    return [(b"1700000000000-0", fields)]


def queued(**facts: str) -> bytes:
    return b"1|queued||" + _pack(RunSpec("work", **facts))


@pytest.mark.parametrize(
    ("run", "told", "blobs", "definitions", "maps"),
    [
        ("r0-1", queued(), [], set(), []),
        ("r0-1", queued(blob=DIGEST), [("r0-1", DIGEST)], set(), []),
        ("r0-1", queued(definition=DIGEST), [], {DIGEST}, []),
        ("r0-1/a", queued(blob=OTHER, definition=DIGEST), [("r0-1", OTHER)], set(), []),
        ("r0-1", b"2|completed|attempt=1,started=5|" + _pack(Value(inline=b"\x01")), [], set(), []),
        ("r0-1", b"2|completed||" + _pack(Value(blob=DIGEST, size=9_000)), [("r0-1", DIGEST)], set(), []),
        ("r0-1/a", b"2|completed||" + _pack(Value(blob=DIGEST, size=9_000)), [], set(), []),
        ("r0-1", b"2|failed||" + _pack(Value(blob=DIGEST, size=9_000)), [], set(), []),
        ("r0-1", b'5|patched||{"definition":"' + DIGEST.encode() + b'"}', [], {DIGEST}, []),
        ("r0-1", b"3|routed|step=s,trace=m:pages x|", [], set(), [("r0-1", "pages")]),
    ],
)
def test_what_events_name(run, told, blobs, definitions, maps):
    needs = needs_of([block(("r0-0", queued()), (run, told))])

    assert (needs.blobs, needs.definitions, needs.maps, needs.acts) == (blobs, definitions, maps, False)


@pytest.mark.parametrize("told", [b"", b"1|queued", b"1|queued||\xff\xff", b"x" * 100, b"2|completed||" + b"\xc1" * 50])
def test_what_cannot_be_read_names_nothing_and_hides_nothing(told):
    needs = needs_of([block(("r0-1", told), ("r0-2", queued(blob=DIGEST)))])

    assert needs.blobs == [("r0-2", DIGEST)]


def test_what_people_did_is_seen():
    told = block((ACTS, b"1|paused||{}"), ("r0-1", queued()))

    assert needs_of([told]).acts
    assert count_events([told]) == 2
    assert [event.run for event in read_blocks([told], first=1).events] == ["r0-1"]
