"""Acts: what people and operators did, as the audit keeps it; and the chain that shows when one was changed. Pure.

An act stands in the log like an event of a run, under a name that no run has: written by the script that does it, so that
neither can be without the other.
"""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime
from typing import Any

import msgspec

from weft.core.fold import Logged, read_fact, read_facts
from weft.core.model import ERROR_DECODER

#: What acts that are no run's stand under in the log.
ACTS = "!"
#: The chain of acts that are done in the database itself, such as moves of tags. Others have that of their partition.
OWN_CHAIN = -1
#: What stands between the person and the process that acted for them.
AT = "@"
#: What people are called who act by the command line.
CLI = "cli:"
#: How the way begins by which the code of a step acted; its id follows, `<run>/<step>`.
BY_STEP = "step:"
#: Hash before the first act of a chain.
START = "0" * 64
#: Characters of texts that the audit keeps.
MAX_TEXT = 4_000

#: Events of runs that are acts of people, whoever's process it was.
_PEOPLE = {"patched": "run.patch", "approval_voted": "approval.vote", "approval_delegated": "approval.delegate"}
#: Events of runs that may be acts of people, or of workers.
_VERBS = {
    "paused": "run.pause",
    "resumed": "run.resume",
    "cancelled": "run.cancel",
    "cancelling": "run.cancel",
    "retried": "run.retry",
    "forked_as": "run.fork",
    "rescheduled": "run.reschedule",
    "resolved": "run.resolve",
    "signalled": "run.signal",
    "update_received": "run.update",
}
#: Of those, the ones that bring a value: the audit has its digest.
_GIVEN = frozenset({"signalled", "update_received"})
#: Facts of such events that the audit has too.
_SAID = frozenset({"name", "request", "id", "step", "due", "run", "action", "version"})
#: Types of events that may be acts.
TOLD = frozenset({*_PEOPLE, *_VERBS, "approval_decided"})


class Act(msgspec.Struct, array_like=True, frozen=True):
    """What somebody does, as it is handed to the script that does it."""

    action: str
    object: str
    actor: str
    #: The process that acted for them.
    via: str = ""
    reason: str = ""
    detail: dict[str, Any] = {}


class Deed(msgspec.Struct, frozen=True):
    """An act that was done."""

    #: Where it was told: what tells it from the same act told twice.
    source: str
    at_ms: int
    actor: str
    via: str
    action: str
    object: str
    #: sha256 of how it stood before and after; empty: it was not there.
    before: str
    after: str
    reason: str = ""
    #: JSON.
    detail: bytes = b"{}"
    run: str = ""


class Audited(msgspec.Struct, frozen=True):
    """One entry of the audit, as people read it."""

    #: `<chain>:<number>`: where it stands.
    id: str
    at: datetime
    actor: str
    via: str
    action: str
    object: str
    run_id: str
    before: str
    after: str
    reason: str
    detail: dict[str, Any]
    hash: str


class AuditPage(msgspec.Struct, frozen=True):
    """Entries of the audit, the newest first, and where the next page begins (empty: there is none)."""

    entries: list[Audited]
    cursor: str


class Verdict(msgspec.Struct, frozen=True):
    """What came of checking the audit: how many entries, the newest of each chain, and everything that is wrong."""

    ok: bool
    checked: int
    #: `<chain>:<number>:<hash>` each: noted elsewhere, they show later that nothing before them was changed.
    anchors: list[str]
    problems: list[str]


_pack = msgspec.msgpack.Encoder(order="sorted").encode
_unpack = msgspec.msgpack.Decoder(Act).decode
_json = msgspec.json.Encoder(order="sorted").encode


def pack_act(act: Act) -> bytes:
    """Returns an act as the log has it."""
    return _pack(act)


def digest_of(data: bytes) -> str:
    """Returns what stands for a value in the audit; nothing for nothing."""
    return hashlib.sha256(data).hexdigest() if data else ""


def deed_of_act(event: Logged) -> Deed:
    """Returns the act that an event tells of: how it stood before, after, and what was done, one behind the other."""
    before, after = stood(event)
    act = _unpack(event.payload[len(before) + len(after) :])
    return Deed(
        f"{event.entry}/{event.seq}",
        event.at_ms,
        clean(act.actor),
        clean(act.via or event.by),
        act.action,
        clean(act.object),
        digest_of(before),
        digest_of(after),
        clean(act.reason),
        _json(act.detail),
    )


