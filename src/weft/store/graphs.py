"""Graph runs in Redis: start, commit, read. One function per script, same verb and noun."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from weft.core.effects import (
    CHUNK,
    END,
    UNDOES,
    Arrive,
    Cursor,
    Effect,
    Fail,
    Failing,
    Finish,
    Given,
    Last,
    Letter,
    Mark,
    NodeEnd,
    Open,
    Over,
    Remember,
    Scatter,
    Shut,
    Undoable,
    Undone,
    Weigh,
    route_spec,
    step_id,
)
from weft.core.gates import needed
from weft.core.model import ROUTES, SPEC_ENCODER, RunSpec
from weft.store.blobs import STAGING_MS
from weft.store.keys import GROUP, TIMER_WAKE
from weft.store.namespace import Namespace
from weft.store.numbers import GateKeys, Numbers
from weft.store.runs import NewRun
from weft.store.scripts import Arg

#: Priority of steps that decide what follows.
ROUTE_PRIORITY = 5


class Records:
    """The records of one call, and the keys they point at."""

    def __init__(self, ns: Namespace, p: int) -> None:
        self.ns, self.p = ns, p
        self.gates = GateKeys(ns.keys, p)
        self.wakes = Numbers({ns.keys.wake(p, TIMER_WAKE): 1})
        self.tasks, self.runs, self.maps, self.items, self.results, self.blobs = (Numbers() for _ in range(6))
        self.lists, self.caches = Numbers(), Numbers()
        self.rows: list[tuple[Arg, ...]] = []
        self._route: dict[str, bytes] = {}

    def effect(self, run: str, definition: str, keep_ms: int, effect: Effect) -> None:
        match effect:
            case Open(step, spec, wait):
                self._open("open", run, step, spec, wait)
            case Mark(node, step, status, value):
                place = self.blobs.of(self.ns.keys.blob(self.p, run, effect.blob)) if effect.blob else 0
                refs = "cached" if effect.cached else ""
                self._row("mark", name=node, spec=value, wait=f"{status} {step}", refs=refs, blob=place)
            case Arrive(join, who, total, need):
                self._route_row("arrive", run, join, definition, f"{join}?", wait=who, refs=f"{total} {need}")
            case Shut(step):
                self._row("shut", name=step)
            case Scatter(step, n, most, need, timed):
                items, refs = self.items.of(self.ns.keys.items(self.p, run, step)), "timed" if timed else ""
                self._row(
                    "scatter", name=step, wait=f"{n} {most} {need}", refs=refs, map=self._map(run, step), part=items
                )
            case Cursor(step, to, busy):
                self._row("cursor", name=step, wait=str(to), refs="busy" if busy else "", map=self._map(run, step))
            case Fail(error, facts):
                self._row("fail", spec=error, wait=str(keep_ms), refs=facts)
            case Finish(value):
                self._row("finish", spec=value, wait=str(keep_ms))
            case Last():
                self._route_row("last", run, END, definition, END)
            case _:
                self._other(run, definition, effect)

    def _other(self, run: str, definition: str, effect: Effect) -> None:
        match effect:
            case Given(step, value, blob):
                self._given(run, step, value, blob)
            case Weigh(step, to):
                self._row("weigh", name=step, map=self._map(run, step))
                self._route_row("gathered", run, f"{step}=", definition, f"{step}=")
                # Named after where it goes on: a step's name comes once in a run.
                self._route_row("refill", run, f"{step}++{to}", definition, f"{step}++{to}")
            case Remember(node, digest, data, ttl_ms):
                place = self.caches.of(self.ns.keys.cache(self.p, node, digest))
                self._row("remember", spec=data, wait=str(ttl_ms), part=place)
            case Over(step):
                self._route_row("over", run, f"{step}=", definition, f"{step}=", map=self._map(run, step))
            case Failing(error):
                self._row("failing", spec=error)
            case Undoable():
                self._row("undoable")
            case Undone(n):
                self._row("undone", wait=str(n))
            case Letter(step, spec, error, kept_ms, attempt):
                number = self.runs.of(self.ns.keys.run(self.p, step_id(run, step)))
                packed = SPEC_ENCODER.encode(spec)
                self._row(
                    "letter", run=number, name=step, spec=packed, wait=str(kept_ms), refs=str(attempt), fair=error
                )

    def _given(self, run: str, step: str, value: bytes, blob: str) -> None:
        node, _, index = step.partition("#")
        self._row(
            "given",
            name=step,
            spec=value,
            map=self._map(run, node),
            part=self.results.of(self.ns.keys.results(self.p, run, node, int(index) // CHUNK)),
            blob=self.blobs.of(self.ns.keys.blob(self.p, run, blob)) if blob else 0,
        )

    def end(self, g: int, end: NodeEnd) -> None:
        token, (node, _, index) = end.token, end.step.partition("#")
        if end.step.endswith(UNDOES):
            index = ""  # what undoes an item is none
        keys, p = self.ns.keys, self.p
        spec, definition = token.spec, end.definition or token.spec.definition
        at = len(self.rows)
        self.rows.append(())
        if end.lines is not None:
            list_at = self.lists.of(keys.tasklog(p, end.run))
            self._row("lines", spec=b"%d|%b" % (list_at, end.lines))
        for effect in end.effects:
            self.effect(end.run, definition, end.keep_ms, effect)
        if index:
            self._route_row("gathered", end.run, f"{node}=", definition, f"{node}=")
            # Named after the item that leaves room: a step's name comes once in a run.
            self._route_row("refill", end.run, f"{node}+{index}", definition, f"{node}+{index}")
        self.rows[at] = (
            "end",
            self.runs.of(keys.run(p, token.run)),
            end.step,
            self.tasks.of(keys.tasks(p, spec.queue, spec.priority)),
            g,
            end.value,
            token.ledger,
            self.gates.held(token.gates),
            len(self.rows) - at - 1,
            f"{end.kind} {end.started_ms} {token.attempt} {definition}",
            self._map(end.run, node) if index else 0,
            self.results.of(keys.results(p, end.run, node, int(index) // CHUNK)) if index else 0,
            self.blobs.of(keys.blob(p, end.run, end.blob)) if end.blob else 0,
        )

    def _map(self, run: str, step: str) -> int:
        return self.maps.of(self.ns.keys.map(self.p, run, step))

    def _open(self, op: str, run: str, step: str, spec: RunSpec, wait: str) -> None:
        keys, p = self.ns.keys, self.p
        self._row(
            op,
            run=self.runs.of(keys.run(p, step_id(run, step))),
            name=step,
            task=self.tasks.of(keys.tasks(p, spec.queue, spec.priority)),
            queue=self.wakes.of(keys.wake(p, spec.queue)),
            spec=SPEC_ENCODER.encode(spec),
            wait=wait,
            refs=self.gates.refs(needed(spec, self.ns.controls[p], run=run)),
            priority=spec.priority,
            fair=spec.fair,
        )

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
        fair: str | bytes = "",
        map: int = 0,
        part: int = 0,
        blob: int = 0,
    ) -> None:
        self.rows.append((op, run, name, task, queue, spec, wait, refs, priority, fair, map, part, blob))

    def withdraw(self, run: str, step: str) -> None:
        self._row("withdraw", run=self.runs.of(self.ns.keys.run(self.p, step_id(run, step))), name=step)

    def given(self, node: str, value: bytes) -> None:
        """What a node gave, as the context keeps it."""
        self._row("given", name=node, spec=value)

    def forget(self, node: str) -> None:
        self._row("forget", name=node)

    def reset(self, join: str) -> None:
        self._row("reset", name=join)

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
    blobs: Sequence[str] = (),
    parent: tuple[str, str] = ("", ""),
) -> str:
    """Starts a graph run; returns a word (see start_graph.lua). Raises StaleControls.

    `blobs` are staged values that it begins with; `parent` is a step, and its ledger.
    """
    keys, records, spec = ns.keys, Records(ns, p), new.spec
    records.runs.of(keys.run(p, new.id))
    for effect in effects:
        records.effect(new.id, spec.definition, spec.keep_ms, effect)
    above = records.runs.of(keys.run(p, parent[0])) if parent[0] else 0
    reply = await ns.call(
        "start_graph",
        p,
        {
            **records.keys(),
            "ir": keys.ir(p, spec.definition),
            "ledger": [keys.ledger(p, new.id)],
            "arrivals": [keys.arrivals(p, new.id)],
            "context": [keys.context(p, new.id)],
            "belongings": [keys.belongings(p, new.id)],
            "blob": [keys.blob(p, new.id, digest) for digest in dict.fromkeys([spec.blob, *blobs]) if digest],
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
            "parent": above,
            "parent_open": parent[1],
            "result": result,
        },
        [row[:10] for row in records.rows],
    )
    return str(reply.decode())


async def commit_nodes(
    ns: Namespace, p: int, ends: Sequence[NodeEnd], *, session: str, caller: Any = None
) -> list[str]:
    """Commits the ends of steps of graph runs in one call; returns a word per end. Raises StaleControls."""
    keys, records = ns.keys, Records(ns, p)
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
            "dlq": keys.dlq(p),
            "ledger": [keys.ledger(p, run) for run in graphs],
            "arrivals": [keys.arrivals(p, run) for run in graphs],
            "context": [keys.context(p, run) for run in graphs],
            "belongings": [keys.belongings(p, run) for run in graphs],
            "undo": [keys.undo(p, run) for run in graphs],
            "map": records.maps,
            "items": records.items,
            "results": records.results,
            "blob": records.blobs,
            "tasklog": records.lists,
            "cache": records.caches,
        },
        {"controls": ns.controls[p].version, "by": session, "group": GROUP},
        records.rows,
        caller=caller,
    )
    return [reply[i].decode() for i in at]


async def keep_definitions(ns: Namespace, p: int, definitions: Mapping[str, bytes]) -> None:
    """Stores definitions by their digest. Repeating it changes nothing."""
    if definitions:
        await ns.read_many([("SET", ns.keys.ir(p, digest), data, "NX") for digest, data in definitions.items()], p=p)


async def read_definition(ns: Namespace, p: int, digest: str) -> bytes | None:
    """Returns a definition's JSON."""
    data = await ns.read("GET", ns.keys.ir(p, digest), p=p)
    return None if data is None else bytes(data)


