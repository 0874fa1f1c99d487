"""The sweeper: takes the steps of dead sessions, and cures what an operator or a fault tore apart.

It acts only after a full lease of unbroken contact with the store: after an outage every healthy worker has had
the time to renew, so an outage re-emits nothing and counts no crash.
"""

from __future__ import annotations

import time
from typing import Any

import msgspec

from weft.clock import format_duration
from weft.core.model import MAX_CRASHES, ErrorRecord, RunSpec, SessionInfo
from weft.engine.gates import Mender
from weft.engine.housekeeping.service import Service
from weft.engine.keeping import Keeper
from weft.engine.serving import Rousing, Serving
from weft.engine.steps import keep_failed_ms
from weft.errors import SessionAlive
from weft.settings import read_setting
from weft.store.archived import Mark, read_mark, read_memory, set_behind
from weft.store.keys import PRIORITIES
from weft.store.letters import drop_gone_letters
from weft.store.log import trim_log
from weft.store.lost import emit_lost_steps, read_lost, read_pending, reclaim_steps
from weft.store.runs import lone_steps, note_damaged, read_ledgers, read_runs, scan_runs
from weft.store.sessions import end_session, read_sessions
from weft.store.steps import queue_streams
from weft.store.waits import rearm_waits
from weft.telemetry import get_logger

log = get_logger("weft.housekeeping")

#: Tokens taken from a dead session by one script call.
RECLAIM_BATCH = 100
#: Runs the reconciler looks at in one tick.
RECONCILE_PAGE = 500
#: Dead letters looked at in one tick, to see whether their runs are still there.
LETTERS_PAGE = 200
#: Log entries trimmed in one tick.
TRIM_BATCH = 1_000

_POISON = msgspec.msgpack.encode(
    ErrorRecord(
        "Poisoned",
        f"{MAX_CRASHES} workers died while they ran this step; it is not tried again",
        code="poisoned",
    )
)


