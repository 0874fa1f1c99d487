"""Which limits a step must pass before it may be queued, and what the operator has set beside them. Pure.

A gate is one limit with a name: `task|send`, `key|send|bob`, `queue|mail`, `rate|send|bob`, `pause|send`, `cost|send`,
`strike|…`, `run|r0-…`.
Part of the name is its class, and a class may be overruled while everything runs: `limit:key|send` sets every
`key|send|…`. Names end up inside keys, so what users bring into them is quoted.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import lru_cache
from typing import Any
from urllib.parse import quote, unquote

import msgspec

from weft.clock import parse_rate
from weft.codec import json_form
from weft.core.effects import ROUTE
from weft.core.model import Limit, RunSpec

#: Characters of a user's key that a gate's name keeps; a longer one is shortened to a digest.
MAX_KEY_CHARS = 96
#: First words of the gates that steps wait at, in the order in which they are tried.
TRIED = ("queue", "queuerate", "key", "task", "rate")
#: Names of gates that are remembered: keys come again and again.
MAX_NAMES = 4_096

# What quoting leaves as it is: nearly every name, and ten times quicker to see than to quote.
_PLAIN = re.compile(rf"[A-Za-z0-9_.~\-]{{0,{MAX_KEY_CHARS}}}").fullmatch


@lru_cache(maxsize=MAX_NAMES)
def gate_name(*parts: str) -> str:
    """Returns a gate's name; what users chose is quoted, so that it can stand in a key."""
    return "|".join(_quoted(part) for part in parts)


def gate_parts(gate: str) -> list[str]:
    """Returns what a gate's name was made of."""
    return [unquote(part) for part in gate.split("|")]


def gate_class(gate: str) -> str:
    """Returns the part of a gate's name that an operator can overrule."""
    return "|".join(gate.split("|")[:2])


def run_gate(id: str) -> str:
    """Returns the gate that the steps of a paused run wait at."""
    return gate_name("run", id.partition("/")[0])


def run_control(id: str) -> str:
    """Returns the name under which the controls know that a run is paused."""
    return "run:" + id.partition("/")[0]


def cost_gate(task: str) -> str:
    """Returns the gate that calls of a task wait at which cost more than its rate ever lets through."""
    return gate_name("cost", task)


def is_too_dear(limit: Limit) -> bool:
    """Tells whether a call costs more than a rate ever lets through: only an operator can lower it that far."""
    return limit.window_ms > 0 and limit.cost > limit.n


def takes_turns(gate: str) -> bool:
    """Tells whether those who wait at a gate may differ in their key: then keys take turns."""
    if gate.startswith("key|"):
        return False  # the most common kind, without taking its name apart
    kind, *names = gate.split("|")
    return kind in ("task", "queue", "queuerate") or (kind == "rate" and len(names) == 1)


def counts_slots(gate: str) -> bool:
    """Tells whether a gate counts what is under way, rather than what was begun."""
    return gate.partition("|")[0] in ("key", "task", "queue")


def is_kept_waiting(gate: str) -> bool:
    """Tells whether a workflow run keeps its slot of a gate while it waits: what counts its own kind, not its queue."""
    return gate.partition("|")[0] in ("key", "task")


def likeness(spec: RunSpec) -> str:
    """Returns what a run shares with those of its key to which it may hand its slot over: queue and priority.

    Empty unless its only limit is one of its key at a time; then its heir has the same gate, and needs no other.
    """
    if len(spec.limits) == 1 and spec.limits[0].n == 1 and spec.limits[0].gate.startswith("key|"):
        return alike(spec)
    return ""


def alike(spec: RunSpec) -> str:
    """Returns what makes runs alike whose only limit is one of their key at a time."""
    return f"{spec.queue}|{spec.priority}"


def home_of(spec: RunSpec) -> str:
    """Returns what decides the partition of a limited run: the widest gate it has to pass, which lives in one place."""
    if not spec.limits:
        return ""
    return min((limit.gate for limit in spec.limits), key=lambda gate: gate.count("|"))


def _quoted(part: str) -> str:
    if _PLAIN(part):
        return part
    text = quote(part, safe="")
    if len(text) <= MAX_KEY_CHARS:
        return text
    return text[: MAX_KEY_CHARS - 20].rstrip("%") + "~" + hashlib.sha256(part.encode()).hexdigest()[:16]


class Strike(msgspec.Struct, frozen=True):
    """A task, or some of its calls, that must not run."""

    id: str
    task: str
    where: dict[str, Any] = {}
    #: Older names of the task; most have none.
    also: list[str] = []

    def hits(self, arguments: Mapping[str, Any]) -> bool:
        """Tells whether a call with these arguments is meant. Values are compared as people write them."""
        return all(name in arguments and _same(arguments[name], wanted) for name, wanted in self.where.items())


def _same(value: Any, wanted: Any) -> bool:
    form = json_form(value)
    if form == wanted or str(form) == str(wanted):
        return True
    # On a command line everything is text: true, null, 5.0 and ["a"] are what people write there.
    return isinstance(wanted, str) and _reads_as(value, form, wanted)


