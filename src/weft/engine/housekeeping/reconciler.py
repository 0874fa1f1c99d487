"""The reconciler: starts runs that stand in the database and that the store does not know; drops what the archive has. So
it does with votes of people, by the recounter.

Part of the archiver, which knows up to where the log is archived: a run that was ever started is in the store's log, and
so in the archive, or still ahead of it. Only what is in neither is begun. Two at once do no harm: a run is known by its id.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from weft.core.starts import Start
from weft.engine.beginning import begin
from weft.engine.cold import Cold, load_archive
from weft.engine.committed import GRACE
from weft.engine.housekeeping.recounting import Recounter
from weft.errors import Unavailable
from weft.store.archived import read_log
from weft.store.durability import read_home
from weft.store.namespace import Namespace
from weft.telemetry import get_logger

if TYPE_CHECKING:
    from weft.archive.starts import Starts

log = get_logger("weft.reconciler")

#: Starts that are looked at, and begun, at once.
PAGE, BEGUN = 500, 100
#: Seconds between two looks: when there is something, and when there is nothing.
BUSY, IDLE = 1.0, 5.0
#: A moment that never comes.
FAR_MS = 1 << 60


class Reconciler:
    """Looks after the starts of one partition."""

    def __init__(self, ns: Namespace, p: int, cold: Cold, by: str) -> None:
        self._ns, self._p, self._cold, self._by = ns, p, cold, by
        self._look_at = 0.0
        self._after = ""
        #: Runs begun, so far, because nobody else had.
        self.begun = 0
        self._recounter = Recounter(ns, p, cold)

    @property
    def is_due(self) -> bool:
        return time.monotonic() >= self._look_at

    async def look(self, checkpoint: str) -> None:
        """Looks at a page of starts, and at all ballots. `checkpoint`: the entry up to which the log is archived.

        What goes wrong here is told, and tried again: archiving goes on without it.
        """
        self._look_at = time.monotonic() + IDLE
        try:
            await self._look(checkpoint)
        except Unavailable as error:
            log.warning("runs and votes that stand in the database cannot be looked after now", error=error.message)

    async def _look(self, checkpoint: str) -> None:
        ballots = await self._recounter.look()
        if ballots:
            await self._recounter.drop(ballots, await self._archived_ms(checkpoint))
        table = await self._table()
        page = await table.page(self._p, self._after, PAGE)
        left = await self._drop_archived(table, [run for run, _ in page])
        if left:
            tried = dict(page)
            upto_ms = await self._archived_ms(checkpoint) - int(GRACE * 1000)
            await self._begin(table, [run for run in left if tried[run] < upto_ms])
        self._after = page[-1][0] if len(page) == PAGE else ""
        self._look_at = time.monotonic() + (0 if self._after else BUSY if page or ballots else IDLE)

    async def bring_back(self) -> int:
        """Begins all that the archive does not have: the store lost what was not archived. Returns how many."""
        table, before, after = await self._table(), self.begun, ""
        while page := await table.page(self._p, after, PAGE):
            after = page[-1][0]
            await self._begin(table, await self._drop_archived(table, [run for run, _ in page]))
        return self.begun - before

    async def count(self) -> int:
        """Counts starts that the archive does not have."""
        return await (await self._table()).count_lying(self._p, FAR_MS)

    async def _archived_ms(self, checkpoint: str) -> int:
        """Returns up to when everything is archived that the log was told."""
        home = await read_home(self._ns, self._p)
        if not (await read_log(self._ns, self._p, checkpoint, limit=1)).entries:
            return home.clock_ms
        return int(checkpoint.partition("-")[0])

    async def _drop_archived(self, table: Starts, ids: list[str]) -> list[str]:
        """Drops starts whose runs are archived; returns the others."""
        known = await table.archived(ids) if ids else set()
        if known:
            async with self._cold.turn:
                await table.drop(sorted(known))
        return [run for run in ids if run not in known]

    async def _begin(self, table: Starts, ids: list[str]) -> None:
        for at in range(0, len(ids), BEGUN):
            starts = await table.read(self._p, ids[at : at + BEGUN])
            home = await read_home(self._ns, self._p)
            words = await begin(self._ns, self._p, starts, now_ms=home.now_ms, by=self._by)
            for start, word in zip(starts, words, strict=True):
                await self._settle(table, start, word, home.now_ms, home.life)
            n = words.count("started")
            self.begun += n
            if n:
                log.warning(
                    "runs stood in the database and not in the store; they were started", partition=self._p, n=n
                )

    async def _settle(self, table: Starts, start: Start, word: str, now_ms: int, life: str) -> None:
        """Decides about a start whose key, or whose place among equal calls, another run has."""
        verdict, _, other = word.partition(" ")
        if verdict not in ("joined", "conflict") or other == start.run:
            return
        if start.life == life:
            # The store has lost nothing since: it was never accepted, and whoever asked was not told so.
            async with self._cold.turn:
                await table.drop([start.run])
            return
        # It may have been accepted before the loss. Then it is owed, although a call like it was made since.
        await begin(self._ns, self._p, [start], now_ms=now_ms, by=self._by, free=True)
        self.begun += 1
        log.warning(
            "a run was lost with the store, and one like it started since: both run", run=start.run, other=other
        )

    async def _table(self) -> Starts:
        await load_archive("starts")
        from weft.archive.starts import Starts

        return Starts(self._cold.database, self._ns.keys.namespace)