class Sweeper(Service):
    """Keeps one partition whole."""

    name = "sweeper"

    def __init__(self, ns: Any, p: int, session: str, *, lease: float, retention_ms: int) -> None:
        super().__init__(ns, p, session)
        self._lease, self._retention_ms = lease, retention_ms
        self._contact_since = time.monotonic()
        self._contact_last = time.monotonic()
        self._servers: dict[str, str] = ns.incarnations
        self._cursor = 0
        self._mender = Mender(ns, p)
        self._max_lag_ms: int = read_setting("WEFT_MAX_LAG")
        self._max_memory: float = read_setting("WEFT_MAX_MEMORY")
        #: Whether new runs are held back; None: not known yet, another sweeper may have said so.
        self._holding: bool | None = None
        self._keeper, self._rousing = Keeper(ns, p), Rousing(ns, p)
        self._letters_cursor = 0
        #: Ledgers that looked lost in this round over all runs, and in the round before. Only one that looked so in both
        #: is cured: the reads are no snapshot.
        self._looked_lost: dict[str, str] = {}
        #: Sessions that hold tokens and are not in the directory, and when each was first seen.
        self._strangers: dict[str, float] = {}
        self._earlier: dict[str, str] = {}

    async def tick(self) -> float:
        every = min(1.0, self._lease / 4)
        sessions = await read_sessions(self.ns, self.p)
        await self._note_contact()
        if time.monotonic() - self._contact_since >= self._lease:
            for session, (about, alive) in sessions.items():
                if not alive and session != self.session:
                    await self._take(session, about)
        await self._rousing.look(Serving(about for about, alive in sessions.values() if alive))
        await self._reconcile(set(sessions))
        await self._mender.mend()
        await self._trim()
        self._letters_cursor = await drop_gone_letters(self.ns, self.p, self._letters_cursor, count=LETTERS_PAGE)
        return every

    async def _lead(self) -> bool:
        """Standing by is contact, too: who takes over from a leader that died has had its lease already."""
        leads = await super()._lead()
        if not leads:
            await self._note_contact()
        return leads

    def on_fault(self) -> None:
        self._holding = None
        self._contact_since = time.monotonic()

    async def _note_contact(self) -> None:
        """Contact is broken by an error, by another server process, and by a look that came much too late."""
        # A busy worker makes new connections all the time. Only who has asked knows whether one leads to another server.
        await self.ns.ready()
        now = time.monotonic()
        # Whoever is well has two thirds of a lease left at any time: a shorter stall makes nobody look dead.
        late = now - self._contact_last > max(2.0, self._lease / 3)
        if late or self.ns.incarnations != self._servers:
            self._contact_since = now
        self._servers, self._contact_last = self.ns.incarnations, now

    async def _take(self, dead: str, about: SessionInfo) -> None:
        taken = 0
        try:
            # The tombstone first: from here on the session can neither claim nor renew, so nothing slips in behind us.
            await self._reclaim(dead, about.served[0], self.ns.keys.tasks(self.p, about.served[0], PRIORITIES[0]), [])
        except SessionAlive:
            return
        for queue in about.served:
            for priority in reversed(PRIORITIES):
                stream = self.ns.keys.tasks(self.p, queue, priority)
                taken += await self._take_stream(dead, queue, stream)
        streams = queue_streams(self.ns, self.p, about.served)
        try:
            held = await end_session(self.ns, self.p, session=dead, streams=streams, swept=True)
        except SessionAlive:
            return
        if held == 0:
            log.warning("a worker died; its steps were given to others", session=dead, host=about.host, steps=taken)

    async def _take_stream(self, dead: str, queue: str, stream: str) -> int:
        taken = 0
        while held := await self._held(stream, dead):
            words = await self._reclaim(dead, queue, stream, held)
            taken += len(words) - words.count("stale")
            if len(held) < RECLAIM_BATCH:
                return taken
        return taken

    async def _reclaim(
        self, dead: str, queue: str, stream: str, held: list[tuple[str, str, RunSpec, str]]
    ) -> list[str]:
        return await reclaim_steps(
            self.ns,
            self.p,
            dead=dead,
            queue=queue,
            stream=stream,
            held=held,
            keep_ms=keep_failed_ms,
            by=self.session,
            max_crashes=MAX_CRASHES,
            poison=_POISON,
        )

    async def _held(self, stream: str, dead: str) -> list[tuple[str, str, RunSpec, str]]:
        if not await self.ns.read("EXISTS", stream, p=self.p):
            return []
        try:
            pending = await read_pending(self.ns, self.p, stream, dead, limit=RECLAIM_BATCH)
        except Exception as error:
            if "NOGROUP" in str(error):
                return []
            raise
        rows = await read_runs(self.ns, self.p, [run or "-" for _, run in pending])
        # A token whose run is gone is still taken, so that the pending list empties.
        return [
            (entry, run or "-", row.spec if row else RunSpec(""), row.text("gates") if row else "")
            for (entry, run), row in zip(pending, rows, strict=True)
        ]

    async def _reconcile(self, sessions: set[str]) -> None:
        await self._keeper.ask()
        self._cursor, ids = await scan_runs(self.ns, self.p, self._cursor, count=RECONCILE_PAGE)
        damaged: list[str] = []
        found = await read_ledgers(self.ns, self.p, ids, damaged=damaged)
        if damaged and (n := await note_damaged(self.ns, self.p, damaged)):
            log.error("runs cannot be read; they wait for repair, see `weft keys audit`", n=n, runs=damaged[:5])
        self._keeper.note(found)
        if not self._cursor:
            await self._keeper.end_round()
        rows = [row for row in found if row.open]
        rows += lone_steps(rows)
        await rearm_waits(self.ns, self.p, rows)
        holders: dict[str, set[str]] = {}
        lost = await read_lost(self.ns, self.p, rows, holders=holders)
        await self._take_from_strangers(holders, sessions)
        confirmed = [row for row in lost if self._earlier.get(row.id) == row.text("open")]
        self._looked_lost |= {row.id: row.text("open") for row in lost}
        if not self._cursor:
            self._earlier, self._looked_lost = self._looked_lost, {}
        for at in range(0, len(confirmed), RECLAIM_BATCH):
            words = await emit_lost_steps(self.ns, self.p, confirmed[at : at + RECLAIM_BATCH], by=self.session)
            n = len(words) - words.count("stale")
            if n:
                log.warning("open runs had neither token nor timer; they were given one", n=n)

    async def _take_from_strangers(self, holders: dict[str, set[str]], sessions: set[str]) -> None:
        """Takes the tokens of sessions that are not in the directory: they claimed from a store that was rebuilt, and died
        before they could enter themselves there. One that lives does so within a third of its lease."""
        now = time.monotonic()
        self._strangers = {one: seen for one, seen in self._strangers.items() if one not in sessions}
        for one, queues in holders.items():
            if one in sessions or one == self.session:
                continue
            since = max(self._strangers.setdefault(one, now), self._contact_since)
            if now - since >= self._lease:
                self._strangers.pop(one)
                await self._take(one, SessionInfo(one, "", "unknown", 0, sorted(queues), [], 0, 0))

    async def _hold_starts(self, mark: Mark) -> None:
        """Stops new runs while the archive is too far behind or memory is short, and takes them again after."""
        why = ""
        used, most = await read_memory(self.ns, self.p)
        if most and used > self._max_memory * most:
            why = (
                f"the store uses {used >> 20} of {most >> 20} MB of memory, more than WEFT_MAX_MEMORY allows: new runs are"
                " taken again when there is room (see `weft doctor`)"
            )
        # What is not indexed stays in the log as well.
        behind_ms = max(mark.lag_ms, mark.index_ms)
        if behind_ms > self._max_lag_ms:
            why = (
                f"the archive ({mark.name}) is {format_duration(behind_ms)} behind, more than WEFT_MAX_LAG allows: new runs"
                " are taken again when it has caught up (see `weft doctor`)"
            )
        if bool(why) != self._holding or self._holding is None:
            await set_behind(self.ns, self.p, why)
            if why:
                log.error("new runs are refused", partition=self.p, why=why)
            elif self._holding:
                log.info("new runs are taken again", partition=self.p)
            self._holding = bool(why)

    async def _trim(self) -> None:
        """Trims the log by age. A log that is archived is not: the archiver knows what may go. It must not grow for ever."""
        mark = await read_mark(self.ns, self.p)
        await self._hold_starts(mark)
        if mark.database:
            return
        seconds = await self.ns.read("TIME", p=self.p)
        before = int(seconds[0]) * 1000 - self._retention_ms
        await trim_log(self.ns, self.p, before_ms=before, limit=TRIM_BATCH)
