"""What an ended graph run leaves in Redis."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from weft.core.effects import step_id
from weft.store.namespace import Namespace
from weft.store.runs import RunRow

#: Keys that one script call puts away.
MAX_KEYS = 1_000


@dataclass(slots=True)
class MapKeys:
    """The keys of some maps."""

    maps: list[str] = field(default_factory=list)
    items: list[str] = field(default_factory=list)
    results: list[str] = field(default_factory=list)

    @property
    def all(self) -> list[str]:
        return [*self.maps, *self.items, *self.results]


async def put_away_graph(
    ns: Namespace,
    p: int,
    row: RunRow,
    *,
    blobs: Sequence[str],
    maps: MapKeys,
    keep_ms: int,
    approvals: Sequence[str] = (),
) -> bool:
    """Lets what a run left expire with it; returns False for a run that was opened again meanwhile."""
    keys, run = ns.keys, row.id
    # What is too much for one call goes ahead: an expiry on what a map left does no harm, whatever becomes of the run.
    asked = [keys.approval(p, step_id(run, step)) for step in approvals]
    many = [*maps.all, *asked]
    for at in range(0, len(many) if len(many) > MAX_KEYS else 0, MAX_KEYS):
        await ns.read_many([("PEXPIRE", key, keep_ms) for key in many[at : at + MAX_KEYS]], p=p)
    small = len(many) <= MAX_KEYS
    done = await ns.call(
        "put_away_graph",
        p,
        {
            "timers": keys.timers(p),
            "run": keys.run(p, run),
            "ledger": keys.ledger(p, run),
            "context": keys.context(p, run),
            "arrivals": keys.arrivals(p, run),
            "tasklog": keys.tasklog(p, run),
            "belongings": keys.belongings(p, run),
            "signals": keys.signals(p, run),
            "undo": keys.undo(p, run),
            "approval": asked if small else [],
            "blob": [keys.blob(p, run, digest) for digest in blobs],
            "map": maps.maps if small else [],
            "items": maps.items if small else [],
            "results": maps.results if small else [],
        },
        {"seq": row.number("seq", 1), "keep_ms": keep_ms},
    )
    return bool(done == b"1")
