"""What holds of each run: its end, its result, its effects, its events, its timers, the deaths it is charged with."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import Any

from chaos.checker.limits import Limits
from chaos.checker.reading import State, arguments_of
from chaos.fleet import Fleet
from chaos.recorder import Row
from chaos.workload import expected
from weft.codec import decode_plain
from weft.core.model import ERROR_DECODER, MAX_CRASHES, VALUE_DECODER
from weft.store.log import RawEvent
from weft.store.runs import RunRow

TERMINAL = ("completed", "failed", "cancelled")
#: Ends from outside.
CONTESTED = (("cancelled", "RunCancelled"), ("failed", "DeadlineExceeded"))
#: Events after which a step is delivered again: each explains one extra execution.
REASONS = ("reclaimed", "returned", "retrying", "snoozed", "recovered", "held")


def i1_terminal(fleet: Fleet, state: State, limits: Limits) -> Iterable[str]:
    for run in fleet.acked():
        if run not in state.runs and run not in limits.wiped:
            yield f"I1 the acknowledged run {run} is gone"
    for run, row in state.runs.items():
        ends = [event for event in state.events[run] if event.type in TERMINAL]
        if row.open:
            yield f"I1 run {run} is open: {row.text('open')}"
        elif len(ends) != 1 or ends[0] is not state.events[run][-1]:
            yield f"I1 run {run} must end once, at last: {[event.type for event in state.events[run]]}"
    for run in state.events:
        if run not in state.runs and run not in limits.wiped:
            yield f"I1 the log tells of run {run}, which is not there: half started"


def i2_results(fleet: Fleet, state: State, limits: Limits) -> Iterable[str]:
    for run, row in state.runs.items():
        if row.open:
            continue
        status = row.text("status")
        want, value = expected(row.spec.name, arguments_of(fleet, row))
        if run in limits.cancelled:
            want, value = "cancelled", "RunCancelled"
        if run in limits.poisoned:
            want, value = "failed", "Poisoned"
        got = _outcome(fleet, row)
        if run in limits.contested and (status, got) in CONTESTED:
            continue
        if status != want or got != value:
            shown = repr(got)[:200]
            yield f"I2 run {run} ({row.spec.name}) is {status} with {shown}, the model says {want} {value!r:.60}"


def _outcome(fleet: Fleet, row: RunRow) -> Any:
    if row.text("status") != "completed":
        error = ERROR_DECODER.decode(row.fields["error"])
        return error.type
    value = VALUE_DECODER.decode(row.fields["result"])
    if value.blob:
        p = int(row.id[1:].partition("-")[0])
        data = fleet.server.client.execute_command("GET", fleet.keys.blob(p, row.id, value.blob))
        return None if data is None else decode_plain(data)
    return decode_plain(value.inline)


def i3_effects(state: State, limits: Limits) -> Iterable[str]:
    for run, row in state.runs.items():
        rows = state.effects.get(run, [])
        if row.text("status") == "completed" and not any(r.phase == "after" for r in rows):
            yield f"I3 run {run} ({row.spec.name}) is completed without its effect"
        reasons = [event for event in state.events[run] if event.type in REASONS]
        deliveries = Counter(r.delivery for r in rows if r.phase == "before")
        for delivery, n in deliveries.items():
            if n > limits.same_delivery:
                yield f"I3 run {run} ({row.spec.name}) executed delivery {delivery} {n} times: {_brief(rows)}"
            if delivery > 1 + len(reasons):
                yield f"I3 run {run} executed delivery {delivery} with only {len(reasons)} logged reasons: {_brief(rows)}"
        if len({(r.key) for r in rows}) > 1:
            yield f"I3 run {run} has more than one effect key"
        fences = [r.fence for r in sorted(rows, key=lambda r: r.delivery)]
        if fences != sorted(fences):
            yield f"I3 run {run}: fences do not rise with deliveries"


def _brief(rows: list[Row]) -> str:
    return ", ".join(f"{r.phase} d{r.delivery} a{r.attempt} {r.worker}/{r.pid} {r.at:.3f}" for r in rows)


def i4_events(state: State) -> Iterable[str]:
    for run, row in state.runs.items():
        events = state.events[run]
        if [event.seq for event in events] != list(range(1, len(events) + 1)):
            yield f"I4 run {run}: events {[(event.seq, event.type) for event in events]}"
            continue
        for name, folded in fold(events).items():
            kept = row.fields.get(name)
            if kept != folded:
                yield f"I4 run {run}: folding gives {name}={folded!r:.80}, the hash says {kept!r:.80} ({_types(events)})"


def _types(events: list[RawEvent]) -> str:
    return " ".join(event.type for event in events)


def fold(events: list[RawEvent]) -> dict[str, bytes | None]:
    """Rebuilds a run's hash from its events: what the cold path will do."""
    state: dict[str, bytes | None] = {"status": None}
    attempt, crashes, delivery = 1, 0, 1
    for event in events:
        if event.type == "queued":
            state["spec"], state["born"] = event.payload, _moment(event)
        elif event.type in ("completed", "failed"):
            state["status"] = event.type.encode()
            state["result" if event.type == "completed" else "error"] = event.payload
            state["ended"] = _moment(event)
            crashes = int(event.facts.get("crashes", crashes))
        elif event.type == "debounced":
            state["spec"] = event.payload
        elif event.type == "cancelled":
            state["status"], state["error"], state["ended"] = b"cancelled", event.payload, _moment(event)
        elif event.type in REASONS:
            delivery += 1
            if event.type == "retrying":
                attempt, state["error"] = attempt + 1, event.payload
            elif event.type == "reclaimed":
                told = int(event.facts["crashes"])
                # The first death is counted, later ones only when it was this run that ran as a suspect.
                crashes = told if told == crashes + 1 or told == crashes > 0 else -1
    state["seq"] = str(len(events)).encode() if len(events) > 1 else None
    if attempt > 1:
        state["attempt"] = str(attempt).encode()
    if crashes:
        state["crashes"] = str(crashes).encode()
    return state


