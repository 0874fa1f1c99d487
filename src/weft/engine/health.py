"""How the store and everything on it are: read once, judged at once, every judgement with its remedy.

Reads what it can even where the engine would refuse to start, because that is when somebody asks.
"""

from __future__ import annotations

import platform
import statistics
import time
from importlib import metadata
from typing import Any, Literal

import msgspec

from weft import __version__
from weft.clock import format_duration
from weft.core.model import ROUTES
from weft.engine.engine import Engine
from weft.engine.health_apps import judge_apps
from weft.engine.health_archive import examine_database
from weft.engine.serving import read_resting
from weft.errors import StoreRefused, WeftError
from weft.settings import read_setting
from weft.store.audit import ask
from weft.store.binary import LIBC_KEEPS
from weft.store.connection import mask
from weft.store.keys import GROUP, PRIORITIES
from weft.store.letters import count_letters
from weft.store.namespace import Namespace
from weft.store.schedules import read_names, read_schedules
from weft.store.sessions import read_sessions
from weft.store.timers import read_timers

#: Round trips measured; the median is told.
PINGS = 20
#: Milliseconds a round trip may take before every step feels it.
SLOW_MS = 5.0
#: Milliseconds a due timer or tick may wait before it counts as late: a leader that dies is replaced within 3 s.
LATE_MS = 5_000
#: Schedules read at once, and overdue ones that a finding names.
SCHEDULES_PAGE, SHOWN = 500, 3
#: Share of maxmemory above which a warning is due.
FULL = 0.9
#: The oldest server that carries Weft's scripts.
OLDEST_MAJOR = 7

Level = Literal["ok", "warning", "problem"]


class Judgement(msgspec.Struct, frozen=True):
    """One thing that was looked at. `fix` is empty when it is as it should be."""

    level: Level
    about: str
    message: str
    fix: str = ""


class Store(msgspec.Struct):
    """The server behind the URL. What could not be read is None."""

    url: str
    kind: str
    embedded: bool = False
    directory: str | None = None
    flavour: str | None = None
    version: str | None = None
    appendonly: bool | None = None
    appendfsync: str | None = None
    #: Whether the last write to the append-only file succeeded; while it did not, the server takes nothing new.
    written: bool | None = None
    durability: str | None = None
    maxmemory: int | None = None
    maxmemory_policy: str | None = None
    used_memory: int | None = None
    allocator: str | None = None
    clients: int | None = None
    latency_ms: float | None = None


class Space(msgspec.Struct):
    """The namespace. No partitions: nothing was ever written to it."""

    name: str
    partitions: int = 0
    epochs: list[int] = []


class Depth(msgspec.Struct):
    """One queue at one priority, over all partitions."""

    queue: str
    priority: int
    waiting: int = 0
    in_flight: int = 0


class TimerLoad(msgspec.Struct):
    """Timers over all partitions; `late_ms` is how long the oldest due one has waited."""

    set: int = 0
    due: int = 0
    late_ms: int = 0


class ScheduleLoad(msgspec.Struct):
    """Schedules over all partitions; the overdue ones by name, and how long the oldest of their ticks has waited."""

    set: int = 0
    paused: int = 0
    overdue: list[str] = []
    late_ms: int = 0


class Session(msgspec.Struct):
    """A worker session and what it serves."""

    id: str
    alive: bool
    app: str
    host: str
    pid: int
    queues: list[str]
    tasks: list[str]
    concurrency: int
    version: str


class LogLoad(msgspec.Struct):
    """The log over all partitions."""

    entries: int = 0
    oldest_ms: int | None = None


class DatabaseLoad(msgspec.Struct):
    """The cold store, and how far behind it is. `status`: off (nobody archives), ok, behind or unavailable."""

    status: str = "off"
    url: str = ""
    schema: str = ""
    #: Log entries that are not archived, and the age of the oldest of them.
    lag_entries: int = 0
    lag_seconds: float = 0.0
    #: The age of the oldest entry by which its run cannot be found there yet.
    index_seconds: float = 0.0
    #: Pieces of runs that could not be archived as they were.
    gaps: int = 0
    #: Runs that stand there, were not archived, and that nobody set out to start within the last minute.
    starts: int = 0
    #: Runs under way of which it has not everything: they began before it did, or have gaps. A loss of the store loses them.
    outside: int = 0


