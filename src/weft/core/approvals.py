"""Approvals: what is asked, who may decide, and when it is decided. Pure: no I/O, no clock.

One rejection decides; `quorum` different people must approve. A person has one vote.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, NoReturn

import msgspec

from weft.codec import decode_plain
from weft.core.graph.schema import check_input
from weft.errors import Conflict, InvalidArguments, NotAllowed

#: What the decider of an approval is called whose time was over.
TIMEOUT = "timeout"


class Ask(msgspec.Struct, frozen=True, omit_defaults=True):
    """What an approval asks for; fixed when it opens."""

    title: str = ""
    #: Who may decide, people or roles; empty: anybody.
    approvers: list[str] = []
    quorum: int = 1
    #: JSON Schema of what people fill in when they approve.
    form: dict[str, Any] | None = None
    timeout_ms: int = 0
    on_timeout: str = "fail"
    #: When to remind, from the opening.
    reminders_ms: list[int] = []
    #: When more people may decide, from the opening; 0: never.
    escalate_ms: int = 0
    escalate_to: list[str] = []


class Vote(msgspec.Struct, frozen=True, omit_defaults=True):
    """What one person said."""

    decision: str
    by: str
    at_ms: int
    comment: str = ""
    form: Any = None
    #: From where: `cli:<os user>`, `api`, `link`, or `link:<address of the client>`.
    via: str = "api"
    #: The call that brought it, so that a repeated one is known.
    request: str = ""


class Note(msgspec.Struct, frozen=True, omit_defaults=True):
    """Something else that happened to an approval: delegated, reminded or escalated."""

    what: str
    at_ms: int
    by: str = ""
    to: list[str] = []
    comment: str = ""
    request: str = ""


class State(msgspec.Struct, frozen=True, omit_defaults=True):
    """What changes while an approval is open."""

    approvers: list[str] = []
    votes: list[Vote] = []
    notes: list[Note] = []
    #: The decision, when there is one: what its node gives.
    output: dict[str, Any] | None = None


@dataclass(slots=True, frozen=True)
class Record:
    """An approval, as it is stored."""

    id: str
    ask: Ask
    show: bytes
    digest: str
    state: State
    status: str
    rev: int
    opened_ms: int
    decided_ms: int = 0


@dataclass(slots=True)
class Change:
    """How an approval changes: its state, what the log tells, and what its step is given when it is decided."""

    state: State
    status: str = "pending"
    #: Types of events, and what each tells.
    events: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    output: dict[str, Any] | None = None
    #: When to look again; None: not.
    next_ms: int | None = None


class Approval(msgspec.Struct, frozen=True):
    """An approval, as people read it."""

    id: str
    run_id: str
    step: str
    #: pending, approved, rejected, timed_out or cancelled.
    status: str
    title: str
    show: Any
    form: dict[str, Any] | None
    approvers: list[str]
    quorum: int
    votes: list[dict[str, Any]]
    history: list[dict[str, Any]]
    opened_at: datetime
    due_at: datetime | None
    decided_at: datetime | None
    #: What its node gives: `{decision, by, at, comment, form, votes}`; None while it is pending.
    decision: dict[str, Any] | None
    #: What a decision must name: sha256 of what is shown.
    digest: str
    #: How what this call said was kept when it returned: `committed` (in the database), `fsync` or `redis`; empty when it
    #: said nothing new.
    durability: str = ""


class ApprovalPage(list[Approval]):
    """Approvals, the oldest first."""

    #: Where the next page begins; empty: there is none.
    cursor: str = ""


def digest_of(id: str, about: bytes, show: bytes) -> str:
    """Returns what a decision is bound to: everything that is shown."""
    return hashlib.sha256(b"\0".join([id.encode(), about, show])).hexdigest()


def next_moment(ask: Ask, state: State, opened_ms: int) -> int | None:
    """Returns when an approval is to be looked at again, in ms; None: when somebody decides."""
    moments = [opened_ms + ask.timeout_ms] if ask.timeout_ms else []
    moments += [opened_ms + ms for ms in sorted(ask.reminders_ms)[_count(state, "reminded") :][:1]]
    if ask.escalate_ms and not _count(state, "escalated"):
        moments.append(opened_ms + ask.escalate_ms)
    return min(moments, default=None)


def cast(record: Record, vote: Vote, *, digest: str, roles: Sequence[str] = (), admin: bool = False) -> Change | None:
    """Counts a vote; None when this very call was counted before. Raises Conflict, NotAllowed, InvalidArguments."""
    state = record.state
    for other in state.votes:
        if other.request == vote.request:
            if (other.by, other.decision) != (vote.by, vote.decision):
                _refuse_request(record, vote.request, other.by, other.decision)
            return None
    _refuse_decided(record)
    if digest != record.digest:
        raise Conflict(
            f"approval {record.id} shows something else than what the decision is about: look at it again, and name its"
            " digest",
            id=record.id,
            digest=record.digest,
        )
    _check_person(record, vote.by, roles, admin)
    earlier = next((other for other in state.votes if other.by == vote.by), None)
    if earlier is not None:
        raise Conflict(
            f"{vote.by} has {earlier.decision} {record.id} already: a person has one vote",
            id=record.id,
            decision=_vote_dict(earlier),
        )
    _check_form(record, vote)
    state = msgspec.structs.replace(state, votes=[*state.votes, vote])
    approved = sum(other.decision == "approved" for other in state.votes)
    if vote.decision == "approved" and approved < record.ask.quorum:
        told = {**_vote_dict(vote), "votes": approved, "quorum": record.ask.quorum, "request": vote.request}
        return Change(
            state,
            events=[("approval_voted", told)],
            next_ms=next_moment(record.ask, state, record.opened_ms),
        )
    return _decided(record, state, vote.decision, vote)


def delegate(record: Record, note: Note, *, roles: Sequence[str] = (), admin: bool = False) -> Change | None:
    """Lets others decide in somebody's place; None when this very call was done before."""
    state = record.state
    for other in state.notes:
        if other.request and other.request == note.request:
            if (other.by, other.to) != (note.by, note.to):
                _refuse_request(record, note.request, other.by, "delegated")
            return None
    _refuse_decided(record)
    _check_person(record, note.by, roles, admin)
    if any(vote.by == note.by for vote in state.votes):
        raise Conflict(f"{note.by} has voted on {record.id} already, and has nothing left to delegate", id=record.id)
    if not state.approvers:
        raise InvalidArguments(f"anybody may decide {record.id}: there is nothing to delegate", id=record.id)
    # A person steps back; a role stays, for it is more than one person.
    kept = [name for name in state.approvers if name != note.by]
    kept += [name for name in note.to if name not in kept]
    voted = {vote.by for vote in state.votes}
    if len(voted.union(kept)) < min(record.ask.quorum, len(voted.union(state.approvers))):
        raise InvalidArguments(
            f"{record.id} needs {record.ask.quorum} different people, and {' and '.join(note.to)} may decide already or did:"
            f" with {note.by} stepping back it could not be approved any more; delegate to somebody else",
            id=record.id,
        )
    state = msgspec.structs.replace(state, approvers=kept, notes=[*state.notes, note])
    told = {"by": note.by, "to": note.to, "at": _text(note.at_ms), "comment": note.comment, "request": note.request}
    return Change(
        state, events=[("approval_delegated", told)], next_ms=next_moment(record.ask, state, record.opened_ms)
    )


