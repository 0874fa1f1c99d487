"""Paused graph runs in Redis: one gate without slots before all steps of a run."""

from __future__ import annotations

import msgspec

from weft.core.gates import run_control, run_gate
from weft.store.keys import TIMER_WAKE
from weft.store.namespace import Namespace

#: Things that operators may have set in a partition before no more runs are paused: every worker knows them all.
MAX_CONTROLS = 1_000


async def pause_run(
    ns: Namespace, p: int, run: str, *, by: str, reason: str, at_ms: int, spreads: bool = False, above: str = ""
) -> tuple[str, bool]:
    """Pauses a graph run; returns its status now and whether this call paused it. Raises NotFound, Conflict.

    `spreads`: a timer has its children paused too. `above`: the run whose pause is passed on, if that still is paused.
    """
    keys = ns.keys
    status, changed = await ns.call(
        "pause_run",
        p,
        {
            "log": keys.log(p),
            "controls": keys.controls(p),
            "timers": keys.timers(p),
            "wake": keys.wake(p, TIMER_WAKE),
            "run": [keys.run(p, one) for one in (run, above) if one],
        },
        {
            "by": by,
            "name": run_control(run),
            "value": msgspec.json.encode({"by": by, "reason": reason, "at_ms": at_ms}),
            "reason": reason,
            "most": MAX_CONTROLS,
            "spreads": int(spreads),
        },
    )
    return status.decode(), changed == b"1"


async def resume_run(
    ns: Namespace, p: int, run: str, *, by: str, spreads: bool = False, above: str = "", ended: bool = False
) -> tuple[str, bool]:
    """Lets a graph run go on; returns its status now and whether this call resumed it. Raises NotFound.

    `spreads`: a timer has its children go on too. `above`: the run that goes on, if it still does and has paused this one.
    `ended`: only if it has ended.
    """
    keys = ns.keys
    status, changed = await ns.call(
        "resume_run",
        p,
        {
            "log": keys.log(p),
            "controls": keys.controls(p),
            "admit": keys.admit(p),
            "wake": keys.wake(p, TIMER_WAKE),
            "timers": keys.timers(p),
            "run": [keys.run(p, one) for one in (run, above) if one],
        },
        {"by": by, "name": run_control(run), "gate": run_gate(run), "spreads": int(spreads), "ended": int(ended)},
    )
    return status.decode(), changed == b"1"