class Health(msgspec.Struct):
    """Everything `weft doctor` knows."""

    store: Store
    namespace: Space
    versions: dict[str, str]
    reachable: bool = False
    #: Whether what stands in the namespace was read: of what was not, nothing is known, not even that there is none.
    examined: bool = False
    queues: list[Depth] = []
    #: Steps of graph runs that wait for any worker to decide what follows.
    undecided: int = 0
    #: How many runs rest because nobody can do them, by what they need.
    resting: dict[str, int] = {}
    timers: TimerLoad = msgspec.field(default_factory=TimerLoad)
    schedules: ScheduleLoad = msgspec.field(default_factory=ScheduleLoad)
    sessions: list[Session] = []
    dead_letters: int = 0
    log: LogLoad = msgspec.field(default_factory=LogLoad)
    repair: int = 0
    database: DatabaseLoad = msgspec.field(default_factory=DatabaseLoad)
    findings: list[Judgement] = []

    @property
    def sound(self) -> bool:
        return not any(finding.level == "problem" for finding in self.findings)

    def judge(self, level: Level, about: str, message: str, fix: str = "") -> None:
        self.findings = [*self.findings, Judgement(level, about, message, fix)]


async def examine(engine: Engine, *, directory: str | None = None) -> Health:
    """Reads how everything is. `directory` is that of the embedded server, if it is one. Never raises for the store."""
    server = engine.ns.server.address
    health = Health(Store(mask(server.url), server.kind), Space(engine.ns.keys.namespace), _versions())
    try:
        health.store = await read_store(engine.ns, directory=directory)
    except WeftError as error:
        fix = _fix(error, "start the server, or correct WEFT_REDIS_URL")
        health.judge("problem", "store", f"{health.store.url}: {error.message}", fix)
        return health
    health.reachable = True
    _judge_store(health)
    if not _is_young_enough(health.store):
        return health  # no script runs there
    try:
        if await ask(engine.ns, "EXISTS", engine.ns.keys.namespace_meta()):
            await engine.ns.open(only_look=True)
            await _read_work(engine.ns, health)
            health.examined = True
            await examine_database(engine, health)
            _judge_work(health)
        elif await engine.cold.partitions():
            lost = f"the store lost namespace {health.namespace.name!r}: it has nothing, {engine.cold.address.shown} has runs"
            fix = "start a worker or `weft archiver`, which rebuild it, or see `weft recover`"
            health.judge("problem", "namespace", lost, fix)
        else:
            health.examined = True
            health.judge("ok", "namespace", f"nothing was ever written to namespace {health.namespace.name!r}")
    except StoreRefused as error:
        health.judge("problem", "namespace", error.message)  # which says what to do
    except WeftError as error:
        health.judge("problem", "namespace", error.message, _fix(error, "see `weft keys audit`"))
    return health


def _fix(error: WeftError, otherwise: str) -> str:
    """Returns what to do; nothing where the server answered with an error of its own, which tells that by itself."""
    return "" if error.facts.get("redis") else otherwise


def unreachable(error: WeftError, namespace: str) -> Health:
    """Returns the health where no store can be looked at: a setting cannot be used, or the embedded one does not start."""
    named = error.facts.get("url") or mask(read_setting("WEFT_REDIS_URL") or "")
    store = Store(named, "unknown") if named else Store("", "embedded", embedded=True)
    store.directory = error.facts.get("directory")
    health = Health(store, Space(namespace), _versions())
    if "setting" in error.facts:
        health.judge("problem", "settings", error.message, "correct it; what reads it refuses to begin")
    else:
        health.judge("problem", "store", error.message, "mend it, or name another store in WEFT_REDIS_URL")
    return health


