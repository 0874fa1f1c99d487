"""Where a workflow run stands, told by its events alone."""

from __future__ import annotations

from weft.core.flow import parse_entry
from weft.core.fold import Logged
from weft.core.history import read_history
from weft.core.model import SPEC_ENCODER, RunSpec
from weft.core.reflow import Reflowed, reflow


def event(seq: int, kind: str, facts: str = "", payload: bytes = b"", *, step: str = "") -> Logged:
    run = f"r0-A/{step}" if step else "r0-A"
    return Logged(run, seq, f"{seq}-0", kind, seq * 10, "w", facts, payload, seq)


def flowed(*logged: Logged) -> Reflowed:
    return reflow(read_history("r0-A", logged))


def told(entries: list[bytes]) -> list[tuple[int, str, str, str, bytes]]:
    return [(one.at_ms, one.type, one.key, one.more, one.payload) for one in map(parse_entry, entries)]


def test_the_journal_has_what_the_code_was_told_in_that_order():
    call = event(1, "queued", "", SPEC_ENCODER.encode(RunSpec("pack")), step="pack")
    found = flowed(
        call,
        event(1, "queued"),
        event(2, "began", "at=7,version=v1"),
        event(3, "step_completed", "step=pay,attempt=1,started=1", b"v"),
        event(4, "step_retrying", "step=ship,attempt=1,started=1,after_ms=5,due=99,next=2", b"e"),
        event(5, "step_opened", "step=pack,task=pack"),
        event(6, "child_opened", "step=below,run=r0-B,policy=cancel"),
        event(7, "signalled", "name=go", b"s"),
        event(8, "step_completed", "step=pack,attempt=1,started=1", b"p"),
        event(9, "resumed", "mail=1"),
        event(10, "timer_fired", "step=$sleep"),
        event(11, "changed", "marker=new"),
        event(12, "child_failed", "step=below,run=r0-B", b"f"),
        event(13, "cancelling", "", b"c"),
    )

    assert told(found.journal) == [
        (20, "begin", "-", "7 v1", b""),
        (30, "completed", "pay", "", b"v"),
        (40, "retrying", "ship", "99 2", b"e"),
        (50, "opened", "pack", "", b""),
        (60, "opened", "below", "", b""),
        (70, "signal", "go", "", b"s"),
        (100, "fired", "$sleep", "", b""),
        (110, "marker", "new", "", b""),
    ]
    assert told(found.mail) == [
        (80, "ended", "pack", "completed", b"p"),
        (120, "ended", "below", "failed", b"f"),
        (130, "cancel", "-", "", b"c"),
    ]
    assert (found.calls, found.children, found.doubts) == ({}, {}, []) and found.belongings == {"r0-B"}


def test_calls_and_children_that_have_not_ended_are_open():
    call = event(1, "queued", "", SPEC_ENCODER.encode(RunSpec("pack")), step="pack")
    begun = [event(2, "began", "at=7"), event(3, "step_opened", "step=pack,task=pack")]
    found = flowed(call, *begun, event(4, "child_opened", "step=below,run=r0-B,policy=abandon"))
    assert found.calls == {"pack": 30} and found.children == {"below": "r0-B"} and found.belongings == set()
    assert flowed(call, event(2, "cancelled", step="pack"), *begun).calls == {}


def test_what_is_not_known_is_a_doubt():
    assert flowed(event(2, "began", "at=7"), event(3, "step_opened", "step=x,task=y")).doubts
    assert flowed(event(2, "began", "at=7"), event(3, "moved", "")).doubts == [
        "an event moved, which this version does not know"
    ]
    assert flowed(event(2, "timer_fired", "step=x")).doubts == ["a beginning that nothing is known of"]
