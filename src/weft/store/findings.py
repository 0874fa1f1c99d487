"""What an audit finds, and what it is found about."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from weft.store.keys import Family

#: Keys asked for by one SCAN, and members read at once inside a stream or a sorted set.
PAGE = 500
#: Findings reported for the members of one key; a wiped namespace would otherwise give one per queued token.
MAX_PER_KEY = 100


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that should not be so."""

    key: str
    family: str
    problem: str
    advice: str


@dataclass(frozen=True, slots=True)
class Key:
    """A key that is spelled as one of ours."""

    text: str
    p: int
    family: Family
    parts: tuple[str, ...]

    def finding(self, problem: str, advice: str) -> Finding:
        return Finding(self.text, self.family.name, problem, advice)


def text_of(value: Any) -> str:
    return value.decode(errors="backslashreplace") if isinstance(value, bytes) else str(value)
