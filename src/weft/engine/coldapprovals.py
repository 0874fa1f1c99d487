"""Approvals that the hot store no longer holds: what was asked and shown, who decided, when and from where."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgspec

from weft.codec import decode_plain, encode_plain
from weft.core.approvals import Approval, Ask, digest_of
from weft.core.history import History, read_history
from weft.core.model import SPEC_DECODER
from weft.engine.coldruns import cold_blob, readable
from weft.engine.engine import Engine
from weft.errors import Conflict, WeftError
from weft.ids import partition_of

_pack = msgspec.json.Encoder().encode

#: What the event of a vote tells besides the vote.
_BESIDES = frozenset(("votes", "quorum", "request"))


async def find_cold_approval(engine: Engine, id: str) -> Approval | None:
    """Returns an approval as the archive has it; None when it has none. Raises Conflict when what was shown was changed."""
    run, _, step = id.partition("/") if isinstance(id, str) else ("", "", "")
    try:
        partition_of(run)
    except WeftError:
        return None
    if not step or not await readable(engine):
        return None
    from weft.archive.rows import read_approval

    row = await read_approval(engine.cold.database, engine.ns.keys.namespace, run, step)
    if row is None:
        return None
    history = read_history(run, await engine.cold.reader.all_events(run))
    ask, show = await _asked(engine, history, step)
    state = await engine.cold.reader.run(run)
    # Of an imported run secrets may have been taken out of what was shown; its digest stays that of what people saw.
    imported = state is not None and state.state.blocks.startswith(" -")
    if not imported and digest_of(id, _pack(ask), show) != row.digest:
        raise Conflict(f"what approval {id} showed is not what its archive says: digest {row.digest}", id=id)
    decision = msgspec.json.decode(bytes(row.decision)) if row.decision else None
    over = state is not None and state.state.finished
    votes, notes = _told(history, step, decision)
    return Approval(
        id=id,
        run_id=run,
        step=step,
        status="cancelled" if row.status == "pending" and over else row.status,
        title=ask.title,
        show=decode_plain(show),
        form=ask.form,
        approvers=_approvers(ask, notes),
        quorum=ask.quorum,
        votes=votes,
        history=notes,
        opened_at=_moment(row.opened_ms),
        due_at=_moment(row.opened_ms + ask.timeout_ms) if ask.timeout_ms else None,
        decided_at=_moment(row.decided_ms) if row.decided_ms else None,
        decision=decision,
        digest=row.digest,
    )


async def _asked(engine: Engine, history: History, step: str) -> tuple[Ask, bytes]:
    state = history.steps.get(step)
    if state is None or not state.spec:
        raise Conflict(f"what approval {history.run}/{step} showed is not in the archive", id=f"{history.run}/{step}")
    spec = SPEC_DECODER.decode(state.spec)
    data = await cold_blob(engine, spec.blob) if spec.blob else spec.input
    asked: dict[str, Any] = decode_plain(data or b"")
    show = encode_plain(asked.pop("show"))
    return msgspec.convert(asked, Ask), show


def _told(
    history: History, step: str, decision: dict[str, Any] | None
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Returns the votes, and what else happened to it: since it was asked the last time."""
    votes: list[dict[str, Any]] = []
    notes: list[dict[str, Any]] = []
    for event in history.events:
        if f"step={step}" not in event.facts.split(","):
            continue
        if event.type == "step_waiting":
            votes, notes = [], []
        elif event.type.startswith("approval_"):
            told, what = msgspec.json.decode(event.payload), event.type.removeprefix("approval_")
            if what == "voted":
                votes.append({name: value for name, value in told.items() if name not in _BESIDES})
            elif what != "decided":
                note = {
                    "what": what,
                    "by": told.get("by", ""),
                    "to": told["to"],
                    "at": told.get("at") or _text(event.at_ms),
                }
                notes.append({**note, "comment": told.get("comment", "")})
    return (decision["votes"] if decision is not None else votes), notes


def _approvers(ask: Ask, notes: list[dict[str, Any]]) -> list[str]:
    """Returns who may decide, or might have, after what happened to it."""
    found = list(ask.approvers)
    for note in notes:
        if note["what"] == "delegated":
            found = [name for name in found if name != note["by"]]  # a person stepped back
        if note["what"] != "reminded":
            found += [name for name in note["to"] if name not in found]
    return found


def _text(ms: int) -> str:
    return _moment(ms).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _moment(ms: int) -> datetime:
    return datetime.fromtimestamp(ms / 1000, UTC)
