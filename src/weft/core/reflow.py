"""Where a workflow run stands, told by its events alone: its journal, its mail, its open calls and its children. Pure.

Every entry of a journal is told by an event of its own, in order. An event that is not known may stand for an entry: such a run
is not carried on by itself.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from weft.core.flow import GRACE_MS, RENEWAL_DECODER, as_kept, parse_entry, read_entries
from weft.core.fold import Logged, read_fact, read_facts
from weft.core.history import History
from weft.core.regrow import decided
from weft.core.rewait import Waiting, follow_waits

#: Events that tell of no entry.
_OTHERS = frozenset(
    (
        *("queued", "debounced", "started", "progress", "recovered", "held", "returned", "forked_as"),
        *("retrying", "snoozed", "rescheduled", "paused", "step_waiting"),
        *("step_reclaimed", "step_started", "step_snoozed"),
    )
)
_CALL_ENDS = {"step_completed": "completed", "step_failed": "failed", "step_cancelled": "cancelled"}
CHILD_ENDS = {"child_completed": "completed", "child_failed": "failed", "child_cancelled": "cancelled"}


@dataclass(slots=True)
class Reflowed:
    """A workflow run as its events tell it."""

    #: Of its newest life.
    journal: list[bytes] = field(default_factory=list)
    mail: list[bytes] = field(default_factory=list)
    #: Entries that the journals of its earlier lives had.
    lived: int = 0
    #: What it shows of itself, packed.
    state: bytes = b""
    #: The version of the code that it was pinned to since it was started; None: as it was asked for.
    version: str | None = None
    #: Calls that were opened and have not ended, and when each was opened.
    calls: dict[str, int] = field(default_factory=dict)
    #: Children whose end its code has not heard, by the command that started each: code that is made anew makes sure of them.
    children: dict[str, str] = field(default_factory=dict)
    #: Children that no code of it asks for any more: it has heard how they ended, or begun a new life.
    settled: set[str] = field(default_factory=set)
    #: Runs that end with it.
    belongings: set[str] = field(default_factory=set)
    #: What open calls were given from outside and have not acted on, and what those wait for that were given nothing.
    answered: dict[str, bytes] = field(default_factory=dict)
    waiting: dict[str, Waiting] = field(default_factory=dict)
    #: Requests by which signals came, oldest first.
    requests: list[str] = field(default_factory=list)
    #: Updates by id: `?` while one has no answer. Those that have come first, in the order in which they were given.
    updates: dict[str, bytes] = field(default_factory=dict)
    #: Until when its code may clean up whose deadline has passed; 0: it has not.
    overdue_ms: int = 0
    #: When its code did not fit its journal, and how; None: nobody has found that since it last went on.
    diverged: tuple[int, str] | None = None
    #: Deaths of workers that had it since it last went on.
    crashes: int = 0
    #: Why it cannot be carried on without asking anybody.
    doubts: list[str] = field(default_factory=list)
    #: Every call that was ever opened.
    called: set[str] = field(default_factory=set)


def reflow(history: History) -> Reflowed:
    """Returns where a run stands."""
    found = Reflowed()
    for event in history.events:
        try:
            _take(found, event, read_facts(event.facts))
        except (KeyError, IndexError, ValueError) as error:
            found.doubts.append(f"an event {event.type} that cannot be read ({error!r})")
            return found
    for step in list(found.calls):
        state = history.steps.get(step)
        if state is None or not state.spec:
            found.doubts.append(f"call {step}, which nothing is known of")
        elif state.status == "cancelled":
            del found.calls[step]  # its code did not want it any more
    found.answered = {step: value for step, value in found.answered.items() if step in found.calls}
    waiting = follow_waits(history.events)
    found.waiting = {step: one for step, one in waiting.items() if step in found.calls and step not in found.answered}
    if found.journal and b" begin " not in found.journal[0]:
        found.doubts.append("a beginning that nothing is known of")
    return found


def _take(found: Reflowed, event: Logged, facts: dict[str, str]) -> None:
    kind, step = event.type, facts.get("step", "")
    take = _TAKES.get(kind)
    if kind == "reclaimed":
        found.crashes = int(facts.get("crashes", found.crashes))
    elif kind not in _OTHERS and not kind.startswith("approval_"):
        found.crashes, found.diverged = 0, None
    if take is not None:
        take(found, event, facts)
    elif kind in CHILD_ENDS:
        found.mail.append(_entry(event, "ended", step, CHILD_ENDS[kind]))
    elif kind in _CALL_ENDS and step in found.called:
        found.calls.pop(step, None)
        found.mail.append(_entry(event, "ended", step, _CALL_ENDS[kind]))
    elif kind in ("step_completed", "step_failed"):
        _settle(found, step)
        found.journal.append(_entry(event, _CALL_ENDS[kind], step))
    elif kind not in _OTHERS and kind != "reclaimed" and not kind.startswith("approval_"):
        found.doubts.append(f"an event {kind}, which this version does not know")


# --- its lives ------------------------------------------------------------------------------------


def _began(found: Reflowed, event: Logged, facts: dict[str, str]) -> None:
    # First of all, whatever mail was taken by the same commit.
    found.journal.insert(0, _entry(event, "begin", "-", f"{facts['at']} {facts.get('version', '-')}"))


def _continued(found: Reflowed, event: Logged, facts: dict[str, str]) -> None:
    """A new life has a journal of its own: it begins with what nobody took in the one before."""
    if "at" not in facts:
        found.doubts.append("a new life, of which an earlier version of weft has not told enough")
        return
    renewal = RENEWAL_DECODER.decode(event.payload)
    carried = [parse_entry(found.journal[int(place) - 1]) for place in facts.get("carried", "").split()]
    found.journal = [_entry(event, "begin", "-", f"{facts['at']} {facts['version']}")]
    found.journal += [f"{event.at_ms} {one.header}\n".encode() + one.payload for one in carried]
    found.lived, found.state = renewal.before, renewal.state or found.state
    found.calls.clear()
    for step in list(found.children):
        _settle(found, step)
    found.belongings.clear()
    found.answered.clear()


def _forked(found: Reflowed, event: Logged, facts: dict[str, str]) -> None:
    if "lived" not in facts:
        found.doubts.append("the journal of another run, of which an earlier version of weft has not told enough")
    found.lived = int(facts.get("lived", 0))


def _inherited(found: Reflowed, event: Logged, facts: dict[str, str]) -> None:
    (found.mail if "mail" in facts else found.journal).extend(read_entries(event.payload))


def _version_changed(found: Reflowed, event: Logged, facts: dict[str, str]) -> None:
    found.journal.append(_entry(event, "version", facts["version"]))


def _diverged(found: Reflowed, event: Logged, facts: dict[str, str]) -> None:
    found.diverged = event.at_ms, event.payload.decode(errors="replace")


def _resolved(found: Reflowed, event: Logged, facts: dict[str, str]) -> None:
    found.version = facts["version"] if facts["action"] == "pin" else ""
    if facts["action"] == "accept" and facts["changed"] != "0" and not facts.get("kept"):
        found.doubts.append("other code, of which an earlier version of weft has not told enough")
    for place in map(int, facts.get("kept", "").split()):
        kept = as_kept(parse_entry(found.journal[place]))
        found.journal[place] = f"{kept.at_ms} {kept.header}\n".encode() + kept.payload


def _state_changed(found: Reflowed, event: Logged, facts: dict[str, str]) -> None:
    found.state = event.payload


# --- what its code is told ------------------------------------------------------------------------


def _resumed(found: Reflowed, event: Logged, facts: dict[str, str]) -> None:
    n = int(facts.get("mail", 0))
    for entry in map(parse_entry, found.mail[:n]):
        if entry.type == "ended":
            _settle(found, entry.key)
    found.journal += found.mail[:n]
    del found.mail[:n]


def _signalled(found: Reflowed, event: Logged, facts: dict[str, str]) -> None:
    if "request" in facts:
        found.requests.append(facts["request"])
    found.mail.append(_entry(event, "signal", facts["name"]))


def _cancelling(found: Reflowed, event: Logged, facts: dict[str, str]) -> None:
    found.mail.append(_entry(event, "cancel", "-"))


def _overdue(found: Reflowed, event: Logged, facts: dict[str, str]) -> None:
    found.overdue_ms = event.at_ms + GRACE_MS
    _cancelling(found, event, facts)


def _update_received(found: Reflowed, event: Logged, facts: dict[str, str]) -> None:
    if "id" not in facts:
        found.doubts.append("an update, of which an earlier version of weft has not told enough")
        return
    id = read_fact(facts["id"])
    found.updates[id] = b"?"
    found.mail.append(_entry(event, "update", facts["name"], id))


def _update_answered(found: Reflowed, event: Logged, facts: dict[str, str]) -> None:
    if "id" not in facts:
        return  # that it came is a doubt already
    id = read_fact(facts["id"])
    sign = b"+" if event.type == "update_completed" else b"!" if "refused" in facts else b"-"
    found.journal.append(_entry(event, "answered", facts["name"], id))
    if found.updates.pop(id, b"?") == b"?":
        found.updates[id] = sign + event.payload


def _step_opened(found: Reflowed, event: Logged, facts: dict[str, str]) -> None:
    found.called.add(facts["step"])
    found.calls[facts["step"]] = event.at_ms
    found.journal.append(_entry(event, "opened", facts["step"], payload=False))


def _settle(found: Reflowed, step: str) -> None:
    if child := found.children.pop(step, ""):
        found.settled.add(child)


def _child_opened(found: Reflowed, event: Logged, facts: dict[str, str]) -> None:
    found.children[facts["step"]] = facts["run"]
    if facts["policy"] == "cancel":
        found.belongings.add(facts["run"])
    found.journal.append(_entry(event, "opened", facts["step"], payload=False))


def _step_retrying(found: Reflowed, event: Logged, facts: dict[str, str]) -> None:
    if facts["step"] not in found.called:
        found.journal.append(_entry(event, "retrying", facts["step"], f"{facts['due']} {facts['next']}"))


def _timer_fired(found: Reflowed, event: Logged, facts: dict[str, str]) -> None:
    found.journal.append(_entry(event, "fired", facts["step"]))


def _changed(found: Reflowed, event: Logged, facts: dict[str, str]) -> None:
    found.journal.append(_entry(event, "marker", facts["marker"]))


def _approval_decided(found: Reflowed, event: Logged, facts: dict[str, str]) -> None:
    found.answered[facts["step"]] = decided(event.payload)


def _entry(event: Logged, type: str, key: str, more: str = "", *, payload: bool = True) -> bytes:
    head = f"{event.at_ms} {type} {key} {more}\n".encode()
    return head + event.payload if payload else head


_TAKES: dict[str, Callable[[Reflowed, Logged, dict[str, str]], None]] = {
    "began": _began,
    "continued": _continued,
    "forked": _forked,
    "inherited": _inherited,
    "version_changed": _version_changed,
    "diverged": _diverged,
    "resolved": _resolved,
    "state_changed": _state_changed,
    "resumed": _resumed,
    "signalled": _signalled,
    "cancelling": _cancelling,
    "overdue": _overdue,
    "history_full": lambda found, event, facts: found.journal.append(_entry(event, "cancel", "-")),
    "update_received": _update_received,
    "update_completed": _update_answered,
    "update_failed": _update_answered,
    "step_opened": _step_opened,
    "child_opened": _child_opened,
    "step_retrying": _step_retrying,
    "timer_fired": _timer_fired,
    "changed": _changed,
    "approval_decided": _approval_decided,
}
