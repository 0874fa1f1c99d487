"""The short way to commit turns of workflow runs: one entry each, and nothing else.

That is nearly every step that runs where its workflow does. What turns out to be otherwise in the server is committed by
commit_flows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from weft.core.flow import FlowRecord, Turn
from weft.store.namespace import Namespace

_pack = msgspec.msgpack.Encoder().encode


def is_told(record: FlowRecord) -> bool:
    """Tells whether a commit may go the short way: a turn that adds one entry and does nothing else."""
    if type(record) is not Turn or record.kind != "go" or len(record.added) != 1 or not record.expect:
        return False
    if record.take or record.state is not None or record.lines is not None or record.told or record.drops is not None:
        return False
    (added,) = record.added
    return not (added.blob or added.call is not None or added.child or added.answer) and bool(added.event)


async def commit_told(
    ns: Namespace, p: int, turns: Sequence[Turn], *, session: str, caller: Any = None
) -> list[list[bytes] | None]:
    """Commits turns that go the short way in one call; returns replies as commit_flows does, None where it must be asked."""
    keys = ns.keys
    run_at, journal_at, mail_at = keys.run(p, ""), keys.journal(p, ""), keys.mail(p, "")
    facts: list[str | int] = []
    runs, payloads = [], []
    for turn in turns:
        token, added = turn.token, turn.added[0]
        entry, (event, _, about) = added.entry, added.event.partition("|")
        facts += (turn.id, token.ledger, turn.expect, entry.header, event, about)
        runs.append(token.run)
        payloads.append((entry.payload,))
    now, *waiting = await ns.call(
        "commit_told",
        p,
        {
            "log": keys.log(p),
            "run": [run_at + run for run in runs],
            "journal": [journal_at + run for run in runs],
            "mail": [mail_at + run for run in runs],
        },
        {"controls": ns.controls[p].version, "by": session, "packed": _pack(facts)},
        payloads,
        caller=caller,
    )
    return [None if mails < 0 else [b"ok", now, b"%d" % mails] for mails in waiting]
