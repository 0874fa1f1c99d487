"""Where a workflow run stands, told by its events alone: its journal, its mail, its open calls and its children. Pure.

Every entry of a journal is told by an event of its own, in order. An event that is not known may stand for an entry: such a run
is not carried on by itself.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from weft.core.fold import Logged, read_facts
from weft.core.history import History
from weft.core.regrow import decided

#: Events that tell of no entry.
_OTHERS = frozenset(
    (
        *("queued", "debounced", "diverged", "started", "progress", "reclaimed", "recovered", "held", "returned"),
        *("retrying", "snoozed", "rescheduled", "paused", "step_waiting", "step_reclaimed", "step_started"),
    )
)
_CALL_ENDS = {"step_completed": "completed", "step_failed": "failed", "step_cancelled": "cancelled"}
_CHILD_ENDS = {"child_completed": "completed", "child_failed": "failed", "child_cancelled": "cancelled"}


@dataclass(slots=True)
class Reflowed:
    """A workflow run as its events tell it."""

    journal: list[bytes] = field(default_factory=list)
    mail: list[bytes] = field(default_factory=list)
    #: Calls that were opened and have not ended, and when each was opened.
    calls: dict[str, int] = field(default_factory=dict)
    #: Children whose end it was not told, by the command that started each.
    children: dict[str, str] = field(default_factory=dict)
    #: Runs that end with it.
    belongings: set[str] = field(default_factory=set)
    #: What open calls were given from outside and have not acted on.
    answered: dict[str, bytes] = field(default_factory=dict)
    #: Why it cannot be carried on without asking anybody.
    doubts: list[str] = field(default_factory=list)


def reflow(history: History) -> Reflowed:
    """Returns where a run stands."""
    found = Reflowed()
    called: set[str] = set()
    for event in history.events:
        _take(found, called, event, read_facts(event.facts))
    for step in list(found.calls):
        state = history.steps.get(step)
        if state is None or not state.spec:
            found.doubts.append(f"call {step}, which nothing is known of")
        elif state.status == "cancelled":
            del found.calls[step]  # its code did not want it any more
    found.answered = {step: value for step, value in found.answered.items() if step in found.calls}
    if found.journal and b" begin " not in found.journal[0]:
        found.doubts.append("a beginning that nothing is known of")
    return found


def _take(found: Reflowed, called: set[str], event: Logged, facts: dict[str, str]) -> None:
    kind, step = event.type, facts.get("step", "")
    if kind == "resumed":
        n = int(facts.get("mail", 0))
        found.journal += found.mail[:n]
        del found.mail[:n]
    elif kind == "signalled" and "step" not in facts:
        found.mail.append(_entry(event, "signal", facts["name"]))
    elif kind == "cancelling":
        found.mail.append(_entry(event, "cancel", "-"))
    elif kind in _CHILD_ENDS:
        found.children.pop(step, None)
        found.mail.append(_entry(event, "ended", step, _CHILD_ENDS[kind]))
    elif kind in _CALL_ENDS and step in called:
        found.calls.pop(step, None)
        found.mail.append(_entry(event, "ended", step, _CALL_ENDS[kind]))
    elif kind == "step_opened":
        called.add(step)
        found.calls[step] = event.at_ms
        found.journal.append(_entry(event, "opened", step, payload=False))
    elif kind == "approval_decided":
        found.answered[step] = decided(event.payload)
    else:
        _journal(found, called, event, facts)


def _journal(found: Reflowed, called: set[str], event: Logged, facts: dict[str, str]) -> None:
    kind, step = event.type, facts.get("step", "")
    if kind == "began":
        found.journal.append(_entry(event, "begin", "-", f"{facts['at']} {facts.get('version', '-')}"))
    elif kind == "child_opened":
        found.children[step] = facts["run"]
        if facts["policy"] == "cancel":
            found.belongings.add(facts["run"])
        found.journal.append(_entry(event, "opened", step, payload=False))
    elif kind in ("step_completed", "step_failed"):
        found.children.pop(step, None)
        found.journal.append(_entry(event, _CALL_ENDS[kind], step))
    elif kind == "step_retrying":
        if step not in called:
            found.journal.append(_entry(event, "retrying", step, f"{facts['due']} {facts['next']}"))
    elif kind == "timer_fired":
        found.journal.append(_entry(event, "fired", step))
    elif kind == "changed":
        found.journal.append(_entry(event, "marker", facts["marker"]))
    elif kind not in _OTHERS and not kind.startswith("approval_"):
        found.doubts.append(f"an event {kind}, which this version does not know")


def _entry(event: Logged, type: str, key: str, more: str = "", *, payload: bool = True) -> bytes:
    head = f"{event.at_ms} {type} {key} {more}\n".encode()
    return head + event.payload if payload else head
