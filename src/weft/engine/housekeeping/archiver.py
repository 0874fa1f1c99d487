"""The archiver: reads the log in order and keeps it in the cold store, rows and checkpoint in one transaction.

It is woken by the log itself. While it writes, the log goes on growing: what has come meanwhile is the next batch. When the
cold store does not serve, nothing is trimmed and everything else goes on.

Two things are done with a stretch of the log. It is kept, as it is, in blocks: from then on it cannot be lost. And it is
indexed: folded into rows, by which runs are found, trimmed from the log and let go. At full load the second waits.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import TYPE_CHECKING, Any

import msgspec

from weft.core.fold import Entry
from weft.engine.cold import Cold, load_archive
from weft.engine.definitions import decode_bundle
from weft.engine.housekeeping.indexing import Indexer
from weft.engine.housekeeping.looking import Looker
from weft.engine.housekeeping.reconciler import Reconciler
from weft.engine.housekeeping.recovery import Rebuilder
from weft.engine.housekeeping.regrowing import items_name
from weft.engine.housekeeping.service import Service
from weft.engine.housekeeping.stretches import Needs, count_events, in_blocks, needs_of, read_blocks, statuses_of
from weft.engine.housekeeping.tearing import Tearing
from weft.errors import CheckpointMoved, ForeignArchive, PartitionLost, Unavailable
from weft.store.archived import (
    FEW_BLOBS,
    LogWatch,
    Stretch,
    forget_whole,
    has_entry,
    mark_archived,
    read_blobs,
    read_definitions,
    read_log,
    read_sizes,
    read_whole_items,
)
from weft.telemetry import get_logger

if TYPE_CHECKING:
    from weft.archive.writer import Batch

log = get_logger("weft.archiver")

_pack = msgspec.msgpack.Encoder(order="sorted").encode

#: Log entries read at once, at first and at most: an entry may tell of one event or of hundreds.
FIRST_PAGE, MAX_PAGE = 64, 2_048
#: Events that a batch should have: some 30 ms of folding, and a transaction that is worth its while.
BATCH_EVENTS = 4_000
#: Bytes of large values that are archived at once: more takes longer than store and database are waited for, again and again.
BATCH_BYTES = 64_000_000
#: Seconds between two transactions, unless there is more than one takes: the oftener it is woken, the more those wait who have
#: the processors and the disk in common with it.
LINGER = 0.2
#: Seconds an idle archiver waits for the log at once.
IDLE = 1.0
#: Events a second, over at least so many seconds, beyond which blocks are only kept: folding them takes several times as long,
#: and can wait until the engine needs the processors less.
BUSY_RATE, SHORTEST = 5_000, 0.2
#: Blocks that may wait to be indexed, however busy it is: a recovery has to index them first (some 20 s for so many).
MAX_BEHIND = 1_000
#: Blocks that are indexed at once. More than come meanwhile, and enough to meet both ends of most runs.
AT_ONCE = 8
#: Seconds that a transaction under way gets to finish when the archiver is to stop.
STOP_PATIENCE = 5.0
#: Seconds until a log that belongs to another database is looked at again.
FOREIGN_SECONDS = 1.0


class Archiver(Service):
    """Archives the log of one partition."""

    name = "archiver"

    def __init__(self, ns: Any, p: int, session: str, *, cold: Cold, hot_ms: int, closed: bool = False) -> None:
        super().__init__(ns, p, session)
        #: The partition is closed, to be rebuilt: nothing is noted there, and the archive is right wherever the two differ.
        self._closed = closed
        self._cold, self._hot_ms = cold, hot_ms
        self._looker = Looker(ns, p, cold)
        self._reconciler = Reconciler(ns, p, cold, session)
        self._tearing = Tearing(ns, p, cold)
        self._watch = LogWatch(ns, p, seconds=IDLE)
        self._page = FIRST_PAGE
        self._indexer = Indexer(ns, p, cold, hot_ms=hot_ms, closed=closed)
        #: Up to where the log is kept as blocks, and the newest of them; up to where these are indexed.
        self._checkpoint, self._block = "", 0
        self._indexed, self._indexed_block = "", 0
        #: Events that were kept since some moment, and whether they were many for the time.
        self._counted, self._counted_since, self._busy = 0, time.monotonic(), False
        self._identity, self._epoch = "", 0
        self._definitions: set[str] = set()
        self._idle = False
        self._told_foreign = False
        self._told_torn = ""
        #: How often the database had been another one when this one was opened.
        self._replaced = 0
        #: Held around every transaction: one that is cancelled on its way may leave the database locked for good.
        self._writing = asyncio.Lock()
        #: How many events this archiver has stored.
        self.archived = 0

    async def tick(self) -> float:
        if not await self._is_open():
            return FOREIGN_SECONDS
        stretch = await read_log(self.ns, self.p, self._checkpoint, limit=self._page)
        if stretch.torn and self._told_torn != self._checkpoint and not self._closed:
            if await self._recover():
                return 0.0
            await forget_whole(self.ns, self.p)
            self._tell_torn()
        if not self._closed and self._looker.is_due:
            # A log that somebody trimmed by hand cannot be asked whether it is still the same.
            asked = self._checkpoint not in ("0-0", self._told_torn)
            await self._looker.look(self._checkpoint if asked else "", self._writing)
        if self._reconciler.is_due and not self._closed:
            async with self._writing:
                # By what is indexed: before that the archive cannot say that it has a run.
                await self._reconciler.look(self._indexed)
        self._idle = not stretch.entries and not self._behind
        if self._idle:
            async with self._writing:
                if self._tearing.is_due and not self._closed:
                    await self._tearing.look()
                self._idle = not await self._indexer.release() and not self._tearing.is_due
            return IDLE if self._idle else 0.0
        began = time.monotonic()
        if stretch.entries:
            stretch, batch, blocks, needs = await self._keep(stretch)
            n = count_events(blocks)
            full = len(stretch.entries) >= self._page or n >= BATCH_EVENTS
            self._pace(len(stretch.entries), n)
            busy = self._is_busy(n)
            if (not busy or not blocks) and not self._behind:
                batch.indexed_upto, batch.indexed_block = batch.upto, batch.block
                await self._indexer.fold(read_blocks(blocks, first=self._block + 1), batch)
            await self._store(batch, len(stretch.entries))
            if needs.acts:
                self._looker.hurry()
            # What the log has is kept first, however much waits to be indexed.
            if full or (busy and self._behind < MAX_BEHIND):
                return 0.0 if full else max(0.0, LINGER - (time.monotonic() - began))
        if self._behind:
            await self._index()
            return 0.0
        return max(0.0, LINGER - (time.monotonic() - began))

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

    def on_fault(self) -> None:
        """Trusts nothing it remembers: the transaction may have been committed, or another archiver have led meanwhile."""
        self._checkpoint, self._idle = "", False
        # Nor that the database is the one it was: it may have been restored, or made anew.
        self._identity, self._definitions = "", set()
        self._indexer.forget()
        self._looker.forget()

    @property
    def _behind(self) -> int:
        """How many blocks are kept and not indexed."""
        return self._block - self._indexed_block

    def _is_busy(self, n: int) -> bool:
        """Tells whether the engine is at full load: then blocks are kept, and indexed when it has more time."""
        seconds = time.monotonic() - self._counted_since
        self._counted += n
        # Behind a full batch comes a small one, at once: by itself it would look as if the engine had nothing to do.
        if self._counted > BUSY_RATE * max(seconds, SHORTEST):
            self._busy = True
        elif seconds >= SHORTEST:
            self._busy = False
        if seconds >= SHORTEST:
            self._counted, self._counted_since = 0, time.monotonic()
        return self._busy and not self._closed

    # --- one batch --------------------------------------------------------------------------------

    async def _is_open(self) -> bool:
        if self._checkpoint and self._cold.database.replaced != self._replaced:
            self.on_fault()
        return bool(self._checkpoint) or await self._open()

    async def _open(self) -> bool:
        """Reads where to go on; returns False when the log belongs to another database."""
        await load_archive("recovery", "schema", "writer")
        from weft.archive.recovery import Recovery
        from weft.archive.schema import migrate
        from weft.archive.writer import open_checkpoint, read_identity

        database, namespace = self._cold.database, self.ns.keys.namespace
        self._replaced = database.replaced
        async with self._writing, self._cold.turn:
            before, after = await migrate(database)
            if before != after:
                log.info("the cold store has a new schema", database=database.address.shown, schema=after.current)
            self._identity = self._identity or await read_identity(database)
            place = await open_checkpoint(database, namespace, self.p)
        if not self._closed and await self._recover():
            return False
        self._checkpoint, self._block, self._indexed, self._indexed_block = place
        try:
            await self._mark(0)
        except ForeignArchive as error:
            self._checkpoint = ""
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
            # Kept: this process may learn of a loss elsewhere while a batch is on its way.
            self._epoch = self.ns.epoch(self.p)
            async with self._writing:
                await Recovery(database, namespace, self.p).note_epoch(self._epoch)
                await self._indexer.recall()
        self._told_foreign = False
        return True

    async def _keep(self, stretch: Stretch) -> tuple[Stretch, Batch, list[list[Entry]], Needs]:
        """Packs a stretch into blocks, and reads what its events only name. Returns how much of it that is, too."""
        from weft.archive.blocks import pack
        from weft.archive.writer import Gap

        blocks, seen = in_blocks(stretch.entries)
        needs = needs_of(blocks)
        many = len(stretch.entries) > 1 and len(needs.blobs) > FEW_BLOBS
        if many and sum(await read_sizes(self.ns, self.p, needs.blobs)) > BATCH_BYTES:
            self._page = len(stretch.entries) // 2
            half = stretch.entries[: self._page]
            return await self._keep(Stretch(half, half[-1][0].decode(), stretch.torn))
        batch = self._batch()
        batch.upto, batch.block = stretch.upto, self._block + len(blocks)
        batch.blocks = [pack(block) for block in blocks]
        batch.statuses, wrong = statuses_of(seen)
        # They are in no block: nobody would come upon them later.
        batch.gaps = [Gap("", each.entry, each.raw, each.error) for each in wrong]
        batch.blobs = await read_blobs(self.ns, self.p, needs.blobs) if needs.blobs else {}
        batch.uses.update(needs.blobs)
        asked = {digest for _, digest in needs.blobs} | await self._read_graphs(needs, batch)
        # What is gone may have expired with its run. If the store was lost just now, none of this may be archived without it.
        if not asked <= batch.blobs.keys() and not await has_entry(self.ns, self.p, stretch.upto):
            raise PartitionLost(f"the store lost partition {self.p} while its log was archived", partition=self.p)
        return stretch, batch, blocks, needs

    async def _read_graphs(self, needs: Needs, batch: Batch) -> set[str]:
        """Reads definitions, those below them, and the items of maps that began: no event has them. Returns what it wanted."""
        wanted = line = needs.definitions - self._definitions
        while line:
            found = await read_definitions(self.ns, self.p, sorted(line))
            batch.blobs |= found
            below = {base.child for data in found.values() for base in decode_bundle(data).steps.values() if base.child}
            line = below - wanted - self._definitions
            wanted = wanted | line
        batch.definitions = wanted
        for run, step in needs.maps:
            items = await read_whole_items(self.ns, self.p, run, step)
            if items:
                batch.blobs[items_name(run, step)] = _pack(items)
                batch.uses.add((run, items_name(run, step)))
        return wanted | {items_name(run, step) for run, step in needs.maps}

    async def _index(self) -> None:
        """Indexes some of the blocks that are kept."""
        from weft.archive.blocks import unpack
        from weft.archive.writer import read_blocks as stored_blocks

        batch = self._batch()
        first = self._indexed_block + 1
        stored = await stored_blocks(self._cold.database, batch.namespace, self.p, first, AT_ONCE)
        blocks = await asyncio.to_thread(lambda: [unpack(data) for data in stored])
        batch.indexed_block = self._indexed_block + len(blocks)
        # What came behind the last block is in no block.
        last = batch.indexed_block == self._block
        batch.indexed_upto = self._checkpoint if last else blocks[-1][-1][0].decode()
        await self._indexer.fold(read_blocks(blocks, first=first), batch)
        await self._store(batch, 0)

    def _batch(self) -> Batch:
        """Returns a batch that keeps and indexes nothing yet."""
        from weft.archive.writer import Batch

        batch = Batch(self.ns.keys.namespace, self.p, self._checkpoint, self._checkpoint, int(time.time() * 1000))
        batch.block, batch.indexed_after, batch.indexed_upto = self._block, self._indexed, self._indexed
        batch.indexed_block = self._indexed_block
        batch.epoch = None if self._closed else self._epoch
        return batch

    async def _store(self, batch: Batch, entries: int) -> None:
        """Writes a batch; then says so in the hot store, trims the log, and lets go of finished runs."""
        from weft.archive.writer import write_batch

        async with self._writing:
            async with self._cold.turn:
                try:
                    gaps = await write_batch(self._cold.database, batch)
                except CheckpointMoved:
                    log.warning("another archiver was here too; nothing was stored twice", partition=self.p)
                    raise
            for run in {gap.run.partition("/")[0] for gap in gaps}:
                batch.runs.pop(run, None)
            self.archived += len(batch.events)
            self._checkpoint, self._block = batch.upto, batch.block
            self._indexed, self._indexed_block = batch.indexed_upto, batch.indexed_block
            self._definitions |= batch.definitions
            await self._mark(entries)
            await self._indexer.settle(batch)

    async def _mark(self, n: int) -> None:
        if self._closed:
            return
        await mark_archived(
            self.ns,
            self.p,
            database=self._identity,
            name=self._cold.address.shown,
            entry=self._checkpoint,
            indexed=self._indexed,
            n=n,
            hot_ms=self._hot_ms,
        )

    def _pace(self, entries: int, n: int) -> None:
        """Reads more entries at once when they tell little each, fewer when they tell much."""
        if n > 2 * BATCH_EVENTS:
            self._page = max(1, self._page // 2)
        elif n < BATCH_EVENTS and entries >= self._page:
            self._page = min(MAX_PAGE, self._page * 2)

    def _tell_torn(self) -> None:
        self._told_torn = self._checkpoint
        self._tearing.begin()
        log.error(
            "the log no longer has the entry up to which it was archived: the store lost events, or somebody trimmed it."
            " Runs whose events do not follow on are marked",
            partition=self.p,
            checkpoint=self._checkpoint,
        )


def make_archivers(ns: Any, cold: Cold, session: str, *, hot_ms: int) -> list[Archiver]:
    """Returns an archiver for every partition."""
    return [Archiver(ns, p, session, cold=cold, hot_ms=hot_ms) for p in range(ns.partitions)]
