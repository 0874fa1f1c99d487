"""Steps that wait for something from outside: how a worker lets them wait, and what the timer service does for them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from weft.codec import decode_plain, encode_plain
from weft.core.approvals import Ask, State, digest_of, next_moment
from weft.core.model import Token
from weft.core.waits import SIGNAL
from weft.engine.approvals import tick_approval
from weft.store.namespace import Namespace
from weft.store.runs import read_runs
from weft.store.timers import drop_timers
from weft.store.waits import expire_wait, park_step

_pack = msgspec.json.Encoder().encode


async def park(ns: Namespace, token: Token, *, by: str) -> bool:
    """Lets a claimed step wait; False when what it waits for is there, and the token is still the worker's to go on with."""
    ask: dict[str, Any] = decode_plain(token.spec.input)
    if token.spec.name == SIGNAL:
        kind, wait_ms = f"signal:{ask['signal']}", int(ask["timeout_ms"])
        word = await park_step(ns, token.partition, token, kind=kind, wait_ms=wait_ms, by=by)
    else:
        word = await _park_approval(ns, token, ask, by=by)
    return word == "given"


def record_of(id: str, asked: dict[str, Any], state: State | None = None) -> tuple[Ask, State, dict[str, bytes]]:
    """Returns what an approval asks, how it stands (none given: nobody has said anything), and what is kept of both."""
    show = encode_plain(asked["show"])
    ask = msgspec.convert({name: value for name, value in asked.items() if name != "show"}, Ask)
    about, state = _pack(ask), state or State(ask.approvers)
    digest = digest_of(id, about, show).encode()
    return ask, state, {"about": about, "show": show, "digest": digest, "state": _pack(state)}


async def _park_approval(ns: Namespace, token: Token, asked: dict[str, Any], *, by: str) -> str:
    ask, state, record = record_of(token.run, asked)
    told = {"id": token.run, "title": ask.title, "approvers": ask.approvers, "quorum": ask.quorum}
    told["digest"] = record["digest"].decode()
    return await park_step(
        ns,
        token.partition,
        token,
        kind="approval",
        by=by,
        wait_ms=next_moment(ask, state, 0) or 0,
        told=_pack(told),
        record=record,
    )


async def look_after(ns: Namespace, p: int, ids: Sequence[str], *, by: str, seen_ms: int) -> None:
    """Does what is due for waiting steps: timeouts, reminders, escalations. Who was quicker from outside has won."""
    for id, row in zip(ids, await read_runs(ns, p, ids), strict=True):
        if row is None or not row.waits:
            await drop_timers(ns, p, [f"wait:{id}"], seen_ms=seen_ms)
        elif row.waits == "approval":
            await tick_approval(ns, p, id, by=by, seen_ms=seen_ms)
        else:
            await expire_wait(ns, p, id)
