"""Lets finished runs go early, because the archive has them: a task with its values, a graph or workflow run with all it left.

When there is nothing else to do: until then they only take room. What is forgotten goes by itself when its `keep_result` is
over.
"""

from __future__ import annotations

import asyncio
import heapq
import time
from collections import deque
from dataclasses import dataclass

from weft.core.effects import CHUNK
from weft.core.fold import PURGED, RunState
from weft.engine.cold import Cold
from weft.store.archived import Ended, release_runs
from weft.store.ended import Left, MapKeys, release_graph
from weft.store.graphs import read_belongings
from weft.store.namespace import Namespace
from weft.store.runs import read_runs
from weft.store.steps import read_lines

#: Tasks that are let go by one call, runs of many steps that share their round trips, and how many wait at most.
RELEASED, AT_ONCE, MAX_DONE = 500, 64, 20_000
#: Seconds after which a run that somebody still needs is looked at again: at first, and at most.
AGAIN, MAX_AGAIN = 1.0, 300.0


@dataclass(slots=True, order=True)
class _Waiting:
    """A run of many steps that may go. The one that is due first is the least."""

    due: float
    run: str
    seq: int
    #: It is a dead letter: the run itself stays, with what it was asked.
    letter: bool
    wait: float = AGAIN
    #: How many of its log lines are archived.
    logged: str = ""


class Releaser:
    """Lets go of the finished runs of one partition."""

    def __init__(self, ns: Namespace, p: int, cold: Cold, *, hot_ms: int) -> None:
        self._ns, self._p, self._cold, self._hot_ms = ns, p, cold, hot_ms
        self._tasks: deque[Ended] = deque()
        self._others: deque[_Waiting] = deque()
        #: Failed tasks, which stay as dead letters: only their log lines are archived.
        self._letters: deque[str] = deque()
        #: Those that somebody still needs.
        self._later: list[_Waiting] = []

    @property
    def full(self) -> bool:
        """So many wait that they should not wait for a quiet moment."""
        return len(self._tasks) + len(self._others) + len(self._letters) >= MAX_DONE

    def note(self, state: RunState, *, given: str, result: str) -> None:
        """Notes a finished run whose rows stand. `given` and `result` are digests of its large values."""
        failed = state.status == "failed"
        if state.keep_ms == PURGED or (state.keep_ms <= self._hot_ms and not failed):
            return
        if state.kind != "task":
            self._others.append(_Waiting(0.0, state.id, state.seq, letter=failed and state.kind == "workflow"))
        elif failed:
            self._letters.append(state.id)
        else:
            self._tasks.append(Ended(state.id, state.seq, given, result))

    async def release(self) -> bool:
        """Lets some go; returns whether there are more that may. What a fault cut off is done again: that changes nothing."""
        some = [self._tasks.popleft() for _ in range(min(RELEASED, len(self._tasks)))]
        self._take_due()
        line = [self._others.popleft() for _ in range(min(AT_ONCE, len(self._others)))]
        letters = [self._letters.popleft() for _ in range(min(RELEASED, len(self._letters)))]
        try:
            if some:
                await self._release_tasks(some)
            await self._release_others(line)
            await self._keep_letters(letters)
        except BaseException:
            self._letters.extendleft(letters)
            self._tasks.extendleft(some)
            self._others.extendleft(line)
            raise
        return bool(self._tasks or self._others or self._letters)

    def _take_due(self) -> None:
        now = time.monotonic()
        while self._later and (self._later[0].due <= now or len(self._later) > MAX_DONE):
            one = heapq.heappop(self._later)
            if one.due <= now:
                self._others.append(one)

    async def _release_others(self, line: list[_Waiting]) -> None:
        words = await asyncio.gather(*(self._release(one) for one in line))
        told = list(zip(line, words, strict=True))
        logged = {one.run: int(word[7:] or 0) for one, word in told if word[:7] == "logged "}
        if logged:
            await self._keep_lines(logged)
        for one, word in told:
            if one.run in logged:
                one.logged = word[7:]
                self._others.append(one)
            elif word in ("closing", "awaited"):
                one.due, one.wait = time.monotonic() + one.wait, min(2 * one.wait, MAX_AGAIN)
                heapq.heappush(self._later, one)

    async def _release_tasks(self, some: list[Ended]) -> None:
        words = await release_runs(self._ns, self._p, some, hot_ms=self._hot_ms)
        logged = {run.id: int(word[7:] or 0) for run, word in zip(some, words, strict=True) if word[:7] == "logged "}
        if logged:
            await self._keep_lines(logged)
            again = [run.with_lines(logged[run.id]) for run in some if run.id in logged]
            await release_runs(self._ns, self._p, again, hot_ms=self._hot_ms)

    async def _keep_letters(self, runs: list[str]) -> None:
        """Archives the log lines of dead letters: these stay for long, and one day they go by themselves."""
        rows = await read_runs(self._ns, self._p, runs) if runs else []
        logged = {row.id: n for row in rows if row is not None and (n := row.number("logged", 0))}
        if logged:
            await self._keep_lines(logged)

    async def _keep_lines(self, runs: dict[str, int]) -> None:
        """Archives log lines, which no event tells of."""
        from weft.archive.lines import write_lines

        found = {run: (n, await read_lines(self._ns, self._p, run)) for run, n in runs.items()}
        async with self._cold.turn:
            # Lines that were archived earlier stay when the store no longer has any.
            await write_lines(self._cold.database, {run: lines for run, lines in found.items() if lines[1]})

    async def _release(self, one: _Waiting) -> str:
        ns, p, run = self._ns, self._p, one.run
        row = (await read_runs(ns, p, [run]))[0]
        if row is None:
            return "gone"
        if row.open or row.number("seq", 1) != one.seq:
            return "kept"
        maps, blobs = MapKeys(), set[str]() if one.letter else {row.spec.blob}
        async for members in read_belongings(ns, p, run):
            for member in members:
                what, name, *n = member.split(" ")
                if what == "blob" and not (one.letter and name == row.spec.blob):
                    blobs.add(name)
                elif what == "map":
                    maps.add(ns.keys, p, run, name, (int(n[0]) + CHUNK - 1) // CHUNK)
        left = Left(sorted(blobs - {""}), maps, row.text("approvals").split())
        return await release_graph(ns, p, row, left, logged=one.logged, whole=not one.letter, hot_ms=self._hot_ms)
