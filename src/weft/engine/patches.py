"""The verbs that change the definition of one run while it goes on. Load -> decide -> commit."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from weft.codec import decode_plain
from weft.core.effects import PAUSE, Open, route_spec, step_id
from weft.core.given import Gave
from weft.core.graph.compile import Plan
from weft.core.graph.model import to_document
from weft.core.model import VALUE_DECODER
from weft.core.patch import Change, Ended, StepLimits, check_begun, check_step, compare, difference, jobs_for
from weft.core.routing import Bundle, Job, Published, parse_step
from weft.engine.definitions import decode_bundle
from weft.engine.engine import Engine
from weft.engine.keeping import definitions_below
from weft.engine.pauses import load_graph
from weft.errors import Conflict, InvalidArguments, NotFound
from weft.ids import partition_of
from weft.settings import read_setting
from weft.store.controls import informed
from weft.store.definitions import keep_definitions
from weft.store.graphs import read_context, read_definition, read_open_steps
from weft.store.lone import unfold_run
from weft.store.patches import patch_graph
from weft.store.runs import read_runs

#: Looks at a run that changes faster than it can be patched, and seconds between them.
MAX_LOOKS, LOOK = 40, 0.05

_pack = msgspec.msgpack.Encoder().encode


@dataclass(frozen=True, slots=True)
class Current:
    """The definition that a run follows, as it was read."""

    run: str
    revision: int
    bundle: Bundle
    #: Digest of the definition before the last patch; empty when there was none.
    before: str
    #: Its own digest.
    digest: str = ""
    #: Patches of it that steps have made. Read with the revision, so whoever writes the next number is the only one.
    by_steps: int = 0

    @property
    def document(self) -> dict[str, Any]:
        return to_document(self.bundle.graph)


@dataclass(frozen=True, slots=True)
class Patch:
    """A change that somebody wants: the new definition, who, why, and what was asked for."""

    definition: bytes
    author: str
    reason: str
    operations: Sequence[Mapping[str, Any]]
    #: The revision that it takes back; 0: none.
    undoes: int = 0
    #: The step whose code makes it, `<run>/<step>`; empty: somebody outside.
    step: str = ""
    #: By digest, what subgraphs follow that it adds.
    children: Mapping[str, bytes] = field(default_factory=dict)


@dataclass(slots=True)
class _Look:
    """How a run stood when it was looked at, and what a patch would do to it then."""

    open_steps: dict[str, int]
    jobs: list[Job]
    #: Steps that are taken back, and the gates they wait at.
    withdraw: dict[str, str]


async def read_current(engine: Engine, run: str, *, revision: int | None = None) -> Current:
    """Reads the definition an open run follows. Raises NotFound, and Conflict when it has ended or has another revision."""
    row = await load_graph(engine, run)
    if not row.open:
        raise Conflict(f"run {run} has ended ({row.text('status')}): there is nothing to patch", run=run)
    if "failing" in row.fields:
        raise Conflict(f"run {run} is failing, and undoes what it did: nothing new begins in it", run=run)
    known = row.number("revision", 1)
    if revision is not None and revision != known:
        raise _outdated(run, known)
    bundle = await read_bundle(engine, run, row.text("def"))
    return Current(run, known, bundle, row.text("before"), row.text("def"), row.number("by_steps", 0))


async def read_bundle(engine: Engine, run: str, digest: str) -> Bundle:
    """Reads a stored definition."""
    data = await read_definition(engine.ns, partition_of(run), digest)
    if data is None:
        raise NotFound(f"the definition cas://sha256:{digest} is gone from the store", run=run)
    return decode_bundle(data)


async def patch(engine: Engine, current: Current, wanted: Patch, *, by: str, dry_run: bool = False) -> dict[str, Any]:
    """Gives a run another definition; returns what that changes. Raises Conflict for what has begun, or another revision."""
    p, run = partition_of(current.run), current.run
    new = Published(decode_bundle(wanted.definition), hashlib.sha256(wanted.definition).hexdigest())
    old = Plan(current.bundle.graph)
    change = compare(old, new.plan)
    if not change.touched:
        raise InvalidArguments("the patch changes nothing", run=run)
    if wanted.step:
        check_step(change, old.spec, new.plan.spec, step=wanted.step, made=current.by_steps, limits=_step_limits())
    for _ in range(MAX_LOOKS):
        look = await _look(engine, p, run, change, old, new)
        if look is not None and dry_run:
            return _told(current, current.revision, change, new, look)
        word = "moved" if look is None else await _apply(engine, p, current, wanted, change, new, look, by)
        verdict, _, fact = word.partition(" ")
        if look is not None and verdict in ("patched", "done"):
            return _told(current, current.revision + 1, change, new, look)
        if verdict == "conflict":
            raise _outdated(run, int(fact))
        if verdict == "ended":
            raise Conflict(f"run {run} has ended ({fact}): there is nothing to patch", run=run)
        await asyncio.sleep(LOOK)
    raise Conflict(
        f"run {run} goes on faster than it can be patched, or no worker decides what follows: pause it, patch it, resume it",
        run=run,
    )


def _step_limits() -> StepLimits:
    return StepLimits(
        read_setting("WEFT_AGENT_PATCH_NODES"), read_setting("WEFT_AGENT_PATCHES"), read_setting("WEFT_AGENT_NODES")
    )


async def _look(engine: Engine, p: int, run: str, change: Change, old: Plan, new: Published) -> _Look | None:
    """Looks at a run and decides what a patch would do; None while a step is under way whose decisions are not known."""
    await unfold_run(engine.ns, p, run)
    # The open steps first: the script compares them, so what is read behind them is as old or newer, or the patch is made anew.
    open_steps = await read_open_steps(engine.ns, p, run)
    if "$start>" in open_steps:
        return _Look(open_steps, [], {})  # nothing has begun: whoever begins it does so by the new definition
    if any(step.endswith(">") for step in open_steps):
        return None
    names = set(change.touched)
    for plan in (old, new.plan):
        for id in change.touched & plan.spec.nodes.keys():
            names |= {
                *plan.node(id).predecessors,
                *(other for loop in plan.node(id).loops for other in plan.loops[loop].body),
            }
    given = await read_context(engine.ns, p, run, sorted(names))
    begun = {parse_step(old, step)[0]: step for step in open_steps}
    withdraw = await _held(engine, p, run, {id: step for id, step in begun.items() if id in change.touched})
    check_begun(change, old, new.plan, {*given, *begun} - {id for id, step in begun.items() if step in withdraw})
    ended = {id: ended_of(old, id, one) for id, one in given.items() if id in old}
    affected = {*change.added, *change.rerouted, *(id for id, step in begun.items() if step in withdraw)}
    order = [id for id in new.plan.order if id in affected]
    return _Look(open_steps, jobs_for(new.plan, order, ended), withdraw)


async def _held(engine: Engine, p: int, run: str, begun: Mapping[str, str]) -> dict[str, str]:
    """Returns the steps that wait at a gate, such as the run's pause, and where: they are open, but have never begun."""
    steps = [step for step in begun.values() if step[-1] not in "?=+>"]
    rows = await read_runs(engine.ns, p, [step_id(run, step) for step in steps])
    # A wait for a moment has begun with it: behind the moment a pause may hold it.
    return {
        step: row.line
        for step, row in zip(steps, rows, strict=True)
        if row is not None and row.line and row.delivery == 1 and row.spec.name != PAUSE
    }


