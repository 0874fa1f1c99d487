"""Schedules as the archive keeps them: what is told of one, by acts in the log and by looks at the store, put together. Pure.

An act tells at once what somebody did and who that was. A look, every few seconds, also knows how far the schedule has come.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec

from weft.core.schedule import ScheduleSpec

SPEC_DECODER = msgspec.msgpack.Decoder(ScheduleSpec)

#: How the store marks a schedule that is paused.
PAUSED = b"1"


@dataclass(frozen=True, slots=True)
class ScheduleAct:
    """What somebody did to a schedule: `create`, `change`, `pause`, `resume` or `delete`."""

    name: str
    verb: str
    at_ms: int
    by: str
    #: What it starts and when, and whether it is paused, as it stands now; of one that was deleted, as it stood.
    spec: bytes
    paused: bool


@dataclass(slots=True)
class Scheduled:
    """A schedule with what is known of its life."""

    name: str
    #: Its hash, as the store has it.
    fields: dict[str, bytes] = field(default_factory=dict)
    changed_ms: int = 0
    changed_by: str = ""
    #: 0: it was not deleted.
    deleted_ms: int = 0
    deleted_by: str = ""
    #: When it was last looked at: what was done before is in `fields`.
    seen_ms: int = 0

    def number(self, name: str) -> int:
        """Returns a field that holds ms; 0 when it is not there."""
        return int(self.fields.get(name, b"0") or 0)


def act_of(name: str, verb: str, at_ms: int, by: str, before: bytes, after: bytes) -> ScheduleAct:
    """Returns the act that an event tells of. `before` and `after` are its spec, and behind it the mark of a pause."""
    spec, paused = _split(before if verb == "delete" else after)
    return ScheduleAct(name, verb, at_ms, by, spec, paused)


def _split(told: bytes) -> tuple[bytes, bool]:
    try:
        SPEC_DECODER.decode(told)
    except msgspec.MsgspecError:
        if not told.endswith(PAUSED):
            raise
        SPEC_DECODER.decode(told[:-1])
        return told[:-1], True
    return told, False


def apply(known: Scheduled | None, act: ScheduleAct) -> Scheduled:
    """Returns how a schedule stands after an act. One that a later look has seen is only told who it was."""
    found = known or Scheduled(act.name)
    found.changed_ms, found.changed_by = max(found.changed_ms, act.at_ms), act.by
    is_there = bool(found.fields) and not found.deleted_ms
    if act.verb == "delete":
        if act.at_ms >= found.seen_ms or not is_there:
            found.fields = found.fields or {"spec": act.spec}
            found.deleted_ms, found.deleted_by = act.at_ms, act.by
        return found
    if act.at_ms < found.seen_ms:
        return found
    moment = b"%d" % act.at_ms
    if not is_there:
        found.fields = {"born": moment, "rev": moment}
        found.deleted_ms, found.deleted_by = 0, ""
    # Only another time of ticking, or the end of a pause, re-arms it.
    arms = _times(found.fields.get("spec")) != _times(act.spec) or ("paused" in found.fields and not act.paused)
    found.fields["spec"] = act.spec
    if act.paused:
        found.fields["paused"] = PAUSED
        found.fields.setdefault("paused_at", moment)
        found.fields.setdefault("paused_by", act.by.encode())
    else:
        for name in ("paused", "paused_at", "paused_by"):
            found.fields.pop(name, None)
    if arms or act.paused:
        found.fields.pop("waits", None)
    if arms:
        _arm(found, act)
    return found


def see(known: Scheduled | None, name: str, fields: dict[str, bytes], now_ms: int) -> Scheduled:
    """Returns how a schedule stands after a look at it."""
    found = known or Scheduled(name)
    found.fields, found.seen_ms, found.deleted_ms, found.deleted_by = fields, now_ms, 0, ""
    return found


def _arm(found: Scheduled, act: ScheduleAct) -> None:
    following = SPEC_DECODER.decode(act.spec).times.after(act.at_ms)
    if following is None:
        found.fields.pop("next", None)
    else:
        found.fields["next"] = b"%d" % following


def _times(spec: bytes | None) -> tuple[str, str] | None:
    if not spec:
        return None
    read = SPEC_DECODER.decode(spec)
    return read.expr, read.tz


def status_of(found: Scheduled) -> str:
    """Returns `active`, `paused`, `ended` (it has no tick to come) or `deleted`."""
    if found.deleted_ms:
        return "deleted"
    return "paused" if found.fields.get("paused") == PAUSED else "active" if "next" in found.fields else "ended"
