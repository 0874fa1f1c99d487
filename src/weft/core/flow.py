"""Code workflows as data: entries of their journal, what one commit of them carries, and whom a call belongs to. Pure.

A workflow run (a *flow*) is a run like a task's. Its journal has all that its code was ever told, in that order: the code, run
again from the beginning and told the same, comes to the same place.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from weft.core.effects import run_of, step_of
from weft.core.model import RunSpec, Token, Value

#: Entries that a journal may have; from half of it on the worker warns.
MAX_ENTRIES = 50_000
#: Entries beyond that for the clean-up of a run whose journal is full.
ROOM = 5_000
#: Codes of errors by which a run has failed, whatever its code makes of being cancelled.
FINAL = frozenset({"deadline_exceeded", "history_limit"})
#: Pieces of mail that one commit takes.
TAKE = 100
#: Pieces of mail that may wait for a flow.
MAX_MAIL = 10_000

#: Milliseconds that the code of a run has for its clean-up once its deadline has passed; then it ends, whatever it does.
GRACE_MS = 30_000
#: Milliseconds after which a run whose code does not fit its journal is looked at again.
STALL_MS = 300_000
#: How the field `awaits` of a run begins whose code does not fit its journal.
DIVERGED = "the code of workflow"

#: Milliseconds that an id of a workflow run counts as taken, should its run never end.
ID_MS = 10 * 365 * 24 * 3_600_000

#: What `RunSpec.flow` of a workflow run, and of a call of one, begins with.
_FLOW, _CALL = "w", "c"


def flow_mark(parent: str = "", key: str = "") -> str:
    """Returns what marks a workflow run; `parent` and `key`: the run and the command that it is a child of."""
    return f"{_FLOW} {parent} {key}" if parent else _FLOW


def call_mark(queue: str, priority: int) -> str:
    """Returns what marks a call; queue and priority are its workflow's: whoever ends the call wakes it there."""
    return f"{_CALL} {queue} {priority}"


def is_flow(spec: RunSpec) -> bool:
    return spec.flow.startswith(_FLOW)


def is_step(spec: RunSpec) -> bool:
    """Tells whether a run is a step of another: a node of a graph run, or a call of a workflow run."""
    return bool(spec.definition) or spec.flow.startswith(_CALL)


def parent_of(spec: RunSpec) -> tuple[str, str]:
    """Returns the run and the command that a workflow run is a child of; empty for one that is none."""
    _, parent, key = (spec.flow + "  ").split(" ", 2)
    return (parent, key.strip()) if is_flow(spec) else ("", "")


def home_of_call(spec: RunSpec) -> tuple[str, int]:
    """Returns queue and priority of the workflow that a call belongs to."""
    _, queue, priority = spec.flow.split(" ")
    return queue, int(priority)


@dataclass(slots=True)
class Entry:
    """One thing that a flow was told.

    `begin -` with the moment it began, and of a later life what that begins with; `completed`, `failed` or `retrying` of a
    step; `opened` of a call or child; `cancel` when the journal is full; `fired` of a timer; `marker` of a change of the code;
    `answered` of an update (more: its id); `version` of the code that goes on from here; `kept`: an entry that fitted other
    code (more: its type and its own more), for when the code asks for it. What comes from others: `signal`, `update` (more: its
    id), `ended` of a call or child (more: how), `cancel`.
    """

    at_ms: int
    type: str
    key: str
    more: str = ""
    payload: bytes = b""

    @property
    def header(self) -> str:
        """What stands in front of the payload; the script that writes it puts the time before it."""
        return f"{self.type} {self.key} {self.more}"


def begun_of(entry: Entry) -> tuple[int, str, str]:
    """Returns of the entry that begins a journal the moment, the version of the code, and the run whose chance it has."""
    ms, version, run = [*entry.more.split(" "), "", ""][:3]
    return int(ms), "" if version == "-" else version, run


def version_in(entries: Sequence[Entry]) -> str:
    """Returns the version of the code that went on last by a journal; empty: it is not known."""
    for entry in reversed(entries):
        if entry.type == "version":
            return entry.key
    # Signals that came early may stand before its beginning.
    return next((begun_of(entry)[1] for entry in entries if entry.type == "begin"), "")


def as_kept(entry: Entry) -> Entry:
    """Returns an entry that does not fit as one that waits until the code asks for it."""
    return Entry(entry.at_ms, "kept", entry.key, f"{entry.type} {entry.more}", entry.payload)


def parse_entry(data: bytes) -> Entry:
    head, _, payload = data.partition(b"\n")
    at, type, key, more = head.decode().split(" ", 3)
    return Entry(int(at), type, key, more, payload)


def read_entries(packed: bytes) -> list[bytes]:
    """Returns the entries that an event has in one: `<bytes>:` and the entry, each."""
    found, at = list[bytes](), 0
    while at < len(packed):
        colon = packed.index(b":", at)
        end = colon + 1 + int(packed[at:colon])
        found.append(packed[colon + 1 : end])
        at = end
    return found


class Renewal(
    msgspec.Struct,
    omit_defaults=True,
    rename={"life": "l", "before": "b", "input": "i", "state": "s", "began_ms": "g"},
):
    """What a later life of a run begins with: `ctx.continue_as_new` ended the one before."""

    #: Counts from 0.
    life: int
    #: Entries of all lives before it. Lengths of journals count on from there: no life is taken for another.
    before: int
    input: Value
    #: What the run shows of itself, packed.
    state: bytes = b""
    #: When the first one began; 0: that is not known.
    began_ms: int = 0