def pass_time(record: Record, now_ms: int) -> Change | None:
    """Does what is due: reminders, escalation, the timeout; None when nothing is."""
    if record.status != "pending":
        return None
    ask, state = record.ask, record.state
    if ask.timeout_ms and now_ms >= record.opened_ms + ask.timeout_ms:
        decision = {"approve": "approved", "reject": "rejected"}.get(ask.on_timeout, "timed_out")
        return _decided(record, state, decision, Vote(decision, TIMEOUT, now_ms, via=TIMEOUT))
    events: list[tuple[str, dict[str, Any]]] = []
    notes = list(state.notes)
    approvers = state.approvers
    for _ in [ms for ms in sorted(ask.reminders_ms)[_count(state, "reminded") :] if now_ms >= record.opened_ms + ms]:
        notes.append(Note("reminded", now_ms, to=approvers))
        events.append(("approval_reminded", {"to": approvers, "at": _text(now_ms)}))
    if ask.escalate_ms and not _count(state, "escalated") and now_ms >= record.opened_ms + ask.escalate_ms:
        approvers = [*approvers, *(name for name in ask.escalate_to if name not in approvers)]
        notes.append(Note("escalated", now_ms, to=ask.escalate_to))
        events.append(("approval_escalated", {"to": ask.escalate_to, "at": _text(now_ms)}))
    if not events:
        return None
    state = msgspec.structs.replace(state, approvers=approvers, notes=notes)
    return Change(state, events=events, next_ms=next_moment(ask, state, record.opened_ms))


