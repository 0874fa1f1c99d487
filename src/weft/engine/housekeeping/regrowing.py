"""Rebuilds graph runs: all that they have is written as their events tell it, then the runs themselves.

A run whose events do not tell enough ends as failed, with a reason that says so: a retry goes on from what is
archived.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from weft.codec import decode_plain
from weft.core.effects import SUBGRAPH, step_id
from weft.core.fold import Logged, RunState, ask, read_facts
from weft.core.gates import run_control
from weft.core.history import History, read_history
from weft.core.model import SPEC_DECODER, VALUE_DECODER, ErrorRecord, RunSpec
from weft.core.published import go_straight
from weft.core.regrow import Regrown, regrow
from weft.core.rewait import Waiting
from weft.core.routing import parse_step
from weft.engine.coldruns import fold_fields
from weft.engine.definitions import decode_bundle, definition_of, definitions
from weft.engine.housekeeping.rewaiting import rewait
from weft.engine.steps import keep_failed_ms
from weft.ids import child_run_id, partition_of
from weft.store.recovery import (
    Closed,
    restore_blob,
    restore_definition,
    restore_ended,
    restore_graph,
    restore_runs,
    write_plain,
)
from weft.store.scripts import Arg
from weft.store.waits import MAX_REMEMBERED

if TYPE_CHECKING:
    from weft.archive.reader import ColdRun, Reader
    from weft.archive.recovery import Recovery

#: Steps written by one script call.
STEPS = 200
#: Milliseconds that an ended run which somebody waits for is kept at least.
KEEP_MS = 24 * 3_600_000


def items_name(run: str, step: str) -> str:
    """Returns the name under which the archive keeps the items of a map."""
    return f"items {run}/{step}"


class Regrower:
    """Rebuilds runs that have steps, in one partition."""

    def __init__(self, ns: Closed, p: int, archive: Recovery, reader: Reader, *, now_ms: int, by: str) -> None:
        self.ns, self.p, self.archive, self.reader, self.now_ms, self.by = ns, p, archive, reader, now_ms, by
        self._definitions: set[str] = set()
        #: Events of runs that come next, by run.
        self._ahead: dict[str, list[Logged]] = {}
        #: Runs that others were started by, and whether they have ended.
        self._over: dict[str, bool] = {}

    async def read_ahead(self, runs: Sequence[ColdRun]) -> None:
        """Reads the events of runs that are rebuilt next, all at once: their blocks are mostly the same."""
        self._ahead = await self.reader.events_of_runs([run.state for run in runs])

    async def events(self, run: str) -> list[Logged]:
        """Returns the events of a run and of its steps."""
        ahead = self._ahead.pop(run, None)
        return await self.reader.all_events(run) if ahead is None else ahead

    async def graph(self, run: ColdRun) -> str:
        """Writes one graph run; returns `open`, `ended` (somebody must retry it) or `gap` (the archive has not all of it)."""
        state, spec = run.state, run.spec
        assert spec is not None
        history = read_history(state.id, await self.events(state.id))
        found = regrow(spec.definition, history)
        if not await self.definition(found.definition) or not await self.definition(spec.definition):
            return "gap"
        if not await self._ask(spec, found, history):
            return "gap"
        if not await self.blobs(state.id, _blobs(spec, found, history)):
            return "gap"
        commands = self._context(state.id, found)
        if not found.doubts:
            commands += await self._maps(state.id, found)
        fields: dict[str, Arg] = {"def": found.definition}
        fields |= {"revision": found.revision} if found.revision > 1 else {}
        fields |= {"before": found.before} if found.before and await self.definition(found.before) else {}
        fields |= {"by_steps": found.by_steps} if found.by_steps else {}
        fields |= {"parent": found.parent} if found.parent else {}
        fields |= {"lives": found.lives} if found.lives else {}
        error = b""
        if found.doubts:
            message = (
                f"the store lost this run, which has {', '.join(found.doubts[:5])}: it is not carried on by itself; retry it to"
                " go on from what is archived"
            )
            error = msgspec.msgpack.encode(ErrorRecord("PartitionLost", message, code="partition_lost"))
        else:
            commands += self._rest(state.id, found)
            commands += await self._hedges(state.id, found)
            fields |= self._pause(state.id, found, commands)
            if found.failing:
                fields["failing"] = found.failing
        await write_plain(self.ns, self.p, commands)
        keep_ms = keep_failed_ms(spec)
        # Ahead of its steps: whoever reads the log after another loss believes what follows on the run's own event.
        await restore_graph(self.ns, self.p, state, fields=fields, error=error, keep_ms=keep_ms, by=self.by)
        if not error:
            await self._steps(state.id, found, history)
        return "ended" if error else "open"

    async def _ask(self, spec: RunSpec, found: Regrown, history: History) -> bool:
        """Notes what open steps are asked that no event says it of; False when the archive lacks their definition."""
        for step in found.open.keys() & history.straight.keys():
            digest, event = found.straight[step], history.straight[step]
            data = await self.archive.blob(digest)
            if data is None:
                return False
            published, before = definitions.make(digest, data), read_facts(event.facts)["step"]
            value = decode_plain(VALUE_DECODER.decode(event.payload).inline)
            opens = go_straight(published, published.plan.node(step), before, value, spec.tags)
            ask(history.steps[step], opens.packed, event.at_ms)
        return True

    # --- what a run has ---------------------------------------------------------------------------

    async def definition(self, digest: str) -> bool:
        """Writes a definition and what its subgraphs follow; False when the archive lacks one."""
        line = [digest]
        while line:
            one = line.pop()
            if one in self._definitions:
                continue
            data = await self.archive.blob(one)
            if data is None:
                return False
            await restore_definition(self.ns, self.p, one, data)
            self._definitions.add(one)
            line += [base.child for base in decode_bundle(data).steps.values() if base.child]
        return True

    async def blobs(self, run: str, digests: set[str]) -> bool:
        """Writes the large values that a run has; returns False when the archive lacks one."""
        for digest in digests - {""}:
            data = await self.archive.blob(digest)
            if data is None:
                return False
            await restore_blob(self.ns, partition_of(run), run, digest, data, of_graph=True)
        return True

    def _context(self, run: str, found: Regrown) -> list[tuple[Arg, ...]]:
        key = self.ns.keys.context(self.p, run)
        return [("HSET", key, node, one.pack()) for node, one in found.given.items()]

    async def _maps(self, run: str, found: Regrown) -> list[tuple[Arg, ...]]:
        """Returns what writes the maps that are open, and the items of those that may be undone; notes what is lacking."""
        keys, p = self.ns.keys, self.p
        undone = {step.partition("#")[0] for step, _ in found.undoable if "#" in step}
        commands: list[tuple[Arg, ...]] = []
        for name, one in found.maps.items():
            if name not in found.open and name not in undone:
                continue
            data = await self.archive.blob(items_name(run, name)) if one.n else b"\x80"
            if data is None:
                found.doubts.append(f"a map {name}, whose items are not archived")
                return []
            chunks = msgspec.msgpack.decode(data, type=dict[str, bytes])
            commands += [("HSET", keys.items(p, run, name), chunk, items) for chunk, items in chunks.items()]
            commands.append(("SADD", keys.belongings(p, run), f"map {name} {one.n}"))
            if name not in found.open:
                continue
            fields: dict[str, Arg] = {"n": one.n, "most": one.most, "need": one.need, "at": one.at}
            fields |= {"done": one.done, "failed": len(one.results) - one.done}
            fields |= {"cached": one.cached} if one.cached else {}
            fields |= {"timed": 1} if one.timed else {}
            fields |= {"over": 1} if one.over else {}
            fields |= {"busy": 1} if any(step.startswith(f"{name}+") for step in found.open) else {}
            commands.append(("HSET", keys.map(p, run, name), *(part for pair in fields.items() for part in pair)))
            for chunk, results in one.chunks().items():
                flat = [part for pair in results.items() for part in pair]
                commands.append(("HSET", keys.results(p, run, name, chunk), *flat))
        return commands

    def _rest(self, run: str, found: Regrown) -> list[tuple[Arg, ...]]:
        keys, p = self.ns.keys, self.p
        commands: list[tuple[Arg, ...]] = []
        commands += [("HSET", keys.ledger(p, run), step, at) for step, at in found.open.items()]
        commands += [("HSET", keys.arrivals(p, run), join, who) for join, who in found.arrivals.items()]
        commands += [("RPUSH", keys.undo(p, run), step.encode() + b"\n" + value) for step, value in found.undoable]
        for name, values in found.signals.items():
            if values:
                flat = [part for n, value in enumerate(values, start=1) for part in (f"+{name} {n}", value)]
                commands.append(("HSET", keys.signals(p, run), f"#{name}", f"1 {len(values) + 1}", *flat))
        return commands + remembered(keys.signals(p, run), found.requests)

    async def _hedges(self, run: str, found: Regrown) -> list[tuple[Arg, ...]]:
        """Returns what sets the timers of open maps whose items are started a second time when they take long."""
        names = [name for name, one in found.maps.items() if name in found.open and not one.over]
        commands: list[tuple[Arg, ...]] = []
        if not names:
            return commands
        plan = (await definition_of(self.ns, self.p, found.definition)).plan
        for name in names:
            id, _ = parse_step(plan, name)
            hedge_ms = plan.node(id).duration_ms("hedge") if id in plan else None
            if hedge_ms:
                commands.append(("ZADD", self.ns.keys.timers(self.p), self.now_ms + hedge_ms, f"hedge:{run}/{name}"))
        return commands

    def _pause(self, run: str, found: Regrown, commands: list[tuple[Arg, ...]]) -> dict[str, Arg]:
        if found.paused is None:
            return {}
        at_ms, by, reason = found.paused
        value = msgspec.json.encode({"by": by, "reason": reason, "at_ms": at_ms})
        commands.append(("HSETNX", self.ns.keys.controls(self.p), run_control(run), value))
        commands.append(("HINCRBY", self.ns.keys.epoch(self.p), "controls", 1))
        return {"paused": f"{at_ms} {by}"}

    # --- its steps --------------------------------------------------------------------------------

    async def _steps(self, run: str, found: Regrown, history: History) -> None:
        names = [step for step in found.open if step not in found.maps]
        for name, one in found.maps.items():
            if name in found.open:
                names += [f"{name}#{index}" for index in one.open_items]
        await self.steps(run, [history.steps[name] for name in names], found.answered, found.waiting, found.lives)

    async def steps(
        self,
        run: str,
        states: list[RunState],
        answered: dict[str, bytes],
        waiting: dict[str, Waiting],
        lives: int = 0,
    ) -> None:
        """Writes open steps, each with a timer that opens it unless it waits; and runs that ended ones have started."""
        ended = [state for state in states if state.finished]
        live = [(state, SPEC_DECODER.decode(state.spec), True) for state in states if not state.finished]
        for at in range(0, len(live), STEPS):
            await restore_runs(self.ns, self.p, live[at : at + STEPS], now_ms=self.now_ms, by=self.by)
        keys, p = self.ns.keys, self.p
        await write_plain(
            self.ns, p, [("HSET", keys.run(p, step_id(run, s)), "given", b"+" + v) for s, v in answered.items()]
        )
        await write_plain(self.ns, p, rewait(self.ns, p, run, [state for state, _, _ in live], waiting))
        for state in ended:
            # Somebody else has ended it, and its run was not told yet.
            fields = fold_fields(state, SPEC_DECODER.decode(state.spec), state.value)
            fields["spec"] = state.spec
            timer = (f"route:{state.id}", self.now_ms)
            await restore_ended(self.ns, p, state.id, fields, keep_ms=0, timer=timer)
        for state, spec, _ in live:
            if spec.name == SUBGRAPH:
                await self._children(run, state, lives)

    async def _children(self, run: str, step: RunState, lives: int) -> None:
        """Writes the runs that a step has started and that have ended: whoever goes on with it must find them."""
        name, life = step.id.partition("/")[2], lives
        while await self.ended(child_run_id(run, name, step.attempt, life), parent=step.id):
            life += 1

    async def is_over(self, id: str) -> bool:
        """Tells whether the archive knows that a run has ended; asked once for all children of one."""
        if id not in self._over:
            found = await self.reader.run(id)
            self._over[id] = found is not None and found.state.finished
        return self._over[id]

    async def ended(self, id: str, *, parent: str = "", told: bool = False) -> bool:
        """Writes a run that has ended and that another waits for; False when the archive has none, or it has not ended.

        One that lives in another partition may be there: then it tells once more how it ended, for this partition forgot it.
        `told`: its end is in the mail of the other, who must not start it anew before that is read.
        """
        home = partition_of(id)
        timer = None if told else (f"close:{id}", self.now_ms)
        if home != self.p and (ledger := await self.ns.read("HGET", self.ns.keys.run(home, id), "open", p=home)):
            if timer is not None and bytes(ledger)[:1] == b"=":
                await write_plain(self.ns, home, [("ZADD", self.ns.keys.timers(home), timer[1], timer[0])])
            return True
        child = await self.reader.run(id)
        if child is None or child.spec is None or not child.state.finished:
            return False
        digests = {child.spec.blob}
        if child.state.status == "completed" and child.value is not None:
            digests.add(VALUE_DECODER.decode(child.value).blob)
        if not await self.blobs(id, digests):
            return False
        fields = {**fold_fields(child.state, child.spec, child.value), "spec": child.state.spec, "left": b"1"}
        if parent:
            fields["parent"] = parent.encode()
        keep_ms = max(child.spec.keep_ms, KEEP_MS)
        await restore_ended(self.ns, home, id, fields, keep_ms=keep_ms, blobs=sorted(digests), timer=timer)
        return True


def remembered(key: str, requests: list[tuple[str, str]]) -> list[tuple[Arg, ...]]:
    """Returns what writes which calls were answered, the newest of them: `key` is that of the run's signals."""
    if not requests:
        return []
    fields: list[Arg] = ["n", len(requests)]
    for n, (request, answer) in list(enumerate(requests, start=1))[-MAX_REMEMBERED:]:
        fields += [f"={request}", answer, f"@{n % MAX_REMEMBERED}", request]
    return [("HSET", key, *fields)]


def _blobs(spec: RunSpec, found: Regrown, history: History) -> set[str]:
    """Returns the large values that a run may still need."""
    values = [one.value for one in found.given.values() if one.status == "completed"]
    values += [value for one in found.maps.values() for status, value in one.results.values() if status == "completed"]
    values += [value for _, value in found.undoable]
    steps = [state for name, state in history.steps.items() if not state.finished and state.spec]
    asked = {SPEC_DECODER.decode(state.spec).blob for state in steps if _is_open(state, found)}
    return {spec.blob, *asked, *(VALUE_DECODER.decode(value).blob for value in values)}


def _is_open(state: RunState, found: Regrown) -> bool:
    name = state.id.partition("/")[2]
    return name in found.open or name.partition("#")[0] in found.open
