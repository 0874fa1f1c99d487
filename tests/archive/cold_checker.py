"""The invariant checker of the fault tests, for tasks whose store was wiped while it was archived.

What the archive has is checked as the checker checks a store at rest; what the store has must be the same (I8). The names are
those of FAULTS.md.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import redis

from chaos.checker import Limits, State, fold, read_state
from chaos.checker.runs import i1_terminal, i3_charges, i3_effects, i4_events, i10_timers
from chaos.checker.store import audit_agrees, i5_at_rest, i6_keys, i7_pending, i14_keys
from chaos.recorder import Row
from weft import Weft
from weft.codec import decode_plain
from weft.core.fold import read_facts
from weft.core.model import VALUE_DECODER
from weft.engine.cold import Cold
from weft.engine.coldruns import as_row
from weft.store.log import RawEvent

#: What the hash of a finished run and the row of it in the archive both say.
SAME = ("status", "born", "ended", "seq", "attempt", "crashes", "result")


class Wiped:
    """What the checker asks of a fleet: here an app with workers of this process."""

    shared = True
    workers = live_workers = producers = ()

    def __init__(self, app: Weft, url: str, effects: list[Row], acked: Iterable[str]) -> None:
        client = redis.Redis.from_url(url, protocol=2)
        for command in list(client.response_callbacks):
            client.response_callbacks.pop(command)
        self.app, self.server = app, SimpleNamespace(client=client)
        self.keys, self.partitions = app.engine().ns.keys, app.engine().ns.partitions
        self.effects = SimpleNamespace(rows=lambda: effects)
        self._acked = list(acked)

    def acked(self) -> list[str]:
        return self._acked


async def broken_promises(wiped: Any, cold: Cold, ids: Iterable[str], expected: dict[str, Any]) -> list[str]:
    """Returns every violation among archived runs. Those that were acknowledged and never archived are gone, and may be."""
    hot = read_state(wiped)
    state = State({}, defaultdict(list), hot.keys, hot.effects)
    problems: list[str] = []
    for id in ids:
        found = await cold.reader.run(id)
        assert found is not None
        if not found.state.finished or found.state.gap:
            problems.append(f"I1 run {id} is {found.state.status}, gap {found.state.gap}")
            continue
        state.runs[id] = as_row(found)
        for one in await cold.reader.all_events(id):
            facts = read_facts(one.facts)
            # The moment of an entry, not that of the event: a run takes its times from there.
            at = (one.entry, one.run, one.seq, one.type, one.at_ms, one.by, facts, one.payload)
            state.events[id].append(RawEvent(*at))
    limits = Limits(wiped=frozenset(wiped.acked()) - state.runs.keys())
    known = State({id: row for id, row in hot.runs.items() if id in state.runs}, state.events, hot.keys, hot.effects)
    problems += [
        *i1_terminal(wiped, state, limits),
        *_results(state, expected),
        *_fences(state),
        *i3_effects(_remembered(state), limits),
        *i3_charges(state),
        *i4_events(known),
        *_folds(state),
        *i5_at_rest(wiped, state),
        *i6_keys(wiped, state),
        *audit_agrees(wiped),
        *i7_pending(wiped),
        *_agree(hot, state),
        *i10_timers(state, limits, 0),
        *i14_keys(wiped, state, limits),
    ]
    return problems


def _results(state: State, expected: dict[str, Any]) -> Iterable[str]:
    for id, row in state.runs.items():
        if row.text("status") != "completed":
            yield f"I2 run {id} is {row.text('status')}"
        elif (
            id in expected and (got := decode_plain(VALUE_DECODER.decode(row.fields["result"]).inline)) != expected[id]
        ):
            yield f"I2 run {id} gave {got!r}, the model says {expected[id]!r}"


def _fences(state: State) -> Iterable[str]:
    for id, rows in state.effects.items():
        fences = [row.fence for row in rows if row.phase == "before"]
        if len(set(fences)) < len(fences) or fences != sorted(fences):
            yield f"I3 run {id} ran with the fences {fences}: they must rise, also across wipes"


def _remembered(state: State) -> State:
    """Leaves out executions whose deliveries a loss undid: after it the run was given the same numbers again."""
    effects: defaultdict[str, list[Row]] = defaultdict(list)
    for id, rows in state.effects.items():
        for at, row in enumerate(rows):
            undone = any(later.delivery <= row.delivery and later.fence > row.fence for later in rows[at + 1 :])
            if not undone:
                effects[id].append(row)
    return State(state.runs, state.events, state.keys, effects)


def _folds(state: State) -> Iterable[str]:
    for id, row in state.runs.items():
        if [event.seq for event in state.events[id]] != list(range(1, len(state.events[id]) + 1)):
            yield f"I4 run {id}: archived events {[(event.seq, event.type) for event in state.events[id]]}"
            continue
        told = fold(state.events[id])
        for name in SAME:
            if told.get(name) is not None and told[name] != row.fields.get(name):
                yield f"I4 run {id}: folding gives {name}={told[name]!r:.60}, the archive says {row.fields.get(name)!r:.60}"


def _agree(hot: State, state: State) -> Iterable[str]:
    for id, row in hot.runs.items():
        if id not in state.runs:
            yield f"I8 the store has run {id} ({row.text('status')}), the archive has not"
            continue
        kept = state.runs[id].fields
        for name in SAME:
            if row.fields.get(name) not in (None, kept.get(name)):
                yield f"I8 run {id}: the store says {name}={row.fields[name]!r:.60}, the archive {kept.get(name)!r:.60}"
    for id, told in hot.events.items():
        archived = {event.seq: event for event in state.events.get(id, [])}
        for event in told:
            if id in state.runs and archived.get(event.seq) != event:
                yield f"I8 event {event.seq} of {id} is {event!r:.120} in the log, not {archived.get(event.seq)!r:.120}"
