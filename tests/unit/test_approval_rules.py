"""The rules of approvals, without a store: whatever people and clocks do, there is one decision, and it is a right one."""

from __future__ import annotations

import dataclasses
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weft.core.approvals import Ask, Change, Note, Record, State, Vote, cast, delegate, next_moment, pass_time
from weft.core.graph.validate import check_document
from weft.errors import Conflict, InvalidArguments, NotAllowed, UserError

PEOPLE = ["anna", "ben", "carl", "dora", "zoe"]


def opened(**ask: Any) -> Record:
    about = Ask(**ask)
    return Record("r0-x/review", about, b"\xc0", "d", State(about.approvers), "pending", 1, 1_000)


def changed(record: Record, change: Change) -> Record:
    return dataclasses.replace(record, state=change.state, status=change.status, rev=record.rev + 1)


def vote(by: str, decision: str = "approved", at_ms: int = 2_000, **more: Any) -> Vote:
    return Vote(decision, by, at_ms, request=f"{by}-{decision}-{at_ms}", **more)


clicks = st.one_of(
    st.tuples(st.just("vote"), st.sampled_from(PEOPLE), st.sampled_from(["approved", "rejected"])),
    st.tuples(st.just("delegate"), st.sampled_from(PEOPLE), st.sampled_from(PEOPLE)),
    st.tuples(st.just("time"), st.just(""), st.just("")),
)


@settings(max_examples=300, deadline=None)
@given(
    acts=st.lists(clicks, max_size=30),
    quorum=st.integers(1, 3),
    timeout_ms=st.sampled_from([0, 50]),
    escalate_ms=st.sampled_from([0, 20]),
)
def test_whatever_happens_there_is_one_decision_by_the_rules(
    acts: list[tuple[str, str, str]], quorum: int, timeout_ms: int, escalate_ms: int
) -> None:
    record = opened(
        approvers=["anna", "ben", "carl"],
        quorum=quorum,
        timeout_ms=timeout_ms,
        on_timeout="continue",
        reminders_ms=[30, 10],
        escalate_ms=escalate_ms,
        escalate_to=["dora"],
    )
    decided: dict[str, Any] | None = None
    for n, (what, who, other) in enumerate(acts):
        now = 1_000 + 5 * n
        allowed = list(record.state.approvers)
        try:
            if what == "vote":
                change = cast(record, vote(who, other, now), digest="d")
            elif what == "delegate":
                change = delegate(record, Note("delegated", now, who, [other], request=str(n)))
            else:
                change = pass_time(record, now)
        except Conflict as error:
            if decided is not None:
                assert error.facts.get("decision", decided) in (decided, *decided["votes"])
            continue
        except NotAllowed:
            assert who not in allowed
            continue
        except InvalidArguments:
            assert what == "delegate" and other in (*allowed, *(one.by for one in record.state.votes))
            continue
        if change is None:
            continue
        assert decided is None, "changed after it was decided"
        if what == "vote":
            assert who in allowed
        record = changed(record, change)
        if change.output is not None:
            decided = change.output
    state = record.state
    voters = [one.by for one in state.votes]
    assert len(voters) == len(set(voters))
    yes, no = (sum(one.decision == word for one in state.votes) for word in ("approved", "rejected"))
    if record.status == "approved":
        assert (yes, no) == (quorum, 0)
    elif record.status == "rejected":
        assert no == 1
    elif record.status == "timed_out":
        assert timeout_ms and yes < quorum and no == 0
    else:
        assert decided is None and yes < quorum and no == 0
        assert len({*state.approvers, *voters}) >= quorum, "nobody could ever approve it"
    assert [note.what for note in state.notes].count("reminded") <= 2
    assert [note.what for note in state.notes].count("escalated") <= 1
    msgspec.json.decode(msgspec.json.encode(state), type=State)


