"""The one invariant checker, run at the end of every scenario, after the last heal.

It reads the store directly (never through the code under test where it can be helped), the recorder's rows, the
producers' ledgers and the workers' logs. The names I1 … I17 are those of FAULTS.md. All violations are collected
before it fails, because the second often explains the first.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import psutil

from chaos.crowds import crowded, executions
from chaos.fleet import PATIENCE, Fleet, wait_for
from chaos.recorder import Row
from chaos.workload import expected
from weft.codec import decode_plain
from weft.core.model import ERROR_DECODER, SPEC_DECODER, VALUE_DECODER
from weft.store.audit import audit
from weft.store.findings import Finding
from weft.store.keys import GROUP, Lifetime
from weft.store.log import RawEvent, parse_entry
from weft.store.runs import RunRow

TERMINAL = ("completed", "failed", "cancelled")
#: Ends from outside.
CONTESTED = (("cancelled", "RunCancelled"), ("failed", "DeadlineExceeded"))
#: What a worker tells of tasks that fail by themselves, once per failure: no flood, however many fail.
TASK_FAILURES = ("an attempt failed; there will be another", "a run failed")
#: Events after which a step is delivered again: each explains one extra execution.
REASONS = ("reclaimed", "returned", "retrying", "snoozed", "recovered", "held")
#: Keys that are empty when nobody waits at a limit, and how their members are counted. A slot is held, and a line stood
#: in, only by open runs, so at rest there is none.
GATE_KEYS = {"gate": "ZCARD", "line": "ZCARD", "lines": "SCARD", "admit": "SCARD", "turns": "HLEN"}


@dataclass
class Limits:
    """What one scenario may deviate in. Everything not named here holds everywhere."""

    #: The least share of asked starts that must have been acknowledged (I17).
    success: float = 0.5
    #: Log lines per worker (I13).
    log_lines: int = 300
    #: File descriptors a worker may hold beyond its baseline (I13).
    fds: int = 25
    #: Run ids that may end as poison although the model says otherwise.
    poisoned: frozenset[str] = frozenset()
    #: Runs that were cancelled by the scenario.
    cancelled: frozenset[str] = frozenset()
    #: Runs that were cancelled or due to fail by their deadline about when they ended: either end is right.
    contested: frozenset[str] = frozenset()
    #: Runs that the scenario wiped: acknowledged, and allowed to be absent.
    wiped: frozenset[str] = frozenset()
    #: Worker deaths the scenario caused; None: do not count. More crashes than that were counted wrongly.
    crashes: int | None = None
    #: Executions of one delivery (I3): more than one only where an operator tore the group itself apart.
    same_delivery: int = 1
    #: Seconds a timer may be late, counted from its due time or the heal (I10).
    late: float = 10.0
    #: How many a gate let through at once at the most, where an operator overruled its definition (I5).
    at_once: Mapping[str, int] = field(default_factory=dict)
    #: Names of invariants that do not apply.
    skip: frozenset[str] = frozenset()


@dataclass
class State:
    """Everything read from one store at rest."""

    runs: dict[str, RunRow]
    events: dict[str, list[RawEvent]]
    keys: dict[str, tuple[str, int]]  # key -> (type, PTTL)
    effects: dict[str, list[Row]] = field(default_factory=lambda: defaultdict(list))


def check(fleet: Fleet, limits: Limits | None = None, *, healed_at_ms: int = 0, settle: float = PATIENCE) -> State:
    """Waits until the fleet is at rest, then asserts every invariant; returns what it read."""
    limits = limits or Limits()
    await_rest(fleet, settle)
    state = read_state(fleet)
    problems = broken_promises(fleet, state, limits, healed_at_ms=healed_at_ms)
    assert not problems, f"{len(problems)} broken promises:\n" + "\n".join(problems[:25])
    return state


def broken_promises(fleet: Fleet, state: State, limits: Limits, *, healed_at_ms: int = 0) -> list[str]:
    """Returns every violation, each beginning with the name of its invariant."""
    problems = [
        *_i1_terminal(fleet, state, limits),
        *_i2_results(fleet, state, limits),
        *_i3_effects(state, limits),
        *_i4_events(state),
        *_i5_at_rest(fleet, state),
        *_i5_at_once(fleet, state, limits),
        *_i6_keys(fleet, state),
        *_audit(fleet),
        *_i7_pending(fleet),
        *_i10_timers(state, limits, healed_at_ms),
        *_i13_resources(fleet, limits),
        *_i14_keys(fleet, state, limits),
        *_i17_success(fleet, limits),
        *_crashes(state, limits),
        *_i3_charges(state),
    ]
    return [problem for problem in problems if problem.split(" ", 1)[0] not in limits.skip]


# --- rest ---------------------------------------------------------------------------------------------------------


def await_rest(fleet: Fleet, timeout: float = PATIENCE) -> None:
    """Waits until nothing is open, queued, due or pending, and no dead session is left in the directory."""
    deadline = time.monotonic() + timeout
    unrest = ["not looked yet"]
    while unrest := list(_unrest(fleet)):
        if time.monotonic() > deadline:
            raise AssertionError(f"I1 not at rest after {timeout:g} s:\n" + "\n".join(unrest[:30]))
        time.sleep(0.05)


def _unrest(fleet: Fleet) -> Iterable[str]:
    client = fleet.server.client
    for key in _scan(fleet):
        parsed = fleet.keys.parse(key)
        if parsed is None:
            continue
        _, family, parts = parsed
        if family.name == "run":
            open_field = client.execute_command("HGET", key, "open")
            if open_field is not None and not open_field.startswith(b"="):
                yield f"run {parts[0]} is open at {open_field.decode()}{_where(fleet, key)}"
        elif family.name == "wf.tasks":
            n = client.execute_command("XLEN", key)
            if n:
                yield f"{key} holds {n} tokens, pending: {_pending(fleet, key)}"
        elif family.name == "timers":
            if members := _timers(fleet, parsed[0]):
                yield f"{len(members)} timers are set: {members[:5]}"
        elif family.name in GATE_KEYS and (n := client.execute_command(GATE_KEYS[family.name], key)):
            yield f"{key} has {n} members"
    alive = _live_sessions(fleet)
    for p in range(fleet.partitions):
        for session in _directory(fleet, p) - alive:
            yield f"session {session} of partition {p} is dead and still in the directory"


def _timers(fleet: Fleet, p: int) -> list[str]:
    """The timers that are set. That of a schedule is always: it is no work that waits."""
    members = fleet.server.client.execute_command("ZRANGE", fleet.keys.timers(p), 0, -1)
    return [member.decode() for member in members if not member.startswith(b"cron:")]


def _where(fleet: Fleet, key: str) -> str:
    """Tells what holds an open run, for the failure message."""
    row = read_run(fleet, key)
    if row is None or not row.open:
        return ""
    parsed = fleet.keys.parse(key)
    assert parsed is not None
    p = parsed[0]
    if row.line:
        score = fleet.server.client.execute_command("ZSCORE", fleet.keys.line(p, row.line), row.id)
        return f" (in line at {score!r}, task {row.spec.name})"
    if row.due_ms is not None:
        score = fleet.server.client.execute_command("ZSCORE", fleet.keys.timers(p), f"open:{row.id}")
        return f" (timer {score!r}, task {row.spec.name})"
    stream = fleet.keys.tasks(p, row.spec.queue, row.spec.priority)
    there = fleet.server.client.execute_command("XRANGE", stream, row.token, row.token)
    return f" (entry there: {bool(there)}, task {row.spec.name}, queue {row.spec.queue})"


def _pending(fleet: Fleet, stream: str) -> Any:
    try:
        return fleet.server.client.execute_command("XPENDING", stream, GROUP, "-", "+", 3)
    except Exception as error:
        return error


def _directory(fleet: Fleet, p: int) -> set[str]:
    return {name.decode() for name in fleet.server.client.execute_command("HKEYS", fleet.keys.sessions(p))}


def _live_sessions(fleet: Fleet) -> set[str]:
    client = fleet.server.client
    return {
        session
        for p in range(fleet.partitions)
        for session in _directory(fleet, p)
        if client.execute_command("GET", fleet.keys.session(p, session)) == b"alive"
    }


# --- reading ------------------------------------------------------------------------------------------------------


def _scan(fleet: Fleet) -> list[str]:
    cursor, found = b"0", set()
    while True:
        # A server of its own must hold nothing else; on a shared one the neighbours' keys are the neighbours' business.
        match = ("MATCH", fleet.keys.pattern()) if fleet.shared else ()
        cursor, keys = fleet.server.client.execute_command("SCAN", cursor, *match, "COUNT", 5000)
        found.update(key.decode() for key in keys)
        if cursor == b"0":
            return sorted(found)


def read_run(fleet: Fleet, key: str) -> RunRow | None:
    """Reads one run's hash."""
    flat = fleet.server.client.execute_command("HGETALL", key)
    fields = {flat[i].decode(): flat[i + 1] for i in range(0, len(flat), 2)}
    if "spec" not in fields:
        return None
    return RunRow(key.rpartition(":")[2], SPEC_DECODER.decode(fields["spec"]), fields)


