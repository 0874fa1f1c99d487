"""Where a graph run stands, told by its events alone."""

from __future__ import annotations

import msgspec

from weft.core.fold import Logged
from weft.core.regrow import regrow


def event(seq: int, kind: str, facts: str = "", payload: bytes = b"") -> Logged:
    return Logged("r0-A", seq, f"{seq}-0", kind, seq * 10, "w", facts, payload, seq)


def test_what_nodes_gave_is_told_by_the_newest_of_their_steps():
    found = regrow(
        "d1",
        [
            event(1, "queued"),
            event(2, "routed", "opened=a"),
            event(3, "step_completed", "step=a,attempt=2,started=7,opened=b", b"v"),
            event(4, "step_failed", "step=b~0,attempt=1,started=8", b"e"),
            event(5, "step_cached", "step=c", b"k"),
            event(6, "step_completed", "step=b~1,attempt=1,started=9", b"w"),
            event(7, "step_completed", "step=m#3,attempt=1,started=9", b"x"),
        ],
    )

    assert {id: (one.status, one.step, one.attempt) for id, one in found.given.items()} == {
        "a": ("completed", "a", 2),
        "b": ("completed", "b~1", 1),
        "c": ("completed", "c", 1),
    }
    assert found.given["a"].pack() == b"completed a 2 7 30 -\nv"
    assert found.given["c"].pack().startswith(b"completed c 1 50 50 cached\n")
    assert (found.definition, found.revision, found.doubts) == ("d1", 1, [])


def test_a_patch_changes_the_definition_and_a_retry_forgets():
    found = regrow(
        "d1",
        [
            event(2, "step_completed", "step=a,attempt=1,started=1", b"v"),
            event(3, "step_completed", "step=b,attempt=1,started=1", b"v"),
            event(4, "patched", "", msgspec.json.encode({"definition": "d2", "revision": 2})),
            event(5, "retried", "opened=$retry4>", msgspec.json.encode({"again": ["b"]})),
        ],
    )

    assert set(found.given) == {"a"} and (found.definition, found.revision) == ("d2", 2)


def test_what_came_from_outside_and_was_not_acted_on_is_a_doubt():
    acted = [event(2, "signalled", "name=go,step=w"), event(3, "step_completed", "step=w,attempt=1,started=1")]
    assert regrow("d", acted).doubts == []
    assert regrow("d", acted[:1]).doubts == ["a signal that nobody has acted on yet"]
    decided = [event(2, "approval_decided", "step=review"), event(3, "signalled", "name=early")]
    assert len(regrow("d", decided).doubts) == 2
