"""Where a graph run stands, told by its events alone: what its nodes gave, what is open, and how far its maps have come. Pure.

What cannot be told is said as a doubt, and such a run is not carried on by itself.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from weft.codec import decode_plain, encode_plain
from weft.core.effects import CHUNK, ENDS, ERRORS, UNDOES
from weft.core.fold import Logged, read_facts
from weft.core.given import Gave
from weft.core.history import History
from weft.core.model import SPEC_DECODER
from weft.core.rewait import Waiting, follow_waits
from weft.core.waits import SIGNAL

#: Events that tell of the end of a node, and what it came to.
ENDINGS = {
    "step_completed": "completed",
    "step_cached": "completed",
    "step_failed": "failed",
    "step_skipped": "skipped",
    "node_completed": "completed",
    "node_failed": "failed",
    "node_skipped": "skipped",
    "node_errors": "completed",
}


@dataclass(slots=True)
class Scattered:
    """A map: how many items it has, how many of them were opened, and what those that ended gave."""

    n: int
    most: int
    need: int
    timed: bool
    at: int = 0
    over: bool = False
    began_ms: int = 0
    #: Index -> status and value.
    results: dict[int, tuple[str, bytes]] = field(default_factory=dict)
    #: How many of those an earlier run gave.
    cached: int = 0

    @property
    def done(self) -> int:
        counts = ("completed",) if self.need else ("completed", "skipped")
        return sum(status in counts for status, _ in self.results.values())

    @property
    def open_items(self) -> list[int]:
        return [] if self.over else [index for index in range(self.at) if index not in self.results]

    def chunks(self) -> dict[int, dict[int, bytes]]:
        """Returns the results as they are kept, by chunk."""
        found: dict[int, dict[int, bytes]] = {}
        for index, (status, value) in self.results.items():
            found.setdefault(index // CHUNK, {})[index] = status.encode() + b"\n" + value
        return found


@dataclass(slots=True)
class Regrown:
    """A graph run as its events tell it."""

    definition: str
    revision: int = 1
    #: The definition before the last patch, which an undo goes back to; empty when there was none.
    before: str = ""
    #: Patches that steps made.
    by_steps: int = 0
    given: dict[str, Gave] = field(default_factory=dict)
    #: Open steps, items of maps apart, and when each was opened.
    open: dict[str, int] = field(default_factory=dict)
    #: Steps that were opened straight behind others, and the definition that says what each is asked.
    straight: dict[str, str] = field(default_factory=dict)
    #: Join -> who has come, as the store keeps it.
    arrivals: dict[str, str] = field(default_factory=dict)
    maps: dict[str, Scattered] = field(default_factory=dict)
    #: Steps that can be undone, and what they gave; the newest last.
    undoable: list[tuple[str, bytes]] = field(default_factory=list)
    failing: bytes = b""
    #: Signals that nobody has taken, by name.
    signals: dict[str, list[bytes]] = field(default_factory=dict)
    #: Requests by which signals came and what each was answered, oldest first.
    requests: list[tuple[str, str]] = field(default_factory=list)
    #: What open steps were given from outside and have not acted on, and what those wait for that were given nothing.
    answered: dict[str, bytes] = field(default_factory=dict)
    waiting: dict[str, Waiting] = field(default_factory=dict)
    #: When it was paused, by whom and why; None: it is not.
    paused: tuple[int, str, str] | None = None
    parent: str = ""
    #: How often it was retried.
    lives: int = 0
    #: Why it cannot be carried on without asking anybody.
    doubts: list[str] = field(default_factory=list)


def regrow(definition: str, history: History) -> Regrown:
    """Returns where a run stands."""
    found = Regrown(definition)
    for event in history.events:
        facts = read_facts(event.facts)
        if event.type in ENDINGS:
            _end(found, history, event, facts)
        _take = _TAKES.get(event.type)
        if _take is not None:
            _take(found, event, facts)
        step = facts.get("step", "")
        if event.type == "routed" or event.type in ENDINGS or event.type == "step_cancelled":
            _close(found, step)
        opened = facts.get("opened", "").split()
        for trace in facts.get("trace", "").split():
            _follow(found, trace, event, step, opened)
        if "asks" in facts:
            found.straight[facts["opened"]] = found.definition
        for name in opened:
            found.open.setdefault(name, event.at_ms)
            if name.endswith("=") and name[:-1] in found.maps:
                found.maps[name[:-1]].over = True
    _forget_ended(found, history)
    return found


def _end(found: Regrown, history: History, event: Logged, facts: dict[str, str]) -> None:
    step, status = facts["step"], ENDINGS[event.type]
    if "#" in step and not step.endswith(UNDOES):
        name, _, index = step.partition("#")
        if name in found.maps:
            scattered = found.maps[name]
            scattered.cached += event.type == "step_cached" and int(index) not in scattered.results
            scattered.results.setdefault(int(index), (status, event.payload))
        return
    _take_signal(found, history, step, status)
    name = step if step.endswith(UNDOES) else step.partition("~")[0] + (ERRORS if event.type == "node_errors" else "")
    # A map is not executed itself: it began with its items.
    began_ms = found.maps[step].began_ms if step in found.maps else event.at_ms
    attempt, started = int(facts.get("attempt", 1)), int(facts.get("started", began_ms))
    cached = event.type == "step_cached"
    found.given[name] = Gave(status, step, attempt, started, event.at_ms, event.payload, cached)


def _take_signal(found: Regrown, history: History, step: str, status: str) -> None:
    """A step that waited for a signal and was not told of one took the oldest that was kept."""
    if found.answered.pop(step, None) is not None or status != "completed":
        return
    state = history.steps.get(step)
    if state is not None and state.name == SIGNAL:
        kept = found.signals.get(_signal_of(state.spec), [])
        if kept:
            kept.pop(0)


def _signal_of(spec: bytes) -> str:
    return str(decode_plain(SPEC_DECODER.decode(spec).input)["signal"])


def _close(found: Regrown, step: str) -> None:
    found.open.pop(step, None)
    if step.endswith("="):
        # The map is put together: it is over, and so is the wait for its deadline.
        for name in (step[:-1], step[:-1] + ENDS):
            found.open.pop(name, None)


def _follow(found: Regrown, trace: str, event: Logged, step: str, opened: list[str]) -> None:
    what, _, rest = trace.partition(":")
    if what == "j":
        join, _, who = rest.partition(":")
        known = found.arrivals.get(join, "")
        known = f"{known} {who}" if known else who
        if f"{join}?" in opened and not known.startswith("="):
            known = f"= {known}"
        found.arrivals[join] = known
    elif what == "m":
        name, n, most, need, timed = rest.split(":")
        found.maps[name] = Scattered(int(n), int(most), int(need), timed == "1", began_ms=event.at_ms)
    elif what == "c":
        name, _, at = rest.partition(":")
        if name in found.maps:
            found.maps[name].at = int(at)
    elif what == "u":
        found.undoable.append((step, event.payload))
    elif what == "d":
        del found.undoable[max(0, len(found.undoable) - int(rest)) :]


def _queued(found: Regrown, event: Logged, facts: dict[str, str]) -> None:
    found.parent = facts.get("parent", "")


def _patched(found: Regrown, event: Logged, facts: dict[str, str]) -> None:
    record = msgspec.json.decode(event.payload)
    found.definition, found.revision, found.before = record["definition"], record["revision"], record.get("before", "")
    found.by_steps += bool(record.get("step"))
    for step in record["withdrawn"]:
        found.open.pop(step, None)
    for join in record["reset"]:
        found.arrivals.pop(join, None)


def _retried(found: Regrown, event: Logged, facts: dict[str, str]) -> None:
    record = msgspec.json.decode(event.payload)
    again = set(record["again"])
    forgotten = again - set(record.get("earlier", ()))
    found.given = {id: one for id, one in found.given.items() if id.removesuffix(ERRORS) not in forgotten}
    found.maps = {step: one for step, one in found.maps.items() if step.partition("~")[0] not in again}
    for join in record["reset"]:
        found.arrivals.pop(join, None)
    found.failing, found.paused = b"", None
    found.lives += 1


def _signalled(found: Regrown, event: Logged, facts: dict[str, str]) -> None:
    if "request" in facts:
        found.requests.append((facts["request"], f"given {facts['step']}" if "step" in facts else "kept"))
    if "step" in facts:
        found.answered[facts["step"]] = event.payload
    else:
        found.signals.setdefault(facts["name"], []).append(event.payload)


def _decided(found: Regrown, event: Logged, facts: dict[str, str]) -> None:
    found.answered[facts["step"]] = decided(event.payload)


def decided(payload: bytes) -> bytes:
    """Returns what a step is given by the decision that an event tells of."""
    told = msgspec.json.decode(payload)
    return encode_plain({name: value for name, value in told.items() if name not in ("via", "digest")})


def _failing(found: Regrown, event: Logged, facts: dict[str, str]) -> None:
    found.failing = event.payload


def _paused(found: Regrown, event: Logged, facts: dict[str, str]) -> None:
    found.paused = event.moment_ms, event.by, event.payload.decode(errors="replace")


def _resumed(found: Regrown, event: Logged, facts: dict[str, str]) -> None:
    found.paused = None


def _ended(found: Regrown, event: Logged, facts: dict[str, str]) -> None:
    found.open.clear()  # what was open is ended with its run
    found.answered.clear()


_TAKES: dict[str, Callable[[Regrown, Logged, dict[str, str]], None]] = {
    "queued": _queued,
    "patched": _patched,
    "retried": _retried,
    "signalled": _signalled,
    "approval_decided": _decided,
    "failing": _failing,
    "paused": _paused,
    "resumed": _resumed,
    "completed": _ended,
    "failed": _ended,
    "cancelled": _ended,
}


def _forget_ended(found: Regrown, history: History) -> None:
    """Leaves out open steps that somebody has ended, and doubts those that nothing is known of."""
    for step in list(found.open):
        if step in found.maps:
            continue
        state = history.steps.get(step)
        if state is None or not (state.spec or step in history.straight):
            found.doubts.append(f"step {step}, which nothing is known of")
        elif state.status == "cancelled":
            del found.open[step]
    found.answered = {step: value for step, value in found.answered.items() if step in found.open}
    waiting = follow_waits(history.events)
    found.waiting = {step: one for step, one in waiting.items() if step in found.open and step not in found.answered}
    for name, one in found.maps.items():
        if name in found.open:
            unknown = [i for i in one.open_items if f"{name}#{i}" not in history.steps]
            if unknown:
                found.doubts.append(f"items of map {name}, which nothing is known of")