def _versions() -> dict[str, str]:
    return {"python": platform.python_version(), "weft": __version__, "redis-py": metadata.version("redis")}


async def read_store(ns: Namespace, *, directory: str | None = None) -> Store:
    """Reads what the server is and how safely it keeps things; raises Unavailable when it does not answer."""
    store = Store(mask(ns.server.address.url), ns.server.address.kind)
    store.embedded, store.directory = directory is not None, directory
    if store.embedded:
        store.kind = "embedded"
    info = await ns.info("server")
    store.flavour = "valkey" if "valkey_version" in info else "redis"
    store.version = info.get("valkey_version") or info.get("redis_version", "?")
    memory, clients, persistence = await ns.info("memory"), await ns.info("clients"), await ns.info("persistence")
    store.used_memory, store.maxmemory = int(memory.get("used_memory", 0)), int(memory.get("maxmemory", 0))
    store.maxmemory_policy = memory.get("maxmemory_policy", "noeviction")
    store.allocator = memory.get("mem_allocator")
    store.clients = int(clients.get("connected_clients", 0))
    store.appendonly = persistence.get("aof_enabled") == "1"
    store.appendfsync = await _fsync_policy(ns) if store.appendonly else None
    store.written = persistence.get("aof_last_write_status", "ok") == "ok" if store.appendonly else None
    store.durability = f"AOF {store.appendfsync or ''}".strip() if store.appendonly else "none"
    store.latency_ms = await _latency(ns)
    return store


async def _fsync_policy(ns: Namespace) -> str | None:
    """Returns when the server syncs its log; None where CONFIG is forbidden, as on hosted servers."""
    try:
        reply = await ask(ns, "CONFIG", "GET", "appendfsync")
    except StoreRefused:
        return None
    return _text(reply["appendfsync"] if isinstance(reply, dict) else reply[1])


async def _latency(ns: Namespace) -> float:
    taken = []
    for _ in range(PINGS):
        began = time.perf_counter()
        await ask(ns, "ECHO", "")  # not PING, which a server that cannot write its file refuses
        taken.append((time.perf_counter() - began) * 1000)
    return round(statistics.median(taken), 3)


# --- what is on it --------------------------------------------------------------------------------


async def _read_work(ns: Namespace, health: Health) -> None:
    health.namespace = Space(ns.keys.namespace, ns.partitions, [ns.epoch(p) for p in range(ns.partitions)])
    depths: dict[tuple[str, int], Depth] = {}
    sessions: dict[str, Session] = {}
    for p in range(ns.partitions):
        for id, (about, alive) in (await read_sessions(ns, p)).items():
            seen = sessions.setdefault(
                id,
                Session(
                    id,
                    True,
                    about.app,
                    about.host,
                    about.pid,
                    about.queues,
                    about.tasks,
                    about.concurrency,
                    about.version,
                ),
            )
            seen.alive = seen.alive and alive
        await _read_depths(ns, p, depths, {queue for session in sessions.values() for queue in session.queues})
        now_ms = await _read_timers(ns, p, health.timers)
        await _read_schedules(ns, p, health.schedules, now_ms)
        health.dead_letters += await count_letters(ns, p)
        for needs, n in (await read_resting(ns, p)).items():
            health.resting = {**health.resting, needs: health.resting.get(needs, 0) + n}
        await _read_log(ns, p, health)
    health.undecided = sum(depth.waiting for depth in depths.values() if depth.queue == ROUTES)
    health.queues = sorted(
        (depth for depth in depths.values() if depth.queue != ROUTES and (depth.waiting or depth.in_flight)),
        key=lambda d: (d.queue, -d.priority),
    )
    health.sessions = sorted(sessions.values(), key=lambda session: session.id)


