"""Starts that stand in the database before the store is told of them: all that is needed to start a run. Pure data."""

from __future__ import annotations

import hashlib
from typing import Any

import msgspec

from weft.core.model import SPEC_DECODER, RunSpec


class Start(msgspec.Struct, frozen=True):
    """A run that was asked for, and is to be started whatever becomes of whoever asked."""

    run: str
    partition: int
    #: `task` (workflows too: both are one token) or `graph`.
    kind: str
    #: What makes calls count as one, `k:<digest>` for an idempotency key or `u:<digest>`; empty: nothing does.
    claim: str
    #: Until when that holds (ms of the store's own clock).
    claim_ms: int
    #: Digest of the payload, by which calls with one key are compared.
    same: str
    #: When it was asked for, in the partition's time; and when somebody last set out to start it, by the store's own clock.
    at_ms: int
    tried_ms: int
    #: In which life of the partition that was: its epoch, and the server process that held it.
    life: str
    #: What was asked for, packed, with the input when that is small.
    spec: bytes
    #: The input when it is large.
    input: bytes
    #: Of a graph: what it follows, packed.
    more: bytes

    @property
    def by_key(self) -> bool:
        """Whether it has an idempotency key, whose run stays the answer after it has ended."""
        return self.claim.startswith("k:")

    def request(self, now_ms: int, *, free: bool = False) -> RunSpec:
        """Returns what is asked of the store now: what was to last from the start on has gone on meanwhile.

        `free`: without its records, which another run has by now.
        """
        spec, late = SPEC_DECODER.decode(self.spec), max(0, now_ms - self.at_ms)
        changes: dict[str, Any] = {
            name: max(1, getattr(spec, name) - late) for name in ("deadline_ms", "once_ms") if getattr(spec, name)
        }
        if spec.key:
            changes["key_ms"] = max(1, spec.key_ms - late)
        if free:
            changes |= {"key": "", "unique": "", "once": "", "once_ms": 0}
        return msgspec.structs.replace(spec, **changes) if changes else spec


class Blueprint(msgspec.Struct, frozen=True, array_like=True):
    """What a graph run follows: its definition, and those of its subgraphs by their digest."""

    definition: bytes
    children: dict[str, bytes]


def key_digest(key: str) -> str:
    """Returns the name of the record that an idempotency key has."""
    return hashlib.sha256(key.encode()).hexdigest()[:32]


def same_digest(spec: RunSpec, data: bytes) -> str:
    """Returns the digest by which calls with one idempotency key are compared."""
    return hashlib.sha256(f"{spec.name}\0".encode() + data).hexdigest()[:32]
