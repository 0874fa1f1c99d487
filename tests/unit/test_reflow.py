"""Where a workflow run stands, told by its events alone."""

from __future__ import annotations

from msgspec.msgpack import encode

from weft.core.flow import GRACE_MS, Renewal, parse_entry
from weft.core.fold import Logged, write_fact
from weft.core.history import read_history
from weft.core.model import SPEC_ENCODER, RunSpec, Value
from weft.core.reflow import Reflowed, reflow

IDS = ["one", "two, |% of %2C", "three", "four"]


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
    assert (found.calls, found.doubts, found.belongings) == ({}, [], {"r0-B"})
    # Its end is in the mail, and the code has not heard of it.
    assert (found.children, found.settled) == ({"below": "r0-B"}, set())


def test_calls_and_children_that_have_not_ended_are_open():
    call = event(1, "queued", "", SPEC_ENCODER.encode(RunSpec("pack")), step="pack")
    begun = [event(2, "began", "at=7"), event(3, "step_opened", "step=pack,task=pack")]
    found = flowed(call, *begun, event(4, "child_opened", "step=below,run=r0-B,policy=abandon"))
    assert found.calls == {"pack": 30} and found.children == {"below": "r0-B"} and found.belongings == set()
    assert flowed(call, event(2, "cancelled", step="pack"), *begun).calls == {}


def test_a_child_is_settled_once_the_code_has_heard_how_it_ended():
    begun = [event(2, "began", "at=7"), event(3, "child_opened", "step=below,run=r0-B,policy=cancel")]
    told = event(4, "child_completed", "step=below,run=r0-B", b"v")
    found = flowed(*begun, told, event(5, "resumed", "mail=1"))
    assert (found.children, found.settled) == ({}, {"r0-B"})


BEGAN = event(2, "began", "at=7,version=v1")


def test_mail_that_the_first_commit_took_stands_behind_the_beginning():
    mail = [event(1, "signalled", "name=go,request=q1", b"s"), event(2, "resumed", "mail=1")]
    found = flowed(*mail, event(3, "began", "at=7,version=v1"))
    assert [one[1] for one in told(found.journal)] == ["begin", "signal"] and found.requests == ["q1"]


def test_a_new_life_begins_with_what_nobody_took():
    renewal = encode(Renewal(1, 3, Value(b"i"), b"state"))
    found = flowed(
        BEGAN,
        event(3, "signalled", "name=a,request=q1", b"1"),
        event(4, "signalled", "name=b,request=q2", b"2"),
        event(5, "child_opened", "step=below,run=r0-B,policy=cancel"),
        event(6, "resumed", "mail=2"),
        event(7, "state_changed", "", b"old"),
        event(8, "continued", "life=1,at=77,version=v1,carried=4", renewal),
        event(9, "state_changed", "", b"new"),
    )
    # The journal of the first life is begin, opened, signal a, signal b.
    assert told(found.journal) == [(80, "begin", "-", "77 v1", renewal), (80, "signal", "b", "", b"2")]
    assert (found.lived, found.state, found.belongings, found.children) == (3, b"new", set(), {})
    assert found.requests == ["q1", "q2"]


def test_updates_are_known_by_their_ids_with_their_answers():
    asked = [event(3 + n, "update_received", f"name=add,id={write_fact(id)}", b"v") for n, id in enumerate(IDS)]
    found = flowed(
        BEGAN,
        *asked,
        event(10, "resumed", "mail=4"),
        event(11, "update_failed", f"name=add,id={write_fact(IDS[1])}", b"e"),
        event(12, "update_completed", f"name=add,id={write_fact(IDS[0])}", b"r"),
        event(13, "update_failed", f"name=add,id={IDS[2]},refused=1", b"w"),
    )
    assert list(found.updates.items()) == [(IDS[3], b"?"), (IDS[1], b"-e"), (IDS[0], b"+r"), (IDS[2], b"!w")]
    assert told(found.journal)[4:] == [
        (60, "update", "add", IDS[3], b"v"),
        (110, "answered", "add", IDS[1], b"e"),
        (120, "answered", "add", IDS[0], b"r"),
        (130, "answered", "add", IDS[2], b"w"),
    ]
    assert found.mail == []