def _reads_as(value: Any, form: Any, text: str) -> bool:
    """Tells whether a text is another way to write a value."""
    if isinstance(value, bool) or value is None:
        return text.lower() in {True: ("true",), False: ("false",), None: ("null", "none")}[value]
    if isinstance(value, bytes):
        return text.encode(errors="replace") == value
    try:
        if isinstance(value, datetime):
            return datetime.fromisoformat(text) == value
        if isinstance(form, (list, dict)):
            return bool(msgspec.json.decode(text) == form)
        return isinstance(value, (int, float)) and float(text) == value
    except (ValueError, msgspec.DecodeError):
        return False


def spellings(wanted: Any) -> Iterator[Any]:
    """Returns the values that may be meant by one that is wanted: on a command line everything is text."""
    yield wanted
    if not isinstance(wanted, str):
        yield str(wanted)
        return
    yield wanted.encode(errors="replace")
    lower = wanted.lower()
    for text in (wanted, "null" if lower == "none" else lower):
        with contextlib.suppress(msgspec.DecodeError):
            yield msgspec.json.decode(text)
    with contextlib.suppress(ValueError):
        yield datetime.fromisoformat(wanted)
    with contextlib.suppress(ValueError):
        if math.isfinite(number := float(wanted)):
            yield number


@dataclass(frozen=True)
class Controls:
    """What operators have set: pauses, limits, strikes. Changed as a whole, under a version."""

    version: str = "0"
    entries: dict[str, dict[str, Any]] = field(default_factory=dict)

    def paused_queue(self, queue: str) -> dict[str, Any] | None:
        return self.entries.get("pause:" + gate_name("queue", queue))

    def paused_task(self, name: str) -> dict[str, Any] | None:
        return self.entries.get("pause:" + gate_name("task", name))

    def paused_run(self, run: str) -> dict[str, Any] | None:
        """Returns who paused a graph run; a step's id tells its run."""
        return self.entries.get(run_control(run))

    def running(self, queues: Sequence[str]) -> list[str]:
        """Returns the queues that are not paused."""
        if not self.entries:
            return list(queues)
        return [queue for queue in queues if self.paused_queue(queue) is None]

    def strikes(self, name: str) -> list[Strike]:
        """Returns the strikes against calls of one task."""
        found = (entry for key, entry in self.entries.items() if key.startswith("strike:"))
        return [msgspec.convert(entry, Strike) for entry in found if name in (entry["task"], *entry.get("also", ()))]

    def limit(self, limit: Limit) -> Limit:
        """Returns a limit as it stands now."""
        entry = self.entries.get("limit:" + gate_class(limit.gate))
        if entry is None:
            return limit
        if limit.window_ms:
            n, window_ms = parse_rate(entry["value"], what="limit")
            return Limit(limit.gate, n, window_ms, limit.cost)
        return Limit(limit.gate, int(entry["value"]))

    def added(self, spec: RunSpec) -> list[Limit]:
        """Returns limits of the queue, the task and its keys that only an operator has set."""
        wanted: list[tuple[str, ...]] = [("queue", spec.queue), ("queuerate", spec.queue)]
        wanted += [("task", spec.name), ("rate", spec.name)]
        if spec.fair:
            wanted.append(("key", spec.name, spec.fair))
        present = {limit.gate for limit in spec.limits}
        found = []
        for kind, *names in wanted:
            gate = gate_name(kind, *names)
            entry = self.entries.get("limit:" + gate_class(gate))
            if entry is None or gate in present or (kind == "rate" and any(limit.window_ms for limit in spec.limits)):
                continue
            found.append(
                Limit(gate, *parse_rate(entry["value"], what="limit"))
                if "rate" in kind
                else Limit(gate, int(entry["value"]))
            )
        return found


#: Nothing set: what nearly every namespace has nearly always.
NO_CONTROLS = Controls()


def needed(spec: RunSpec, controls: Controls, struck: Iterable[str] = (), run: str = "") -> list[Limit]:
    """Returns every limit a step must pass now, in the order they are tried: what is shut for good comes first.

    `run` is its id: a step of a graph run stands still with its run.
    """
    if not controls.entries:
        return spec.limits
    # Deciding goes on while a run is paused, so that it stands still with all that is known; what is decided on waits.
    paused = run and spec.name != ROUTE and controls.paused_run(run) is not None
    shut = [Limit(run_gate(run), 0)] if paused else []
    shut += [Limit(gate_name("strike", strike), 0) for strike in struck]
    if controls.paused_task(spec.name) is not None:
        shut.append(Limit(gate_name("pause", spec.name), 0))
    limits = [controls.limit(limit) for limit in spec.limits]
    # What a lowered rate never lets through stands aside: at the head of the rate's own line it would keep all others there.
    if any(is_too_dear(limit) for limit in limits):
        shut.append(Limit(cost_gate(spec.name), 0))
    return [*shut, *sorted([*controls.added(spec), *limits], key=_place)]


def _place(limit: Limit) -> int:
    return TRIED.index(limit.gate.partition("|")[0])
