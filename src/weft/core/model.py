"""The nouns of a run: what was asked for, what happened, how it stands. Pure data, no I/O, no clock.

`RunSpec` travels as msgpack inside the run's hash, its token and its first event; Lua never looks inside.
Field names are short on the wire because a million queued runs pay for each letter, and defaults are left out.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any

import msgspec

#: Milliseconds one attempt may take unless the task says otherwise.
DEFAULT_TIMEOUT_MS = 30_000
#: Milliseconds a finished run stays readable unless the task says otherwise.
DEFAULT_KEEP_MS = 3_600_000
#: Milliseconds an idempotency key is remembered.
IDEMPOTENCY_WINDOW_MS = 24 * 3_600_000
#: Milliseconds a debounced call is remembered once its delay is over: a replay of an equal one minds it.
SETTLED_MS = 60_000
#: Bytes up to which a value stays inline; larger ones become blobs.
INLINE_BYTES = 4096
#: The queue of steps that decide what follows in graph runs. Every worker serves it; `@` cannot stand in a name users choose.
ROUTES = "@routes"
#: Worker deaths charged to a run after which it counts as poison and is not tried again.
MAX_CRASHES = 3


class RunStatus(StrEnum):
    """How a run stands."""

    QUEUED = "queued"
    RUNNING = "running"
    WAITING = "waiting"
    PAUSED = "paused"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def finished(self) -> bool:
        return self in _FINISHED


_FINISHED = frozenset({RunStatus.COMPLETED, RunStatus.FAILED, RunStatus.CANCELLED})


class Limit(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True):
    """A gate that a step must pass: at most `n` at once, or with a window at most `n` units in any stretch of it."""

    gate: str
    n: int
    window_ms: int = 0
    cost: int = 1


class RunSpec(
    msgspec.Struct,
    frozen=True,
    omit_defaults=True,
    rename={
        "name": "n",
        "input": "i",
        "blob": "b",
        "queue": "q",
        "priority": "p",
        "retries": "r",
        "backoff": "f",
        "retry_delay_ms": "d",
        "max_delay_ms": "m",
        "jitter": "j",
        "timeout_ms": "t",
        "deadline_ms": "l",
        "delay_ms": "w",
        "due_ms": "u",
        "keep_ms": "e",
        "tags": "g",
        "key": "k",
        "key_ms": "a",
        "limits": "x",
        "fair": "y",
        "unique": "z",
        "once": "c",
        "once_ms": "h",
        "debounced": "B",
        "replay_of": "o",
        "definition": "v",
        "memo": "s",
        "flow": "F",
        "version": "V",
        "durability": "D",
    },
):
    """What was asked for. Fixed when the run is accepted; retries and worker versions come and go around it."""

    name: str
    input: bytes = b""
    blob: str = ""
    queue: str = "default"
    priority: int = 5
    retries: int = 0
    backoff: str = "exponential"
    retry_delay_ms: int = 1_000
    max_delay_ms: int = 300_000
    jitter: bool = True
    timeout_ms: int = DEFAULT_TIMEOUT_MS
    deadline_ms: int = 0
    delay_ms: int = 0
    due_ms: int = 0
    keep_ms: int = DEFAULT_KEEP_MS
    tags: dict[str, str] = {}
    key: str = ""
    key_ms: int = IDEMPOTENCY_WINDOW_MS
    limits: list[Limit] = []
    #: The concurrency key: those who wait at the same gate take turns by it.
    fair: str = ""
    #: The record that makes calls like this one count as one, given back when it fails.
    unique: str = ""
    #: The same of a throttled or debounced call: it stays, whatever becomes of the run.
    once: str = ""
    #: How long either record is kept.
    once_ms: int = 0
    #: The delay is that of a debounced call: newer ones give the run their arguments until it is over.
    debounced: bool = False
    replay_of: str = ""
    #: Digest of the definition that a graph run, or a step of one, follows.
    definition: str = ""
    #: Where what this step gives is kept for steps like it: `<graph>.<node>:<digest>:<key>`.
    memo: str = ""
    #: Of a workflow run, or a call of one: see core/flow.
    flow: str = ""
    #: The version of its code that a workflow run is pinned to; empty: whichever a worker has.
    version: str = ""
    #: How safely its start must be kept before it is acknowledged; empty: in the memory of the store.
    durability: str = ""

    @property
    def formed(self) -> bool:
        """Whether its arguments may have gone through expressions: those of a step of a graph, or of one that is replayed."""
        return self.definition != "" or "/" in self.replay_of


class ErrorRecord(msgspec.Struct, omit_defaults=True):
    """An error as it is stored: enough to raise it again elsewhere, nothing that needs its class."""

    type: str
    message: str
    traceback: str = ""
    causes: list[dict[str, str]] = []
    code: str = ""


class Value(msgspec.Struct, omit_defaults=True, rename={"inline": "v", "blob": "b", "size": "s"}):
    """A result: its bytes, or where they are."""

    inline: bytes = b""
    blob: str = ""
    size: int = 0


class Event(msgspec.Struct, frozen=True):
    """One thing that happened to a run."""

    run_id: str
    seq: int
    type: str
    at: datetime
    step: str
    data: dict[str, Any]

    @property
    def terminal(self) -> bool:
        return self.type in _FINISHED


class LogLine(msgspec.Struct, frozen=True):
    """One line that a step logged."""

    at: datetime
    level: str
    message: str
    fields: dict[str, Any]
    attempt: int
    #: Lines that stood before this one and are no longer kept.
    dropped: int = 0
    #: The step of a graph run that logged it; empty for a task.
    step: str = ""


class RunInfo(msgspec.Struct, frozen=True):
    """How a run stands, in one read."""

    id: str
    name: str
    kind: str
    status: RunStatus
    queue: str
    priority: int
    attempt: int
    delivery: int
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    due_at: datetime | None
    deadline_at: datetime | None
    progress: float | None
    message: str
    error: dict[str, Any] | None
    tags: dict[str, str]
    durability: str
    idempotency_key: str
    crashes: int
    worker: str
    state: dict[str, Any]
    replay_of: str = ""
    replayed_as: str = ""
    #: The step that this run is a subgraph of: `<run>/<step>`.
    parent: str = ""
    #: The version of its code that a workflow run is pinned to.
    version: str = ""
    #: Only the archive has it, and something of it could not be archived: this is how it stood before.
    gap: bool = False


@dataclass(slots=True, eq=False)
class Token:
    """The right to execute one attempt of one step."""

    partition: int
    epoch: int
    run: str
    entry: str
    delivery: int
    attempt: int
    spec: RunSpec
    claimed_ms: int
    #: Names of the gates it passed, separated by blanks.
    gates: str = ""
    #: Worker deaths charged to its run.
    crashes: int = 0
    #: Runs that stood behind it in line when it was let through, separated by blanks: the first may get its slot.
    heirs: str = ""
    #: Its step was ended by somebody else, and only what follows is to be done.
    closed: bool = False
    #: What tells it from every other token: entry ids repeat between the streams of a worker's queues.
    key: tuple[str, str] = field(init=False)
    #: What the ledger says while it is out.
    ledger: str = field(init=False)

    def __post_init__(self) -> None:
        self.key = (self.run, self.entry)
        self.ledger = f"{'=' if self.closed else ''}{self.delivery}:{self.entry}"

    @property
    def is_suspect(self) -> bool:
        """Whether one more death would make it poison: then it runs alone among its like."""
        return self.crashes >= MAX_CRASHES - 1

    @property
    def fence(self) -> int:
        """Epoch and delivery in one rising integer."""
        return self.epoch << 20 | min(self.delivery, (1 << 20) - 1)


@dataclass(slots=True)
class Outcome:
    """How an attempt ended, ready to be committed."""

    token: Token
    kind: str
    value: bytes
    after_ms: int
    started_ms: int
    blob: str = ""
    #: Log lines that are not kept yet, packed; None when the attempt logged nothing.
    lines: bytes | None = None


class SessionInfo(msgspec.Struct):
    """What a worker session tells about itself."""

    id: str
    app: str
    host: str
    pid: int
    queues: list[str]
    tasks: list[str]
    concurrency: int
    started_ms: int
    version: str = ""
    #: The versions of workflows it has, by name.
    workflows: dict[str, list[str]] = {}

    @property
    def served(self) -> list[str]:
        """The queues it takes steps from: its own, and what every worker serves."""
        return [ROUTES, *self.queues]


SPEC_ENCODER = msgspec.msgpack.Encoder()
SPEC_DECODER = msgspec.msgpack.Decoder(RunSpec)
ERROR_DECODER = msgspec.msgpack.Decoder(ErrorRecord)
VALUE_DECODER = msgspec.msgpack.Decoder(Value)
SESSION_DECODER = msgspec.msgpack.Decoder(SessionInfo)
