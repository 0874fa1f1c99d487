"""Graph runs in Redis: start, commit, read. One function per script, same verb and noun."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from weft.core.effects import (
    CHUNK,
    END,
    Arrive,
    Cursor,
    Effect,
    Fail,
    Finish,
    Last,
    Mark,
    NodeEnd,
    Open,
    Scatter,
    Shut,
    route_spec,
    step_id,
)
from weft.core.gates import needed
from weft.core.model import ROUTES, SPEC_ENCODER
from weft.store.keys import GROUP, TIMER_WAKE
from weft.store.namespace import Namespace
from weft.store.numbers import GateKeys, Numbers
from weft.store.reads import Reads
from weft.store.runs import NewRun
from weft.store.scripts import Arg

#: Priority of steps that decide what follows.
ROUTE_PRIORITY = 5


class _Records:
    """The records of one call, and the keys they point at."""

    def __init__(self, ns: Namespace, p: int) -> None:
        self.ns, self.p = ns, p
        self.gates = GateKeys(ns.keys, p)
        self.wakes = Numbers({ns.keys.wake(p, TIMER_WAKE): 1})
        self.tasks, self.runs, self.maps, self.results, self.blobs = (Numbers() for _ in range(5))
        self.rows: list[tuple[Arg, ...]] = []
        self._route: dict[str, bytes] = {}
        #: Maps whose followers stand among the records already.
        self._mapped: set[tuple[str, str]] = set()
        self._queues: dict[tuple[str, int], tuple[int, int]] = {}

    def effect(self, run: str, definition: str, keep_ms: int, effect: Effect) -> None:
        match effect:
            case Open():
                self._open(run, effect)
            case Mark(node, step, status, value):
                head = f"{status} {step} 1 0 0 -\n".encode()
                place = self.blobs.of(self.ns.keys.blob(self.p, run, effect.blob)) if effect.blob else 0
                self._row("mark", name=node, spec=head + value, blob=place)
            case Arrive(join, who, total, need):
                self._route_row("arrive", run, join, definition, f"{join}?", wait=who, refs=f"{total} {need}")
            case Shut(step):
                self._row("shut", name=step)
            case Scatter(step, n, most, need):
                self._row("scatter", name=step, wait=f"{n} {most} {need}", map=self._map(run, step))
            case Cursor(step, to, busy):
                self._row("cursor", name=step, wait=str(to), refs="busy" if busy else "", map=self._map(run, step))
            case Fail(error):
                self._row("fail", spec=error, wait=str(keep_ms))
            case Finish(value, plain):
                self._row("finish", spec=value, wait=str(keep_ms), refs="plain" if plain else "")
            case Last():
                self._route_row("last", run, END, definition, END)

    def end(self, g: int, end: NodeEnd) -> None:
        token, (node, _, index) = end.token, end.step.partition("#")
        keys, p = self.ns.keys, self.p
        spec = token.spec
        at = len(self.rows)
        self.rows.append(())
        for effect in end.effects:
            self.effect(end.run, spec.definition, end.keep_ms, effect)
        if index and (end.run, node) not in self._mapped:
            self._mapped.add((end.run, node))
            for op, step in (("gathered", f"{node}="), ("refill", f"{node}+")):
                self._route_row(op, end.run, step, spec.definition, step, map=self._map(end.run, node))
        self.rows[at] = (
            "end",
            self.runs.of(keys.run(p, token.run)),
            end.step,
            self._queue(spec.queue, spec.priority)[0],
            g,
            end.value,
            token.ledger,
            self.gates.held(token.gates),
            len(self.rows) - at - 1,
            f"{end.kind} {end.started_ms} {token.attempt} {spec.definition}",
            self._map(end.run, node) if index else 0,
            self.results.of(keys.results(p, end.run, node, int(index) // CHUNK)) if index else 0,
            self.blobs.of(keys.blob(p, end.run, end.blob)) if end.blob else 0,
        )

    def _map(self, run: str, step: str) -> int:
        return self.maps.of(self.ns.keys.map(self.p, run, step))

    def _open(self, run: str, effect: Open) -> None:
        keys, p, step, spec = self.ns.keys, self.p, effect.step, effect.spec
        at = self.runs.of(keys.run(p, step_id(run, step)))
        task, queue = self._queue(spec.queue, spec.priority)
        packed = effect.packed or SPEC_ENCODER.encode(spec)
        refs = self.gates.refs(needed(spec, self.ns.controls[p]))
        self.rows.append(("open", at, step, task, queue, packed, effect.wait, refs, spec.priority, spec.fair, 0, 0, 0))

    def _queue(self, queue: str, priority: int) -> tuple[int, int]:
        """Returns the numbers of a queue's stream and of its wake key."""
        found = self._queues.get((queue, priority))
        if found is None:
            keys, p = self.ns.keys, self.p
            found = (self.tasks.of(keys.tasks(p, queue, priority)), self.wakes.of(keys.wake(p, queue)))
            self._queues[queue, priority] = found
        return found

    def _route_row(
        self, op: str, run: str, name: str, definition: str, step: str, *, wait: str = "0", refs: str = "", map: int = 0
    ) -> None:
        keys, p = self.ns.keys, self.p
        packed = self._route.get(definition)
        if packed is None:
            packed = self._route[definition] = SPEC_ENCODER.encode(route_spec(definition))
        self._row(
            op,
            run=self.runs.of(keys.run(p, step_id(run, step))),
            name=name,
            task=self.tasks.of(keys.tasks(p, ROUTES, ROUTE_PRIORITY)),
            queue=self.wakes.of(keys.wake(p, ROUTES)),
            spec=packed,
            wait=wait,
            refs=refs,
            priority=ROUTE_PRIORITY,
            map=map,
        )

    def _row(
        self,
        op: str,
        *,
        run: int = 0,
        name: str = "",
        task: int = 0,
        queue: int = 0,
        spec: bytes = b"",
        wait: str = "0",
        refs: str = "",
        priority: int = 0,
        fair: str = "",
        map: int = 0,
        blob: int = 0,
    ) -> None:
        self.rows.append((op, run, name, task, queue, spec, wait, refs, priority, fair, map, 0, blob))

    def keys(self) -> dict[str, str | Collection[str]]:
        keys, p = self.ns.keys, self.p
        return {
            "log": keys.log(p),
            "timers": keys.timers(p),
            "queues": keys.queues(p),
            "lines": keys.lines(p),
            "admit": keys.admit(p),
            "wake": self.wakes,
            "wf.tasks": self.tasks,
            "run": self.runs,
            **self.gates.families(),
        }