async def _read_depths(ns: Namespace, p: int, depths: dict[tuple[str, int], Depth], served: set[str]) -> None:
    queues = {_text(name) for name in await ns.read("SMEMBERS", ns.keys.queues(p), p=p)} | served
    places = [(queue, priority) for queue in sorted(queues) for priority in PRIORITIES]
    commands: list[tuple[str, ...]] = []
    for queue, priority in places:
        stream = ns.keys.tasks(p, queue, priority)
        commands += [("XLEN", stream), ("XPENDING", stream, GROUP)]
    replies = await ns.read_many(commands, p=p)
    for i, place in enumerate(places):
        length, pending = replies[2 * i : 2 * i + 2]
        held = int(pending[0]) if isinstance(pending, list) else 0
        depth = depths.setdefault(place, Depth(*place))
        depth.in_flight += held
        depth.waiting += max(0, int(length) - held)


async def _read_timers(ns: Namespace, p: int, load: TimerLoad) -> int:
    """Notes the timers of a partition; returns its time."""
    now, _, _ = await read_timers(ns, p, limit=1)
    timers = ns.keys.timers(p)
    n, due, first = await ns.read_many(
        [("ZCARD", timers), ("ZCOUNT", timers, "-inf", now), ("ZRANGE", timers, 0, 0, "WITHSCORES")], p=p
    )
    load.set += int(n)
    load.due += int(due)
    if due and first:
        score = first[0][1] if isinstance(first[0], (tuple, list)) else first[1]
        load.late_ms = max(load.late_ms, now - int(float(score)))
    return now


async def _read_schedules(ns: Namespace, p: int, load: ScheduleLoad, now_ms: int) -> None:
    names = await read_names(ns, p)
    load.set += len(names)
    for at in range(0, len(names), SCHEDULES_PAGE):
        for row in await read_schedules(ns, p, names[at : at + SCHEDULES_PAGE]):
            if row is None or row.paused:
                load.paused += row is not None
                continue
            due = row.text("next")
            # A tick with `waits` was looked at: overlap="queue" keeps it until the run before it has ended.
            if due.isdigit() and now_ms - int(due) > LATE_MS and not row.text("waits"):
                load.overdue = [*load.overdue, row.name]
                load.late_ms = max(load.late_ms, now_ms - int(due))


async def _read_log(ns: Namespace, p: int, health: Health) -> None:
    entries, first, repair = await ns.read_many(
        [("XLEN", ns.keys.log(p)), ("XRANGE", ns.keys.log(p), "-", "+", "COUNT", 1), ("ZCARD", ns.keys.repair(p))], p=p
    )
    health.log.entries += int(entries)
    health.repair += int(repair)
    if first:
        at = int(_text(first[0][0]).partition("-")[0])
        health.log.oldest_ms = min(health.log.oldest_ms or at, at)


# --- judging --------------------------------------------------------------------------------------


def _is_young_enough(store: Store) -> bool:
    return int((store.version or "0").partition(".")[0]) >= OLDEST_MAJOR


def _judge_store(health: Health) -> None:
    store = health.store
    assert store.version is not None, "the store was read"
    name = f"{(store.flavour or '').capitalize()} {store.version}"
    if not _is_young_enough(store):
        health.judge("problem", "version", f"{name} is too old", "use Redis >= 7.0 or Valkey >= 7.2")
    else:
        health.judge("ok", "version", name)
    if store.maxmemory_policy != "noeviction":
        fix = "CONFIG SET maxmemory-policy noeviction, and in the server's configuration file"
        health.judge("problem", "eviction", f"maxmemory-policy {store.maxmemory_policy} throws queued work away", fix)
    else:
        health.judge("ok", "eviction", "nothing is evicted")
    if not store.appendonly:
        fix = "CONFIG SET appendonly yes and appendfsync everysec, and in the server's configuration file"
        health.judge("warning", "persistence", "accepted runs are lost when the server restarts (appendonly no)", fix)
    elif store.written is False:
        fix = "free space on the server's disk, and it goes on by itself; its log tells the error"
        message = "the server cannot write its append-only file, and refuses everything new until it can"
        health.judge("problem", "persistence", message, fix)
    elif store.appendfsync == "no":
        fix = "CONFIG SET appendfsync everysec"
        health.judge("warning", "persistence", "the operating system decides when runs reach the disk", fix)
    else:
        health.judge("ok", "persistence", store.durability or "")
    if store.maxmemory and (store.used_memory or 0) > FULL * store.maxmemory:
        fix = "raise maxmemory, or drain the queues; `weft keys memory` tells what takes it"
        health.judge("warning", "memory", f"more than {FULL:.0%} of maxmemory is used", fix)
    if store.allocator == "libc" and not store.embedded:
        fix = f"use a build with jemalloc, or start it with {LIBC_KEEPS} in GLIBC_TUNABLES"
        health.judge("warning", "allocator", "the server allocates with libc, which costs half of its speed", fix)
    if (store.latency_ms or 0) > SLOW_MS:
        fix = "bring the workers nearer to the store, or look for a slow command (SLOWLOG GET)"
        health.judge("warning", "latency", f"a round trip takes {store.latency_ms} ms", fix)
    else:
        health.judge("ok", "latency", f"a round trip takes {store.latency_ms} ms")


