"""How many steps ran at once, and how often they began: what limits promise, judged by the recorder and not by the store.

An execution lasts from its `before` to its last row. One that never said goodbye ended with its worker (when the scenario
killed that) or, at the latest, when the run was executed again.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from chaos.recorder import Row
from weft.store.runs import RunRow

#: What a step says when it is over.
ENDS = ("after", "end")


@dataclass(frozen=True)
class Execution:
    """One attempt of one run as the outside world saw it, in the recorder's seconds."""

    run: str
    delivery: int
    worker: str
    began: float
    ended: float


def executions(effects: Mapping[str, list[Row]], deaths: Mapping[str, float]) -> list[Execution]:
    """Returns all executions, in the order in which they began."""
    found = []
    for run, rows in effects.items():
        begins = sorted((row for row in rows if row.phase == "before"), key=lambda row: row.at)
        for i, begin in enumerate(begins):
            ends = [r.at for r in rows if r.phase in ENDS and (r.delivery, r.pid) == (begin.delivery, begin.pid)]
            limits = [*ends[:1], *(row.at for row in begins[i + 1 : i + 2])]
            if begin.worker in deaths:
                limits.append(deaths[begin.worker])
            found.append(Execution(run, begin.delivery, begin.worker, begin.at, min(limits, default=begin.at)))
    return sorted(found, key=lambda one: one.began)


def most_at_once(crowd: Iterable[Execution]) -> int:
    """Returns the greatest number of executions that lasted at the same moment."""
    moments = sorted((at, step) for one in crowd for at, step in ((one.began, 1), (one.ended, -1)))
    most = now = 0
    for _, step in moments:
        now += step
        most = max(most, now)
    return most


def crowded(
    runs: Mapping[str, RunRow], crowd: Iterable[Execution], overruled: Mapping[str, int]
) -> Iterable[tuple[str, int, int]]:
    """Yields every gate through which more went at once than it allows: its name, how many, how many it allows."""
    at_gate: defaultdict[str, list[Execution]] = defaultdict(list)
    allowed: dict[str, int] = dict(overruled)
    for one in crowd:
        for limit in runs[one.run].spec.limits if one.run in runs else []:
            if not limit.window_ms:
                allowed.setdefault(limit.gate, limit.n)
                at_gate[limit.gate].append(one)
    for gate, members in at_gate.items():
        if (most := most_at_once(members)) > allowed[gate]:
            yield gate, most, allowed[gate]
