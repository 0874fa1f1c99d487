"""What live workers can do, and what becomes of runs that none of them can: they rest until one registers that can."""

from __future__ import annotations

from collections.abc import Iterable

from weft.core.model import RunSpec, SessionInfo, Token
from weft.engine.engine import Engine
from weft.store.namespace import Namespace
from weft.store.sessions import read_sessions
from weft.store.unserved import count_unserved, drop_unserved, read_needs, read_unserved, rest_step, rouse_runs

#: Runs that one script call lets go on, and that one look drops when they do not rest any more.
PAGE = 200
#: Script calls that let runs of one kind go on, in one look.
MAX_PAGES = 20
#: Different needs that one look at what rests goes through.
MAX_NEEDS = 100
#: Stands for any version.
ANY = "-"


class Serving:
    """What the sessions of live workers can do."""

    def __init__(self, sessions: Iterable[SessionInfo]) -> None:
        self._has = {
            f"{queue} {name} {version}"
            for about in sessions
            for queue in about.queues
            for name in about.tasks
            for version in (ANY, *about.workflows.get(name, ()))
        }

    def has(self, spec: RunSpec, version: str = "") -> bool:
        """Tells whether somebody can do a run; `version`: with the code of that one."""
        return needs_of(spec, version) in self._has

    def meets(self, needs: str) -> bool:
        return needs in self._has


def needs_of(spec: RunSpec, version: str = "") -> str:
    """Returns what a worker must have for a run: queue, name and version."""
    return f"{spec.queue} {spec.name} {version or spec.version or ANY}"


async def read_serving(ns: Namespace, p: int) -> Serving:
    return Serving(about for about, alive in (await read_sessions(ns, p)).values() if alive)


async def read_resting(ns: Namespace, p: int) -> dict[str, int]:
    """Returns how many runs rest, by what no live worker does: in words, for people."""
    found, needs = dict[str, int](), ""
    while len(found) < MAX_NEEDS and (needs := await read_needs(ns, p, needs)):
        queue, name, version = needs.split(" ")
        what = f"knows {name}" if version == ANY else f"has version {version} of workflow {name}"
        found[f"of queue {queue} {what}"] = await count_unserved(ns, p, needs)
    return found


async def serves(engine: Engine, name: str, queue: str) -> bool:
    """Tells whether a live worker takes runs of a task from a queue."""
    await engine.open()
    return (await read_serving(engine.ns, 0)).meets(f"{queue} {name} {ANY}")


async def rest(ns: Namespace, token: Token, reason: str, started_ms: int, *, by: str) -> None:
    """Hands a step back that nobody can do; who registers meanwhile is seen by the next look of the sweeper."""
    await rest_step(ns, token, needs=needs_of(token.spec), reason=reason, started_ms=started_ms, by=by)


class Rousing:
    """Looks after the runs of a partition that rest."""

    def __init__(self, ns: Namespace, p: int) -> None:
        self._ns, self._p = ns, p
        #: Where the look before has left off, among needs and among runs.
        self._needs = self._after = ""

    async def look(self, serving: Serving) -> int:
        """Lets runs go on that somebody can do by now; returns how many. Writes nothing when there are none."""
        roused, n_needs = 0, 0
        while n_needs < MAX_NEEDS and (needs := await read_needs(self._ns, self._p, self._needs)):
            self._needs, n_needs = needs, n_needs + 1
            if serving.meets(needs):
                roused += await self._rouse(needs)
        if n_needs < MAX_NEEDS:
            self._needs = ""
        if n_needs or self._after:
            await self._tidy()
        return roused

    async def _rouse(self, needs: str) -> int:
        roused = 0
        for _ in range(MAX_PAGES):
            members = await read_unserved(self._ns, self._p, needs, limit=PAGE)
            roused += (await rouse_runs(self._ns, self._p, members)).count("roused")
            if len(members) < PAGE:
                break
        return roused

    async def _tidy(self) -> None:
        """Forgets what ended or went on by a signal, some of it in each look."""
        members = await read_unserved(self._ns, self._p, "", after=self._after, limit=PAGE)
        await drop_unserved(self._ns, self._p, members)
        self._after = members[-1] if len(members) == PAGE else ""