def _judge_work(health: Health) -> None:
    live = [session for session in health.sessions if session.alive]
    dead = [session for session in health.sessions if not session.alive]
    served = {queue for session in live for queue in session.queues}
    if live:
        health.judge("ok", "workers", f"{len(live)} alive")
    judge_apps(health, live)
    for session in dead:
        fix = "a live worker takes its steps within a lease" if live else "start a worker: it takes the steps over"
        health.judge("warning", "workers", f"session {session.id} ({session.host}, pid {session.pid}) is dead", fix)
    for queue in sorted({depth.queue for depth in health.queues if depth.waiting} - served):
        waiting = sum(depth.waiting for depth in health.queues if depth.queue == queue)
        fix = f"start a worker for it: weft worker -q {queue}"
        health.judge("warning", "queues", f"{waiting} steps wait in {queue!r}, which no live worker serves", fix)
    if health.undecided and not live:
        fix = "start a worker: each of them does"
        health.judge("warning", "graphs", f"{health.undecided} steps of graph runs wait for a worker to decide", fix)
    if health.timers.late_ms > LATE_MS:
        late = format_duration(health.timers.late_ms)
        fix = "see the worker's log" if live else "start a worker: timers fire only while one lives"
        health.judge("warning", "timers", f"{health.timers.due} are due, the oldest for {late}", fix)
    _judge_schedules(health, bool(live))
    if health.dead_letters:
        fix = "`weft dlq ls` lists them, `weft dlq groups` tells what they have in common"
        message = f"{health.dead_letters} runs failed for good and are kept as dead letters"
        health.judge("warning", "dead letters", message, fix)
    if health.repair:
        fix = "`weft keys audit` names them"
        health.judge("problem", "repair", f"{health.repair} runs made a script fail and wait for repair", fix)
    _judge_log(health, bool(live))


def _judge_schedules(health: Health, watched: bool) -> None:
    overdue = health.schedules.overdue
    if not overdue:
        return
    shown = ", ".join(map(repr, overdue[:SHOWN])) + (
        f" and {len(overdue) - SHOWN} more" if len(overdue) > SHOWN else ""
    )
    fix = "see the worker's log" if watched else "start a worker: schedules tick only while one lives"
    late = format_duration(health.schedules.late_ms)
    health.judge("warning", "schedules", f"{len(overdue)} did not tick, the oldest tick is {late} late: {shown}", fix)


def _judge_log(health: Health, watched: bool) -> None:
    if health.log.oldest_ms is None or health.database.status != "off":
        return
    age, keep = int(time.time() * 1000) - health.log.oldest_ms, int(read_setting("WEFT_RETENTION"))
    if watched and age > 2 * keep + 60_000:
        fix = "see the worker's log for errors of its sweeper, or set WEFT_RETENTION alike everywhere"
        message = f"the oldest event is {format_duration(age)} old, twice what is kept ({format_duration(keep)})"
        health.judge("warning", "log", message, fix)


def _text(value: Any) -> str:
    return value.decode(errors="backslashreplace") if isinstance(value, bytes) else str(value)


__all__ = ["Health", "Judgement", "Store", "examine", "read_store", "unreachable"]