def test_the_next_look_is_the_first_thing_that_is_to_come() -> None:
    ask = Ask(timeout_ms=500, reminders_ms=[300, 100], escalate_ms=200)
    state = State()
    assert next_moment(ask, state, 1_000) == 1_100
    record = opened(timeout_ms=500, reminders_ms=[300, 100], escalate_ms=200, escalate_to=["x"])
    assert pass_time(record, 1_099) is None
    for now, then in ((1_100, 1_200), (1_200, 1_300), (1_300, 1_500)):
        change = pass_time(record, now)
        assert change is not None and change.next_ms == then
        record = changed(record, change)
    assert next_moment(Ask(), State(), 1_000) is None


def test_a_clock_that_slept_does_all_that_is_due_at_once() -> None:
    record = opened(reminders_ms=[100, 200], escalate_ms=150, escalate_to=["boss"], approvers=["anna"])
    change = pass_time(record, 9_000)
    assert change is not None
    assert [word for word, _ in change.events] == ["approval_reminded", "approval_reminded", "approval_escalated"]
    assert change.state.approvers == ["anna", "boss"] and change.next_ms is None


def test_a_repeated_call_is_known_before_anything_else_is_looked_at() -> None:
    record = opened(approvers=["anna"])
    first = cast(record, vote("anna"), digest="d")
    assert first is not None
    record = changed(record, first)
    assert cast(record, vote("anna"), digest="other") is None


def test_a_request_id_of_another_call_is_refused_and_not_taken_for_a_repetition() -> None:
    record = opened(approvers=["anna", "ben", "carl"], quorum=2)
    stepped = delegate(record, Note("delegated", 1, "carl", ["dora"], request="k"))
    assert stepped is not None
    record = changed(record, stepped)
    assert delegate(record, Note("delegated", 2, "carl", ["dora"], request="k")) is None
    with pytest.raises(Conflict, match="request_id 'k' was used before, when carl delegated"):
        delegate(record, Note("delegated", 2, "ben", ["dora"], request="k"))
    first = cast(record, Vote("approved", "anna", 2, request="q"), digest="d")
    assert first is not None
    record = changed(record, first)
    for by, decision in (("ben", "approved"), ("anna", "rejected")):
        with pytest.raises(Conflict, match="request_id 'q' was used before, when anna approved"):
            cast(record, Vote(decision, by, 3, request="q"), digest="d")

    second = cast(record, Vote("approved", "ben", 3, request="p"), digest="d")
    assert second is not None
    record = changed(record, second)
    assert cast(record, Vote("approved", "anna", 4, request="q"), digest="d") is None
    with pytest.raises(Conflict, match="decided once"):
        cast(record, Vote("rejected", "dora", 4, request="q"), digest="d")


@pytest.mark.parametrize(
    ("act", "error"),
    [
        (lambda r: cast(r, vote("zoe"), digest="d"), NotAllowed),
        (lambda r: cast(r, vote("anna"), digest="e"), Conflict),
        (lambda r: cast(r, vote("anna", form={}), digest="d"), InvalidArguments),
        (lambda r: delegate(r, Note("delegated", 1, "zoe", ["anna"], request="q")), NotAllowed),
    ],
)
def test_what_the_rules_forbid_is_refused(act: Any, error: type[UserError]) -> None:
    with pytest.raises(error):
        act(opened(approvers=["anna"]))
    with pytest.raises(InvalidArguments, match="nothing to delegate"):
        delegate(opened(), Note("delegated", 1, "zoe", ["anna"], request="q"))


def test_an_admin_may_decide_what_others_may_not() -> None:
    change = cast(opened(approvers=["anna"]), vote("cli:root"), digest="d", admin=True)
    assert change is not None and change.status == "approved"


def test_a_form_that_cannot_be_checked_is_a_problem_of_the_definition() -> None:
    node = {"type": "approval", "form": {"type": "objekt", "pattern": "x"}, "timeout": "1h", "on_timeout": "continue"}
    checked = check_document({"name": "g", "nodes": {"review": node}})
    assert {problem.code for problem in checked.problems} == {"bad_schema"} and len(checked.problems) == 2
