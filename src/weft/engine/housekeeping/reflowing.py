"""Rebuilds workflow runs: journal, mail, open calls and children as their events tell them, then the runs themselves.

The code of a rebuilt run is told its journal again, and goes on behind it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from weft.core.effects import run_of
from weft.core.flow import REBUILT, STALL_MS, parse_entry, renewal_of
from weft.core.history import History, read_history
from weft.core.model import SPEC_DECODER, SPEC_ENCODER, VALUE_DECODER, RunSpec
from weft.core.reflow import CHILD_ENDS, Reflowed, reflow
from weft.engine.flows import ORPHANED
from weft.engine.housekeeping.regrowing import Regrower, remembered
from weft.store.recovery import restore_runs, write_plain
from weft.store.scripts import Arg
from weft.telemetry import get_logger

if TYPE_CHECKING:
    from weft.archive.reader import ColdRun

log = get_logger("weft.recovery")

#: Answers to updates that a run keeps.
MAX_ANSWERS = 1_000


async def reflow_run(to: Regrower, run: ColdRun) -> str:
    """Writes one workflow run; returns `open`, or `gap` when the archive does not tell all of it."""
    state, spec = run.state, run.spec
    assert spec is not None
    ns, p, id = to.ns, to.p, run.state.id
    history = read_history(id, await to.events(id))
    found = reflow(history)
    if found.doubts:
        log.error("a workflow run is not rebuilt", run=id, why=f"it has {', '.join(found.doubts[:5])}")
        return "gap"
    if not await to.blobs(id, _blobs(spec, found, history)):
        log.error("a workflow run is not rebuilt", run=id, why="a large value of it is not archived")
        return "gap"
    if state.parent and await _is_left(to, id, run_of(state.parent)):
        found.mail.append(b"%d cancel - \n%b" % (to.now_ms, ORPHANED))
    spec = _asked(spec, found)
    state.spec, state.crashes = SPEC_ENCODER.encode(spec), found.crashes
    if found.journal:
        # Its code sets its timers again; in case the code does not fit, this one has the run looked at later.
        state.due_ms = found.diverged[0] + STALL_MS if found.diverged else 0
    await write_plain(ns, p, _belongings(to, id, found))
    await restore_runs(ns, p, [(state, spec, True)], now_ms=to.now_ms, by=to.by)
    await write_plain(ns, p, _fields(to, id, found))
    await to.steps(id, [history.steps[step] for step in found.calls], found.answered, found.waiting)
    told = {entry.key for entry in map(parse_entry, found.mail) if entry.type == "ended"}
    for step, child in found.children.items():
        await to.ended(child, told=step in told)
    return "open"


async def _is_left(to: Regrower, id: str, parent: str) -> bool:
    """Tells whether a run should have ended with the one that started it: the store was lost before that end had come to it."""
    if not await to.is_over(parent):
        return False
    wanted = {f"run={id}", "policy=cancel"}
    events = await to.reader.all_events(parent)
    return any(event.type == "child_opened" and wanted <= set(event.facts.split(",")) for event in events)


async def tell_again(to: Regrower, child: ColdRun) -> None:
    """Writes an ended child whose parent is open in another partition, unless that knows how it ended.

    It tells its parent, unless the archive knows that it did: then it only stands there, as the parent may make sure of it.
    """
    id, parent = child.state.id, run_of(child.state.parent)
    events = await to.reader.all_events(parent)
    if id not in reflow(read_history(parent, events)).settled:
        await to.ended(id, told=any(e.type in CHILD_ENDS and f"run={id}" in e.facts.split(",") for e in events))


def _asked(spec: RunSpec, found: Reflowed) -> RunSpec:
    """Returns what is asked of a run by now."""
    if found.version is not None:
        spec = msgspec.structs.replace(spec, version=found.version)
    if found.journal and any(limit.window_ms for limit in spec.limits):
        # A rate counts starts, and this run has already started.
        spec = msgspec.structs.replace(spec, limits=[limit for limit in spec.limits if not limit.window_ms])
    return spec


def _belongings(to: Regrower, run: str, found: Reflowed) -> list[tuple[Arg, ...]]:
    """Returns what writes all that a run has besides its own hash."""
    keys, p = to.ns.keys, to.p
    commands: list[tuple[Arg, ...]] = []
    commands += [("RPUSH", keys.journal(p, run), entry) for entry in found.journal]
    commands += [("RPUSH", keys.mail(p, run), entry) for entry in found.mail]
    commands += [("HSET", keys.ledger(p, run), step, at) for step, at in found.calls.items()]
    commands += [("SADD", keys.belongings(p, run), f"child {child}") for child in sorted(found.belongings)]
    commands += remembered(keys.signals(p, run), [(request, "given") for request in found.requests])
    fields: list[Arg] = []
    for id in [id for id, answer in found.updates.items() if answer == b"?"]:
        fields += [f"={id}", "?"]
    answers = [(id, answer) for id, answer in found.updates.items() if answer != b"?"]
    for n, (id, answer) in list(enumerate(answers, start=1))[-MAX_ANSWERS:]:
        fields += [f"={id}", answer, f"@{n % MAX_ANSWERS}", id]
    if answers:
        fields += ["n", len(answers)]
    if fields:
        commands.append(("HSET", keys.updates(p, run), *fields))
    return commands


def _fields(to: Regrower, run: str, found: Reflowed) -> list[tuple[Arg, ...]]:
    """Returns what writes of a run's own hash what no other run has."""
    fields: dict[str, Arg] = {}
    if found.journal or found.mail or found.updates or found.requests:
        fields["left"] = 1
    if found.journal:
        fields["turn"] = REBUILT
    if found.lived:
        fields["lived"] = found.lived
    if found.state:
        fields["state"] = found.state
    if found.diverged is not None:
        fields |= {"status": "waiting", "awaits": found.diverged[1]}
    if found.overdue_ms:
        fields["overdue"] = found.overdue_ms
    key, commands = to.ns.keys.run(to.p, run), list[tuple[Arg, ...]]()
    if fields:
        commands.append(("HSET", key, *(part for pair in fields.items() for part in pair)))
    if found.overdue_ms:
        commands.append(("ZADD", to.ns.keys.timers(to.p), found.overdue_ms, f"deadline:{run}"))
    return commands


def _blobs(spec: RunSpec, found: Reflowed, history: History) -> set[str]:
    """Returns the large values that a run may still need."""
    digests = {spec.blob, *(SPEC_DECODER.decode(history.steps[step].spec).blob for step in found.calls)}
    for entry in map(parse_entry, (*found.journal, *found.mail)):
        # What is kept for other code has its type in front.
        type, _, more = entry.more.partition(" ") if entry.type == "kept" else (entry.type, "", entry.more)
        if type == "begin":
            renewal = renewal_of(entry)
            digests.add("" if renewal is None else renewal.input.blob)
        elif type == "completed" or (type == "ended" and more == "completed"):
            digests.add(VALUE_DECODER.decode(entry.payload).blob)
    return digests
