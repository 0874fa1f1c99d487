"""Rebuilds workflow runs: journal, mail, open calls and children as their events tell them, then the runs themselves.

The code of a rebuilt run is told its journal again, and goes on behind it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from weft.core.history import History, read_history
from weft.core.model import SPEC_DECODER, VALUE_DECODER, RunSpec
from weft.core.reflow import Reflowed, reflow
from weft.engine.housekeeping.regrowing import Regrower
from weft.store.recovery import restore_runs, write_plain
from weft.store.scripts import Arg
from weft.telemetry import get_logger

if TYPE_CHECKING:
    from weft.archive.reader import ColdRun

log = get_logger("weft.recovery")

#: What the field `turn` of a rebuilt run has: it has begun, by nobody's turn.
TURN = "recovered"


async def reflow_run(to: Regrower, run: ColdRun) -> str:
    """Writes one workflow run; returns `open`, or `gap` when the archive does not tell all of it."""
    state, spec = run.state, run.spec
    assert spec is not None
    ns, p, id = to.ns, to.p, run.state.id
    history = read_history(id, await to.reader.all_events(id))
    found = reflow(history)
    if found.doubts:
        log.error("a workflow run is not rebuilt", run=id, why=f"it has {', '.join(found.doubts[:5])}")
        return "gap"
    if not await to.blobs(id, _blobs(spec, found, history)):
        log.error("a workflow run is not rebuilt", run=id, why="a large value of it is not archived")
        return "gap"
    keys = ns.keys
    commands: list[tuple[Arg, ...]] = []
    commands += [("RPUSH", keys.journal(p, id), entry) for entry in found.journal]
    commands += [("RPUSH", keys.mail(p, id), entry) for entry in found.mail]
    commands += [("HSET", keys.ledger(p, id), step, at) for step, at in found.calls.items()]
    commands += [("SADD", keys.belongings(p, id), f"child {child}") for child in sorted(found.belongings)]
    await write_plain(ns, p, commands)
    if found.journal:
        state.due_ms = 0  # its timers are in its code
    await restore_runs(ns, p, [(state, spec, True)], now_ms=to.now_ms, by=to.by)
    if found.journal or found.mail:
        fields: list[Arg] = ["left", 1]
        if found.journal:
            fields += ["turn", TURN]
        await write_plain(ns, p, [("HSET", keys.run(p, id), *fields)])
    await to.steps(id, [history.steps[step] for step in found.calls], found.answered)
    for child in found.children.values():
        await to.ended(child)
    return "open"


def _blobs(spec: RunSpec, found: Reflowed, history: History) -> set[str]:
    """Returns the large values that a run may still need."""
    digests = {spec.blob, *(SPEC_DECODER.decode(history.steps[step].spec).blob for step in found.calls)}
    for entry in (*found.journal, *found.mail):
        head, _, payload = entry.partition(b"\n")
        _, type, _, more = head.decode().split(" ", 3)
        if type == "completed" or (type == "ended" and more == "completed"):
            digests.add(VALUE_DECODER.decode(payload).blob)
    return digests
