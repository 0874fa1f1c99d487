"""What follows in graph runs as the records of one script call, and the keys they point at."""

from __future__ import annotations

from collections.abc import Collection

from weft.core.effects import (
    CHUNK,
    COPY,
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
    Watch,
    Weigh,
    rival_of,
    route_spec,
    step_id,
)
from weft.core.gates import needed
from weft.core.model import ROUTES, SPEC_ENCODER
from weft.store.keys import TIMER_WAKE
from weft.store.namespace import Namespace
from weft.store.numbers import GateKeys, Numbers
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
        #: Maps whose followers stand among the records already.
        self._mapped: set[tuple[str, str]] = set()
        self._queues: dict[tuple[str, int], tuple[int, int]] = {}

    def effect(self, run: str, definition: str, keep_ms: int, effect: Effect) -> None:
        match effect:
            case Open():
                self._open(run, effect)
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
            case Finish(value, plain):
                self._row("finish", spec=value, wait=str(keep_ms), refs="plain" if plain else "")
            case Last():
                self._route_row("last", run, END, definition, END)
            case _:
                self._other(run, definition, effect)

    def _other(self, run: str, definition: str, effect: Effect) -> None:
        match effect:
            case Given(step, value, blob):
                self._given(run, step, value, blob)
            case Weigh(step, to):
                at = self._map(run, step)
                self._row("weigh", name=step, map=at)
                self._route_row("gathered", run, f"{step}=", definition, f"{step}=", map=at)
                # Named after where it goes on: a step's name comes once in a run.
                self._route_row("refill", run, f"{step}++{to}", definition, f"{step}++{to}", map=at)
            case Remember(node, digest, data, ttl_ms):
                place = self.caches.of(self.ns.keys.cache(self.p, node, digest))
                self._row("remember", spec=data, wait=str(ttl_ms), part=place)
            case Watch(step, ms):
                self._row("watch", name=step, wait=str(ms))
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
        # A copy of an item ends the item.
        token, step = end.token, end.step.removesuffix(COPY)
        node, _, index = step.partition("#")
        if end.step.endswith(UNDOES):
            index = ""  # what undoes an item is none
        keys, p = self.ns.keys, self.p
        spec, definition = token.spec, end.definition or token.spec.definition
        at = len(self.rows)
        self.rows.append(())
        if end.hedged:
            self._row("rival", run=self.runs.of(keys.run(p, step_id(end.run, rival_of(end.step)))))
        if end.lines is not None:
            list_at = self.lists.of(keys.tasklog(p, end.run))
            self._row("lines", spec=b"%d|%b" % (list_at, end.lines))
        for effect in end.effects:
            self.effect(end.run, definition, end.keep_ms, effect)
        if index and (end.run, node) not in self._mapped:
            # What may follow an item stands behind the first one of its map in a call, for all of them.
            self._mapped.add((end.run, node))
            map_at = self._map(end.run, node)
            self._route_row("gathered", end.run, f"{node}=", definition, f"{node}=", map=map_at)
            # Named after an item that leaves room, and its delivery or its copy's: a step's name comes once in a run.
            refill = f"{node}+{index}" if token.delivery == 1 else f"{node}+{index}.{token.delivery}"
            if end.step.endswith(COPY):
                refill = f"{node}+{index}.copy{token.delivery}"
            self._route_row("refill", end.run, refill, definition, refill, map=map_at)
        self.rows[at] = (
            "race" if end.hedged else "end",
            self.runs.of(keys.run(p, token.run)),
            step,
            self._queue(spec.queue, spec.priority)[0],
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

    def _open(self, run: str, effect: Open) -> None:
        keys, p, step, spec = self.ns.keys, self.p, effect.step, effect.spec
        at = self.runs.of(keys.run(p, step_id(run, step)))
        task, queue = self._queue(spec.queue, spec.priority)
        packed = effect.packed or SPEC_ENCODER.encode(spec)
        refs = self.gates.refs(needed(spec, self.ns.controls[p], run=run))
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
        fair: str | bytes = "",
        map: int = 0,
        part: int = 0,
        blob: int = 0,
    ) -> None:
        self.rows.append((op, run, name, task, queue, spec, wait, refs, priority, fair, map, part, blob))

    def withdraw(self, run: str, step: str, gate: str) -> None:
        number = self.runs.of(self.ns.keys.run(self.p, step_id(run, step)))
        self._row("withdraw", run=number, name=step, task=self.gates.line(gate))

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
