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

import msgspec

from weft.core.fold import (
    Entry,
    Logged,
    RunState,
    Unreadable,
    blob_of,
    definition_of,
    fold,
    fold_step,
    labels_of,
    maps_of,
    result_blob,
    split_entry,
)
from weft.core.model import SPEC_DECODER
from weft.core.status import MARK
from weft.engine.cold import Cold
from weft.engine.definitions import decode_bundle
from weft.engine.housekeeping.recovery import Rebuilder
from weft.engine.housekeeping.regrowing import items_name
from weft.engine.housekeeping.service import Service
from weft.errors import CheckpointMoved, ForeignArchive, PartitionLost, Unavailable
from weft.store.archived import (
    LogWatch,
    Stretch,
    has_entry,
    mark_archived,
    read_blobs,
    read_definitions,
    read_log,
    read_whole_items,
    release_runs,
)
from weft.store.recovery import read_settings
from weft.telemetry import get_logger

if TYPE_CHECKING:
    from weft.archive.writer import Batch

log = get_logger("weft.archiver")

_pack = msgspec.msgpack.Encoder(order="sorted").encode

#: Log entries read at once, at first and at most: an entry may tell of one event or of hundreds.
FIRST_PAGE, MAX_PAGE = 64, 2_048
#: Events that a batch should have: some 30 ms of folding, and a transaction that is worth its while.
BATCH_EVENTS = 4_000
#: Events folded before others on the loop get their turn.
BREATH = 500
#: Seconds between two transactions while there is little to do, and when a batch had more events than this: the more there is,
#: the more it costs to be woken for a part of it.
LINGER, LONG_LINGER, FEW_EVENTS = 0.05, 0.2, 20
#: Seconds an idle archiver waits for the log at once.
IDLE = 1.0
#: Open runs whose state is kept in memory, so that it need not be read again.
REMEMBERED = 50_000
#: Finished runs that are let go by one call, and how many wait for a quiet moment at most.
RELEASED, MAX_DONE = 500, 20_000
#: Characters of a run's own list of blocks; beyond that a part of it gets a row of its own.
MAX_PLACES = 400
#: Seconds that a transaction under way gets to finish when the archiver is to stop.
STOP_PATIENCE = 5.0
#: Seconds between two looks at what operators set and at schedules.
SETTINGS_SECONDS = 2.0
#: Seconds until a log that belongs to another database is looked at again.
FOREIGN_SECONDS = 1.0


