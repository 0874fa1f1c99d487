"""Folding: how a run stands, told by nothing but its events in order. Pure; the archive keeps what comes out.

An event that does not follow on the one before it is never folded: the run has a gap, and stays as it was last known.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from weft.core.flow import ID_MS, RENEWAL_DECODER, parent_of
from weft.core.model import ERROR_DECODER, SETTLED_MS, SPEC_DECODER, VALUE_DECODER, RunSpec, RunStatus

_pack = msgspec.msgpack.Encoder().encode
_unpack = msgspec.msgpack.Decoder(list[int | str]).decode

#: Events that tell of dead letters.
LETTERS = frozenset({"replayed", "investigated", "purged"})
#: What `keep_ms` of a dead letter is that somebody purged.
PURGED = -1
DAY_MS = 24 * 3_600_000
#: Bytes of the shortest payload that could name a blob.
SHORTEST_BLOB = 40

#: Names of labels that are no tags: `@` cannot stand in a tag's name.
PARENT, ERROR, CODE = "@parent", "@error", "@code"
#: Bytes of what a workflow run shows of itself that its row has; larger ones are read from its events. Those of open runs stand
#: in the memory of the archiver.
MAX_SHOWN = 1_000
#: Characters of what an error is found by: an index of PostgreSQL takes 2,700 bytes.
MAX_LABEL_CHARS = 500
#: Events that carry a value, which may stand in a blob.
VALUES = frozenset(("completed", "step_completed", "step_cached", "node_completed", "node_errors", "child_completed"))
#: Events that end a run.
ENDINGS = frozenset({"completed", "failed", "cancelled"})
#: Statuses of runs that have not ended.
OPEN = ("queued", "running", "waiting", "paused")


class Logged(msgspec.Struct, frozen=True, array_like=True, gc=False):
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
    #: The ms of its log entry: what a run takes for its times of birth and end.
    moment_ms: int = 0


#: An entry of the log: its id, and its fields as they came.
Entry = tuple[bytes, Sequence[bytes]]


@dataclass(slots=True)
class Unreadable:
    """Something in the log that is no event."""

    run: str
    entry: str
    raw: bytes
    error: str


def split_entry(id: bytes, fields: Sequence[bytes]) -> tuple[list[Logged], list[Unreadable]]:
    """Takes an entry apart. What cannot be read is put aside, and the rest goes on."""
    entry, found, unreadable = id.decode(), list[Logged](), list[Unreadable]()
    try:
        by, moment_ms = fields[3].decode(), int(entry.partition("-")[0])
        # Where the entry does not tell when, its id does.
        at_ms = int(fields[1] or moment_ms)
    except (ValueError, IndexError) as error:
        return [], [Unreadable("", entry, b"\n".join(fields), repr(error))]
    for i in range(4, len(fields) - 1, 2):
        try:
            seq, kind, facts, payload = fields[i + 1].split(b"|", 3)
            run = fields[i].decode()
            found.append(Logged(run, int(seq), entry, kind.decode(), at_ms, by, facts.decode(), payload, moment_ms))
        except ValueError as error:
            run = fields[i].decode("ascii", "backslashreplace").replace("\0", "\\0")
            unreadable.append(Unreadable(run, entry, fields[i + 1], repr(error)))
    return found, unreadable


class RunState(msgspec.Struct, gc=False):
    """How a run stands. What runs are looked for by comes first, each in a column of its own."""

    id: str
    kind: str = "task"
    name: str = ""
    queue: str = ""
    status: str = "queued"
    #: Number of the newest event that was seen.
    seq: int = 0
    created_ms: int = 0
    started_ms: int = 0
    ended_ms: int = 0
    #: Until when its records of an idempotency key or of calls that count as one stand; 0: it has none.
    claims_ms: int = 0
    gap: int = 0
    #: Numbers of the newest blocks that tell of it, each behind a space.
    blocks: str = ""
    #: What was asked for, and the result or the newest error, packed. Empty: as the archive has it.
    spec: bytes = b""
    value: bytes = b""
    attempt: int = 1
    delivery: int = 1
    crashes: int = 0
    #: When it goes on; of a dead letter, when somebody last looked after it.
    due_ms: int = 0
    deadline_ms: int = 0
    keep_ms: int = 0
    progress: str = ""
    worker: str = ""
    #: Digest of its payload, by which calls with the same idempotency key are compared; empty: it has no key.
    same: str = ""
    #: The step that it is a child of: `<run>/<step>`.
    parent: str = ""
    #: What a workflow run shows of itself, packed, in Base64: the rest is texts. None: its events say it, or it is no workflow.
    shown: str | None = None

    def pack_rest(self) -> bytes:
        """Returns what nobody looks for, packed."""
        return _pack(
            (
                self.attempt,
                self.delivery,
                self.crashes,
                self.due_ms,
                self.deadline_ms,
                self.keep_ms,
                self.progress,
                self.worker,
                self.same,
                *((self.parent,) if self.parent or self.shown is not None else ()),
                *((self.shown,) if self.shown is not None else ()),
            )
        )

    @classmethod
    def restore(cls, columns: Sequence[Any], rest: bytes, spec: bytes = b"", value: bytes = b"") -> RunState:
        """Returns the state that columns (`id` to `blocks`) and a packed rest say."""
        values = (*columns, spec, value, *_unpack(rest))
        # Few have a parent or show anything, which stands last.
        return cls(**dict(zip(cls.__struct_fields__, values, strict=False)))

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
    #: How long it stood in a queue, was executed, and waited: for a moment, or for somebody.
    queued_ms: int = 0
    running_ms: int = 0
    waiting_ms: int = 0
    #: Since when it does what it does; of a step that waits for a moment, that moment.
    since_ms: int = 0


def read_facts(text: str) -> dict[str, str]:
    """Returns the facts of an event by name."""
    return dict(fact.split("=", 1) for fact in text.split(",")) if text else {}


def write_fact(text: str) -> str:
    """Returns a text as it may stand among facts, whatever is in it."""
    return text.replace("%", "%25").replace(",", "%2C").replace("|", "%7C")


def read_fact(text: str) -> str:
    """Returns the text that was written as a fact."""
    return text.replace("%7C", "|").replace("%2C", ",").replace("%25", "%")


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
    state.kind = "graph" if spec.definition else "workflow" if spec.flow else "task"
    state.name, state.queue, state.keep_ms, state.spec = spec.name, spec.queue, spec.keep_ms, event.payload
    if spec.key or spec.once_ms:
        # What is debounced is remembered that long only while it waits for a worker.
        once_ms = spec.delay_ms + SETTLED_MS if spec.debounced else spec.once_ms
        state.claims_ms = event.at_ms + (spec.key_ms if spec.key else once_ms)
    if event.type == "queued":
        facts = read_facts(event.facts)
        state.same = facts.get("same", "")
        state.parent = facts.get("parent", "") or "/".join(filter(None, parent_of(spec)))
        state.created_ms = event.moment_ms
        state.due_ms = spec.due_ms or (event.at_ms + spec.delay_ms if spec.delay_ms else 0)
        if "due" in facts:  # a step
            state.due_ms = int(facts["due"])
        if state.kind == "graph":
            state.status = RunStatus.RUNNING.value
        elif state.kind == "workflow":
            state.shown = ""
    else:
        state.due_ms = int(read_facts(event.facts)["due"])
    # Of a debounced run the newest call's counts.
    state.deadline_ms = event.at_ms + spec.deadline_ms if spec.deadline_ms else 0


def ask(state: RunState, packed: bytes, at_ms: int) -> None:
    """Notes what a step is asked that was opened at a moment by an event which does not say it."""
    spec = SPEC_DECODER.decode(packed)
    state.name, state.queue, state.keep_ms, state.spec = spec.name, spec.queue, spec.keep_ms, packed
    state.deadline_ms = at_ms + spec.deadline_ms if spec.deadline_ms else 0


def _end(state: RunState, event: Logged) -> None:
    head, comma, tail = event.facts.partition(",started=")
    facts = {}
    if comma and tail.isdigit() and head.startswith("attempt="):
        # How nearly all of them end.
        state.attempt, state.started_ms, facts = int(head[8:]), int(tail), {"started": tail}
    elif event.facts:
        facts = read_facts(event.facts)
        attempt, started_ms = int(facts.get("attempt", state.attempt)), int(facts.get("started", state.started_ms))
        crashes, delivery = int(facts.get("crashes", state.crashes)), int(facts.get("delivery", state.delivery))
        state.attempt, state.started_ms, state.crashes, state.delivery = attempt, started_ms, crashes, delivery
    state.status, state.ended_ms, state.due_ms, state.value = event.type, event.moment_ms, 0, event.payload
    if state.claims_ms - state.created_ms > ID_MS - DAY_MS:
        state.claims_ms = 0  # the id of a workflow run is free when the run has ended
    if "session" in facts:
        state.worker = facts["session"]  # somebody else has ended what it had in hand
    elif event.type == "failed" and state.kind != "graph" and facts:
        state.worker = event.by


def _go_on(state: RunState, event: Logged) -> None:
    kind = event.type
    if kind.startswith("step_"):
        return  # most of what happens in graph runs, and nothing that moves the run itself
    facts = read_facts(event.facts)
    if kind in ("retrying", "snoozed", "returned"):
        after_ms = int(facts["after_ms"])
        state.attempt = int(facts["attempt"]) + (kind == "retrying")
        state.delivery += 1
        state.due_ms = event.at_ms + after_ms if after_ms else 0
        if kind == "retrying":
            state.value = event.payload
        state.status = "waiting" if after_ms and kind != "returned" else "queued"
    elif kind in ("reclaimed", "recovered", "held"):
        if state.kind == "graph":
            return
        state.crashes = int(facts.get("crashes", state.crashes))
        state.delivery += 1
        waits = kind == "recovered" and state.status == "waiting" and state.due_ms > event.at_ms  # as it did before
        state.status = "waiting" if waits else "queued"
    elif kind == "started":
        state.started_ms, state.status = int(facts["started"]), "running"
    elif kind == "progress":
        state.progress = event.payload.decode()
    elif kind == "rescheduled":
        state.due_ms = int(facts["due"])
    elif kind in ("state_changed", "continued"):
        _show(state, event)
    elif kind in LETTERS:
        state.due_ms = event.at_ms
        if kind == "purged":
            state.keep_ms = PURGED
    elif kind in ("paused", "resumed", "retried"):
        # A graph run that was retried had ended before.
        state.status, state.ended_ms = ("paused" if kind == "paused" else "running"), 0


def _show(state: RunState, event: Logged) -> None:
    """Notes what a workflow run shows of itself. A new life that shows nothing new shows what the one before did."""
    packed = event.payload if event.type == "state_changed" else RENEWAL_DECODER.decode(event.payload).state
    if packed:
        state.shown = b64encode(packed).decode() if len(packed) <= MAX_SHOWN else None


#: Steps that wait: for a signal, for people, for a moment, or for a run they have started.
_WAITING = frozenset({"$signal", "$approval", "$wait", "$graph"})
#: Events of steps that end nothing.
_OPEN_STEPS = frozenset({"step_waiting", "step_retrying", "step_snoozed", "step_hedged", "step_yielded"})


def fold_step(steps: dict[tuple[str, str], StepState], event: Logged) -> None:
    """Moves the steps of a graph run on: by an event of the step itself (`<run>/<step>`), or by one of its run."""
    run, _, step = event.run.partition("/")
    facts = read_facts(event.facts)
    if step:
        _fold_own(steps.setdefault((run, step), StepState(run, step)), event, facts)
    elif (event.type == "routed" or event.type.startswith("step_")) and "step" in facts:
        state = steps.setdefault((run, facts["step"]), StepState(run, facts["step"]))
        if event.type in _OPEN_STEPS:
            if event.type == "step_waiting":
                state.status = "waiting"
            return
        started_ms = int(facts.get("started", state.started_ms))
        if not state.ended_ms:
            _spend(state, started_ms, event.moment_ms)
        state.status = "completed" if event.type in ("routed", "step_cached") else event.type.removeprefix("step_")
        state.attempt, state.started_ms = int(facts.get("attempt", state.attempt)), started_ms
        state.ended_ms, state.seq = event.moment_ms, event.seq
        if "asks" in facts:
            # The one behind it was opened without an event of its own.
            ahead = facts["opened"]
            at_ms = event.moment_ms
            steps[run, ahead] = StepState(run, ahead, facts["asks"], created_ms=at_ms, since_ms=at_ms)


def _fold_own(state: StepState, event: Logged, facts: dict[str, str]) -> None:
    if event.type == "queued":
        # Some are opened again under the same name.
        state.name, state.created_ms = SPEC_DECODER.decode(event.payload).name, event.moment_ms
        state.status, state.attempt, state.started_ms, state.ended_ms, state.seq = "ready", 1, 0, 0, 0
        state.since_ms = max(event.moment_ms, int(facts.get("due", 0)))
        state.queued_ms, state.running_ms, state.waiting_ms = 0, 0, state.since_ms - event.moment_ms
    elif event.type in ENDINGS:
        _spend(state, int(facts.get("started", state.started_ms)), event.moment_ms)
        state.status, state.ended_ms = event.type, event.moment_ms
    elif event.type in ("retrying", "snoozed", "returned"):
        _spend(state, int(facts.get("started", 0)), event.moment_ms)
        after_ms = int(facts["after_ms"])
        state.attempt = int(facts["attempt"]) + (event.type == "retrying")
        state.status = "waiting" if after_ms and event.type != "returned" else "ready"
        state.waiting_ms += after_ms
        state.since_ms = event.moment_ms + after_ms
    elif event.type == "rescheduled":
        # What it was to wait for is counted already.
        due_ms = max(int(facts["due"]), event.moment_ms)
        state.waiting_ms = max(0, state.waiting_ms + due_ms - state.since_ms)
        state.since_ms = due_ms
    elif event.type == "started":
        _spend(state, int(facts["started"]), int(facts["started"]))
        state.started_ms, state.status = int(facts["started"]), "running"
    elif event.type in ("reclaimed", "recovered", "held"):
        # When it was taken, its worker alone knew.
        _spend(state, state.since_ms, event.moment_ms)
        state.status, state.since_ms = "ready", event.moment_ms


def _spend(state: StepState, started_ms: int, until_ms: int) -> None:
    """Adds the time up to a moment to what the step did: until it was taken it was queued, from then on executed.

    One that waits for somebody is taken up by a worker only to let it wait.
    """
    since_ms = state.since_ms or started_ms or until_ms
    if until_ms < since_ms:
        # It ended before the moment it was to wait for, which is counted already.
        state.waiting_ms = max(0, state.waiting_ms - (since_ms - until_ms))
        since_ms = until_ms
    taken_ms = min(max(started_ms, since_ms), until_ms)
    if state.name in _WAITING:
        state.waiting_ms += until_ms - since_ms
    else:
        state.queued_ms += taken_ms - since_ms
        state.running_ms += until_ms - taken_ms
    state.since_ms = until_ms


def blob_of(event: Logged) -> str:
    """Returns the digest of the blob that an event's value stands in, or nothing."""
    if len(event.payload) < SHORTEST_BLOB:
        return ""
    if event.type == "continued":
        return RENEWAL_DECODER.decode(event.payload).input.blob
    return VALUE_DECODER.decode(event.payload).blob if event.type in VALUES else ""