def read_state(fleet: Fleet) -> State:
    """Reads runs, log, keys and effects."""
    client = fleet.server.client
    state = State({}, defaultdict(list), {})
    for key in _scan(fleet):
        kind = client.execute_command("TYPE", key).decode()
        if kind == "none":
            continue
        state.keys[key] = kind, int(client.execute_command("PTTL", key))
        parsed = fleet.keys.parse(key)
        if parsed and parsed[1].name == "run" and (row := read_run(fleet, key)):
            state.runs[row.id] = row
    for p in range(fleet.partitions):
        for entry, fields in client.execute_command("XRANGE", fleet.keys.log(p), "-", "+"):
            for event in parse_entry(entry.decode(), fields):
                state.events[event.run].append(event)
    for row in fleet.effects.rows():
        state.effects[row.run].append(row)
    return state


def arguments_of(fleet: Fleet, row: RunRow) -> dict[str, Any]:
    data = row.spec.input
    if row.spec.blob:
        p = int(row.id[1:].partition("-")[0])
        data = fleet.server.client.execute_command("GET", fleet.keys.blob(p, row.id, row.spec.blob))
        if data is None:
            raise LookupError(f"the input blob of {row.id} is gone")
    decoded = decode_plain(data)
    if isinstance(decoded, dict):
        return decoded
    raise AssertionError(f"arguments of {row.id} are {decoded!r}")


