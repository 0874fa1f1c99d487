"""What events tell besides how runs stand: patches, approvals, what was done to dead letters, and acts. Pure.

Each is found again by (run, seq), or by its place in the log: told twice, it is kept once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from weft.core.acts import TOLD, Deed, clean, deed_of_act, deed_of_event, stood
from weft.core.fold import Logged, Unreadable, read_facts
from weft.core.scheduled import ScheduleAct, act_of

#: Types of events that `tell` has something to do with.
TELLING = TOLD | {"step_waiting"}

_json = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class PatchRow:
    """A patch of a run."""

    run: str
    seq: int
    revision: int
    undoes: int
    at_ms: int
    author: str
    reason: str
    definition: str
    previous: str
    #: JSON.
    operations: bytes


@dataclass(frozen=True, slots=True)
class AskedRow:
    """People were asked."""

    run: str
    step: str
    seq: int
    opened_ms: int
    title: str
    digest: str
    #: JSON: what the event tells.
    asked: bytes


@dataclass(frozen=True, slots=True)
class DecidedRow:
    """People have decided."""

    run: str
    step: str
    status: str
    decided_ms: int
    by: str
    via: str
    digest: str
    #: JSON: the decision with all votes.
    decision: bytes


@dataclass(frozen=True, slots=True)
class LetterRow:
    """Something was done to a dead letter: replayed, investigated or purged."""

    run: str
    what: str
    at_ms: int
    by: str
    detail: dict[str, Any]


@dataclass(slots=True)
class Rows:
    """What a stretch of the log tells."""

    deeds: list[Deed] = field(default_factory=list)
    patches: list[PatchRow] = field(default_factory=list)
    asked: list[AskedRow] = field(default_factory=list)
    decided: list[DecidedRow] = field(default_factory=list)
    letters: list[LetterRow] = field(default_factory=list)
    #: Versions of graphs that runs began to follow: name, digest, run, when, by whom.
    versions: list[tuple[str, str, str, int, str]] = field(default_factory=list)
    #: What was done to schedules, in order.
    schedules: list[ScheduleAct] = field(default_factory=list)

    def __bool__(self) -> bool:
        # Acts on letters and schedules are deeds, too.
        return bool(self.deeds or self.patches or self.asked or self.decided or self.versions)

    def of_run(self, run: str) -> Rows:
        """Returns what belongs to one run."""
        return Rows(
            [one for one in self.deeds if one.run == run],
            [one for one in self.patches if one.run == run],
            [one for one in self.asked if one.run == run],
            [one for one in self.decided if one.run == run],
            [],
            [one for one in self.versions if one[2] == run],
        )

    def of_nobody(self) -> Rows:
        """Returns what belongs to no run."""
        return Rows([one for one in self.deeds if not one.run], letters=self.letters, schedules=self.schedules)


def tell(rows: Rows, event: Logged) -> None:
    """Notes what an event of a run tells, if it is one of `TELLING`."""
    if event.type == "step_waiting":
        if event.payload and "waits=approval" in event.facts:
            rows.asked.append(_asked(event))
        return
    deed = deed_of_event(event)
    if event.type == "patched":
        rows.patches.append(_patch(event))
    elif event.type == "approval_decided":
        rows.decided.append(_decided(event))
    if deed is not None:
        rows.deeds.append(deed)


def tell_acts(rows: Rows, events: Sequence[Logged]) -> list[Unreadable]:
    """Notes acts that are no run's; returns what cannot be read."""
    wrong: list[Unreadable] = []
    for event in events:
        try:
            _tell_act(rows, event)
        except Exception as error:  # noqa: BLE001 - whatever is wrong with an event is wrong with that event alone
            wrong.append(Unreadable("", f"{event.entry}/{event.seq}", event.payload, f"{event.type}: {error!r}"))
    return wrong


def _tell_act(rows: Rows, event: Logged) -> None:
    deed = deed_of_act(event)
    rows.deeds.append(deed)
    kind, _, what = deed.action.partition(".")
    if kind == "letter":
        rows.letters.append(LetterRow(deed.object, what, deed.at_ms, deed.actor, msgspec.json.decode(deed.detail)))
    elif kind == "schedule":
        before, after = stood(event)
        rows.schedules.append(act_of(deed.object, what, deed.at_ms, deed.actor, before, after))


def _patch(event: Logged) -> PatchRow:
    told = msgspec.json.decode(event.payload)
    return PatchRow(
        event.run,
        event.seq,
        int(told["revision"]),
        int(told.get("undoes", 0)),
        event.at_ms,
        clean(told["author"]),
        clean(told["reason"]),
        told["definition"],
        told.get("before", ""),
        _json(told["operations"]),
    )


def _asked(event: Logged) -> AskedRow:
    told = msgspec.json.decode(event.payload)
    step = read_facts(event.facts)["step"]
    title = clean(str(told.get("title", "")))
    return AskedRow(event.run, step, event.seq, event.at_ms, title, str(told["digest"]), event.payload)


def _decided(event: Logged) -> DecidedRow:
    told = msgspec.json.decode(event.payload)
    step, by, via = read_facts(event.facts)["step"], clean(str(told["by"])), clean(str(told.get("via", "")))
    decision = _json({name: value for name, value in told.items() if name not in ("via", "digest")})
    return DecidedRow(event.run, step, str(told["decision"]), event.at_ms, by, via, str(told["digest"]), decision)
