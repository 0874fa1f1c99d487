"""The recounter: counts votes that stand in the database and that the store does not know; drops what the archive has.

Part of the reconciler. Whoever votes tells the store of earlier ballots first, in the same order as here: two at once do no
harm.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from weft.core.ballots import Ballot
from weft.engine.ballots import count_ballot
from weft.engine.cold import Cold, load_archive
from weft.errors import UserError
from weft.store.durability import read_home
from weft.store.namespace import Namespace
from weft.store.runs import read_runs
from weft.store.timers import hold_timers
from weft.telemetry import get_logger

if TYPE_CHECKING:
    from weft.archive.ballots import Ballots, Place

log = get_logger("weft.recounter")

#: Ballots that are read at once.
PAGE = 500
#: Milliseconds for which nothing is timed out that people have voted on, after a partition was rebuilt.
HOLD_MS = 60_000


class Recounter:
    """Looks after the ballots of one partition."""

    def __init__(self, ns: Namespace, p: int, cold: Cold) -> None:
        self._ns, self._p, self._cold = ns, p, cold
        #: Ballots that the store was seen to be done with, and when, by its own clock: its log has it by then. All in this
        #: life of the partition: what a store is done with another may have lost.
        self._life = ""
        self._done: dict[tuple[str, str, int, str], int] = {}
        #: Votes counted, so far, because nobody else had.
        self.counted = 0

    async def look(self) -> list[Ballot]:
        """Counts what the store does not know; returns the ballots there are."""
        table, found, after = await self._table(), list[Ballot](), ("", "", 0)
        done: list[Ballot] = []
        while page := await table.page(self._p, after, PAGE):
            after = _place(page[-1])
            found += page
            for ballot in page:
                if await self._count(table, ballot):
                    done.append(ballot)
        if not found:
            self._done.clear()
            return found
        home = await read_home(self._ns, self._p)
        if home.life.partition(" ")[0] != str(self._ns.epoch(self._p)):
            # A run that is not there may be about to be rebuilt.
            done = []
        before = self._done if home.life == self._life else {}
        self._done = {_key(one): before.get(_key(one), home.clock_ms) for one in done}
        self._life = home.life
        return found

    async def drop(self, found: list[Ballot], archived_ms: int) -> None:
        """Drops what is archived: what the store was done with before this moment."""
        gone = [one for one in found if self._done.get(_key(one), archived_ms) < archived_ms]
        if gone:
            async with self._cold.turn:
                await (await self._table()).drop(gone)

    async def bring_back(self) -> int:
        """Counts all that the store does not know; returns how many."""
        before = self.counted
        await self.look()
        return self.counted - before

    async def count(self) -> int:
        """Counts ballots: those that the archive has, too."""
        return await (await self._table()).count(self._p)

    async def hold(self, now_ms: int) -> None:
        """Lets no time run out, in a partition that is about to be opened again, before votes are counted."""
        table, after = await self._table(), ("", "", 0)
        while page := await table.page(self._p, after, PAGE):
            after = _place(page[-1])
            await hold_timers(self._ns, self._p, [f"wait:{one.id}" for one in page], now_ms + HOLD_MS)

    async def _count(self, table: Ballots, ballot: Ballot) -> bool:
        """Counts a ballot; returns whether the store is done with it."""
        try:
            word = await count_ballot(self._ns, table, ballot)
        except UserError as error:
            log.info("a vote does not count", approval=ballot.id, by=ballot.vote.by, why=error.message)
            return True
        if word == "counted":
            self.counted += 1
            log.warning("a vote stood in the database and not in the store; it was counted", approval=ballot.id)
        if word != "absent":
            return True
        # Not asked yet, after a loss; or its run is gone.
        (row,) = await read_runs(self._ns, self._p, [ballot.run])
        if row is not None:
            return not row.open
        cold = await self._cold.reader.run(ballot.run)
        if cold is not None:
            return cold.state.finished
        return not await self._cold.reader.is_to_start(ballot.run)

    async def _table(self) -> Ballots:
        await load_archive("ballots")
        from weft.archive.ballots import Ballots

        return Ballots(self._cold.database, self._ns.keys.namespace)


def _key(ballot: Ballot) -> tuple[str, str, int, str]:
    return ballot.run, ballot.step, ballot.opened_ms, ballot.vote.request


def _place(ballot: Ballot) -> Place:
    return ballot.run, ballot.step, ballot.number