@dataclass(slots=True, frozen=True)
class Gave:
    """What a node gave, as the context has it."""

    status: str
    step: str
    attempt: int
    started_ms: int
    ended_ms: int
    value: bytes
    cached: bool = False


def parse_given(data: bytes) -> Gave:
    head, _, value = data.partition(b"\n")
    status, step, attempt, started, ended, ledger = head.decode().split(" ", 5)
    return Gave(status, step, int(attempt), int(started), int(ended), value, ledger == "cached")


async def read_context(ns: Namespace, p: int, run: str, nodes: Sequence[str]) -> dict[str, Gave]:
    """Returns what some nodes of a run gave; those that have not ended are left out."""
    if not nodes:
        return {}
    replies = await ns.read("HMGET", ns.keys.context(p, run), *nodes, p=p)
    return {node: parse_given(reply) for node, reply in zip(nodes, replies, strict=True) if reply is not None}


async def read_whole_context(ns: Namespace, p: int, run: str) -> dict[str, Gave]:
    """Returns what all nodes of a run gave so far."""
    flat = await ns.read("HGETALL", ns.keys.context(p, run), p=p)
    return {flat[i].decode(): parse_given(flat[i + 1]) for i in range(0, len(flat), 2)}


async def read_open_steps(ns: Namespace, p: int, run: str) -> dict[str, int]:
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
    #: Whether its results are put together, or were.
    over: int = 0

    @property
    def left(self) -> int:
        """How many items are open."""
        return self.at - self.done - self.failed


