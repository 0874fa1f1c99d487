"""`durability="committed"`: a start stands in the database before the store is told of it.

Whoever asked may die between the two: the reconciler starts what the store does not know. So nothing is taken back once it is
written; what is told as an error may have been accepted all the same, and starting it again by the same key gives that run.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import msgspec

from weft.core.gates import home_of
from weft.core.model import INLINE_BYTES, SPEC_ENCODER, RunSpec
from weft.core.starts import Blueprint, Start, key_digest, same_digest
from weft.engine.batching import Batcher
from weft.engine.beginning import begin
from weft.engine.cold import load_archive
from weft.engine.coldruns import readable
from weft.engine.engine import START_BATCH, Engine
from weft.errors import ArchiveBehind, DurabilityUnmet, InvalidOption, Unavailable
from weft.ids import new_run_id, new_run_ids, partition_of
from weft.store.durability import Home, acknowledge_runs, read_home
from weft.store.runs import read_runs

if TYPE_CHECKING:
    from weft.archive.starts import Starts
    from weft.engine.runs import Once

LEVEL = "committed"
#: Starts that one transaction takes together when many ask at once.
SHARED = 500
#: Seconds after which whoever wrote a start does not begin its run any more: from then on that is the reconciler's.
GRACE = 20.0
#: Seconds that an archiver gets to appear, and a run that was started otherwise to be archived; and between two looks.
PATIENCE, LOOK = 5.0, 0.05


class Commits:
    """What an engine keeps for starts that are committed: the table, and who writes to it together."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._identity = ""
        self._table: Starts | None = None
        self._writer: Batcher[tuple[Start, int], Start] = Batcher(self._write_some, limit=SHARED)

    @property
    def table(self) -> Starts:
        if self._table is None:
            from weft.archive.starts import Starts

            self._table = Starts(self._engine.cold.database, self._engine.ns.keys.namespace)
        return self._table

    async def check(self, p: int) -> Home:
        """Returns how a partition stands. Raises, with nothing written, when a start could not be committed there."""
        await self._engine.open()
        loop = asyncio.get_running_loop()
        until = loop.time() + PATIENCE
        # An archiver that has just been started, or has just rebuilt the partition, says so in a moment.
        while True:
            home = await read_home(self._engine.ns, p)
            if home.database or loop.time() > until:
                break
            await asyncio.sleep(LOOK)
        if home.behind:
            raise ArchiveBehind(home.behind)
        if not home.database:
            raise DurabilityUnmet(
                f"durability={LEVEL!r} needs somebody who archives, and nobody does so in this namespace: start a worker, or"
                " `weft archiver`, with the same WEFT_DATABASE_URL. Nothing was started",
                level=LEVEL,
            )
        need, otherwise = f"durability={LEVEL!r} needs", ", or start it with another durability"
        await self.check_database(home, need, "Nothing was started", otherwise)
        return home

    async def check_database(self, home: Home, need: str, nothing: str, otherwise: str) -> None:
        """Raises DurabilityUnmet, in these words, when the database of a partition is not this process's or does not serve."""
        cold = self._engine.cold
        try:
            if not self._identity and await readable(self._engine):
                await load_archive("starts")
                from weft.archive.writer import read_identity

                self._identity = await read_identity(cold.database)
        except Unavailable as error:
            raise DurabilityUnmet(
                f"{need} the database: {error.message}. {nothing}: try again{otherwise}",
                level=LEVEL,
            ) from error
        if self._identity != home.database:
            raise DurabilityUnmet(
                f"{need} the database to which this namespace is archived, {home.name}; this process has"
                f" {cold.address.shown}: set WEFT_DATABASE_URL. {nothing}",
                level=LEVEL,
            )

    async def write(self, starts: Sequence[Start], now_ms: int) -> list[Start]:
        """Commits starts; returns those that stand. Raises DurabilityUnmet when the database did not say so."""
        try:
            if len(starts) == 1:
                return [await self._writer.call((starts[0], now_ms))]
            return await self.table.write(starts, now_ms)
        except Unavailable as error:
            raise DurabilityUnmet(
                f"the database did not take run {_shown(starts)}: {error.message}. The store was told of nothing; if only the"
                f" answer was lost, it is started from there. {_again(starts)}",
                level=LEVEL,
                run=starts[0].run,
                runs=[start.run for start in starts],
            ) from error

    async def _write_some(self, asked: Sequence[tuple[Start, int]]) -> list[Start]:
        return await self.table.write([start for start, _ in asked], max(now_ms for _, now_ms in asked))


