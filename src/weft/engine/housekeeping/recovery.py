"""Recovery: a partition that the store lost, or lost a part of, is rebuilt from the archive.

Loss is told by the log: the entry up to which it is archived is no longer in it, and the store is at another epoch or believes
to be archived less far. Then the partition is closed, what its log still has beyond the archive is archived, everything
in it is dropped, what has not ended is written anew, and it is opened under the next epoch. Whoever dies in the middle is
followed by another that begins again: nothing is served before all is done.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import TYPE_CHECKING, Any

import msgspec

from weft.core.fold import RunState
from weft.core.model import RunSpec
from weft.engine.cold import Cold, load_archive
from weft.engine.housekeeping.reconciler import Reconciler
from weft.engine.housekeeping.recounting import Recounter
from weft.engine.housekeeping.reflowing import reflow_run, tell_again
from weft.engine.housekeeping.regrowing import Regrower
from weft.engine.housekeeping.relettering import Reletterer
from weft.engine.housekeeping.reobserving import reobserve
from weft.engine.housekeeping.reticking import retick
from weft.errors import PartitionLost, Unavailable
from weft.settings import read_setting
from weft.store.namespace import Namespace
from weft.store.recovery import (
    Closed,
    Hot,
    begin_log,
    close_partition,
    read_hot,
    reopen_partition,
    restore_blob,
    restore_mark,
    restore_runs,
    restore_settings,
    wipe_partition,
)
from weft.telemetry import get_logger

if TYPE_CHECKING:
    from weft.archive.reader import ColdRun
    from weft.archive.recovery import Home, Recovery

log = get_logger("weft.recovery")

#: The log before its first entry.
START = "0-0"
#: Milliseconds for which the turn to rebuild a partition is taken; kept while it goes on.
LEASE_MS = 15_000
#: Runs of graphs and workflows whose events are read at once.
AHEAD = 50
#: Seconds between two lines that tell how far it has come.
TOLD = 1.0


class Recovered(msgspec.Struct):
    """What was rebuilt, or would be. `lost` is empty for a partition that lost nothing."""

    partition: int
    lost: str = ""
    epoch: int = 0
    #: Runs that go on, records of ended runs that stand again, dead letters, and what operators had set, with schedules.
    runs: int = 0
    records: int = 0
    letters: int = 0
    settings: int = 0
    #: Unfinished runs that are not rebuilt: their archive has a gap.
    gaps: int = 0
    #: Runs of graphs that go on, and those that ended as failed, for somebody to retry.
    graphs: int = 0
    to_retry: int = 0
    #: Workflow runs that go on.
    workflows: int = 0
    #: Runs that stood in the database alone (`durability="committed"`).
    starts: int = 0
    #: Votes of people that stood in the database alone.
    votes: int = 0
    #: What was observed of work elsewhere.
    observed: int = 0
    dropped: int = 0
    #: In a preview: blocks of the log that are kept and not indexed yet. What they tell of is not counted.
    behind: int = 0


class Rebuilder:
    """Rebuilds one partition."""

    def __init__(self, ns: Namespace, p: int, cold: Cold, holder: str, *, hot_ms: int) -> None:
        self._ns, self._p, self._cold, self._holder, self._hot_ms = ns, p, cold, holder, hot_ms
        self._closed = Closed(ns, max(ns.partitions, p + 1))
        #: Unfinished runs that there are, those that were seen, and when that was last told.
        self._all = self._seen = 0
        self._told = 0.0

    async def examine(self) -> tuple[str, Home | None, Hot | None]:
        """Tells why the partition counts as lost; empty when it does not, or was never archived."""
        archive = await self._archive()
        home = await archive.home() if self._cold.exists and await self._cold.reader.ready() else None
        if home is None:
            return "", None, None
        hot = await read_hot(self._closed, self._p, home.entry)
        if hot.database and hot.database != await archive.identity():
            return "", home, hot  # it is archived elsewhere, and whoever does that looks after it
        return _loss(home, hot), home, hot

    async def preview(self) -> Recovered:
        """Tells what a recovery would do, and does nothing."""
        lost, home, _ = await self.examine()
        found = Recovered(self._p, lost, epoch=home.epoch if home else 0)
        if not lost:
            return found
        archive = await self._archive()
        counted = await archive.count()
        found.runs, found.graphs, found.gaps = counted["task"], counted["graph"], counted["gap"]
        found.workflows, found.behind = counted["workflow"], home.behind if home else 0
        found.settings = len(await archive.read_settings()) + len(await archive.read_schedules())
        found.starts = await Reconciler(self._closed, self._p, self._cold, self._holder).count()
        found.votes = await Recounter(self._closed, self._p, self._cold).count()
        now_ms = int(time.time() * 1000)
        async for page in archive.claiming(now_ms):
            found.records += len(page)
        letters = Reletterer(self._closed, self._p, archive, self._cold.reader, now_ms=now_ms, dry_run=True)
        found.letters = await letters.restore(now_ms - int(read_setting("WEFT_DLQ_RETENTION")))
        found.observed = await reobserve(self._closed, self._p, self._cold, now_ms=now_ms, dry_run=True)
        return found

    async def recover(self) -> Recovered | None:
        """Rebuilds the partition if it is lost; None while another process does."""
        lost, home, hot = await self.examine()
        if not lost or home is None or hot is None:
            return Recovered(self._p, epoch=home.epoch if home else 0)
        archive = await self._archive()
        if home.recovering and hot.epoch == home.recovering:
            # It was opened, and whoever did it died before saying so.
            await archive.finish(home.recovering)
            return Recovered(self._p, epoch=home.recovering)
        at_least = max(hot.epoch + 1, home.epoch + 1, hot.recovering)
        # By the server's clock: those of two machines may differ, and one that is ahead would shut the others out.
        number = await archive.take(self._holder, at_least=at_least, now_ms=hot.now_ms, lease_ms=LEASE_MS)
        if not number:
            return None
        work = asyncio.create_task(self._rebuild(archive, lost, number), name="weft recovery")
        keeper = asyncio.create_task(self._keep_turn(archive, work), name="weft recovery turn")
        try:
            return await work
        except asyncio.CancelledError:
            if not keeper.done():
                # Told to stop, as an archiver is by its worker, and the work has ended: the next need not wait.
                with contextlib.suppress(Unavailable):
                    await archive.renew(self._holder, now_ms=int(time.time() * 1000), lease_ms=0)
                raise
            raise Unavailable(f"another process rebuilds partition {self._p} by now") from None
        finally:
            work.cancel()
            keeper.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await keeper

    async def _rebuild(self, archive: Recovery, lost: str, number: int) -> Recovered:
        done = Recovered(self._p, lost, epoch=number)
        closed, p = self._closed, self._p
        closed.epochs[p] = str(number)
        log.error("the store lost this partition; it is rebuilt from the archive", partition=p, why=lost, epoch=number)
        if not await close_partition(closed, p):
            raise Unavailable(f"partition {p} was rebuilt by another process just now")
        await self._archive_rest()
        # Before it is opened: a producer that knows of no archive may have begun the namespace anew with fewer.
        await self._ns.raise_partitions(max(self._ns.partitions, 1 + max(await archive.partitions())))
        done.dropped = await wipe_partition(closed, p)
        home = await archive.home()
        assert home is not None
        hot = await read_hot(closed, p, home.entry)
        if home.entry != START:
            await begin_log(closed, p, home.entry, hot.now_ms)
        done.settings = await self._restore_settings(archive, hot.now_ms)
        regrower = Regrower(closed, p, archive, self._cold.reader, now_ms=hot.now_ms, by=self._holder)
        self._all, self._seen, self._told = sum((await archive.count()).values()), 0, time.monotonic()
        async for page in archive.unfinished():
            await self._restore(archive, regrower, page, hot.now_ms, done)
        if closed.partitions > 1:
            async for page in archive.awaited():
                for run in page:
                    await tell_again(regrower, run)
        async for page in archive.claiming(hot.now_ms):
            found = [(run.state, run.spec, False) for run in page if run.spec is not None]
            words = await restore_runs(closed, p, found, now_ms=hot.now_ms, by=self._holder) if found else []
            done.records += len(words)
        letters = Reletterer(closed, p, archive, self._cold.reader, now_ms=hot.now_ms)
        done.letters = await letters.restore(hot.now_ms - int(read_setting("WEFT_DLQ_RETENTION")))
        done.observed = await reobserve(closed, p, self._cold, now_ms=hot.now_ms)
        recounter = Recounter(closed, p, self._cold)
        await recounter.hold(hot.now_ms)
        # Before anybody is served: a vote must not be taken for one of a namespace that nobody archives.
        await restore_mark(closed, p, await archive.identity(), self._cold.address.shown, home.entry, hot.now_ms)
        await reopen_partition(closed, p)
        await archive.finish(number)
        done.votes = await recounter.bring_back()
        done.starts = await Reconciler(closed, p, self._cold, self._holder).bring_back()
        log.warning("the partition is rebuilt", **msgspec.to_builtins(done))
        return done

    async def _archive_rest(self) -> None:
        """Archives what the log still has beyond the archive: runs that were accepted after the loss."""
        from weft.engine.housekeeping.archiver import Archiver

        await Archiver(self._closed, self._p, self._holder, cold=self._cold, hot_ms=self._hot_ms, closed=True).drain()

    async def _restore(
        self, archive: Recovery, regrower: Regrower, page: list[ColdRun], now_ms: int, done: Recovered
    ) -> None:
        found: list[tuple[RunState, RunSpec, bool]] = []
        told = [run for run in page if run.state.kind != "task" and not run.state.gap and run.spec is not None]
        ahead = {told[at].state.id: told[at : at + AHEAD] for at in range(0, len(told), AHEAD)}
        for run in page:
            self._tell()
            if run.state.id in ahead:
                await regrower.read_ahead(ahead[run.state.id])
            if run.state.gap or run.spec is None:
                done.gaps += 1
            elif run.state.kind == "workflow":
                word = await reflow_run(regrower, run)
                done.gaps += word == "gap"
                done.workflows += word == "open"
            elif run.state.kind == "graph":
                word = await regrower.graph(run)
                done.gaps += word == "gap"
                done.graphs += word == "open"
                done.to_retry += word == "ended"
            else:
                if run.spec.blob:
                    data = await archive.blob(run.spec.blob)
                    if data is None:
                        done.gaps += 1
                        continue
                    await restore_blob(self._closed, self._p, run.state.id, run.spec.blob, data)
                found.append((run.state, run.spec, True))
        words = await restore_runs(self._closed, self._p, found, now_ms=now_ms, by=self._holder) if found else []
        done.runs += words.count("restored")

    def _tell(self) -> None:
        """Counts a run, and tells now and then how far it has come."""
        self._seen += 1
        if time.monotonic() - self._told >= TOLD:
            self._told = time.monotonic()
            log.info("rebuilding", partition=self._p, runs=self._seen, of=self._all)

    async def _restore_settings(self, archive: Recovery, now_ms: int) -> int:
        found = await archive.read_settings()
        controls = {
            name: msgspec.msgpack.decode(data, type=dict[str, bytes])["value"] for (_, name), data in found.items()
        }
        schedules = await retick(archive, self._p, await archive.read_schedules(), now_ms=now_ms)
        if controls or schedules:
            await restore_settings(self._closed, self._p, controls, schedules)
        return len(controls) + len(schedules)

    async def _keep_turn(self, archive: Recovery, work: asyncio.Task[Recovered]) -> None:
        """Keeps the turn while the work goes on; who lost it must write nothing more."""
        while True:
            await asyncio.sleep(LEASE_MS / 3000)
            with contextlib.suppress(Unavailable):
                seconds, micros = map(int, await self._closed.read("TIME", p=self._p))
                now_ms = seconds * 1000 + micros // 1000
                if not await archive.renew(self._holder, now_ms=now_ms, lease_ms=LEASE_MS):
                    work.cancel()
                    return

    async def _archive(self) -> Recovery:
        await load_archive("recovery")
        from weft.archive.recovery import Recovery

        return Recovery(self._cold.database, self._closed.keys.namespace, self._p)


def _loss(home: Home, hot: Hot) -> str:
    if home.recovering:
        return "an earlier recovery did not end"
    if not hot.epoch:
        return "it is empty"
    if hot.has_entry or home.entry == START:
        return ""
    if not hot.marked and not hot.retired:
        return "it was begun anew"
    if hot.marked and _place(hot.marked) < _place(home.entry):
        return f"it went back to {hot.marked}, the archive has come to {home.entry}"
    # The log was trimmed by hand, or the archive was given up and is taken up again: what runs hold is all there.
    return ""


def _place(entry: str) -> tuple[int, int]:
    ms, _, n = entry.partition("-")
    return int(ms), int(n)


async def recover_all(ns: Any, cold: Cold, holder: str, *, hot_ms: int, dry_run: bool) -> list[Recovered | None]:
    """Rebuilds every partition that is lost, or tells what that would do; None for one that another process rebuilds."""
    with contextlib.suppress(PartitionLost):
        await ns.open()
    rebuilders = [Rebuilder(ns, p, cold, holder, hot_ms=hot_ms) for p in range(ns.partitions)]
    return [await each.preview() if dry_run else await each.recover() for each in rebuilders]
