"""The archiver: reads the log in order and keeps it in the cold store, rows and checkpoint in one transaction.

It is woken by the log itself. While it writes, the log goes on growing: what has come meanwhile is the next batch. When the
cold store does not serve, nothing is trimmed and everything else goes on.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import time
from typing import TYPE_CHECKING, Any

from weft.core.fold import Logged, RunState, blobs_of, fold, fold_step
from weft.core.model import RunSpec
from weft.engine.cold import Cold
from weft.engine.housekeeping.service import Service
from weft.errors import CheckpointMoved, ForeignArchive, Unavailable
from weft.store.archived import (
    LogWatch,
    Stretch,
    mark_archived,
    read_blobs,
    read_definitions,
    read_log,
    release_runs,
)
from weft.telemetry import get_logger

if TYPE_CHECKING:
    from weft.archive.writer import Batch

log = get_logger("weft.archiver")

#: Log entries read at once, at first and at most: an entry may tell of one event or of hundreds.
FIRST_PAGE, MAX_PAGE = 64, 2_048
#: Events that a batch should have: some 10 ms of folding, and a transaction that is worth its while.
BATCH_EVENTS = 1_000
#: Events folded before others on the loop get their turn.
BREATH = 200
#: Seconds between two transactions while there is little to do: below that, waking up costs more than it tells.
LINGER = 0.05
#: Seconds an idle archiver waits for the log at once.
IDLE = 1.0
#: Open runs whose state is kept in memory, so that it need not be read again.
REMEMBERED = 20_000
#: Seconds that a transaction under way gets to finish when the archiver is to stop.
STOP_PATIENCE = 5.0
#: Seconds until a log that belongs to another database is looked at again.
FOREIGN_SECONDS = 1.0


class Archiver(Service):
    """Archives the log of one partition."""

    name = "archiver"

    def __init__(self, ns: Any, p: int, session: str, *, cold: Cold, hot_ms: int) -> None:
        super().__init__(ns, p, session)
        self._cold, self._hot_ms = cold, hot_ms
        self._watch = LogWatch(ns, p, seconds=IDLE)
        self._page = FIRST_PAGE
        self._checkpoint = ""
        self._identity = ""
        self._states: dict[str, RunState] = {}
        #: Digests of inputs of open runs, which expire with them.
        self._inputs: dict[str, str] = {}
        self._definitions: set[str] = set()
        self._idle = False
        self._told_foreign = False
        self._told_torn = ""
        self._writing = asyncio.Lock()
        #: How many events this archiver has stored.
        self.archived = 0

    async def tick(self) -> float:
        if not self._checkpoint and not await self._open():
            return FOREIGN_SECONDS
        stretch = await read_log(self.ns, self.p, self._checkpoint, limit=self._page)
        if stretch.torn and self._told_torn != self._checkpoint:
            self._tell_torn()
        self._idle = not stretch.entries
        if self._idle:
            return IDLE
        began = time.monotonic()
        batch, specs = await self._fold(stretch)
        async with self._writing:
            await self._write(batch)
            await self._settle(stretch, batch, specs)
        full = stretch.entries >= self._page or len(stretch.events) >= BATCH_EVENTS
        self._pace(stretch)
        return 0.0 if full else max(0.0, LINGER - (time.monotonic() - began))

    async def drain(self) -> None:
        """Archives what the log has now, and returns; the lease is not asked for, because two archivers do no harm."""
        try:
            while True:
                try:
                    await self.tick()
                except CheckpointMoved:
                    self.on_fault()
                    continue
                if not self._checkpoint:
                    raise ForeignArchive(f"the log of partition {self.p} is archived to another database")
                if self._idle:
                    return
        finally:
            await self._watch.close()

    async def pause(self, seconds: float) -> None:
        if not self._idle or not self._checkpoint:
            return await asyncio.sleep(seconds)
        try:
            await self._watch.wait(self._checkpoint, seconds)
        except Unavailable:
            await asyncio.sleep(0.2)

    async def stop(self) -> None:
        # A transaction that is under way is let finish: to cancel one leaves its connection in an unknown state.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(STOP_PATIENCE), self._writing:
                await super().stop()
        await super().stop()
        await self._watch.close()

    def on_fault(self) -> None:
        """Trusts nothing it remembers: the transaction may have been committed, or another archiver have led meanwhile."""
        self._checkpoint, self._idle = "", False
        self._states.clear()
        self._inputs.clear()

    # --- one batch --------------------------------------------------------------------------------

    async def _open(self) -> bool:
        """Reads where to go on; returns False when the log belongs to another database."""
        # Half a second's worth of imports, at first: not on the loop.
        await asyncio.to_thread(_import_archive)
        from weft.archive.schema import migrate
        from weft.archive.writer import open_checkpoint, read_identity

        database, namespace = self._cold.database, self.ns.keys.namespace
        async with self._cold.turn:
            before, after = await migrate(database)
            if before != after:
                log.info("the cold store has a new schema", database=database.address.shown, schema=after.current)
            self._identity = self._identity or await read_identity(database)
            checkpoint = await open_checkpoint(database, namespace, self.p)
        try:
            await self._mark(checkpoint, 0)
        except ForeignArchive as error:
            if not self._told_foreign:
                log.error(
                    "this log is archived to another database; nothing is archived here. Give all workers the same"
                    " WEFT_DATABASE_URL, or see `weft archiver --help`",
                    theirs=error.message,
                    ours=database.address.shown,
                )
            self._told_foreign = True
            return False
        self._checkpoint, self._told_foreign = checkpoint, False
        return True

    async def _fold(self, stretch: Stretch) -> tuple[Batch, dict[str, RunSpec]]:
        from weft.archive.writer import Batch, Gap, read_states, read_steps

        batch = Batch(self.ns.keys.namespace, self.p, self._checkpoint, stretch.upto, int(time.time() * 1000))
        batch.events = stretch.events
        unknown = {
            event.run for event in stretch.events if event.seq > 1 and "/" not in event.run
        } - self._states.keys()
        unknown |= {each.run for each in stretch.unreadable if each.run and "/" not in each.run} - self._states.keys()
        states = {**await read_states(self._cold.database, sorted(unknown))} if unknown else {}
        steps = [event for event in stretch.events if _is_of_step(event)]
        if steps:
            batch.steps = await read_steps(self._cold.database, {_step_of(event) for event in steps})
        specs: dict[str, RunSpec] = {}
        wanted: list[tuple[str, str]] = []
        for number, event in enumerate(stretch.events):
            if number % BREATH == BREATH - 1:
                await asyncio.sleep(0)
            try:
                self._fold_one(event, batch, states, specs, wanted)
            except Exception as error:  # noqa: BLE001 - whatever is wrong with an event is wrong with that event alone
                batch.gaps.append(Gap(event.run, event.entry, event.payload, f"{event.type}: {error!r}"))
        for each in stretch.unreadable:
            batch.gaps.append(Gap(each.run, each.entry, each.raw, each.error))
        for gap in batch.gaps:
            run = gap.run.partition("/")[0]
            if run:
                state = batch.runs.get(run) or states.get(run) or self._states.get(run) or RunState(run)
                state.gap = 1
                batch.runs[run] = state
                log.error("an event cannot be archived; its run has a gap", run=run, entry=gap.entry, error=gap.error)
        batch.blobs = await read_blobs(self.ns, self.p, wanted) if wanted else {}
        digests = {spec.definition for spec in specs.values() if spec.definition} - self._definitions
        if digests:
            batch.blobs |= await read_definitions(self.ns, self.p, sorted(digests))
        return batch, specs

    def _fold_one(
        self,
        event: Logged,
        batch: Batch,
        states: dict[str, RunState],
        specs: dict[str, RunSpec],
        wanted: list[tuple[str, str]],
    ) -> None:
        run = event.run
        if _is_of_step(event):
            fold_step(batch.steps, event)
            if "/" in run:
                return
        state = batch.runs.get(run)
        if state is None:
            state = batch.runs[run] = self._recall(run) or states.get(run) or RunState(run)
        spec = fold(state, event)
        if spec is not None:
            specs[run] = spec
            if spec.tags:
                batch.tags[run] = spec.tags
        if spec is None or spec.blob:
            digest = blobs_of(event, spec)
            if digest:
                wanted.append((run, digest))
                if spec is not None:
                    self._inputs[run] = digest

    async def _write(self, batch: Batch) -> None:
        from weft.archive.writer import write_batch

        async with self._cold.turn:
            try:
                gaps = await write_batch(self._cold.database, batch)
            except CheckpointMoved:
                log.warning("another archiver was here too; nothing was stored twice", partition=self.p)
                raise
        for run in {gap.run.partition("/")[0] for gap in gaps}:
            batch.runs.pop(run, None)
        self.archived += len(batch.events)
        self._checkpoint = batch.upto

    async def _settle(self, stretch: Stretch, batch: Batch, specs: dict[str, RunSpec]) -> None:
        """After the commit: says so in the hot store, trims the log, and lets go of finished runs."""
        self._definitions |= {spec.definition for spec in specs.values() if spec.definition}
        await self._mark(batch.upto, stretch.entries)
        results = {event.run: event for event in batch.events if event.type == "completed"}
        done: list[tuple[str, int, str, str]] = []
        for run, state in batch.runs.items():
            if not state.finished or state.gap:
                self._remember(run, state)
                continue
            given = self._inputs.pop(run, "")
            # A failed run is a dead letter, and what a graph run left is more than these keys: both are kept in full.
            if state.status != "failed" and state.kind == "task" and state.keep_ms > self._hot_ms:
                done.append((run, state.seq, given, blobs_of(results[run], None) if run in results else ""))
        if done:
            await release_runs(self.ns, self.p, done, hot_ms=self._hot_ms)

    async def _mark(self, entry: str, n: int) -> None:
        shown = self._cold.address.shown
        await mark_archived(self.ns, self.p, database=self._identity, name=shown, entry=entry, n=n, hot_ms=self._hot_ms)

    def _recall(self, run: str) -> RunState | None:
        return self._states.pop(run) if run in self._states else None

    def _remember(self, run: str, state: RunState) -> None:
        while len(self._states) >= REMEMBERED:
            oldest = next(iter(self._states))
            del self._states[oldest]
            self._inputs.pop(oldest, None)
        self._states[run] = state

    def _pace(self, stretch: Stretch) -> None:
        """Reads more entries at once when they tell little each, fewer when they tell much."""
        n = len(stretch.events)
        if n > 2 * BATCH_EVENTS:
            self._page = max(1, self._page // 2)
        elif n < BATCH_EVENTS and stretch.entries >= self._page:
            self._page = min(MAX_PAGE, self._page * 2)

    def _tell_torn(self) -> None:
        self._told_torn = self._checkpoint
        log.error(
            "the log no longer has the entry up to which it was archived: the store lost events, or somebody trimmed it."
            " Runs whose events do not follow on are marked",
            partition=self.p,
            checkpoint=self._checkpoint,
        )


def _import_archive() -> None:
    importlib.import_module("weft.archive.schema")
    importlib.import_module("weft.archive.writer")


def make_archivers(ns: Any, cold: Cold, session: str, *, hot_ms: int) -> list[Archiver]:
    """Returns an archiver for every partition."""
    return [Archiver(ns, p, session, cold=cold, hot_ms=hot_ms) for p in range(ns.partitions)]


def _is_of_step(event: Logged) -> bool:
    return "/" in event.run or event.type[:5] in ("route", "step_")


def _step_of(event: Logged) -> tuple[str, str]:
    run, _, step = event.run.partition("/")
    if step:
        return run, step
    head, _, rest = event.facts.partition(",")
    return run, head.removeprefix("step=") if head.startswith("step=") else rest
