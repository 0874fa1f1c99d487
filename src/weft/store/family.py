"""What is declared about a family of keys."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum


class Lifetime(StrEnum):
    """How long a key of a family may stay, and what the audit therefore demands of it."""

    FOREVER = "forever"  # as long as the namespace: no expiry expected
    WITH_RUN = "with run"  # open run: no expiry; finished run: an expiry is armed
    LEASE = "lease"  # always has an expiry, renewed by its owner
    WINDOW = "window"  # always has an expiry, set once
    QUEUE = "with queue"  # small, bounded, stays while its queue is used
    MESSAGE = "not stored"  # a pub/sub channel: nothing is kept


@dataclass(frozen=True)
class Family:
    """One family of keys."""

    name: str
    parts: tuple[str, ...]
    type: str
    holds: str
    lifetime: Lifetime
    owner: str
    inspect: str
    fields: dict[str, str] = field(default_factory=dict)
    replaces: str = ""

    @property
    def template(self) -> str:
        return ":".join(["<namespace>", "{<partition>}", self.name, *(f"<{part}>" for part in self.parts)])


FAMILIES: dict[str, Family] = {}


def declare(name: str, *parts: str, **facts: object) -> Family:
    """Declares a family."""
    family = FAMILIES[name] = Family(name, parts, **facts)  # type: ignore[arg-type]
    return family
