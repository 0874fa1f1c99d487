"""What an ended run of many steps leaves in Redis."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from weft.core.effects import step_id
from weft.store.keys import Keyspace
from weft.store.namespace import Namespace
from weft.store.runs import RunRow
from weft.store.scripts import Arg

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

    def add(self, keys: Keyspace, p: int, run: str, step: str, chunks: int) -> None:
        """Adds the keys of a map whose results take so many chunks."""
        self.maps.append(keys.map(p, run, step))
        self.items.append(keys.items(p, run, step))
        self.results += [keys.results(p, run, step, chunk) for chunk in range(chunks)]


@dataclass(slots=True)
class Left:
    """What a run has besides the keys that every run of its kind may have."""

    #: Digests of large values, the keys of its maps, and the steps that were approvals.
    blobs: list[str]
    maps: MapKeys
    approvals: list[str]


async def put_away_graph(
    ns: Namespace,
    p: int,
    row: RunRow,
    *,
    blobs: Sequence[str],
    maps: MapKeys,
    keep_ms: int,
    approvals: Sequence[str] = (),
    timers: Sequence[str] = (),
) -> bool:
    """Lets what a run left expire with it; returns False for a run that was opened again meanwhile.

    `timers` of its maps go with it; what is too much for one call fires in vain.
    """
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
        [(timer,) for timer in timers[:MAX_KEYS]],
    )
    return bool(done == b"1")


async def release_graph(
    ns: Namespace, p: int, row: RunRow, left: Left, *, logged: str, whole: bool, hot_ms: int
) -> str:
    """Lets an ended, archived run go early, with what it left; returns a word (see release_graph.lua)."""
    keys, run = ns.keys, row.id
    many = [
        *(("approval", keys.approval(p, step_id(run, step))) for step in left.approvals),
        *(("blob", keys.blob(p, run, digest)) for digest in left.blobs),
        *(("map", key) for key in left.maps.maps),
        *(("items", key) for key in left.maps.items),
        *(("results", key) for key in left.maps.results),
    ]
    families = ("context", "arrivals", "tasklog", "belongings", "signals", "undo", "journal", "mail", "updates")
    own = [(family, getattr(keys, family)(p, run)) for family in families]
    pages = [many[at : at + MAX_KEYS] for at in range(0, len(many) - MAX_KEYS + 1, MAX_KEYS)]
    # The key that names the others goes last: if this process dies before that, the rest is still found, or expires by itself.
    pages.append([*many[len(pages) * MAX_KEYS :], *own])
    above = [keys.run(p, row.text("parent"))] if row.text("parent") else []
    word = ""
    for n, page in enumerate(pages, start=1):
        some: dict[str, list[str]] = {
            family: [] for family in (*families, "approval", "blob", "map", "items", "results")
        }
        for family, key in page:
            some[family].append(key)
        last = n == len(pages)
        args: dict[str, Arg] = {
            "seq": row.number("seq", 1),
            "hot_ms": hot_ms,
            "logged": logged,
            "whole": int(whole and last),
        }
        here = {"timers": keys.timers(p), "run": [keys.run(p, run), *above], **some}
        word = str((await ns.call("release_graph", p, here, args)).decode())
        if word != "released":
            return word
    return word