async def start_graph(
    ns: Namespace,
    p: int,
    new: NewRun,
    effects: Sequence[Effect],
    *,
    definition: bytes,
    result: bytes,
    by: str,
    watch: str = "",
) -> str:
    """Starts a graph run; returns a word (see start_graph.lua). Raises StaleControls."""
    keys, records, spec = ns.keys, _Records(ns, p), new.spec
    records.runs.of(keys.run(p, new.id))
    for effect in effects:
        records.effect(new.id, spec.definition, spec.keep_ms, effect)
    reply = await ns.call(
        "start_graph",
        p,
        {
            **records.keys(),
            "ir": keys.ir(p, spec.definition),
            "ledger": [keys.ledger(p, new.id)],
            "arrivals": [keys.arrivals(p, new.id)],
            "context": [keys.context(p, new.id)],
            "blob": [keys.blob(p, new.id, spec.blob)] if spec.blob else [],
            "idempotency": [keys.idempotency(p, new.key_digest)] if new.key_digest else [],
        },
        {
            "controls": ns.controls[p].version,
            "by": by,
            "spec": new.packed,
            "definition": definition,
            "deadline_ms": spec.deadline_ms,
            "keep_ms": spec.keep_ms,
            "digest": new.payload_digest,
            "window_ms": new.window_ms,
            "watch": watch,
            "result": result,
        },
        [row[:10] for row in records.rows],
    )
    return str(reply.decode())


async def commit_nodes(
    ns: Namespace, p: int, ends: Sequence[NodeEnd], *, session: str, caller: Any = None
) -> list[str]:
    """Commits the ends of steps of graph runs in one call; returns a word per end. Raises StaleControls."""
    keys, records = ns.keys, _Records(ns, p)
    graphs: dict[str, int] = {}
    for end in ends:
        if end.run not in graphs:
            graphs[end.run] = len(graphs) + 1
            records.runs.of(keys.run(p, end.run))
    at = []
    for end in ends:
        at.append(len(records.rows))
        records.end(graphs[end.run], end)
    reply = await ns.call(
        "commit_nodes",
        p,
        {
            **records.keys(),
            "repair": keys.repair(p),
            "ledger": [keys.ledger(p, run) for run in graphs],
            "arrivals": [keys.arrivals(p, run) for run in graphs],
            "context": [keys.context(p, run) for run in graphs],
            "map": records.maps,
            "results": records.results,
            "blob": records.blobs,
        },
        {"controls": ns.controls[p].version, "by": session, "group": GROUP},
        records.rows,
        caller=caller,
    )
    return [reply[i].decode() for i in at]


async def read_definition(ns: Namespace, p: int, digest: str) -> bytes | None:
    """Returns a definition's JSON."""
    data = await ns.read("GET", ns.keys.ir(p, digest), p=p)
    return None if data is None else bytes(data)


