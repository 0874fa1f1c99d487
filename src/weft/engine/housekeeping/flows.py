"""What the timer service does for workflow runs: puts away what an ended one left, and tells who started it."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable, Sequence
from typing import Any

from weft.core.model import Outcome, Token
from weft.engine.closing import end_open_steps
from weft.engine.flows import commit_flows, end_child, ended_call, tell_parents
from weft.engine.steps import keep_failed_ms
from weft.errors import Unavailable
from weft.store.approvals import close_approvals
from weft.store.ended import MapKeys, put_away_graph
from weft.store.graphs import expire, read_belongings
from weft.store.namespace import Namespace
from weft.store.runs import RunRow
from weft.store.timers import delay_timer, drop_timers

#: Milliseconds before a parent is told again whose partition does not answer, or is being rebuilt.
TELL_AGAIN_MS = 500


async def close_flows(ns: Namespace, p: int, rows: Sequence[RunRow], *, by: str, seen_ms: int) -> None:
    """Ends the calls and children that ended runs left, tells their parents, and lets all that they have expire with them.

    The news comes before what is put away, for all of them: somebody waits for that. Nor does one with which something is
    wrong keep the others waiting: it is raised at the end.
    """
    await drop_timers(ns, p, [f"close:{row.id}" for row in rows if row.open], seen_ms=seen_ms)
    ended = [row for row in rows if not row.open]
    left = await ns.read_many([("HLEN", ns.keys.ledger(p, row.id)) for row in ended], p=p)
    done = await _all(_end_calls(ns, p, row, n, by=by) for row, n in zip(ended, left, strict=True))
    wrong = [each for each in done if isinstance(each, BaseException)]
    idle = [row for row, is_done in zip(ended, done, strict=True) if is_done is True]
    told = []
    for row, error in zip(idle, await tell_parents(ns, idle, by=by), strict=True):
        if error is None:
            told.append(row)
        elif isinstance(error, Unavailable):
            await delay_timer(ns, p, f"close:{row.id}", TELL_AGAIN_MS)
        else:
            wrong.append(error)
    has = await ns.read_many([("SCARD", ns.keys.belongings(p, row.id)) for row in told], p=p)
    done = await _all(_put_away(ns, p, row, n, by=by) for row, n in zip(told, has, strict=True))
    wrong += [each for each in done if isinstance(each, BaseException)]
    if wrong:
        raise wrong[0]


async def _all(work: Iterable[Coroutine[Any, Any, Any]]) -> list[Any]:
    return await asyncio.gather(*work, return_exceptions=True)


async def _end_calls(ns: Namespace, p: int, row: RunRow, n: Any, *, by: str) -> bool:
    """Ends the calls that a run left open; False when there are too many for one round: its timer is still due."""
    return n == 0 or await end_open_steps(ns, p, row.id, by=by, until_ms=row.number("ended", 0))


async def _put_away(ns: Namespace, p: int, row: RunRow, n: Any, *, by: str) -> None:
    run, keys = row.id, ns.keys
    blobs = {row.spec.blob}
    members = [member async for page in read_belongings(ns, p, run) for member in page] if n else []
    for member in members:
        what, name = member.split(" ")
        if what == "child":
            await end_child(ns, name, by=by)
        else:
            blobs.add(name)
    keep_ms = keep_failed_ms(row.spec) if row.text("status") == "failed" else row.spec.keep_ms
    approvals = row.text("approvals").split()
    await close_approvals(ns, p, run, approvals, seq=row.number("seq", 1))
    # The timer goes last: whoever dies before that leaves the rest to the next round.
    own = [keys.belongings(p, run), keys.signals(p, run), keys.journal(p, run), keys.mail(p, run)]
    own.append(keys.updates(p, run))
    await expire(ns, p, own + [keys.approval(p, f"{run}/{step}") for step in approvals], keep_ms=keep_ms)
    await put_away_graph(ns, p, row, blobs=sorted(blobs - {""}), maps=MapKeys(), keep_ms=keep_ms)


async def end_poisoned_call(ns: Namespace, p: int, row: RunRow, token: Token, *, by: str, seen_ms: int) -> None:
    """Tells a workflow run of a call that somebody else ended, such as poison by the sweeper."""
    outcome = Outcome(token, row.text("status"), row.fields["error"], 0, row.number("started", 0))
    ((word, *_),) = await commit_flows(ns, p, [ended_call(outcome)], session=by)
    if word != b"ok":
        await drop_timers(ns, p, [f"route:{row.id}"], seen_ms=seen_ms)