# --- invariants ---------------------------------------------------------------------------------------------------


def _i1_terminal(fleet: Fleet, state: State, limits: Limits) -> Iterable[str]:
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


def _i2_results(fleet: Fleet, state: State, limits: Limits) -> Iterable[str]:
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


def _i3_effects(state: State, limits: Limits) -> Iterable[str]:
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


def _i4_events(state: State) -> Iterable[str]:
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


def _i5_at_rest(fleet: Fleet, state: State) -> Iterable[str]:
    client = fleet.server.client
    for run, row in state.runs.items():
        deliveries = 1 + sum(event.type in REASONS for event in state.events[run])
        if not row.open and row.delivery != deliveries:
            yield f"I5 run {run} closed at delivery {row.delivery}, its events tell of {deliveries}"
    for p in range(fleet.partitions):
        for member in _timers(fleet, p):
            yield f"I5 timer {member} is left"
        for member in client.execute_command("ZRANGE", fleet.keys.repair(p), 0, -1):
            yield f"I5 run {member.decode()} stands in repair"
    for key in state.keys:
        parsed = fleet.keys.parse(key)
        if parsed and parsed[1].name == "wf.tasks" and client.execute_command("XLEN", key):
            yield f"I5 {key} still holds tokens"
        if parsed and parsed[1].name == "wake" and client.execute_command("LLEN", key) > 1:
            yield f"I5 {key} holds more than one pebble"
        if parsed and (count := GATE_KEYS.get(parsed[1].name)) and (n := client.execute_command(count, key)):
            yield f"I5 {key} has {n} members, and no run is open"


def _i5_at_once(fleet: Fleet, state: State, limits: Limits) -> Iterable[str]:
    crowd = executions(state.effects, fleet.deaths)
    for gate, most, allowed in crowded(state.runs, crowd, limits.at_once):
        yield f"I5 {most} steps ran at once behind gate {gate}, which allows {allowed}"


def _i6_keys(fleet: Fleet, state: State) -> Iterable[str]:
    for key, (kind, ttl) in state.keys.items():
        parsed = fleet.keys.parse(key)
        if parsed is None:
            yield f"I6 key {key} belongs to no declared family"
            continue
        _, family, parts = parsed
        if kind != family.type:
            yield f"I6 key {key} is a {kind}, declared a {family.type}"
        needs = family.lifetime in (Lifetime.LEASE, Lifetime.WINDOW)
        if family.lifetime is Lifetime.WITH_RUN:
            row = state.runs.get(parts[0])
            needs = row is None or not row.open
        if needs and ttl < 0:
            yield f"I6 key {key} ({family.lifetime}) has no expiry"
        if not needs and ttl >= 0:
            yield f"I6 key {key} ({family.lifetime}) expires in {ttl} ms"


def _audit(fleet: Fleet) -> Iterable[str]:
    """What `weft keys audit` says must agree with what this checker reads by itself."""
    if fleet.shared:
        return  # its neighbours come and go meanwhile; its own keys were read above

    async def find() -> list[Finding]:
        await fleet.app.open()
        return await audit(fleet.app.engine().ns)

    for finding in fleet.call(find()):
        yield f"audit {finding.key}: {finding.problem}"