def ended_of(plan: Plan, id: str, given: Gave) -> Ended:
    """Returns how a node has ended, as its context tells it."""
    _, iterations = parse_step(plan, given.step)
    chosen = None
    if plan.node(id).targets and given.status == "completed":
        chosen = decode_plain(VALUE_DECODER.decode(given.value).inline)
    return Ended(given.status, iterations, chosen)


async def _apply(
    engine: Engine, p: int, current: Current, wanted: Patch, change: Change, new: Published, look: _Look, by: str
) -> str:
    reset = sorted({*change.rerouted, *change.removed, *look.withdraw})
    record = {
        "author": wanted.author,
        "reason": wanted.reason,
        "revision": current.revision + 1,
        "definition": new.address,
        "before": current.digest,
        "operations": list(wanted.operations),
        "withdrawn": list(look.withdraw),
        "reset": reset,
    }
    if wanted.undoes:
        record["undoes"] = wanted.undoes
    if wanted.step:
        record["step"] = wanted.step
    opens = []
    if look.jobs or look.withdraw:  # also with nothing to do: it ends a run that has nothing left
        jobs = [(job.what, job.id, job.iterations, job.mark) for job in look.jobs]
        spec = msgspec.structs.replace(route_spec(new.address), input=_pack(jobs))
        opens.append(Open(f"$patch{current.revision + 1}>", spec))
    await keep_definitions(engine.ns, p, wanted.children)
    below = await definitions_below(engine.ns, p, new)
    return await informed(
        engine.ns,
        p,
        lambda: patch_graph(
            engine.ns,
            p,
            current.run,
            definition=wanted.definition,
            revision=current.revision,
            open_steps=look.open_steps,
            withdraw=look.withdraw,
            reset=reset,
            opens=opens,
            payload=msgspec.json.encode(record),
            by=by,
            by_steps=current.by_steps + 1 if wanted.step else 0,
            below=below,
        ),
    )


def _told(current: Current, revision: int, change: Change, new: Published, look: _Look) -> dict[str, Any]:
    return {
        "revision": revision,
        "diff": difference(current.document, to_document(new.plan.spec)),
        "added": list(change.added),
        "removed": list(change.removed),
        "changed": list(change.changed),
        "rerouted": list(change.rerouted),
        #: Nodes that those who have ended before them reach at once.
        "reached": list(dict.fromkeys(job.id for job in look.jobs)),
    }


def _outdated(run: str, revision: int) -> Conflict:
    return Conflict(
        f"run {run} is at revision {revision} by now: read it again (run.graph()) and make the patch for that",
        run=run,
        revision=revision,
    )
