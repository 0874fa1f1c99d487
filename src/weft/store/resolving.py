"""Workflow runs whose code and journal do not fit, in Redis: resolve, fork. One function per script."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from weft.core.flow import Entry
from weft.core.model import SPEC_ENCODER, RunSpec
from weft.store.keys import GROUP, TIMER_WAKE
from weft.store.namespace import Namespace
from weft.store.runs import RunRow


async def resolve_flow(
    ns: Namespace,
    p: int,
    row: RunRow,
    *,
    goes_on: bool,
    length: int = -1,
    changed: Mapping[int, Entry] | None = None,
    spec: RunSpec | None = None,
    facts: str,
    by: str,
) -> str:
    """Changes what a run's code is told, or its spec; returns words (see resolve_flow.lua)."""
    keys, own = ns.keys, row.spec
    reply = await ns.call(
        "resolve_flow",
        p,
        {
            "log": keys.log(p),
            "timers": keys.timers(p),
            "queues": keys.queues(p),
            "wake": keys.wake(p, own.queue),
            "wf.tasks": keys.tasks(p, own.queue, own.priority),
            "run": keys.run(p, row.id),
            "journal": keys.journal(p, row.id),
        },
        {
            "by": by,
            "group": GROUP,
            "inbox": keys.inbox(0, ""),
            "ledger": row.text("open") if goes_on else "",
            "length": length,
            "spec": b"" if spec is None else SPEC_ENCODER.encode(spec),
            "facts": facts,
        },
        [(at, _told(entry)) for at, entry in (changed or {}).items()],
    )
    return str(reply.decode())


async def fork_flow(
    ns: Namespace,
    p: int,
    row: RunRow,
    run: str,
    spec: RunSpec,
    *,
    length: int,
    changed: Mapping[int, Entry | None],
    blobs: Sequence[str],
    by: str,
) -> str:
    """Starts a run with what another one's code was told; returns words (see fork_flow.lua). None: the entry is left out."""
    keys, both = ns.keys, (row.id, run)
    copied = [*blobs, *([spec.blob] if spec.blob else [])]
    reply = await ns.call(
        "fork_flow",
        p,
        {
            "log": keys.log(p),
            "timers": keys.timers(p),
            "wake": keys.wake(p, TIMER_WAKE),
            "run": [keys.run(p, one) for one in both],
            "journal": [keys.journal(p, one) for one in both],
            "mail": [keys.mail(p, one) for one in both],
            "belongings": keys.belongings(p, run),
            "blob": [keys.blob(p, one, digest) for digest in copied for one in both],
        },
        {
            "by": by,
            "ledger": row.text("open"),
            "length": length,
            "spec": SPEC_ENCODER.encode(spec),
            "deadline_ms": spec.deadline_ms,
            "digests": " ".join(blobs),
        },
        [(at, "" if entry is None else _told(entry)) for at, entry in changed.items()],
    )
    return str(reply.decode())


async def retry_flow(
    ns: Namespace,
    p: int,
    old: str,
    run: str,
    spec: RunSpec,
    entries: Sequence[bytes],
    *,
    blobs: Sequence[str],
    lived: int,
    state: bytes,
    reason: str,
    by: str,
    delay_ms: int = 0,
) -> str:
    """Starts a run with entries of an ended one's journal; returns words (see retry_flow.lua)."""
    keys, unique = ns.keys, spec.unique or spec.once
    reply = await ns.call(
        "retry_flow",
        p,
        {
            "log": keys.log(p),
            "timers": keys.timers(p),
            "wake": keys.wake(p, TIMER_WAKE),
            "run": [keys.run(p, one) for one in (old, run)],
            "journal": keys.journal(p, run),
            "belongings": keys.belongings(p, run),
            "blob": [keys.blob(p, run, digest) for digest in blobs],
            "unique": [keys.unique(p, unique)] if unique and spec.once_ms else [],
        },
        {
            "by": by,
            "spec": SPEC_ENCODER.encode(spec),
            "delay_ms": delay_ms,
            "deadline_ms": spec.deadline_ms,
            "unique_ms": spec.once_ms,
            "lived": lived,
            "state": state,
            "reason": reason,
        },
        [(entry,) for entry in entries],
    )
    return str(reply.decode())


def _told(entry: Entry) -> str:
    return f"{entry.at_ms} {entry.header}"
