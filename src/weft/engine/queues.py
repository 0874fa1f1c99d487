"""How queues and workers stand: what operators and autoscalers look at."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import msgspec

from weft.core.gates import Controls, gate_name
from weft.core.model import ROUTES
from weft.engine.engine import Engine
from weft.engine.gates import known_controls
from weft.engine.lag import Lag, Room
from weft.store.queues import QueueFacts, earlier, read_queues, read_running
from weft.store.sessions import read_sessions
from weft.store.timers import read_now

#: Seconds between the two looks from which a rate is told.
SAMPLE = 0.5


class QueueInfo(msgspec.Struct, frozen=True):
    """How a queue stands."""

    name: str
    #: Steps a worker could take now, being run, and held: at a gate, or because the queue is paused.
    ready: int
    running: int
    held: int
    #: Age in seconds of the oldest step that is ready, and of the oldest that is held; 0 when there is none.
    oldest_age: float
    oldest_held_age: float
    #: Steps done per second, from two looks.
    throughput: float
    #: Live workers that serve it, and the steps they can run at once.
    workers: int
    slots: int
    paused: bool
    limits: dict[str, Any]

    @property
    def depth(self) -> int:
        """Everything that is accepted and not started."""
        return self.ready + self.held


class WorkerInfo(msgspec.Struct, frozen=True):
    """A worker session."""

    id: str
    app: str
    host: str
    pid: int
    alive: bool
    queues: list[str]
    tasks: list[str]
    concurrency: int
    running: int
    started_at: datetime
    version: str


async def list_queues(engine: Engine, *, sample: float = SAMPLE) -> list[QueueInfo]:
    """Tells how every queue stands; takes two looks `sample` seconds apart for the throughput (0: one look, no rate)."""
    await engine.open()
    before = await _facts(engine) if sample else {}
    began = time.monotonic()
    await asyncio.sleep(sample)
    after = await _facts(engine)
    seconds = time.monotonic() - began
    controls = await known_controls(engine.ns)
    now_ms = await read_now(engine.ns, 0)
    workers = [worker for worker in await list_workers(engine) if worker.alive]
    # The queue of routing steps is served by every worker; operators need not see it.
    names = {*after, *(queue for worker in workers for queue in worker.queues)} - {ROUTES}
    return [
        _describe(name, after.get(name, QueueFacts()), before.get(name), seconds, workers, controls, now_ms)
        for name in sorted(names)
    ]


async def _facts(engine: Engine) -> dict[str, QueueFacts]:
    found: dict[str, QueueFacts] = {}
    for p in range(engine.ns.partitions):
        for name, facts in (await read_queues(engine.ns, p)).items():
            found.setdefault(name, QueueFacts()).add(facts)
    return found


def _describe(
    name: str,
    facts: QueueFacts,
    before: QueueFacts | None,
    seconds: float,
    workers: list[WorkerInfo],
    controls: Controls,
    now_ms: int,
) -> QueueInfo:
    serving = [worker for worker in workers if name in worker.queues]
    done = (facts.added - facts.present) - (before.added - before.present) if before else 0
    limits = {}
    for word, kind in (("concurrency", "queue"), ("rate", "queuerate")):
        if (entry := controls.entries.get("limit:" + gate_name(kind, name))) is not None:
            limits[word] = entry["value"]
    paused = controls.paused_queue(name) is not None
    if paused:  # what stands in it cannot be taken: more workers would not help
        held_ms = earlier(facts.oldest_ms, facts.oldest_held_ms)
        facts = replace(facts, ready=0, held=facts.ready + facts.held, oldest_ms=0, oldest_held_ms=held_ms)
    return QueueInfo(
        name,
        facts.ready,
        facts.running,
        facts.held,
        _age(facts.oldest_ms, now_ms),
        _age(facts.oldest_held_ms, now_ms),
        round(max(0, done) / seconds, 1) if before and seconds else 0.0,
        len(serving),
        sum(worker.concurrency for worker in serving),
        paused,
        limits,
    )


def _age(moment_ms: int, now_ms: int) -> float:
    return max(0, now_ms - moment_ms) / 1000 if moment_ms else 0.0


async def list_workers(engine: Engine) -> list[WorkerInfo]:
    """Tells of every worker session, the oldest first; a dead one is listed until its steps were given to others."""
    await engine.open()
    running: dict[str, int] = {}
    sessions: dict[str, tuple[Any, bool]] = {}
    for p in range(engine.ns.partitions):
        found = await read_sessions(engine.ns, p)
        sessions |= found
        queues = sorted({queue for about, _ in found.values() for queue in about.queues})
        for session, n in (await read_running(engine.ns, p, queues)).items():
            running[session] = running.get(session, 0) + n
    workers = [
        WorkerInfo(
            about.id,
            about.app,
            about.host,
            about.pid,
            alive,
            about.queues,
            about.tasks,
            about.concurrency,
            running.get(about.id, 0),
            datetime.fromtimestamp(about.started_ms / 1000, UTC),
            about.version,
        )
        for about, alive in sessions.values()
    ]
    return sorted(workers, key=lambda worker: (worker.started_at, worker.id))


def prometheus(
    queues: list[QueueInfo], workers: list[WorkerInfo], lag: Lag | None = None, room: Room | None = None
) -> str:
    """Returns the figures in Prometheus' text format."""
    gauges: list[tuple[str, str, Callable[[QueueInfo], float]]] = [
        ("weft_queue_depth", "Steps accepted and not started.", lambda q: q.depth),
        ("weft_queue_ready", "Steps a worker could take now.", lambda q: q.ready),
        ("weft_queue_held", "Steps that wait at a gate, or in a paused queue.", lambda q: q.held),
        ("weft_queue_running", "Steps being run.", lambda q: q.running),
        ("weft_queue_oldest_age_seconds", "Age of the oldest step a worker could take now.", lambda q: q.oldest_age),
        ("weft_queue_oldest_held_age_seconds", "Age of the oldest step that is held.", lambda q: q.oldest_held_age),
        ("weft_queue_slots", "Steps the live workers of the queue can run at once.", lambda q: q.slots),
        ("weft_queue_workers", "Live workers that serve the queue.", lambda q: q.workers),
        ("weft_queue_paused", "1 while the queue is paused.", lambda q: int(q.paused)),
    ]
    lines = []
    for name, help, value in gauges:
        lines += [f"# HELP {name} {help}", f"# TYPE {name} gauge"]
        lines += [f'{name}{{queue="{queue.name}"}} {value(queue):g}' for queue in queues]
    lines += ["# HELP weft_workers Live workers.", "# TYPE weft_workers gauge"]
    lines.append(f"weft_workers {sum(worker.alive for worker in workers)}")
    if lag is not None and lag.databases:
        lines += ["# HELP weft_archive_lag_entries Log entries that are not archived."]
        lines += ["# TYPE weft_archive_lag_entries gauge", f"weft_archive_lag_entries {lag.entries}"]
        lines += ["# HELP weft_archive_lag_seconds Age of the oldest log entry that is not archived."]
        lines += ["# TYPE weft_archive_lag_seconds gauge", f"weft_archive_lag_seconds {lag.seconds:g}"]
        lines += ["# HELP weft_archive_index_seconds Age of the oldest log entry that is archived and not indexed."]
        lines += ["# TYPE weft_archive_index_seconds gauge", f"weft_archive_index_seconds {lag.index_seconds:g}"]
    if room is not None:
        for name, help, n in (
            ("weft_store_memory_bytes", "Memory the store uses.", room.used),
            ("weft_store_memory_max_bytes", "Memory the store may use.", room.most),
            ("weft_store_memory_soft_bytes", "Memory above which new runs are refused.", room.soft),
            ("weft_starts_refused", "Partitions that take no new runs right now.", len(room.refused)),
        ):
            lines += [f"# HELP {name} {help}", f"# TYPE {name} gauge", f"{name} {n}"]
    return "\n".join(lines) + "\n"