def describe(record: Record, durability: str = "") -> Approval:
    """Turns a record into what people read."""
    run, _, step = record.id.partition("/")
    due = record.opened_ms + record.ask.timeout_ms if record.ask.timeout_ms else 0
    return Approval(
        id=record.id,
        run_id=run,
        step=step,
        status=record.status,
        title=record.ask.title,
        show=decode_plain(record.show),
        form=record.ask.form,
        approvers=record.state.approvers,
        quorum=record.ask.quorum,
        votes=[_vote_dict(vote) for vote in record.state.votes],
        history=[_note_dict(note) for note in record.state.notes],
        opened_at=_moment(record.opened_ms),
        due_at=_moment(due) if due else None,
        decided_at=_moment(record.decided_ms) if record.decided_ms else None,
        decision=record.state.output,
        digest=record.digest,
        durability=durability,
    )


def _decided(record: Record, state: State, decision: str, vote: Vote) -> Change:
    forms = [other.form for other in state.votes if other.form is not None]
    output = {
        "decision": decision,
        "by": vote.by,
        "at": _text(vote.at_ms),
        "comment": vote.comment,
        "form": forms[-1] if forms else None,
        "votes": [_vote_dict(other) for other in state.votes],
    }
    told = {**output, "via": vote.via, "digest": record.digest}
    state = msgspec.structs.replace(state, output=output)
    return Change(state, decision, [("approval_decided", told)], output)


def refusal(id: str, status: str, output: dict[str, Any] | None) -> Conflict:
    """Returns what is said to whoever comes later."""
    output = output or {"decision": status}
    who = f" by {output['by']} at {output['at']}" if "by" in output else ""
    return Conflict(f"approval {id} is {status}{who}: it is decided once", id=id, decision=output)


def _refuse_decided(record: Record) -> None:
    if record.status != "pending":
        raise refusal(record.id, record.status, record.state.output)


def _refuse_request(record: Record, request: str, by: str, done: str) -> NoReturn:
    _refuse_decided(record)
    raise Conflict(
        f"request_id {request!r} was used before, when {by} {done} {record.id}: use another one for another call",
        id=record.id,
        request_id=request,
    )


def _check_person(record: Record, by: str, roles: Sequence[str], admin: bool) -> None:
    allowed = record.state.approvers
    if admin or not allowed or by in allowed or any(role in allowed for role in roles):
        return
    raise NotAllowed(
        f"{by} may not decide {record.id}: {', '.join(allowed)} may; ask one of them, or to be delegated to",
        id=record.id,
        by=by,
        approvers=allowed,
    )


def _check_form(record: Record, vote: Vote) -> None:
    schema = record.ask.form
    if vote.decision != "approved" or schema is None:
        if vote.form is not None:
            why = "it has none" if schema is None else "a form goes with an approval"
            raise InvalidArguments(f"approval {record.id} takes no form here: {why}", id=record.id)
        return
    wrong = [text.replace("input", "form", 1) for text in check_input(schema, {} if vote.form is None else vote.form)]
    if wrong:
        raise InvalidArguments(f"the form does not fit approval {record.id}: {'; '.join(wrong)}", problems=wrong)


def _vote_dict(vote: Vote) -> dict[str, Any]:
    return {
        "decision": vote.decision,
        "by": vote.by,
        "at": _text(vote.at_ms),
        "comment": vote.comment,
        "form": vote.form,
        "via": vote.via,
    }


def _note_dict(note: Note) -> dict[str, Any]:
    return {"what": note.what, "by": note.by, "to": note.to, "at": _text(note.at_ms), "comment": note.comment}


def _count(state: State, what: str) -> int:
    return sum(note.what == what for note in state.notes)


def _moment(ms: int) -> datetime:
    return datetime.fromtimestamp(ms / 1000, UTC)


def _text(ms: int) -> str:
    return _moment(ms).isoformat(timespec="milliseconds").replace("+00:00", "Z")