@dataclass(slots=True, frozen=True)
class Given:
    """What a node gave, as the context has it."""

    status: str
    step: str
    attempt: int
    started_ms: int
    ended_ms: int
    value: bytes


def parse_given(data: bytes) -> Given:
    head, _, value = data.partition(b"\n")
    status, step, attempt, started, ended, _ = head.decode().split(" ", 5)
    # `+<ms>`: how long it took.
    ended_ms = int(ended) + (int(started) if ended[0] == "+" else 0)
    return Given(status, step, int(attempt), int(started), ended_ms, value)


async def read_context(ns: Namespace | Reads, p: int, run: str, nodes: Sequence[str]) -> dict[str, Given]:
    """Returns what some nodes of a run gave; those that have not ended are left out."""
    if not nodes:
        return {}
    replies = await ns.read("HMGET", ns.keys.context(p, run), *nodes, p=p)
    return {node: parse_given(reply) for node, reply in zip(nodes, replies, strict=True) if reply is not None}


async def read_whole_context(ns: Namespace | Reads, p: int, run: str) -> dict[str, Given]:
    """Returns what all nodes of a run gave so far."""
    flat = await ns.read("HGETALL", ns.keys.context(p, run), p=p)
    return {flat[i].decode(): parse_given(flat[i + 1]) for i in range(0, len(flat), 2)}


async def read_open_steps(ns: Namespace | Reads, p: int, run: str) -> dict[str, int]:
    """Returns the open steps of a run and when they opened (ms)."""
    flat = await ns.read("HGETALL", ns.keys.ledger(p, run), p=p)
    return {flat[i].decode(): int(flat[i + 1]) for i in range(0, len(flat), 2)}


async def read_arrivals(ns: Namespace, p: int, run: str, join: str) -> dict[str, str]:
    """Returns who has come to a join, and as what: `+`, `-` or `!`."""
    text = await ns.read("HGET", ns.keys.arrivals(p, run), join, p=p)
    words = text.decode().removeprefix("= ").split() if text else []
    return {word[:-1]: word[-1] for word in words}


@dataclass(slots=True)
class MapRow:
    """How far a map has come."""

    n: int
    most: int
    need: int
    at: int
    done: int
    failed: int


async def read_map(ns: Namespace, p: int, run: str, step: str) -> MapRow | None:
    fields = ("n", "most", "need", "at", "done", "failed")
    reply = await ns.read("HMGET", ns.keys.map(p, run, step), *fields, p=p)
    return None if reply[0] is None else MapRow(*(int(value) for value in reply))


async def stage_items(ns: Namespace, p: int, run: str, step: str, items: Sequence[Any]) -> None:
    """Uploads the items of a map before the script that begins it. Repeating it changes nothing."""
    pack = msgspec.msgpack.encode
    key = ns.keys.items(p, run, step)
    for at in range(0, len(items), CHUNK * 16):
        fields: list[Arg] = []
        for chunk in range(at, min(at + CHUNK * 16, len(items)), CHUNK):
            fields += [chunk // CHUNK, pack(items[chunk : chunk + CHUNK])]
        await ns.read("HSET", key, *fields, p=p)


async def read_items(ns: Namespace, p: int, run: str, step: str, chunk: int) -> list[Any]:
    data = await ns.read("HGET", ns.keys.items(p, run, step), chunk, p=p)
    return [] if data is None else list(msgspec.msgpack.decode(data))


async def read_results(ns: Namespace, p: int, run: str, step: str, n: int) -> dict[int, tuple[str, bytes]]:
    """Returns what the items of a map gave, by index: status and value."""
    found: dict[int, tuple[str, bytes]] = {}
    chunks = range((n + CHUNK - 1) // CHUNK)
    for at in range(0, len(chunks), 16):
        keys = [("HGETALL", ns.keys.results(p, run, step, chunk)) for chunk in chunks[at : at + 16]]
        for flat in await ns.read_many(keys, p=p):
            for i in range(0, len(flat), 2):
                status, _, value = flat[i + 1].partition(b"\n")
                found[int(flat[i])] = (status.decode(), value)
    return found


async def put_away(ns: Namespace | Reads, p: int, run: str, keys: Sequence[str], *, keep_ms: int) -> None:
    """Lets what a run left expire with it, and takes its timer away."""
    commands: list[tuple[Arg, ...]] = [("PEXPIRE", key, keep_ms) for key in keys]
    commands.append(("DEL", ns.keys.ledger(p, run)))
    commands.append(("ZREM", ns.keys.timers(p), f"close:{run}"))
    await ns.read_many(commands, p=p)
