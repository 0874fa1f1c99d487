"""The archived events of one run and of its steps, taken apart for whoever rebuilds it. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from weft.core.fold import Logged, RunState, fold, read_facts


@dataclass(slots=True)
class History:
    """What a run's events tell: those of the run, each once and in order, and how each of its steps stands."""

    run: str
    events: list[Logged] = field(default_factory=list)
    #: By name; of a step that was opened several times, the newest life.
    steps: dict[str, RunState] = field(default_factory=dict)
    #: Of those, the ones that no event says what they are asked: the definition does, and the end before them, which is here.
    straight: dict[str, Logged] = field(default_factory=dict)


def read_history(run: str, logged: Iterable[Logged]) -> History:
    """Takes the events of a run and of its steps apart, as the log had them.

    A store that went back told other events under numbers that were used before: what was acted upon is the first of them. What
    it told of steps meanwhile is left out too, until the run was rebuilt.
    """
    found, astray = History(run), False
    for event in logged:
        if event.run == run:
            last = found.events[-1].seq if found.events else 0
            astray = event.seq <= last or (astray and not _is_recovery(event))
            if not astray:
                found.events.append(event)
                if ",asks=" in event.facts:
                    name = read_facts(event.facts)["opened"]
                    found.straight[name] = event
                    found.steps[name] = RunState(
                        f"{run}/{name}", "graph", status="running", seq=1, created_ms=event.moment_ms
                    )
        elif not astray:
            name = event.run[len(run) + 1 :]
            state = found.steps.get(name)
            if state is None or event.type == "queued":
                state = found.steps[name] = RunState(event.run)
                found.straight.pop(name, None)
            fold(state, event)
            state.gap = 0  # a step is nobody's to wait for: how it was last known will do
    return found


def _is_recovery(event: Logged) -> bool:
    """Tells whether an event was written by whoever rebuilt the run."""
    return event.type == "recovered" or (event.type == "failed" and b"partition_lost" in event.payload)