def commits_of(engine: Engine) -> Commits:
    """Returns what an engine keeps for committed starts."""
    if engine.commits is None:
        engine.commits = Commits(engine)
    return engine.commits


def make_start(
    run: str, p: int, spec: RunSpec, data: bytes, home: Home, *, same: str = "", follows: Blueprint | None = None
) -> Start:
    """Returns what is written of a run before it is started."""
    # A delay counts from now on, whenever the store hears of it.
    if spec.delay_ms:
        spec = msgspec.structs.replace(spec, delay_ms=0, due_ms=home.now_ms + spec.delay_ms)
    large = len(data) > INLINE_BYTES
    spec = msgspec.structs.replace(spec, durability=LEVEL, input=b"" if large else data)
    claim, window_ms = "", 0
    if spec.key:
        claim, window_ms = "k:" + key_digest(spec.key), spec.key_ms
    elif spec.once_ms:
        claim, window_ms = "u:" + (spec.unique or spec.once), spec.once_ms
    return Start(
        run=run,
        partition=p,
        kind="task" if follows is None else "graph",
        claim=claim,
        claim_ms=home.clock_ms + window_ms,
        same=same,
        at_ms=home.now_ms,
        tried_ms=home.clock_ms,
        life=home.life,
        spec=SPEC_ENCODER.encode(spec),
        input=data if large else b"",
        more=b"" if follows is None else msgspec.msgpack.encode(follows),
    )


async def start_task(engine: Engine, spec: RunSpec, data: bytes, once: Once | None, same: bytes) -> tuple[str, str]:
    """Accepts one run of a task or workflow; returns an id and a word as start_runs gives it."""
    if once is not None:
        check_once(spec, once)
        if once.debounce or once.policy != "j":
            what = "debounced" if once.debounce else "declared with unique='drop' or 'replace'"
            raise InvalidOption(
                f"{spec.name} is {what}: a later call would change what durability={LEVEL!r} has written down. Use"
                " unique='join', or another durability",
                option="durability",
            )
        named = {"unique" if once.forgiving else "once": once.digest}
        spec = msgspec.structs.replace(spec, once_ms=once.window_ms, **named)
    await engine.open()
    p = engine.home(once.digest if once else spec.key or home_of(spec))
    home = await commits_of(engine).check(p)
    made = make_start(new_run_id(p), p, spec, data, home, same=same_digest(spec, same) if spec.key else "")
    return await start_one(engine, made, home)


async def start_tasks(
    engine: Engine, specs: Sequence[RunSpec], inputs: Sequence[bytes], chunks: Iterable[tuple[int, Sequence[int]]]
) -> list[tuple[str, str]]:
    """Accepts runs that count for themselves, all or none; returns an id and a word each.

    `chunks`: which of them go to which partition.
    """
    homes: dict[int, Home] = {}
    made: dict[int, Start] = {}
    for p, places in chunks:
        home = homes[p] = homes.get(p) or await commits_of(engine).check(p)
        for run, i in zip(new_run_ids(p, len(places)), places, strict=True):
            made[i] = make_start(run, p, specs[i], inputs[i], home)
    starts = [made[i] for i in range(len(specs))]
    words = await _start_some(engine, starts, homes) if starts else []
    return [(start.run, word) for start, word in zip(starts, words, strict=True)]


def check_once(spec: RunSpec, once: Once) -> None:
    """Refuses a second rule for equal calls, and a second delay."""
    if spec.key:
        raise InvalidOption(
            f"task {spec.name} has its own rule for equal calls (unique_for, throttle or debounce): an idempotency_key"
            " beside it would be a second one",
            option="idempotency_key",
        )
    if once.debounce and (spec.delay_ms or spec.due_ms):
        raise InvalidOption(f"task {spec.name} is debounced: that is its delay, it takes no other", option="delay")