def _i7_pending(fleet: Fleet) -> Iterable[str]:
    client = fleet.server.client
    alive = _live_sessions(fleet)
    for key in _scan(fleet):
        parsed = fleet.keys.parse(key)
        if parsed is None or parsed[1].name != "wf.tasks":
            continue
        for group in client.execute_command("XINFO", "GROUPS", key):
            facts = {group[i].decode(): group[i + 1] for i in range(0, len(group), 2)}
            if facts["pending"]:
                yield f"I7 {key}: {facts['pending']} entries pending"
            for consumer in client.execute_command("XINFO", "CONSUMERS", key, facts["name"]):
                about = {consumer[i].decode(): consumer[i + 1] for i in range(0, len(consumer), 2)}
                if about["name"].decode() not in alive:
                    yield f"I7 {key}: dead consumer {about['name'].decode()} was not pruned"


def _i10_timers(state: State, limits: Limits, healed_at_ms: int) -> Iterable[str]:
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


def _i13_resources(fleet: Fleet, limits: Limits) -> Iterable[str]:
    for worker in fleet.workers:
        lines = [line for line in worker.log.splitlines() if not any(told in line for told in TASK_FAILURES)]
        if len(lines) > limits.log_lines:
            common = Counter(line[9:70] for line in lines).most_common(3)
            yield f"I13 {worker.name} wrote {len(lines)} log lines: {common}"
        if "Traceback (most recent call last)" in worker.log:
            yield f"I13 {worker.name} logged a traceback:\n{_traceback(worker.log)}"
    for worker in fleet.live_workers:
        was = fleet.baseline.get(worker.name)
        if was is None:
            continue
        now = psutil.Process(worker.pid).num_fds()
        if now > was + limits.fds:
            yield f"I13 {worker.name} holds {now} descriptors, {was} before the fault"


def _traceback(log: str) -> str:
    at = log.index("Traceback (most recent call last)")
    return log[max(0, at - 300) : at + 2500]


def _i14_keys(fleet: Fleet, state: State, limits: Limits) -> Iterable[str]:
    by_key: defaultdict[str, set[str]] = defaultdict(set)
    for run, row in state.runs.items():
        if row.spec.key:
            by_key[row.spec.key].add(run)
    for producer in fleet.producers:
        for entry in producer.entries():
            if entry.get("key"):
                by_key[entry["key"]].update(entry["runs"])
    for key, runs in by_key.items():
        if len(kept := runs - limits.wiped) > 1:
            yield f"I14 idempotency key {key} has {len(kept)} runs: {sorted(kept)}"


def _i17_success(fleet: Fleet, limits: Limits) -> Iterable[str]:
    asked = acked = 0
    for producer in fleet.producers:
        entries = producer.entries()
        asked += sum("ask" in entry for entry in entries)
        acked += sum("ack" in entry for entry in entries)
    if asked and acked / asked < limits.success:
        yield f"I17 only {acked} of {asked} starts were acknowledged"


def _crashes(state: State, limits: Limits) -> Iterable[str]:
    if limits.crashes is None:
        return
    dead = {event.facts["session"] for events in state.events.values() for event in events if "session" in event.facts}
    if len(dead) > limits.crashes:
        yield f"I3 crashes: {len(dead)} sessions were counted as dead, the scenario killed {limits.crashes}: {sorted(dead)}"


def _i3_charges(state: State) -> Iterable[str]:
    """A worker runs one suspect at a time, so its death is charged to one of them at most."""
    charged: defaultdict[str, list[str]] = defaultdict(list)
    for run, events in state.events.items():
        crashes = 0
        for event in events:
            told = int(event.facts.get("crashes", crashes))
            if told > crashes > 0:
                charged[event.facts["session"]].append(run)
            crashes = told
    for session, runs in charged.items():
        if len(runs) > 1:
            yield f"I3 the death of session {session} was charged to {len(runs)} suspects: {sorted(runs)}"


def check_new_work(fleet: Fleet, timeout: float = PATIENCE) -> None:
    """I12: every live worker does new work, asked for through the queue of its own name, without a restart by hand."""
    runs = {worker.name: fleet.start("effect", 1, queue=worker.name) for worker in fleet.live_workers}
    assert runs, "I12 no worker is alive"
    for name, run in runs.items():
        try:
            fleet.result(run, timeout)
        except TimeoutError:
            raise AssertionError(f"I12 worker {name} does no new work after the heal") from None


def await_state(fleet: Fleet, run: str, status: str, timeout: float = PATIENCE) -> None:
    """Waits until a run's hash shows a status."""
    p = int(run[1:].partition("-")[0])
    key = fleet.keys.run(p, run)
    wait_for(
        f"run {run} to be {status}",
        lambda: fleet.server.client.execute_command("HGET", key, "status") == status.encode(),
        timeout,
    )
