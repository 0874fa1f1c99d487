"""One verb for many runs: cancel, pause, resume or retry all that a filter means. Counting comes first."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace

import msgspec

from weft.core.model import RunInfo, RunStatus
from weft.engine import pauses, retries, runs
from weft.engine.engine import Engine
from weft.engine.listing import Filter, age_of, list_runs
from weft.errors import UserError

#: Runs that are changed at the same time.
AT_ONCE = 20

#: What each verb can be done to: the statuses, and whether to graph runs only.
_OPEN = frozenset({RunStatus.QUEUED, RunStatus.RUNNING, RunStatus.WAITING, RunStatus.PAUSED})
MEANT: dict[str, tuple[frozenset[RunStatus], bool]] = {
    "cancel": (_OPEN, False),
    "pause": (_OPEN - {RunStatus.PAUSED}, True),
    "resume": (frozenset({RunStatus.PAUSED}), True),
    "retry": (frozenset({RunStatus.FAILED, RunStatus.CANCELLED}), True),
}


class Changed(msgspec.Struct, frozen=True):
    """What became of a change of many runs: how many were meant and which, which were changed, which were not and why."""

    matched: int
    done: list[str] = []
    refused: dict[str, str] = {}
    runs: list[str] = []


@dataclass(frozen=True, slots=True)
class Meant(Filter):
    """Which runs a verb can be done to, among those of a filter."""

    action: str = ""

    @property
    def finished(self) -> bool:
        return self.action == "retry"  # what only the archive has nothing else can be done to

    def admits(self, found: RunInfo) -> bool:
        statuses, graphs = MEANT[self.action]
        able = found.status in statuses and (found.kind == "graph" or not graphs)
        return able and Filter.admits(self, found)


async def meant_runs(engine: Engine, wanted: Meant, *, limit: int) -> list[str]:
    """Returns the runs that a verb is to be done to, the newest first."""
    if not wanted.finished:
        return [info.id for info in await list_runs(engine, wanted, limit=limit)]
    # One status at a time: the archive follows its index then, past all the runs that completed.
    able = [status for status in MEANT[wanted.action][0] if wanted.status in (None, status)]
    each = [replace(wanted, status=status, kind="graph") for status in able]
    found = [info for one in each for info in await list_runs(engine, one, limit=limit)]
    return [info.id for info in sorted(found, key=lambda info: age_of(info.id), reverse=True)[:limit]]


async def change_runs(engine: Engine, action: str, ids: Sequence[str], *, reason: str, by: str) -> Changed:
    """Does one verb to many runs. What has ended or changed meanwhile is refused, and told; the others are done."""
    verbs: dict[str, Callable[[str], Awaitable[object]]] = {
        "cancel": lambda run: runs.cancel(engine, run, reason=reason, by=by),
        "pause": lambda run: pauses.pause(engine, run, reason=reason, by=by),
        "resume": lambda run: pauses.resume(engine, run, by=by),
        "retry": lambda run: retries.retry(engine, run, from_step=None, reason=reason, by=by),
    }
    verb, done, refused = verbs[action], set[str](), dict[str, str]()
    room = asyncio.Semaphore(AT_ONCE)

    async def change(run: str) -> None:
        async with room:
            try:
                if await verb(run):
                    done.add(run)
                else:
                    refused[run] = "it had ended"
            except UserError as error:
                refused[run] = error.message

    async with asyncio.TaskGroup() as group:
        for run in ids:
            group.create_task(change(run))
    return Changed(len(ids), [run for run in ids if run in done], refused, list(ids))
