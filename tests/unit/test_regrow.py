"""Where a graph run stands, told by its events alone."""

from __future__ import annotations

import msgspec

from weft.codec import encode_plain
from weft.core.fold import Logged, StepState, ask, fold_step
from weft.core.history import History, read_history
from weft.core.model import SPEC_ENCODER, RunSpec
from weft.core.regrow import Regrown, regrow
from weft.core.waits import SIGNAL


def event(seq: int, kind: str, facts: str = "", payload: bytes = b"", *, step: str = "") -> Logged:
    run = f"r0-A/{step}" if step else "r0-A"
    return Logged(run, seq, f"{seq}-0", kind, seq * 10, "w", facts, payload, seq)


def queued(step: str, name: str = "task", **asked: object) -> Logged:
    return event(1, "queued", "", SPEC_ENCODER.encode(RunSpec(name, input=encode_plain(asked))), step=step)


def grown(*logged: Logged) -> Regrown:
    return regrow("d1", read_history("r0-A", logged))


def test_what_nodes_gave_is_told_by_the_newest_of_their_steps():
    found = grown(
        event(1, "started"),
        event(2, "routed", "opened=a"),
        event(3, "step_completed", "step=a,attempt=2,started=7", b"v"),
        event(4, "step_failed", "step=b,attempt=1,started=8", b"e"),
        event(5, "step_cached", "step=c", b"k"),
        event(6, "step_completed", "step=b~1,attempt=1,started=9", b"w"),
        event(7, "node_skipped", "step=d"),
        event(8, "node_errors", "step=m", b"x"),
    )

    assert {id: (one.status, one.step, one.attempt) for id, one in found.given.items()} == {
        "a": ("completed", "a", 2),
        "b": ("completed", "b~1", 1),
        "c": ("completed", "c", 1),
        "d": ("skipped", "d", 1),
        "m*": ("completed", "m", 1),
    }
    assert found.given["a"].pack() == b"completed a 2 7 30 -\nv"
    assert found.given["c"].pack().startswith(b"completed c 1 50 50 cached\n")
    assert (found.definition, found.revision, found.doubts, found.open) == ("d1", 1, [], {})


def test_a_patch_changes_the_definition_and_a_retry_forgets():
    patch = {"definition": "d2", "revision": 2, "withdrawn": ["x"], "reset": ["j"]}
    found = grown(
        queued("x"),
        queued("$retry5>"),
        event(2, "step_completed", "step=a,attempt=1,started=1,opened=x,trace=j:j:a+ j:k:a+", b"v"),
        event(3, "step_completed", "step=b,attempt=1,started=1", b"v"),
        event(4, "patched", "", msgspec.json.encode(patch)),
        event(5, "failed", "", b"e"),
        event(6, "retried", "opened=$retry5>", msgspec.json.encode({"again": ["b"], "reset": ["k"]})),
    )

    assert set(found.given) == {"a"} and (found.definition, found.revision) == ("d2", 2)
    assert found.arrivals == {} and set(found.open) == {"$retry5>"}


def test_patches_by_steps_are_counted_and_others_are_not():
    patch = {"definition": "d", "withdrawn": [], "reset": []}
    made = [
        patch | {"revision": 2, "step": "r0-A/plan"},
        patch | {"revision": 3},
        patch | {"revision": 4, "step": "r0-B/x"},
    ]
    found = grown(*(event(i + 1, "patched", "", msgspec.json.encode(one)) for i, one in enumerate(made)))
    assert (found.by_steps, found.revision) == (2, 4)


def test_a_retry_leaves_what_an_earlier_iteration_gave():
    record = {"again": ["a", "b"], "reset": [], "earlier": ["b"]}
    found = grown(
        queued("$retry5>"),
        event(2, "step_completed", "step=b,attempt=1,started=1", b"v"),
        event(3, "step_completed", "step=a~1,attempt=1,started=1", b"v"),
        event(4, "failed", "", b"e"),
        event(5, "retried", "opened=$retry5>", msgspec.json.encode(record)),
    )
    assert set(found.given) == {"b"}


def test_joins_maps_and_what_can_be_undone_are_told_by_traces():
    found = grown(
        *(queued(step) for step in ("b", "m#0", "m#1", "m#2", "j?", "m+0")),
        event(2, "routed", "step=$start>,opened=b m,trace=m:m:5:2:0:1 c:m:2"),
        event(3, "step_completed", "step=m#0,attempt=1,started=1,opened=m+0", b"v"),
        event(4, "routed", "step=m+0,trace=c:m:3"),
        event(5, "step_failed", "step=m#2,attempt=1,started=1", b"e"),
        event(6, "step_completed", "step=a,attempt=1,started=1,trace=j:j:a+ u", b"w"),
        event(7, "node_skipped", "step=c"),
        event(8, "step_completed", "step=d,attempt=1,started=1,opened=j?,trace=j:j:d- u", b"z"),
        event(9, "step_completed", "step=d!,attempt=1,started=1,trace=d:1", b""),
        event(10, "failing", "", b"why"),
    )

    one = found.maps["m"]
    assert (one.n, one.most, one.need, one.timed, one.at, one.over) == (5, 2, 0, True, 3, False)
    assert one.open_items == [1] and one.done == 1 and one.chunks() == {0: {0: b"completed\nv", 2: b"failed\ne"}}
    assert found.arrivals == {"j": "= a+ d-"} and found.undoable == [("a", b"w")] and found.failing == b"why"
    assert set(found.open) == {"b", "m", "j?"} and found.doubts == []


