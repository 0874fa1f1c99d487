"""Dead letters as people read them, and what makes two of their errors the same. Pure data and text."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import Any

import msgspec

from weft.core.fold import Logged, read_facts

#: Characters of a message that count for its fingerprint.
COMPARED_CHARS = 300

#: What differs between two errors of the same kind: ids, numbers, addresses, quoted values.
_VARIABLE = re.compile(
    r"""
    "(?:[^"\\]|\\.)*" | '(?:[^'\\]|\\.)*' | `[^`]*`                        # quoted
    | \b[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}\b              # UUID
    | \br\d+-[0-9A-HJKMNP-TV-Z]{22}\b                                       # run id
    | \b0x[0-9a-fA-F]+\b | \b(?=[0-9a-fA-F]*\d)[0-9a-fA-F]{8,}\b | \d+      # numbers, digests
    """,
    re.VERBOSE,
)


class DeadLetter(msgspec.Struct, frozen=True):
    """A run that failed for good, with what is needed to understand and to repeat it."""

    id: str
    task: str
    queue: str
    priority: int
    error: dict[str, Any]
    fingerprint: str
    attempts: int
    crashes: int
    worker: str
    created_at: datetime
    failed_at: datetime
    tags: dict[str, str]
    replay_of: str
    replayed_as: str
    investigated: Investigation | None
    #: The run that failed; with a step, the graph run whose step it was, which went on.
    run_id: str = ""
    step: str = ""
    #: The arguments, by name. Read by `get` only; None in listings, and when they are no longer kept.
    input: Any = None


class Investigation(msgspec.Struct, frozen=True):
    """Somebody looked into a dead letter."""

    at: datetime
    by: str
    note: str


class LetterPage(msgspec.Struct, frozen=True):
    """Dead letters, newest first, and where the next page begins (empty: there is none)."""

    letters: list[DeadLetter]
    cursor: str

    def __iter__(self) -> Iterator[DeadLetter]:
        return iter(self.letters)

    def __len__(self) -> int:
        return len(self.letters)

    def __getitem__(self, at: int) -> DeadLetter:
        return self.letters[at]


class LetterGroup(msgspec.Struct, frozen=True):
    """Dead letters of one task that failed in the same way."""

    fingerprint: str
    task: str
    type: str
    message: str
    count: int
    first_at: datetime
    last_at: datetime
    #: The newest of them.
    id: str


class ReplayReport(msgspec.Struct, frozen=True):
    """What came of replaying many: new run by dead letter, and why others were left out."""

    matched: int
    replayed: dict[str, str] = {}
    skipped: dict[str, str] = {}


def marks_of(events: Iterable[Logged]) -> dict[str, bytes]:
    """Returns what the hash of a dead letter has besides, by the events behind its end: its replay, and who looked into it."""
    found: dict[str, bytes] = {}
    for event in events:
        if event.type == "replayed":
            found["replayed"] = read_facts(event.facts)["run"].encode()
        elif event.type == "investigated":
            found.pop("investigated", None)
            if event.payload:
                found["investigated"] = f"{event.at_ms} {event.by} ".encode() + event.payload
    return found


def fingerprint_of(task: str, error: dict[str, Any]) -> str:
    """Returns what errors of one task have in common that differ only in numbers, ids and quoted values."""
    message = _VARIABLE.sub("#", str(error["message"])[:COMPARED_CHARS])
    text = "\0".join([task, str(error["type"]), str(error.get("code", "")), message])
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:12]
