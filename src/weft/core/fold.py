"""Folding: how a run stands, told by nothing but its events in order. Pure; the archive keeps what comes out.

An event that does not follow on the one before it is never folded: the run has a gap, and stays as it was last known.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from weft.core.model import SPEC_DECODER, VALUE_DECODER, RunSpec, RunStatus

#: Events that end a run.
ENDINGS = frozenset({"completed", "failed", "cancelled"})


class Logged(NamedTuple):
    """One event as the log has it."""

    run: str
    seq: int
    #: Where in the log it stands: what tells it from the same event read twice.
    entry: str
    type: str
    at_ms: int
    by: str
    facts: str
    payload: bytes

    @property
    def moment_ms(self) -> int:
        """The ms of its log entry: what a run takes for its times of birth and end."""
        return _moment(self.entry)


@lru_cache(maxsize=64)
def _moment(entry: str) -> int:
    # An entry tells of many events.
    return int(entry.partition("-")[0])


@dataclass(slots=True)
class RunState:
    """How a run stands. The fields are what the archive has a column for."""

    id: str
    kind: str = "task"
    name: str = ""
    queue: str = ""
    status: str = "queued"
    #: Number of the newest event that was seen.
    seq: int = 0
    #: Number of the event that has the spec: the first, or the newest `debounced`.
    spec_seq: int = 0
    attempt: int = 1
    delivery: int = 1
    crashes: int = 0
    created_ms: int = 0
    started_ms: int = 0
    ended_ms: int = 0
    due_ms: int = 0
    deadline_ms: int = 0
    keep_ms: int = 0
    progress: str = ""
    worker: str = ""
    gap: int = 0

    @property
    def finished(self) -> bool:
        return self.status in ENDINGS


@dataclass(slots=True)
class StepState:
    """How a step of a graph run stands."""

    run: str
    step: str
    name: str = ""
    status: str = "ready"
    attempt: int = 1
    created_ms: int = 0
    started_ms: int = 0
    ended_ms: int = 0
    #: Number of the run's event that tells of its end; 0 while it is open.
    seq: int = 0


def read_facts(text: str) -> dict[str, str]:
    """Returns the facts of an event by name."""
    return dict(fact.split("=", 1) for fact in text.split(",")) if text else {}


def fold(state: RunState, event: Logged) -> RunSpec | None:
    """Moves a state on by one event; returns the spec when the event brought one.

    A state with a gap only counts on. Raises ValueError or a msgspec error, with the state as it was, when the event cannot
    be read.
    """
    if state.gap or event.seq != state.seq + 1:
        state.gap, state.seq = 1, max(state.seq, event.seq)
        return None
    spec = None
    if event.type in ("queued", "debounced"):
        spec = SPEC_DECODER.decode(event.payload)
        _take_spec(state, spec, event)
    elif event.type in ENDINGS:
        _end(state, event)
    else:
        _go_on(state, event)
    state.seq = event.seq
    return spec


def _take_spec(state: RunState, spec: RunSpec, event: Logged) -> None:
    state.kind = "graph" if spec.definition else "task"
    state.name, state.queue, state.keep_ms, state.spec_seq = spec.name, spec.queue, spec.keep_ms, event.seq
    if event.type == "queued":
        state.created_ms = event.moment_ms
        state.due_ms = spec.due_ms or (event.at_ms + spec.delay_ms if spec.delay_ms else 0)
        state.deadline_ms = event.at_ms + spec.deadline_ms if spec.deadline_ms else 0
        if state.kind == "graph":
            state.status = RunStatus.RUNNING.value
    else:
        state.due_ms = int(read_facts(event.facts)["due"])


def _end(state: RunState, event: Logged) -> None:
    facts = read_facts(event.facts)
    attempt, started_ms = int(facts.get("attempt", state.attempt)), int(facts.get("started", state.started_ms))
    crashes = int(facts.get("crashes", state.crashes))
    state.attempt, state.started_ms, state.crashes = attempt, started_ms, crashes
    state.status, state.ended_ms, state.due_ms = event.type, event.moment_ms, 0
    if event.type == "failed" and state.kind == "task" and facts:
        state.worker = facts.get("session", event.by)


def _go_on(state: RunState, event: Logged) -> None:
    facts, kind = read_facts(event.facts), event.type
    if kind in ("retrying", "snoozed", "returned"):
        after_ms = int(facts["after_ms"])
        state.attempt = int(facts["attempt"]) + (kind == "retrying")
        state.delivery += 1
        state.due_ms = event.at_ms + after_ms if after_ms else 0
        state.status = "waiting" if after_ms and kind != "returned" else "queued"
    elif kind in ("reclaimed", "recovered", "held"):
        state.crashes = int(facts.get("crashes", state.crashes))
        state.delivery += 1
        state.status = "queued"
    elif kind == "started":
        state.started_ms, state.status = int(facts["started"]), "running"
    elif kind == "progress":
        state.progress = event.payload.decode()
    elif kind == "rescheduled":
        state.due_ms = int(facts["due"])
    elif kind in ("paused", "resumed", "retried"):
        # A graph run that was retried had ended before.
        state.status, state.ended_ms = ("paused" if kind == "paused" else "running"), 0


def fold_step(steps: dict[tuple[str, str], StepState], event: Logged) -> None:
    """Moves the steps of a graph run on: by an event of the step itself (`<run>/<step>`), or by one of its run."""
    run, _, step = event.run.partition("/")
    facts = read_facts(event.facts)
    if step:
        state = steps.setdefault((run, step), StepState(run, step))
        if event.type == "queued":
            # Some are opened again under the same name.
            state.name, state.created_ms = SPEC_DECODER.decode(event.payload).name, event.moment_ms
            state.status, state.ended_ms, state.seq = "ready", 0, 0
        elif event.type in ENDINGS:
            state.status, state.ended_ms = event.type, event.moment_ms
        elif event.type == "retrying":
            state.attempt, state.status = int(facts["attempt"]) + 1, "waiting"
    elif (event.type == "routed" or event.type.startswith("step_")) and "step" in facts:
        state = steps.setdefault((run, facts["step"]), StepState(run, facts["step"]))
        state.status = "completed" if event.type in ("routed", "step_cached") else event.type.removeprefix("step_")
        state.attempt = int(facts.get("attempt", state.attempt))
        state.started_ms = int(facts.get("started", state.started_ms))
        if event.type != "step_waiting":
            state.ended_ms, state.seq = event.moment_ms, event.seq


def blobs_of(event: Logged, spec: RunSpec | None) -> str:
    """Returns the digest of the blob an event refers to, or nothing."""
    if spec is not None:
        return spec.blob
    if event.type in ("completed", "step_completed", "step_cached"):
        return VALUE_DECODER.decode(event.payload).blob
    return ""