def test_code_that_did_not_fit_and_what_was_done_about_it():
    steps = [event(3, "step_completed", "step=pay,attempt=1,started=1", b"v"), event(4, "diverged", "", b"no fit")]
    parked = flowed(BEGAN, *steps)
    assert parked.diverged == (40, "no fit") and parked.version is None
    pinned = flowed(BEGAN, *steps, event(5, "resolved", "action=pin,version=v1"))
    assert pinned.diverged is None and pinned.version == "v1"
    accepted = flowed(BEGAN, *steps, event(5, "resolved", "action=accept,version=v2,changed=1,kept=1"))
    assert accepted.version == "" and told(accepted.journal)[1] == (30, "kept", "pay", "completed ", b"v")
    changed = flowed(BEGAN, event(3, "version_changed", "version=v2"), event(4, "forked_as", "run=r0-C"))
    assert told(changed.journal)[1] == (30, "version", "v2", "", b"") and not changed.doubts


def test_a_fork_has_what_it_was_given():
    entries, mail = [b"1 begin - 5 v r0-Z\n", b"2 completed pay \nv\n:|"], [b"3 signal go \ns"]
    packed = [b"".join(b"%d:%b" % (len(one), one) for one in some) for some in (entries, mail)]
    found = flowed(
        event(1, "queued"),
        event(2, "forked", "run=r0-Z,lived=4"),
        event(3, "inherited", "", packed[0]),
        event(4, "inherited", "mail=1", packed[1]),
        event(5, "state_changed", "", b"s"),
    )
    assert (found.journal, found.mail, found.lived, found.state) == (entries, mail, 4, b"s") and not found.doubts


def test_a_deadline_that_has_passed_leaves_some_time():
    found = flowed(BEGAN, event(3, "overdue", "", b"why"))
    assert told(found.mail) == [(30, "cancel", "-", "", b"why")] and found.overdue_ms == 30 + GRACE_MS


def test_a_full_journal_is_told_where_it_was_full():
    found = flowed(BEGAN, event(3, "history_full", "entries=2", b"why"))
    assert told(found.journal)[1:] == [(30, "cancel", "-", "", b"why")] and not found.mail and not found.doubts


def test_deaths_count_since_it_last_went_on():
    deaths = [event(3, "reclaimed", "crashes=2"), event(4, "timer_fired", "step=x"), event(5, "reclaimed", "crashes=1")]
    assert flowed(BEGAN, *deaths[:1]).crashes == 2 and flowed(BEGAN, *deaths[:2]).crashes == 0
    assert flowed(BEGAN, *deaths).crashes == 1


def test_what_earlier_versions_did_not_tell_is_a_doubt():
    short = [
        ("continued", "life=1", encode(Renewal(1, 3, Value(b"i")))),
        ("forked", "run=r0-Z", b""),
        ("update_received", "name=add", b"v"),
        ("resolved", "action=accept,version=v,changed=1", b""),
        ("continued", "life=1,at=1,version=v,carried=9", encode(Renewal(1, 3, Value(b"i")))),
    ]
    for kind, facts, payload in short:
        assert flowed(BEGAN, event(3, kind, facts, payload)).doubts, kind


def test_what_is_not_known_is_a_doubt():
    assert flowed(event(2, "began", "at=7"), event(3, "step_opened", "step=x,task=y")).doubts
    assert flowed(event(2, "began", "at=7"), event(3, "moved", "")).doubts == [
        "an event moved, which this version does not know"
    ]
    assert flowed(event(2, "timer_fired", "step=x")).doubts == ["a beginning that nothing is known of"]
