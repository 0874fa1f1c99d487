"""What is measured, and in which order: interleaved rounds, so that a slow minute of the machine hits every peer alike.

A peer that fails a case once has failed it: the reason is kept and the case is not tried again in later rounds.
"""

import math
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import redis

from bench import graphs
from bench.cold import DATABASES, pages_case, recovery_case
from bench.features import archive_case, limits_case, schedules_case, timers_case
from bench.machine import spin
from bench.measurement import Measurement, Producer, measuring
from bench.peers import NotInstalled, Peer, driver_command
from bench.processes import RoundFailed, halted, wait_for_rest
from bench.tree import SIZES, tree_case
from bench.workflows import costs_case, workflows_case

CASES = ("drain", "enqueue", "memory", "latency", "graphs", "features", "archive", "scale")

#: Tasks enqueued one by one when that rate is measured, at most.
MAX_ONE_BY_ONE = 2000
#: Tasks of the small queue that the large one is compared with.
SCALE_BASE = 10_000
#: Parts in which the large queue is filled, and emptied: as many tasks in small ones are measured behind each, because the
#: machine is uneven over a minute.
SCALE_PARTS = 8

#: What a worker is told where archiving is not what is measured: a small queue is empty before its archiver has begun.
NO_ARCHIVE = "--no-archive"

#: Passes of the case `graphs`, which other peers are good at.
GRAPHS = ("chains", "map")

Figures = dict[str, float]


@dataclass(frozen=True, kw_only=True)
class Plan:
    peers: list[Peer]
    cases: list[str]
    rounds: int
    n_tasks: int
    n_samples: int
    n_scale: int
    binary: Path


Case = Callable[[Measurement, Plan], Mapping[str, float | list[float]]]
ArchiveCase = Callable[[Measurement, str, int], Figures]


@dataclass
class Results:
    """Figures by peer and metric, one per round; why a peer or one of its cases has none; how even the machine was."""

    figures: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    failures: dict[tuple[str, str], str] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    spins: list[float] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    _metrics: dict[tuple[str, str], set[str]] = field(default_factory=dict)

    def add(self, peer: Peer, case: str, figures: Mapping[str, float | list[float]]) -> None:
        for metric, value in figures.items():
            kept = self.figures.setdefault(peer.name, {}).setdefault(metric, [])
            kept += value if isinstance(value, list) else [value]
        self._metrics.setdefault((peer.name, case), set()).update(figures)

    def fail(self, peer: Peer, case: str, reason: str) -> None:
        """Keeps the reason and drops what earlier rounds of the case gave: no table or ratio shows a failed row."""
        self.failures[peer.name, case] = " ".join(reason.split())[:300]
        for metric in self._metrics.pop((peer.name, case), ()):
            del self.figures[peer.name][metric]


def run(plan: Plan, results: Results) -> None:
    """Measures everything in the plan. `results` fills as it goes, so an interrupted run still has its figures."""
    commands = _install(plan, results)
    started_at = time.monotonic()
    for number in range(1, plan.rounds + 1):
        for name, case in _passes(plan, number).items():
            # Every other round runs backwards: no peer always follows the same one.
            for peer in plan.peers[:: 1 if number % 2 else -1]:
                field = "graphs" if name in GRAPHS else "queues"
                if field in peer.fields and peer.name in commands and (peer.name, name) not in results.failures:
                    talk = f"{time.monotonic() - started_at:4.0f} s  round {number} of {plan.rounds}"
                    _measure(peer, commands[peer.name], plan, results, name, case, talk)
    for peer in plan.peers:
        if "graphs" in plan.cases and peer.is_ours and peer.name in commands:
            _measure_graphs(peer, commands[peer.name], plan, results, started_at)
    for peer in plan.peers:
        if "features" in plan.cases and peer.is_ours and peer.name in commands:
            _measure_features(peer, commands[peer.name], plan, results, started_at)
    for peer in plan.peers:
        if "archive" in plan.cases and peer.is_ours and peer.name in commands:
            _measure_archive(peer, commands[peer.name], plan, results, started_at)
    for peer in plan.peers:
        if "scale" in plan.cases and peer.is_ours and peer.name in commands:
            _measure_scale(peer, commands[peer.name], plan, results, started_at)


def _install(plan: Plan, results: Results) -> dict[str, list[str]]:
    commands = {}
    for peer in plan.peers:
        try:
            if set(peer.fields) & _fields(plan):
                commands[peer.name] = driver_command(peer)
        except NotInstalled as reason:
            results.missing[peer.name] = str(reason)
            print(f"{peer.label}: {reason}", file=sys.stderr)
    return commands


def _fields(plan: Plan) -> set[str]:
    """What the cases of a plan compare peers in."""
    return {"graphs" if case == "graphs" else "queues" for case in plan.cases}