def test_a_map_that_is_put_together_is_over():
    begun = [queued("m="), queued("m@"), event(2, "routed", "step=$start>,opened=m m@,trace=m:m:1:1:0:1 c:m:1")]
    over = event(3, "step_completed", "step=m#0,attempt=1,started=1,opened=m=", b"v")
    assert grown(*begun, over).maps["m"].over and set(grown(*begun, over).open) == {"m", "m@", "m="}
    assert grown(*begun, over, event(4, "routed", "step=m=")).open == {}


def test_signals_are_kept_given_or_taken():
    waits = [queued("w", SIGNAL, signal="go"), event(2, "routed", "step=$start>,opened=w")]
    kept = event(3, "signalled", "name=go", b"1")
    assert grown(*waits, kept).signals == {"go": [b"1"]}
    assert grown(*waits, kept, event(4, "step_completed", "step=w", b"")).signals == {"go": []}
    given = grown(*waits, event(3, "signalled", "name=go,step=w", b"2"))
    assert given.answered == {"w": b"2"} and given.signals == {}
    decided = msgspec.json.encode({"decision": "approved", "via": "cli", "digest": "d"})
    told = grown(*waits, event(3, "approval_decided", "step=w", decided))
    assert told.answered == {"w": encode_plain({"decision": "approved"})}


def test_what_nothing_is_known_of_is_a_doubt():
    assert grown(event(2, "routed", "opened=a")).doubts == ["step a, which nothing is known of"]
    lost = grown(event(2, "routed", "opened=m,trace=m:m:2:2:0:0 c:m:1"))
    assert lost.doubts == ["items of map m, which nothing is known of"]


def test_what_a_store_told_that_had_gone_back_is_left_out_until_it_was_rebuilt():
    first = [event(1, "queued", "", SPEC_ENCODER.encode(RunSpec("g"))), event(2, "a"), queued("x")]
    astray = [event(2, "b"), event(3, "c"), event(2, "retrying", "attempt=1,after_ms=0", step="x")]
    found: History = read_history("r0-A", [*first, *astray, event(3, "recovered"), event(2, "recovered", step="x")])
    assert [one.type for one in found.events] == ["queued", "a", "recovered"]
    assert found.steps["x"].attempt == 1 and found.steps["x"].seq == 2


def test_a_step_that_follows_straight_is_asked_what_its_definition_says():
    patch = {"definition": "d2", "revision": 2, "withdrawn": [], "reset": []}
    logged = [
        event(1, "queued", "", SPEC_ENCODER.encode(RunSpec("g"))),
        event(2, "step_completed", "step=a,attempt=1,started=1,opened=b,asks=job", b"v"),
        event(3, "patched", "", msgspec.json.encode(patch)),
        event(2, "retrying", "attempt=1,after_ms=5", step="b"),
    ]
    history = read_history("r0-A", logged)
    found = regrow("d1", history)
    assert (found.doubts, found.open, found.straight, found.definition) == ([], {"b": 20}, {"b": "d1"}, "d2")
    assert (history.steps["b"].attempt, history.steps["b"].seq, history.straight["b"].payload) == (2, 2, b"v")

    ask(history.steps["b"], SPEC_ENCODER.encode(RunSpec("job", queue="q", deadline_ms=7)), 20)
    state = history.steps["b"]
    assert (state.name, state.queue, state.deadline_ms, state.attempt) == ("job", "q", 27, 2)

    again = read_history("r0-A", [*logged, queued("b")])  # a retried run has opened it anew
    assert again.straight == {} and again.steps["b"].spec


def test_the_archive_has_a_row_for_a_step_that_follows_straight():
    steps: dict[tuple[str, str], StepState] = {}
    fold_step(steps, event(2, "step_completed", "step=a,attempt=1,started=1,opened=b,asks=job", b"v"))
    assert steps["r0-A", "b"] == StepState("r0-A", "b", "job", created_ms=2, since_ms=2)
    fold_step(steps, event(3, "step_completed", "step=b,attempt=1,started=2", b"v"))
    assert (steps["r0-A", "b"].status, steps["r0-A", "b"].name, steps["r0-A", "b"].seq) == ("completed", "job", 3)


def test_items_that_an_earlier_run_gave_are_counted_once():
    found = grown(
        event(2, "routed", "step=$start>,opened=m,trace=m:m:3:3:0:0 c:m:3"),
        event(3, "step_cached", "step=m#0", b"v"),
        event(4, "step_completed", "step=m#1,attempt=1,started=1", b"v"),
        event(5, "step_cached", "step=m#1", b"v"),
    )
    assert (found.maps["m"].cached, found.maps["m"].done) == (1, 2)
