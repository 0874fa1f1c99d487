"""What the timer service does for workflow runs: puts away what an ended one left, and tells who started it."""

from __future__ import annotations

from weft.core.flow import parent_of
from weft.core.model import Outcome, Token
from weft.engine.closing import end_open_steps
from weft.engine.flows import commit_flows, end_child, ended_call, tell_parent
from weft.engine.steps import keep_failed_ms
from weft.store.approvals import close_approvals
from weft.store.ended import MapKeys, put_away_graph
from weft.store.graphs import expire, read_belongings
from weft.store.namespace import Namespace
from weft.store.runs import RunRow
from weft.store.timers import drop_timers


async def close_flow(ns: Namespace, p: int, row: RunRow, *, by: str, seen_ms: int) -> None:
    """Ends the calls and children that an ended run left, tells its parent, and lets all that it has expire with it."""
    run, keys = row.id, ns.keys
    if row.open:
        return await drop_timers(ns, p, [f"close:{run}"], seen_ms=seen_ms)
    if not await end_open_steps(ns, p, run, by=by, until_ms=row.number("ended", 0)):
        return None  # the timer is still due: the next round goes on
    parent, key = parent_of(row.spec)
    if parent:
        await tell_parent(ns, row, parent, key, by=by)
    blobs = {row.spec.blob}
    async for members in read_belongings(ns, p, run):
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
    return None


async def end_poisoned_call(ns: Namespace, p: int, row: RunRow, token: Token, *, by: str, seen_ms: int) -> None:
    """Tells a workflow run of a call that somebody else ended, such as poison by the sweeper."""
    outcome = Outcome(token, row.text("status"), row.fields["error"], 0, row.number("started", 0))
    ((word, *_),) = await commit_flows(ns, p, [ended_call(outcome)], session=by)
    if word != b"ok":
        await drop_timers(ns, p, [f"route:{row.id}"], seen_ms=seen_ms)