def _passes(plan: Plan, number: int) -> dict[str, Case]:
    """What this round does for each peer. Enqueue and drain share a queue; memory is the same in every round."""
    wanted = set(plan.cases)
    passes: dict[str, Case] = {}
    if "memory" in wanted and number == 1:
        passes["memory"] = memory_case
    if wanted & {"drain", "enqueue"}:
        passes["queue, 1 process"] = queue_case
    if "drain" in wanted:
        passes["queue, 2 processes"] = two_process_case
    if "latency" in wanted:
        passes["latency"] = latency_case
    if "graphs" in wanted:
        passes["chains"] = lambda m, plan: graphs.chain_case(m, m.peer.runs(plan.n_tasks))
        passes["map"] = lambda m, _: graphs.map_case(m)
    return passes


def queue_case(m: Measurement, plan: Plan) -> Figures:
    """Enqueue rates, and the rate at which one worker process drains what they left."""
    n = m.peer.tasks(plan.n_tasks)
    n_one = min(MAX_ONE_BY_ONE, n // 4)
    figures: Figures = {}
    with m.producing() as producer:
        n_warm = _warm_up(producer, n)
        if "enqueue" in plan.cases:
            figures["enqueue_one"] = producer.enqueue(n_one, bulk=False)
            n_warm += n_one
        bulk_rate = producer.enqueue(n - n_warm, bulk=True)
        if "enqueue" in plan.cases and m.peer.has_bulk:
            figures["enqueue_bulk"] = bulk_rate
        command = producer.worker_command(1)
    if "drain" in plan.cases:
        figures["drain_1"] = m.drain(command, n)
    return figures


def two_process_case(m: Measurement, plan: Plan) -> Figures:
    n = m.peer.tasks(plan.n_tasks)
    with m.producing() as producer:
        producer.enqueue(n, bulk=True)
        command = producer.worker_command(2)
    return {"drain_2": m.drain(command, n)}


def memory_case(m: Measurement, plan: Plan) -> Figures:
    """Bytes per queued task, from a short queue to a long one: what a server and a peer need once is not in it."""
    n = m.peer.tasks(plan.n_tasks)
    with m.producing() as producer:
        _warm_up(producer, n)
    before = m.server.memory_at_rest()
    with m.producing() as producer:
        producer.enqueue(n, bulk=True)
    return {"bytes_queued": (m.server.memory_at_rest() - before) / n}


def latency_case(m: Measurement, plan: Plan) -> Figures:
    samples = sorted(m.latency(plan.n_samples))
    return {
        "latency_p50": statistics.median(samples),
        "latency_p99": samples[math.ceil(0.99 * len(samples)) - 1],
        "latency_samples": len(samples),
    }


def small_case(m: Measurement, plan: Plan) -> Figures:
    """Enqueue and drain rates of small queues, one behind the other until a part of the large one's tasks is done.

    One of them alone is over in a fifth of a second, before the server's file is synced the first time: that is a burst, and
    no rate. The worker is halted while a queue is filled.
    """
    enqueued, drained = [], []
    with m.producing() as producer, m.working([*producer.worker_command(1), NO_ARCHIVE]) as worker:
        done = _warm_up(producer, SCALE_BASE)
        m.watch(done, worker)
        wait_for_rest(worker.pid)
        for _ in range(max(1, plan.n_scale // SCALE_PARTS // SCALE_BASE)):
            with halted(worker):
                enqueued.append(producer.enqueue(SCALE_BASE, bulk=True))
            drained.append(m.watch(done + SCALE_BASE, worker, before=done))
            done += SCALE_BASE
    m.verify(done)
    return {
        "scale_enqueue_small": statistics.harmonic_mean(enqueued),
        "scale_drain_small": statistics.harmonic_mean(drained),
    }


def large_case(m: Measurement, plan: Plan, beside: Callable[[], Figures]) -> dict[str, list[float]]:
    """The same of a large queue, part by part, with small ones on a server of their own behind each."""
    n, part = plan.n_scale, plan.n_scale // SCALE_PARTS
    figures: dict[str, list[float]] = {}

    def note(found: Figures) -> None:
        for metric, value in found.items():
            figures.setdefault(metric, []).append(value)

    with m.producing() as producer:
        n_warm = _warm_up(producer, SCALE_BASE)
        for k in range(SCALE_PARTS):
            rest = n - n_warm - k * part if k == SCALE_PARTS - 1 else part
            note({"scale_enqueue_large": producer.enqueue(rest, bulk=True)})
            note({"scale_enqueue_small": beside()["scale_enqueue_small"]})
        command = [*producer.worker_command(1), NO_ARCHIVE]
    for k in range(SCALE_PARTS):
        note({"scale_drain_large": m.drain_part(command, k * n // SCALE_PARTS, (k + 1) * n // SCALE_PARTS)})
        note({"scale_drain_small": beside()["scale_drain_small"]})
    m.verify(n)
    return figures


def _warm_up(producer: Producer, n: int) -> int:
    """Fills connections, caches and compilers with a twentieth of `n`; returns how many tasks that queued."""
    n_one, n_bulk = 50, max(50, n // 20)
    producer.enqueue(n_one, bulk=False)
    producer.enqueue(n_bulk, bulk=True)
    return n_one + n_bulk


def _measure_features(peer: Peer, command: list[str], plan: Plan, results: Results, started_at: float) -> None:
    """Limits and archiving in interleaved rounds, then timers and schedules once."""
    n, n_archived = plan.n_scale // 10, plan.n_scale // 4
    cases: list[tuple[str, Case]] = []
    for number in range(plan.rounds):
        tasks = ("plain", "keyed", "strict")[:: 1 if number % 2 == 0 else -1]
        cases += [(f"limits {task}", _limits(task, n)) for task in tasks]
        kept = ("archived", "unarchived")[:: 1 if number % 2 == 0 else -1]
        cases += [(task, _archive(task, n_archived)) for task in kept]
    cases += [("workflows", lambda m, _: workflows_case(m, n // 10))] * plan.rounds
    cases += [("workflow costs", lambda m, _: costs_case(m))] * plan.rounds
    cases += [(f"trees of {size} bytes", _tree(size)) for size in SIZES]
    cases.append(("timers", lambda m, _: timers_case(m, n)))
    if plan.rounds > 1:  # it takes two minutes
        cases.append(("schedules", lambda m, _: schedules_case(m, n // 10)))
    for name, case in cases:
        _measure(peer, command, plan, results, name, case, f"{time.monotonic() - started_at:4.0f} s  {n:,} tasks")


def _measure_graphs(peer: Peer, command: list[str], plan: Plan, results: Results, started_at: float) -> None:
    """Small and large graphs in interleaved rounds, then memory and large maps once."""
    n = peer.runs(plan.n_tasks)
    cases: list[tuple[str, Case]] = []
    for number in range(plan.rounds):
        sizes = (graphs.STEPS, graphs.MANY_NODES)[:: 1 if number % 2 == 0 else -1]
        cases += [(f"graphs of {nodes} nodes", _nodes(n, nodes)) for nodes in sizes]
    cases.append(("memory of runs", lambda m, _: graphs.memory_case(m, n)))
    cases.append(("large maps", lambda m, _: graphs.large_maps_case(m)))
    for name, case in cases:
        if (peer.name, name) not in results.failures:
            _measure(peer, command, plan, results, name, case, f"{time.monotonic() - started_at:4.0f} s  {n:,} runs")


def _nodes(n: int, nodes: int) -> Case:
    return lambda m, _: graphs.nodes_case(m, n, nodes)


def _tree(size: int) -> Case:
    return lambda m, _: tree_case(m, size)


def _limits(task: str, n: int) -> Case:
    return lambda m, _: limits_case(m, task, n)


def _archive(name: str, n: int) -> Case:
    return lambda m, _: archive_case(m, name, n)


def _measure_archive(peer: Peer, command: list[str], plan: Plan, results: Results, started_at: float) -> None:
    """What the archive promises, with each of its databases, once."""
    for database in DATABASES:
        for name, case, n in (("pages", pages_case, plan.n_scale), ("recovery", recovery_case, plan.n_scale // 100)):
            talk = f"{time.monotonic() - started_at:4.0f} s  {n:,} runs"

            def measure(
                m: Measurement, _: Plan, case: ArchiveCase = case, n: int = n, database: str = database
            ) -> Figures:
                return case(m, database, n)

            _measure(peer, command, plan, results, f"{name}, {database}", measure, talk)


def _measure_scale(peer: Peer, command: list[str], plan: Plan, results: Results, started_at: float) -> None:
    """A large queue and small ones, in turn."""

    def small() -> Figures:
        with measuring(peer, "small scale", command, plan.binary) as m:
            return small_case(m, plan)

    talk = f"{time.monotonic() - started_at:4.0f} s  {plan.n_scale:,} tasks"
    _measure(peer, command, plan, results, "scale", lambda m, plan: large_case(m, plan, small), talk)


def _measure(
    peer: Peer,
    command: list[str],
    plan: Plan,
    results: Results,
    name: str,
    case: Case,
    talk: str,
) -> None:
    print(f"{talk}  {peer.label}, {name}: ", end="", flush=True, file=sys.stderr)
    results.spins.append(spin())
    try:
        with measuring(peer, name, command, plan.binary) as measurement:
            figures = case(measurement, plan)
            results.notes += [f"{peer.label}, {name}: {note}" for note in measurement.notes]
    except (RoundFailed, redis.RedisError) as reason:
        results.fail(peer, name, str(reason))
        print(f"failed: {results.failures[peer.name, name]}", file=sys.stderr)
    else:
        results.add(peer, name, figures)
        print("  ".join(f"{metric} {_shown(value)}" for metric, value in figures.items()), file=sys.stderr)


def _shown(value: float | list[float]) -> str:
    middle = statistics.median(value) if isinstance(value, list) else value
    return f"{middle:,.0f}" if middle >= 100 else f"{middle:.2f}"