def stood(event: Logged) -> tuple[bytes, bytes]:
    """Returns how the object of an act stood before and after it."""
    facts = read_facts(event.facts)
    n, m = int(facts["before"]), int(facts["after"])
    return event.payload[:n], event.payload[n : n + m]


def deed_of_event(event: Logged) -> Deed | None:
    """Returns the act that an event of a run tells of; None for what no person did."""
    person, _, via = event.by.rpartition(AT)
    source, run = f"{event.run}:{event.seq}", event.run
    if event.type in _VERBS:
        # Workers cancel and resume too, by deadlines and for parents; and names of people may have the sign in them.
        if event.by.startswith(CLI):
            person, via = event.by, CLI.rstrip(":")
        elif not person or not via.startswith("c-"):
            return None
        reason, detail = _said(event)
        action, after = _VERBS[event.type], digest_of(event.payload) if event.type in _GIVEN else ""
        return Deed(source, event.at_ms, clean(person), via, action, run, "", after, clean(reason), _json(detail), run)
    told = msgspec.json.decode(event.payload)
    if event.type == "patched":
        detail = {"revision": told["revision"], "operations": len(told["operations"])}
        detail |= {"undoes": told["undoes"]} if told.get("undoes") else {}
        before, after = told.get("before", ""), told["definition"]
        author, reason = clean(told["author"]), clean(told["reason"])
        via = BY_STEP + clean(told["step"]) if told.get("step") else via
        return Deed(source, event.at_ms, author, via, "run.patch", run, before, after, reason, _json(detail), run)
    step = read_facts(event.facts).get("step", "")
    shown, comment = str(told.get("digest", "")), clean(str(told.get("comment", "")))
    action = _PEOPLE.get(event.type, "approval.decide")
    detail = {name: told[name] for name in ("decision", "to", "votes", "quorum") if name in told}
    if isinstance(detail.get("votes"), list):
        detail["votes"] = len(detail["votes"])
    # What was shown stands before; what was decided, and with which form, after.
    after = digest_of(_json({name: told.get(name) for name in ("decision", "form", "by")}))
    about = f"{run}/{step}"
    actor, via = clean(str(told.get("by", ""))), clean(str(told.get("via", "")))
    return Deed(source, event.at_ms, actor, via, action, about, shown, after, comment, _json(detail), run)


def deed_of_fork(event: Logged, forked: str) -> Deed | None:
    """Returns the act of whoever started a run as a fork of another; None when no person did."""
    person, _, via = event.by.rpartition(AT)
    if not person or not via.startswith("c-"):
        return None
    source, run = f"{event.run}:{event.seq}", event.run
    return Deed(source, event.at_ms, clean(person), via, "run.fork", forked, "", "", "", _json({"run": run}), run)


def _said(event: Logged) -> tuple[str, dict[str, Any]]:
    """Returns the reason that goes with what somebody did to a run, and what else there is to say."""
    if event.type == "paused":
        return event.payload.decode(errors="replace"), {}
    if event.type in ("cancelled", "cancelling"):
        return ERROR_DECODER.decode(event.payload).message, {}
    if event.type == "retried":
        told = msgspec.json.decode(event.payload)
        return str(told.get("reason", "")), {"again": told.get("again", [])}
    return "", {name: clean(read_fact(text)) for name, text in read_facts(event.facts).items() if name in _SAID}


def chain(previous: str, namespace: str, number: tuple[int, int], deed: Deed) -> str:
    """Returns the hash of an entry: of all that it says, and of the entry before it."""
    said = (namespace, *number, *(getattr(deed, name) for name in Deed.__struct_fields__))
    return hashlib.sha256(bytes.fromhex(previous) + _pack(said)).hexdigest()


def clean(text: str) -> str:
    """Returns a text that every database can keep."""
    return text[:MAX_TEXT].replace("\0", "\\0").encode("utf-8", "replace").decode()


def audited(chain: int, number: int, deed: Deed, hash: str) -> Audited:
    """Returns an entry as people read it."""
    return Audited(
        id=f"{chain}:{number}",
        at=datetime.fromtimestamp(deed.at_ms / 1000, UTC),
        actor=deed.actor,
        via=deed.via,
        action=deed.action,
        object=deed.object,
        run_id=deed.run,
        before=deed.before,
        after=deed.after,
        reason=deed.reason,
        detail=msgspec.json.decode(deed.detail) if deed.detail else {},
        hash=hash,
    )