def _moment(event: RawEvent) -> bytes:
    """What a run keeps to find the entry again: its milliseconds."""
    return event.entry.partition("-")[0].encode()


def i10_timers(state: State, limits: Limits, healed_at_ms: int) -> Iterable[str]:
    for run, row in state.runs.items():
        due = 0
        for event in state.events[run]:
            if event.type == "queued":
                due = event.at_ms + row.spec.delay_ms if row.spec.delay_ms else 0
            began = int(event.facts.get("started", 0))
            if began and due:
                if began < due:
                    yield f"I10 run {run} began {due - began} ms before its timer ({event.type})"
                elif (began - max(due, healed_at_ms)) / 1000 > limits.late and not row.spec.limits:
                    yield f"I10 run {run} began {began - due} ms after its timer, {began - healed_at_ms} after the heal"
            if event.type in ("retrying", "snoozed", "returned"):
                after = int(event.facts.get("after_ms", 0))
                due = event.at_ms + after if after else 0
            elif event.type in ("debounced", "rescheduled"):
                due = int(event.facts["due"])
            elif event.type in ("reclaimed", "recovered"):
                due = 0


def i3_crashes(state: State, limits: Limits) -> Iterable[str]:
    if limits.crashes is None:
        return
    # The end of a run from outside names a session too: the one that had it in hand.
    told = [event.facts for events in state.events.values() for event in events if "crashes" in event.facts]
    dead = {facts["session"] for facts in told if "session" in facts}
    if len(dead) > limits.crashes:
        yield f"I3 crashes: {len(dead)} sessions were counted as dead, the scenario killed {limits.crashes}: {sorted(dead)}"


def i3_charges(state: State) -> Iterable[str]:
    """A worker runs one suspect at a time, so its death is charged to one of them at most."""
    charged: defaultdict[str, list[str]] = defaultdict(list)
    for run, events in state.events.items():
        crashes = 0
        for event in events:
            told = int(event.facts.get("crashes", crashes))
            if told > crashes >= MAX_CRASHES - 1:
                charged[event.facts["session"]].append(run)
            crashes = told
    for session, runs in charged.items():
        if len(runs) > 1:
            yield f"I3 the death of session {session} was charged to {len(runs)} suspects: {sorted(runs)}"
