"""What holds of graph runs at rest, read from the store itself: the invariants of FAULTS.md, by their names.

The checker of the fault tests knows runs of tasks; here are the same promises for graph runs, their steps and children. What
is not about runs (keys, pending lists, timers, logs of workers) is the checker's own.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Iterable

from chaos.checker import Limits, State, await_rest, read_state
from chaos.checker.runs import REASONS, i3_charges, i3_crashes
from chaos.checker.store import i5_at_rest, i6_keys, i7_pending, i13_resources
from chaos.fleet import Fleet
from chaos.recorder import Row
from graphs.folding import TERMINAL, fold
from weft.core.effects import effect_key
from weft.core.given import parse_given

#: Seconds by which two clocks of one machine may differ, and a step may be late between its commit and the log's stamp.
SLACK = 0.25


def broken_promises(fleet: Fleet, limits: Limits) -> list[str]:
    """Waits until the fleet is at rest; returns every violation, each beginning with the name of its invariant."""
    await_rest(fleet)
    state = read_state(fleet)
    return [
        *_ends(state),
        *_steps(state),
        *_effects(state),
        *_folds(fleet, state),
        *i3_crashes(state, limits),
        *i3_charges(state),
        *i5_at_rest(fleet, state),
        *i6_keys(fleet, state),
        *i7_pending(fleet),
        *i13_resources(fleet, limits),
    ]


def graphs_of(state: State) -> list[str]:
    """The graph runs, children too: steps live below them."""
    return [run for run in state.runs if "/" not in run]


def _ends(state: State) -> Iterable[str]:
    for run in graphs_of(state):
        ends = [event.type for event in state.events[run] if event.type in TERMINAL]
        if len(ends) != 1 or state.events[run][-1].type != ends[0]:
            yield f"I1 run {run} must end once, at last: {[event.type for event in state.events[run]][-5:]}"
    for id in state.events:
        if id.partition("/")[0] not in state.runs:
            yield f"I1 the log tells of {id}, whose run is not there"
    for id, row in state.runs.items():
        if "/" in id and row.open:
            yield f"I1 step {id} is open, its run has ended"


def _steps(state: State) -> Iterable[str]:
    for run in graphs_of(state):
        ends = Counter(
            event.facts["step"]
            for event in state.events[run]
            if event.type in ("step_completed", "step_failed", "step_cached", "step_cancelled")
        )
        for step, n in ends.items():
            if n > 1:
                yield f"I2 step {step} of {run} has {n} ends"


def _effects(state: State) -> Iterable[str]:
    """An extra execution has another delivery, and a logged reason; behind its commit no step runs again."""
    committed = {
        f"{run}/{event.facts['step']}": event
        for run in graphs_of(state)
        for event in state.events[run]
        if event.type in ("step_completed", "step_failed")
    }
    effects: defaultdict[str, list[Row]] = defaultdict(list)
    for row in (row for rows in state.effects.values() for row in rows):
        effects[row.key].append(row)
    steps = {effect_key(id, ""): id for id in state.events if "/" in id}
    ahead = time.time() - time.monotonic()
    for key, rows in effects.items():
        id = steps.get(key, key)
        reasons = sum(event.type in REASONS for event in state.events[id])
        for delivery, n in Counter(row.delivery for row in rows if row.phase == "before").items():
            if n > 1:
                yield f"I3 {id} executed delivery {delivery} {n} times"
            if delivery > 1 + reasons:
                yield f"I3 {id} executed delivery {delivery} with only {reasons} logged reasons"
        if key not in steps:
            yield f"I3 the log knows no step of the effect {key}"
        fences = [row.fence for row in sorted(rows, key=lambda row: row.delivery)]
        if fences != sorted(fences):
            yield f"I3 {id}: fences do not rise with deliveries"
        if id in committed:
            late = [
                row for row in rows if row.phase == "before" and row.at + ahead > committed[id].at_ms / 1000 + SLACK
            ]
            if late:
                yield f"I3 {id} ran again, after it was committed: {late}"
    for id, event in committed.items():
        rows = effects.get(effect_key(id, ""), [])
        if rows and event.type == "step_completed" and not any(row.phase == "after" for row in rows):
            yield f"I3 {id} completed without its effect"


def _folds(fleet: Fleet, state: State) -> Iterable[str]:
    for id, events in state.events.items():
        if [event.seq for event in events] != list(range(1, len(events) + 1)):
            yield f"I4 {id}: events {[(event.seq, event.type) for event in events]}"
    for run in graphs_of(state):
        stand, row = fold(state.events[run]), state.runs[run]
        flat = fleet.server.client.execute_command("HGETALL", fleet.keys.context(0, run))
        kept = {flat[i].decode(): parse_given(flat[i + 1]) for i in range(0, len(flat), 2)}
        for name in stand.given.keys() | kept.keys():
            one = kept.get(name)
            if stand.given.get(name) != (one and (one.status, one.step, one.value)):
                yield f"I4 {run}: folding gives {name} {stand.given.get(name)!r:.80}, the context says {one!r:.120}"
        value = row.fields.get("result") or row.fields.get("error")
        if (stand.status, stand.value) != (row.text("status"), value):
            yield f"I4 {run}: folding gives {stand.status}, the hash says {row.text('status')}"
