"""What holds of the store and of the processes: nothing is left behind, nothing undeclared, nothing pending, nothing leaks."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Iterable

import psutil

from chaos.checker.limits import Limits
from chaos.checker.reading import GATE_KEYS, State, set_timers, stray_consumers, task_streams
from chaos.checker.runs import REASONS
from chaos.crowds import crowded, executions
from chaos.fleet import Fleet
from weft.store.audit import audit
from weft.store.findings import Finding
from weft.store.keys import Lifetime

#: What a worker tells of tasks that fail by themselves, once per failure: no flood, however many fail.
TASK_FAILURES = ("an attempt failed; there will be another", "a run failed")

#: Seconds within which a worker is alive again, or its consumers are pruned: several leases of any scenario.
PRUNED_S = 10.0


def i5_at_rest(fleet: Fleet, state: State) -> Iterable[str]:
    client = fleet.server.client
    for run, row in state.runs.items():
        deliveries = 1 + sum(event.type in REASONS for event in state.events[run])
        if not row.open and row.delivery != deliveries:
            yield f"I5 run {run} closed at delivery {row.delivery}, its events tell of {deliveries}"
    for p in range(fleet.partitions):
        for member in set_timers(fleet, p):
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


def i5_at_once(fleet: Fleet, state: State, limits: Limits) -> Iterable[str]:
    crowd = executions(state.effects, fleet.deaths)
    for gate, most, allowed in crowded(state.runs, crowd, limits.at_once):
        yield f"I5 {most} steps ran at once behind gate {gate}, which allows {allowed}"


def i6_keys(fleet: Fleet, state: State) -> Iterable[str]:
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
        if needs and ttl == -1:  # -2: it expired while it was looked at
            yield f"I6 key {key} ({family.lifetime}) has no expiry"
        if not needs and ttl >= 0:
            yield f"I6 key {key} ({family.lifetime}) expires in {ttl} ms"


def audit_agrees(fleet: Fleet) -> Iterable[str]:
    """What `weft keys audit` says must agree with what this checker reads by itself."""
    if fleet.shared:
        return  # its neighbours come and go meanwhile; its own keys were read above

    async def find() -> list[Finding]:
        await fleet.app.open()
        return await audit(fleet.app.engine().ns)

    for finding in fleet.call(find()):
        yield f"audit {finding.key}: {finding.problem}"


def i7_pending(fleet: Fleet) -> Iterable[str]:
    client = fleet.server.client
    for key in task_streams(fleet):
        for group in client.execute_command("XINFO", "GROUPS", key):
            facts = {group[i].decode(): group[i + 1] for i in range(0, len(group), 2)}
            if facts["pending"]:
                yield f"I7 {key}: {facts['pending']} entries pending"
    deadline = time.monotonic() + PRUNED_S
    # A worker that had no processor for longer than its lease is not alive at this very moment, but it is no dead one.
    while (strays := stray_consumers(fleet)) and time.monotonic() < deadline:
        time.sleep(0.1)
    for key, session in strays:
        yield f"I7 {key}: dead consumer {session} was not pruned"


def i13_resources(fleet: Fleet, limits: Limits) -> Iterable[str]:
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


def i14_keys(fleet: Fleet, state: State, limits: Limits) -> Iterable[str]:
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


def i17_success(fleet: Fleet, limits: Limits) -> Iterable[str]:
    asked = acked = 0
    for producer in fleet.producers:
        entries = producer.entries()
        asked += sum("ask" in entry for entry in entries)
        acked += sum("ack" in entry for entry in entries)
    if asked and acked / asked < limits.success:
        yield f"I17 only {acked} of {asked} starts were acknowledged"
