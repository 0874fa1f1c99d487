"""Rebuilds steps that wait for something from outside: no worker is needed to see them, to answer them, or to end them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from weft.codec import decode_plain
from weft.core.approvals import next_moment
from weft.core.fold import RunState
from weft.core.model import SPEC_DECODER
from weft.core.rewait import Waiting
from weft.core.waits import WAITS
from weft.engine.waits import record_of
from weft.store.recovery import Closed
from weft.store.scripts import Arg


def rewait(
    ns: Closed, p: int, run: str, states: Sequence[RunState], waiting: Mapping[str, Waiting]
) -> list[tuple[Arg, ...]]:
    """Returns what lets steps wait again that were just written: since when they did, with all that was said so far."""
    keys, commands = ns.keys, list[tuple[Arg, ...]]()
    by_step = {state.id.partition("/")[2]: state for state in states}
    lines: dict[str, list[str]] = {}
    approvals: list[str] = []
    for step, one in waiting.items():
        state = by_step.get(step)
        spec = SPEC_DECODER.decode(state.spec) if state is not None else None
        if state is None or spec is None or spec.name not in WAITS:
            continue
        id, asked, due = state.id, decode_plain(spec.input), None
        if one.kind == "approval":
            ask, said, record = record_of(id, asked, one.state)
            due = next_moment(ask, said, one.at_ms)
            fields: dict[str, Arg] = {**record, "status": "pending", "rev": one.rev, "opened": one.at_ms}
            commands.append(("HSET", keys.approval(p, id), *(part for pair in fields.items() for part in pair)))
            commands.append(("ZADD", keys.pending_approvals(p), one.at_ms, id))
            approvals.append(step)
        else:
            due = one.at_ms + asked["timeout_ms"] if asked["timeout_ms"] else None
            lines.setdefault(one.kind.partition(":")[2], []).append(step)
        # Behind the delivery that it was written with.
        stands: list[Arg] = ["open", f"{state.delivery + 1}:?{one.kind}", "status", "waiting"]
        commands.append(("ZREM", keys.timers(p), f"open:{id}"))
        if due is not None:
            stands += ["due", due]
            commands.append(("ZADD", keys.timers(p), due, f"wait:{id}"))
        commands.append(("HSET", keys.run(p, id), *stands))
        commands.append(("HINCRBY", keys.run(p, run), "parked", 1))
    commands += [("HSET", keys.signals(p, run), f"?{name}", " ".join(steps)) for name, steps in lines.items()]
    if approvals:
        commands.append(("HSET", keys.run(p, run), "approvals", " ".join(approvals)))
    return commands