async def start_one(engine: Engine, start: Start, home: Home) -> tuple[str, str]:
    """Commits a start, then starts its run. Returns the run's id and a word as start_runs gives it.

    A start that stood there under the same claim is adopted: what its writer did not come to is done here.
    """
    commits = commits_of(engine)
    while True:
        (row,) = await commits.write([start], home.clock_ms)
        adopted = row.run != start.run
        if adopted and row.by_key and row.same != start.same:
            return start.run, f"conflict {row.run}"
        (word,) = await _begin(engine, [row], home)
        other = word.partition(" ")[2]
        if other and other != row.run:
            # Its key, or its place among equal calls, is another's: it was never accepted.
            if not adopted:
                with contextlib.suppress(Unavailable):  # the reconciler finds that too
                    await commits.table.drop([row.run])
        elif adopted and not row.by_key and word == "exists" and not await _is_open(engine, row.run):
            await commits.table.release(row.run)
            continue
        if word.startswith("conflict"):
            return start.run, word
        if adopted or other:
            await _await_kept(engine, commits, other or row.run)
            return start.run, f"joined {other or row.run}"
        return row.run, word


async def _start_some(engine: Engine, starts: Sequence[Start], homes: dict[int, Home]) -> list[str]:
    """Commits starts that count for themselves, all or none, then starts their runs; returns a word each."""
    commits = commits_of(engine)
    await commits.write(starts, max(home.clock_ms for home in homes.values()))
    words: dict[str, str] = {}
    for p, home in homes.items():
        mine = [start for start in starts if start.partition == p]
        for at in range(0, len(mine), START_BATCH):
            some = mine[at : at + START_BATCH]
            words |= zip((start.run for start in some), await _begin(engine, some, home, of=starts), strict=True)
    return [words[start.run] for start in starts]


async def _begin(engine: Engine, rows: Sequence[Start], home: Home, *, of: Sequence[Start] | None = None) -> list[str]:
    p, loop = rows[0].partition, asyncio.get_running_loop()
    until = home.read_at + GRACE

    async def call() -> list[str]:
        # A process that stood still for long must not begin what was begun, ended and forgotten meanwhile.
        if loop.time() > until:
            raise Unavailable("this process took too long")
        return await begin(engine.ns, p, rows, now_ms=home.now_ms, by=engine.id)

    try:
        return await engine.insist(p, call)
    except Unavailable as error:
        told = of or rows
        raise DurabilityUnmet(
            f"run {_shown(told)} stands in the database, but the store did not take it: {error.message}. It is started from"
            f" there when the store takes it. {_again(told)}",
            level=LEVEL,
            run=told[0].run,
            runs=[start.run for start in told],
        ) from error


async def _await_kept(engine: Engine, commits: Commits, run: str) -> None:
    """Waits until a run that another call made is kept as safely: it may have been started with another durability."""
    loop = asyncio.get_running_loop()
    until = loop.time() + PATIENCE
    try:
        while not (where := await commits.table.stands(run)):
            if loop.time() > until:
                raise DurabilityUnmet("the archive does not have it yet")
            await asyncio.sleep(LOOK)
        if where == "archive":
            await acknowledge_runs(engine.ns, partition_of(run), [run], LEVEL)
    except Unavailable as error:
        raise DurabilityUnmet(
            f"run {run} was started by an earlier call and goes on, but is not known to stand in the database:"
            f" {error.message}. Start it again in the same way to ask again",
            level=LEVEL,
            run=run,
            runs=[run],
        ) from error


async def _is_open(engine: Engine, run: str) -> bool:
    (row,) = await read_runs(engine.ns, partition_of(run), [run])
    return row is not None and row.open


def _shown(starts: Sequence[Start]) -> str:
    return starts[0].run + (f" and {len(starts) - 1} more" if len(starts) > 1 else "")


def _again(starts: Sequence[Start]) -> str:
    if starts[0].claim:
        return "Starting it again in the same way gives the same run"
    return "Without an idempotency_key, starting it again may be a second run"