def definition_of(event: Logged) -> set[str]:
    """Returns the digest of the definition that a run follows from this event on, if it changes."""
    return {msgspec.json.decode(event.payload)["definition"]} if event.type == "patched" else set()


def maps_of(event: Logged) -> list[tuple[str, str]]:
    """Returns the maps that began with an event: run and step each."""
    if ",trace=" not in event.facts:
        return []
    traces = read_facts(event.facts)["trace"].split()
    return [(event.run, trace.split(":")[1]) for trace in traces if trace.startswith("m:")]


def labels_of(state: RunState, tags: dict[str, str]) -> list[tuple[str, str, str]]:
    """Returns what a run is found by besides its columns: its id, a name and a value each."""
    found = [(state.id, name, value) for name, value in tags.items()]
    if state.parent:
        found.append((state.id, PARENT, state.parent.partition("/")[0]))
    if state.status == RunStatus.FAILED and state.value:
        error = ERROR_DECODER.decode(state.value)
        found.append((state.id, ERROR, label(error.type)))
        if error.code:
            found.append((state.id, CODE, label(error.code)))
    return found


def label(text: str) -> str:
    """Returns what an error says of itself as something that runs are found by, in whichever database."""
    return text[:MAX_LABEL_CHARS].replace("\0", "\\0")


def result_blob(state: RunState) -> str:
    """Returns the digest of the blob that a run gave, or nothing."""
    large = state.status == "completed" and len(state.value) >= SHORTEST_BLOB
    return VALUE_DECODER.decode(state.value).blob if large else ""
