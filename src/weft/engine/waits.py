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


async def _park_approval(ns: Namespace, token: Token, asked: dict[str, Any], *, by: str) -> str:
    show = encode_plain(asked.pop("show"))
    ask = msgspec.convert(asked, Ask)
    about, state = _pack(ask), State(ask.approvers)
    digest = digest_of(token.run, about, show)
    told = {"id": token.run, "title": ask.title, "approvers": ask.approvers, "quorum": ask.quorum, "digest": digest}
    return await park_step(
        ns,
        token.partition,
        token,
        kind="approval",
        by=by,
        wait_ms=next_moment(ask, state, 0) or 0,
        told=_pack(told),
        record={"about": about, "show": show, "digest": digest, "state": _pack(state)},
    )


async def look_after(ns: Namespace, p: int, ids: Sequence[str], *, by: str) -> None:
    """Does what is due for waiting steps: timeouts, reminders, escalations. Who was quicker from outside has won."""
    for id, row in zip(ids, await read_runs(ns, p, ids), strict=True):
        if row is None or not row.waits:
            await drop_timers(ns, p, [f"wait:{id}"])
        elif row.waits == "approval":
            await tick_approval(ns, p, id, by=by)
        else:
            await expire_wait(ns, p, id)