async def read_map(ns: Namespace, p: int, run: str, step: str) -> MapRow | None:
    fields = ("n", "most", "need", "at", "done", "failed", "over")
    reply = await ns.read("HMGET", ns.keys.map(p, run, step), *fields, p=p)
    return None if reply[0] is None else MapRow(*(int(value or 0) for value in reply))


async def read_open_items(ns: Namespace, p: int, run: str, step: str, at: int, *, limit: int) -> list[int]:
    """Returns the first items of a map that were opened (up to `at`) and have not ended; looks at a few thousand at most."""
    chunks = range((at + CHUNK - 1) // CHUNK)[-16:]
    replies = await ns.read_many([("HKEYS", ns.keys.results(p, run, step, chunk)) for chunk in chunks], p=p)
    ended = {int(index) for reply in replies if isinstance(reply, list) for index in reply}
    first = chunks[0] * CHUNK if chunks else 0
    return [index for index in range(first, at) if index not in ended][:limit]


async def stage_items(ns: Namespace, p: int, run: str, step: str, items: Sequence[Any]) -> None:
    """Uploads the items of a map before the script that begins it, which keeps them. Repeating it changes nothing."""
    pack = msgspec.msgpack.encode
    chunks: list[tuple[Arg, ...]] = [(at // CHUNK, pack(items[at : at + CHUNK])) for at in range(0, len(items), CHUNK)]
    keys = {"items": ns.keys.items(p, run, step)}
    for at in range(0, len(chunks), 16):
        await ns.call("stage_items", p, keys, {"staging_ms": STAGING_MS}, chunks[at : at + 16])


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


async def read_belongings(ns: Namespace, p: int, run: str) -> AsyncIterator[list[str]]:
    """Yields what a run has besides its own keys, page by page; a member may come twice."""
    cursor = 0
    while True:
        cursor, found = await ns.read("SSCAN", ns.keys.belongings(p, run), cursor, "COUNT", 500, p=p)
        yield [member.decode() for member in found]
        if not int(cursor):
            return


def keys_of(ns: Namespace, p: int, run: str, belonging: str) -> list[str]:
    """Returns the keys of a belonging of a run."""
    keys, (what, name, *n) = ns.keys, belonging.split(" ")
    if what == "blob":
        return [keys.blob(p, run, name)]
    chunks = range((int(n[0]) + CHUNK - 1) // CHUNK)
    return [keys.map(p, run, name), keys.items(p, run, name), *(keys.results(p, run, name, i) for i in chunks)]


async def expire(ns: Namespace, p: int, keys: Sequence[str], *, keep_ms: int) -> None:
    """Lets keys of an ended run expire with it."""
    await ns.read_many([("PEXPIRE", key, keep_ms) for key in keys], p=p)


async def put_away(ns: Namespace, p: int, run: str) -> None:
    """Ends the care for an ended run: no step of it is open any more."""
    await ns.read_many([("DEL", ns.keys.ledger(p, run)), ("ZREM", ns.keys.timers(p), f"close:{run}")], p=p)


async def read_result_indexes(ns: Namespace, p: int, run: str, step: str, n: int) -> set[int]:
    """Returns which of the first n items of a map have given something."""
    found: set[int] = set()
    chunks = range((n + CHUNK - 1) // CHUNK)
    for at in range(0, len(chunks), 64):
        keys = [("HKEYS", ns.keys.results(p, run, step, chunk)) for chunk in chunks[at : at + 64]]
        for indexes in await ns.read_many(keys, p=p):
            found.update(int(index) for index in indexes)
    return found