class Archiver(Service):
    """Archives the log of one partition."""

    name = "archiver"

    def __init__(self, ns: Any, p: int, session: str, *, cold: Cold, hot_ms: int, closed: bool = False) -> None:
        super().__init__(ns, p, session)
        #: The partition is closed, to be rebuilt: nothing is noted there, and the archive is right wherever the two differ.
        self._closed = closed
        #: Runs that went another way after the store had gone back: the archive keeps to the first.
        self._diverged: set[str] = set()
        self._settings: dict[tuple[str, str], bytes] | None = None
        self._look_at = 0.0
        self._cold, self._hot_ms = cold, hot_ms
        self._watch = LogWatch(ns, p, seconds=IDLE)
        self._page = FIRST_PAGE
        self._checkpoint = ""
        #: Number of the newest block.
        self._block = 0
        self._identity = ""
        self._states: dict[str, RunState] = {}
        #: Digests of inputs of open runs, which expire with them.
        self._inputs: dict[str, str] = {}
        self._definitions: set[str] = set()
        #: Maps that began in this batch: run and step each.
        self._maps: list[tuple[str, str]] = []
        #: Finished runs that may go: id, newest event, digests of input and result. Forgotten, they go later by themselves.
        self._done: list[tuple[str, int, str, str]] = []
        self._idle = False
        self._told_foreign = False
        self._told_torn = ""
        #: Held around every transaction: one that is cancelled on its way may leave the database locked for good.
        self._writing = asyncio.Lock()
        #: How many events this archiver has stored.
        self.archived = 0

    async def tick(self) -> float:
        if not self._checkpoint and not await self._open():
            return FOREIGN_SECONDS
        stretch = await read_log(self.ns, self.p, self._checkpoint, limit=self._page)
        if stretch.torn and self._told_torn != self._checkpoint and not self._closed:
            if await self._recover():
                return 0.0
            self._tell_torn()
        if not self._closed:
            await self._keep_settings()
        self._idle = not stretch.entries
        if self._idle:
            await self._release()
            return IDLE
        began = time.monotonic()
        batch = await self._fold(stretch)
        async with self._writing:
            await self._write(batch)
            await self._settle(stretch, batch)
        full = len(stretch.entries) >= self._page or len(batch.events) >= BATCH_EVENTS
        self._pace(len(stretch.entries), len(batch.events))
        linger = LINGER if len(batch.events) <= FEW_EVENTS else LONG_LINGER
        return 0.0 if full else max(0.0, linger - (time.monotonic() - began))

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

    async def _lead(self) -> bool:
        try:
            return await super()._lead()
        except PartitionLost:
            # Leases stand in the store too. The archive says whose turn it is.
            await self._recover()
            return False

    async def _recover(self) -> bool:
        """Rebuilds the partition if the store lost it; returns whether it did, or another process does."""
        done = await Rebuilder(self.ns, self.p, self._cold, self.session, hot_ms=self._hot_ms).recover()
        if done is not None and not done.lost:
            return False
        self.on_fault()
        return True

    async def _keep_settings(self) -> None:
        """Keeps what no event tells of: what operators set, and schedules."""
        began = time.monotonic()
        if began < self._look_at:
            return
        from weft.archive.recovery import Recovery

        archive = Recovery(self._cold.database, self.ns.keys.namespace, self.p)
        if self._settings is None:
            self._settings = await archive.read_settings()
        found = {key: _pack(fields) for key, fields in (await read_settings(self.ns, self.p)).items()}
        changed = {key: data for key, data in found.items() if self._settings.get(key) != data}
        gone = [key for key in self._settings if key not in found]
        if changed or gone:
            async with self._writing, self._cold.turn:
                await archive.write_settings(changed, gone)
        self._settings = found
        # The more there are, the more seldom they are read.
        self._look_at = time.monotonic() + max(SETTINGS_SECONDS, 50 * (time.monotonic() - began))

    def on_fault(self) -> None:
        """Trusts nothing it remembers: the transaction may have been committed, or another archiver have led meanwhile."""
        self._checkpoint, self._idle, self._settings = "", False, None
        self._states.clear()
        self._inputs.clear()

    # --- one batch --------------------------------------------------------------------------------

    async def _open(self) -> bool:
        """Reads where to go on; returns False when the log belongs to another database."""
        # Half a second's worth of imports, at first: not on the loop.
        await asyncio.to_thread(_import_archive)
        from weft.archive.recovery import Recovery
        from weft.archive.schema import migrate
        from weft.archive.writer import open_checkpoint, read_identity

        database, namespace = self._cold.database, self.ns.keys.namespace
        async with self._writing, self._cold.turn:
            before, after = await migrate(database)
            if before != after:
                log.info("the cold store has a new schema", database=database.address.shown, schema=after.current)
            self._identity = self._identity or await read_identity(database)
            checkpoint, self._block = await open_checkpoint(database, namespace, self.p)
        if not self._closed and await self._recover():
            return False
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
        if not self._closed:
            async with self._writing:
                await Recovery(database, namespace, self.p).note_epoch(self.ns.epoch(self.p))
        self._checkpoint, self._told_foreign = checkpoint, False
        return True

    async def _fold(self, stretch: Stretch) -> Batch:
        from weft.archive.writer import Batch, Gap, read_states, read_steps

        batch = Batch(self.ns.keys.namespace, self.p, self._checkpoint, stretch.upto, int(time.time() * 1000))
        batch.block = self._block
        unreadable, first_of = _split(stretch, batch)
        steps = [event for event in batch.events if "/" in event.run or event.type[:5] in _OF_STEPS]
        touched = {event.run for event in batch.events if event.seq > 1}
        touched.update(event.run for event in steps)
        touched.update(each.run for each in unreadable)
        unknown = sorted({run.partition("/")[0] for run in touched - self._states.keys()} - self._states.keys() - {""})
        namespace, database = self.ns.keys.namespace, self._cold.database
        states = await read_states(database, namespace, unknown) if unknown else {}
        if steps:
            batch.steps = await read_steps(database, {_step_of(event) for event in steps})
        wanted: list[tuple[str, str]] = []
        block, place, first_of = 0, "", [*first_of, len(batch.events)]
        for number, event in enumerate(batch.events):
            if number % BREATH == BREATH - 1:
                await asyncio.sleep(0)
            while number >= first_of[block]:
                block += 1
                place = f" {self._block + block}"
            try:
                self._fold_one(event, batch, states, wanted, place)
            except Exception as error:  # noqa: BLE001 - whatever is wrong with an event is wrong with that event alone
                batch.gaps.append(Gap(event.run, event.entry, event.payload, f"{event.type}: {error!r}"))
        for each in unreadable:
            batch.gaps.append(Gap(each.run, each.entry, each.raw, each.error))
        for gap in batch.gaps:
            run = gap.run.partition("/")[0]
            if run:
                state = batch.runs.get(run) or states.get(run) or self._states.get(run) or RunState(run)
                state.gap = 1
                batch.runs[run] = state
                log.error("an event cannot be archived; its run has a gap", run=run, entry=gap.entry, error=gap.error)
        batch.blobs = await read_blobs(self.ns, self.p, wanted) if wanted else {}
        batch.uses.update(wanted)
        asked = {digest for _, digest in wanted} | await self._read_graphs(batch)
        # What is gone may have expired with its run. If the store was lost just now, none of this may be archived without it.
        if not asked <= batch.blobs.keys() and not await has_entry(self.ns, self.p, stretch.upto):
            raise PartitionLost(f"the store lost partition {self.p} while its log was archived", partition=self.p)
        return batch

    async def _read_graphs(self, batch: Batch) -> set[str]:
        """Reads definitions, those below them, and the items of maps that began: no event has them. Returns what it wanted."""
        line = batch.definitions
        while line:
            found = await read_definitions(self.ns, self.p, sorted(line))
            batch.blobs |= found
            below = {base.child for data in found.values() for base in decode_bundle(data).steps.values() if base.child}
            line = below - batch.definitions - self._definitions
            batch.definitions |= line
        maps, self._maps = self._maps, []
        for run, step in maps:
            items = await read_whole_items(self.ns, self.p, run, step)
            if items:
                batch.blobs[items_name(run, step)] = _pack(items)
                batch.uses.add((run, items_name(run, step)))
        return batch.definitions | {items_name(run, step) for run, step in maps}

    def _fold_one(
        self,
        event: Logged,
        batch: Batch,
        states: dict[str, RunState],
        wanted: list[tuple[str, str]],
        place: str,
    ) -> None:
        run, kind, step = event.run, event.type, ""
        if "/" in run:
            run, _, step = run.partition("/")
        state = batch.runs.get(run)
        if state is None:
            known = self._states.pop(run) if run in self._states else states.get(run)
            state = batch.runs[run] = known or RunState(run)
        if not state.blocks.endswith(place):
            _place(state, place, batch)
        if self._closed and not step and (run in self._diverged or event.seq <= state.seq):
            self._diverged.add(run)
            return
        if step or kind[:5] in _OF_STEPS:
            fold_step(batch.steps, event)
        if step:
            if kind == "queued" and (digest := SPEC_DECODER.decode(event.payload).blob):
                wanted.append((run, digest))
            return
        spec = fold(state, event)
        if kind == "failed" or (spec is not None and (spec.tags or state.parent)):
            batch.labels += labels_of(state, spec.tags if spec is not None else {})
        if spec is None:
            if digest := blob_of(event):
                wanted.append((run, digest))
            batch.definitions |= definition_of(event)
            self._maps += maps_of(event)
            return
        if spec.blob:
            wanted.append((run, spec.blob))
            self._inputs[run] = spec.blob
        if spec.definition and spec.definition not in self._definitions:
            batch.definitions.add(spec.definition)

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
        self._checkpoint, self._block = batch.upto, batch.block + len(batch.blocks)

    async def _settle(self, stretch: Stretch, batch: Batch) -> None:
        """After the commit: says so in the hot store, trims the log, and lets go of finished runs."""
        self._definitions |= batch.definitions
        await self._mark(batch.upto, len(stretch.entries))
        for run, state in batch.runs.items():
            if not state.finished or state.gap:
                self._remember(run, state)
                continue
            given = self._inputs.pop(run, "")
            # A failed run is a dead letter, and what a graph run left is more than these keys: both are kept in full.
            if state.status != "failed" and state.kind == "task" and state.keep_ms > self._hot_ms:
                self._done.append((run, state.seq, given, result_blob(state)))
        if len(self._done) >= MAX_DONE:
            await self._release()

    async def _release(self) -> None:
        """Lets finished runs go early. When there is nothing else to do: until then they only take room."""
        if self._closed:
            return
        while self._done:
            some, self._done = self._done[:RELEASED], self._done[RELEASED:]
            await release_runs(self.ns, self.p, some, hot_ms=self._hot_ms)

    async def _mark(self, entry: str, n: int) -> None:
        if self._closed:
            return
        shown = self._cold.address.shown
        await mark_archived(self.ns, self.p, database=self._identity, name=shown, entry=entry, n=n, hot_ms=self._hot_ms)

    def _remember(self, run: str, state: RunState) -> None:
        # The archive has them; a state without them leaves them as they are.
        state.spec = state.value = b""
        while len(self._states) >= REMEMBERED:
            oldest = next(iter(self._states))
            del self._states[oldest]
            self._inputs.pop(oldest, None)
        self._states[run] = state

    def _pace(self, entries: int, n: int) -> None:
        """Reads more entries at once when they tell little each, fewer when they tell much."""
        if n > 2 * BATCH_EVENTS:
            self._page = max(1, self._page // 2)
        elif n < BATCH_EVENTS and entries >= self._page:
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
    importlib.import_module("weft.archive.recovery")
    importlib.import_module("weft.archive.schema")
    importlib.import_module("weft.archive.writer")


def make_archivers(ns: Any, cold: Cold, session: str, *, hot_ms: int) -> list[Archiver]:
    """Returns an archiver for every partition."""
    return [Archiver(ns, p, session, cold=cold, hot_ms=hot_ms) for p in range(ns.partitions)]


def _split(stretch: Stretch, batch: Batch) -> tuple[list[Unreadable], list[int]]:
    """Packs a stretch into blocks and takes it apart; returns what is no event, and the first event of each block."""
    from weft.archive.blocks import BLOCK_BYTES, pack

    unreadable: list[Unreadable] = []
    first_of: list[int] = []
    some: list[Entry] = []
    size = 0
    for entry in stretch.entries:
        id, fields = entry
        found, wrong = split_entry(id, fields)
        unreadable += wrong
        # What was observed of a task elsewhere stands in an entry of its own, and is kept as a row.
        if found and found[0].run.startswith(MARK):
            batch.statuses += found
            continue
        if not some:
            first_of.append(len(batch.events))
        batch.events += found
        some.append(entry)
        size += sum(map(len, fields))
        if size >= BLOCK_BYTES:
            batch.blocks.append(pack(some))
            some, size = [], 0
    if some:
        batch.blocks.append(pack(some))
    return unreadable, first_of


def _place(state: RunState, block: str, batch: Batch) -> None:
    """Notes that a block tells of a run."""
    if len(state.blocks) > MAX_PLACES:
        batch.places.append((state.id, int(state.blocks.rpartition(" ")[2]), state.blocks))
        state.blocks = ""
    state.blocks += block


#: How the types of events begin that tell of a step.
_OF_STEPS = ("route", "step_")


def _step_of(event: Logged) -> tuple[str, str]:
    run, _, step = event.run.partition("/")
    if step:
        return run, step
    head, _, rest = event.facts.partition(",")
    return run, head.removeprefix("step=") if head.startswith("step=") else rest