_pack = msgspec.msgpack.Encoder().encode
RENEWAL_DECODER = msgspec.msgpack.Decoder(Renewal)


def renewal_of(begin: Entry) -> Renewal | None:
    """Returns what a life begins with; None for the first, which begins with what was asked for."""
    return RENEWAL_DECODER.decode(begin.payload) if begin.payload else None


def renewal_in(entries: Sequence[Entry]) -> Renewal | None:
    """Returns what the life begins with that a journal tells of. Signals that came early may stand before its beginning."""
    return next((renewal_of(entry) for entry in entries if entry.type == "begin"), None)


def turn_id(delivery: int, n: int, length: int, waits: str = "") -> str:
    """Returns the name of a commit: the n-th of a delivery, by code that has heard so many entries of all its journals.

    What the code did between hearing them and this commit, as logging, went with it: a replay need not do it again. `waits`:
    the timer or signal that the code waits for from here on. No entry tells of that, and a replay must come to it again.
    """
    return f"{delivery}.{n}.{length}@{waits}" if waits else f"{delivery}.{n}.{length}"


#: What the field `turn` of a rebuilt run has: it has begun, by nobody's turn.
REBUILT = "recovered"


@dataclass(slots=True)
class Told:
    """All that a flow was told in this life, and the name of its newest commit."""

    entries: list[Entry] = field(default_factory=list)
    turn: str = ""

    @property
    def before(self) -> int:
        """How many entries the journals of earlier lives had."""
        renewal = renewal_in(self.entries)
        return renewal.before if renewal is not None else 0

    @property
    def began_ms(self) -> int:
        """When its first life began; 0: that is not known."""
        begin = next((entry for entry in self.entries if entry.type == "begin"), None)
        if begin is None:
            return 0
        if renewal := renewal_of(begin):
            return renewal.began_ms
        began_ms, _, origin = begun_of(begin)
        return 0 if origin else began_ms  # a fork has the beginning of another run

    @property
    def heard(self) -> int | None:
        """How many of the entries the code had heard when it committed last; None: that is not known."""
        length = self.turn.partition("@")[0].rpartition(".")[2]
        return int(length) - self.before if length.isdigit() else None

    @property
    def rebuilt(self) -> bool:
        """Whether the store was lost since: nobody knows how far the code has come behind what it was told."""
        return self.turn == REBUILT

    @property
    def waits(self) -> str:
        """The timer or signal that the code waited for, told just these entries; empty: for none, or that is not known."""
        return self.turn.partition("@")[2] if self.heard == len(self.entries) else ""


def key_of(name: str, n: int, life: int) -> str:
    """Returns the key of a command: the n-th of its name in this life of its run. No two lives have one in common."""
    if life:
        return f"{name}~{life}.{n}"
    return f"{name}~{n}" if n else name


def life_of(key: str) -> int:
    """Returns the life that a command belongs to."""
    life, dot, _ = key.partition("~")[2].partition(".")
    return int(life) if dot else 0


@dataclass(slots=True)
class Added:
    """An entry that a commit adds to a journal, and the event that tells of it (`<type>|<facts>`; empty: none does)."""

    entry: Entry
    event: str = ""
    #: Digest of a staged value that the entry refers to.
    blob: str = ""
    #: A call to be opened.
    call: RunSpec | None = None
    #: A child that goes with the run.
    child: str = ""
    #: The bytes of that value, where they are at hand.
    data: bytes = b""
    #: What an update is answered: `+` and a value, `-` and the error of its handler, `!` and why it was refused.
    answer: bytes = b""

    def told(self, at_ms: int) -> Entry:
        """Returns the entry as the code is told of it, once it is committed: with a value that the journal only names."""
        self.entry.at_ms = at_ms
        if not self.data:
            return self.entry
        return Entry(at_ms, self.entry.type, self.entry.key, self.entry.more, _pack(Value(self.data)))


@dataclass(slots=True)
class FlowRecord:
    """What a worker commits for flows: a turn of one, or the end of a call."""

    token: Token
    value: bytes = b""
    blob: str = ""
    #: Log lines that are not kept yet, packed.
    lines: bytes | None = None
    #: Called with the reply: a word, then what the script says besides.
    done: Callable[[Sequence[Any]], None] = field(default=lambda reply: None, repr=False)
    answered: bool = False


@dataclass(slots=True)
class Turn(FlowRecord):
    """A flow goes on: `go` (the token stays), `park`, `stall` (it waits, whatever comes), or it ends: `completed`, `failed`,
    `cancelled`.
    """

    kind: str = "go"
    #: Tells this commit from every other of its run, so that a repeated one is known.
    id: str = ""
    #: How many entries the journals of all its lives must have.
    expect: int = 0
    added: list[Added] = field(default_factory=list)
    #: Pieces of mail to take, at most.
    take: int = 0
    #: For `park` when it goes on by itself (0: never); else how long the run is kept.
    ms: int = 0
    started_ms: int = 0
    #: What the run shows of itself, packed; None: as before.
    state: bytes | None = None
    #: Where its code waits, for people.
    awaits: str = ""
    #: The event that tells why it stalls; its payload is the value.
    told: str = ""
    #: A new life begins, with a journal of its own: what the one before had and lets go, as the run's belongings call it.
    drops: list[str] | None = None


@dataclass(slots=True)
class CallEnd(FlowRecord):
    """A call has ended: its flow gets mail."""

    kind: str = ""
    started_ms: int = 0

    @property
    def run(self) -> str:
        return run_of(self.token.run)

    @property
    def step(self) -> str:
        return step_of(self.token.run)
