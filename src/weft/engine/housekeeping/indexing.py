"""Indexing: what blocks tell becomes rows of runs and steps, in order. Finished runs whose rows stand are let go early."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from typing import TYPE_CHECKING, Any

from weft.core.acts import deed_of_fork
from weft.core.fold import Logged, RunState, fold, fold_step, labels_of, result_blob
from weft.core.rows import TELLING, tell, tell_acts
from weft.engine.cold import Cold
from weft.engine.definitions import decode_bundle
from weft.engine.housekeeping.releasing import Releaser
from weft.engine.housekeeping.stretches import Told
from weft.ids import partition_of
from weft.telemetry import get_logger

if TYPE_CHECKING:
    from weft.archive.writer import Batch

log = get_logger("weft.archiver")

#: Events folded before others on the loop get their turn.
BREATH = 500
#: Open runs whose state is kept in memory, so that it need not be read again.
REMEMBERED = 50_000
#: Characters of a run's own list of blocks; beyond that a part of it gets a row of its own.
MAX_PLACES = 400
#: Finished runs that a new archiver looks after: most are gone already, which costs a look at each.
RECALLED = 2_000
#: How the types of events begin that tell of a step.
OF_STEPS = ("route", "step_")


class Indexer:
    """Folds the blocks of one partition."""

    def __init__(self, ns: Any, p: int, cold: Cold, *, hot_ms: int, closed: bool) -> None:
        self._ns, self._p, self._cold = ns, p, cold
        #: The partition is closed, to be rebuilt: the archive is right wherever the two differ.
        self._closed = closed
        #: Runs that went another way after the store had gone back: the archive keeps to the first.
        self._diverged: set[str] = set()
        self._states: OrderedDict[str, RunState] = OrderedDict()
        #: Digests of inputs of open runs, which expire with them.
        self._inputs: dict[str, str] = {}
        #: Definitions that are known as versions of their graph, and what they are called.
        self._versions: set[str] = set()
        self._called: dict[str, str] = {}
        self._releaser, self._recalled = Releaser(ns, p, cold, hot_ms=hot_ms), False

    def forget(self) -> None:
        """Trusts nothing it remembers: another archiver may have led meanwhile."""
        self._states.clear()
        self._inputs.clear()
        self._versions.clear()

    async def fold(self, told: Told, batch: Batch) -> None:
        """Adds to a batch the rows that blocks make. They are remembered when `settle` is told that it was stored."""
        from weft.archive.writer import Gap, read_states, read_steps

        batch.events, batch.called = told.events, self._called
        told.unreadable += tell_acts(batch.rows, told.acts)
        steps = [event for event in told.events if "/" in event.run or event.type[:5] in OF_STEPS]
        touched = {event.run for event in told.events if event.seq > 1}
        touched.update(event.run for event in steps)
        touched.update(each.run for each in told.unreadable)
        unknown = sorted({run.partition("/")[0] for run in touched - self._states.keys()} - self._states.keys() - {""})
        namespace, database = self._ns.keys.namespace, self._cold.database
        states = await read_states(database, namespace, unknown) if unknown else {}
        if steps:
            batch.steps = await read_steps(database, {_step_of(event) for event in steps})
        block, place, firsts = -1, "", [*told.firsts, len(told.events)]
        for number, event in enumerate(told.events):
            if number % BREATH == BREATH - 1:
                await asyncio.sleep(0)
            while number >= firsts[block + 1]:
                block += 1
                place = f" {told.block + block}"
            try:
                self._fold_one(event, batch, states, place)
            except Exception as error:  # noqa: BLE001 - whatever is wrong with an event is wrong with that event alone
                batch.gaps.append(Gap(event.run, event.entry, event.payload, f"{event.type}: {error!r}"))
        for each in told.unreadable:
            batch.gaps.append(Gap(each.run, each.entry, each.raw, each.error))
        for gap in batch.gaps:
            run = gap.run.partition("/")[0]
            if run:
                state = batch.runs.get(run) or states.get(run) or self._states.get(run) or RunState(run)
                state.gap = 1
                batch.runs[run] = state
                log.error("an event cannot be archived; its run has a gap", run=run, entry=gap.entry, error=gap.error)
        await self._name_versions(batch)

    async def _name_versions(self, batch: Batch) -> None:
        """Reads what the versions that were met first are called."""
        for _, digest, *_ in batch.rows.versions:
            if digest not in self._called:
                data = batch.blobs.get(digest) or await self._cold.reader.blob(digest)
                self._called[digest] = decode_bundle(data).graph.version or "" if data else ""

    async def settle(self, batch: Batch) -> None:
        """After the commit: remembers open runs, and lets go of finished ones."""
        for run, state in batch.runs.items():
            if not state.finished or state.gap:
                self._remember(run, state)
                continue
            self._releaser.note(state, given=self._inputs.pop(run, ""), result=result_blob(state))
        while self._releaser.full and not self._closed:
            await self.release()

    async def recall(self) -> None:
        """Notes the newest finished runs, once: an archiver before this one may have left without letting them go."""
        if self._recalled or self._closed:
            return
        from weft.archive.wanted import Wanted

        for run in await self._cold.reader.listed(Wanted(), limit=RECALLED):
            if run.spec is not None and not run.state.gap and partition_of(run.state.id) == self._p:
                run.state.value = run.value or b""
                self._releaser.note(run.state, given=run.spec.blob, result=result_blob(run.state))
        self._recalled = True

    async def release(self) -> bool:
        """Lets finished runs go early; returns whether there are more that may."""
        return not self._closed and await self._releaser.release()

    def _fold_one(self, event: Logged, batch: Batch, states: dict[str, RunState], place: str) -> None:
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
        if step or kind[:5] in OF_STEPS:
            fold_step(batch.steps, event)
        if step:
            return
        spec = fold(state, event)
        if kind in TELLING:
            tell(batch.rows, event)
        if kind == "failed" or (spec is not None and (spec.tags or state.parent)):
            batch.labels += labels_of(state, spec.tags if spec is not None else {})
        if spec is None:
            return
        if spec.blob:
            self._inputs[run] = spec.blob
        if spec.replay_of and spec.definition and (deed := deed_of_fork(event, spec.replay_of)) is not None:
            batch.rows.deeds.append(deed)
        if spec.definition and spec.definition not in self._versions:
            self._versions.add(spec.definition)
            batch.rows.versions.append((spec.name, spec.definition, run, event.at_ms, event.by))

    def _remember(self, run: str, state: RunState) -> None:
        # The archive has them; a state without them leaves them as they are.
        state.spec = state.value = b""
        while len(self._states) >= REMEMBERED:
            oldest, _ = self._states.popitem(last=False)
            self._inputs.pop(oldest, None)
        self._states[run] = state


def _place(state: RunState, block: str, batch: Batch) -> None:
    """Notes that a block tells of a run."""
    if len(state.blocks) > MAX_PLACES:
        batch.places.append((state.id, int(state.blocks.rpartition(" ")[2]), state.blocks))
        state.blocks = ""
    state.blocks += block


def _step_of(event: Logged) -> tuple[str, str]:
    run, _, step = event.run.partition("/")
    if step:
        return run, step
    head, _, rest = event.facts.partition(",")
    return run, head.removeprefix("step=") if head.startswith("step=") else rest
