"""The verbs on graph runs: start, follow, read. Load -> decide -> commit."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from weft.codec import decode_plain, encode_plain, encode_stored
from weft.core.effects import (
    CHUNK,
    COPY,
    END,
    ENDS,
    ERRORS,
    PAUSE,
    UNDO,
    UNDOES,
    Effect,
    Fail,
    Finish,
    Given,
    Letter,
    Mark,
    NodeEnd,
    Over,
    Undoable,
    run_of,
    step_of,
)
from weft.core.failing import fail_effects, record_of
from weft.core.given import Gave
from weft.core.graph.compile import Plan
from weft.core.graph.schema import pack_input
from weft.core.model import (
    ERROR_DECODER,
    INLINE_BYTES,
    SPEC_DECODER,
    VALUE_DECODER,
    Outcome,
    RunSpec,
    Token,
    Value,
)
from weft.core.published import Job, Published, go_straight
from weft.core.routing import (
    Router,
    parse_step,
    result_names,
    result_of,
    step_name,
)
from weft.core.scope import Iterations, Scope
from weft.core.starts import Blueprint, same_digest
from weft.core.waits import WAITS
from weft.engine import maps, memos, undoing
from weft.engine.committed import LEVEL as COMMITTED
from weft.engine.committed import commits_of, make_start, start_one
from weft.engine.definitions import bundle_bytes, definition_of, definitions
from weft.engine.durability import keep
from weft.engine.engine import Engine
from weft.engine.items import after_item, discarded, hedges, letter_of
from weft.engine.opening import is_large, prepare
from weft.engine.runs import Started, accepted
from weft.engine.steps import keep_failed_ms
from weft.engine.waiters import conclude_step, waited_since
from weft.errors import NotFound, WeftError
from weft.ids import new_run_id
from weft.sameness import plain_spelling
from weft.store import graphs as store
from weft.store.blobs import read_blob, stage_blob
from weft.store.controls import informed
from weft.store.definitions import keep_definitions
from weft.store.graphs import read_arrivals, read_context, read_items, start_graph
from weft.store.namespace import Namespace
from weft.store.reads import Reads
from weft.store.runs import NewRun

#: Runs whose input a follower keeps.
MAX_KEPT = 256

_pack = msgspec.msgpack.Encoder().encode


async def start(
    engine: Engine, data: bytes, spec: RunSpec, input: Any, children: Mapping[str, bytes] | None = None
) -> Started:
    """Accepts a run of a stored definition, whose subgraphs follow `children`. The same idempotency key gives the same run."""
    if spec.durability == COMMITTED:
        return await _start_committed(engine, data, spec, input, children or {})
    if spec.durability:
        plain = msgspec.structs.replace(spec, durability="")

        async def call() -> list[Started]:
            return [await start(engine, data, plain, input, children)]

        return (await keep(engine, spec.durability, call))[0]
    await engine.open()
    address = hashlib.sha256(data).hexdigest()
    published = definitions.make(address, data)
    p = engine.home(spec.key)
    run = new_run_id(p)
    spec = msgspec.structs.replace(spec, definition=address)
    new, effects, result = await prepare(engine.ns, p, run, published, spec, input)
    # A run that ends as it starts wakes nobody: whoever waits for it asks.
    if not result and engine.waiting.expect(run):
        new.watched = True
    watch = engine.waiting.channel if new.watched else ""
    word = ""
    try:
        known = (p, address) in engine.stored
        if not known:
            await keep_definitions(engine.ns, p, children or {})
        word = await _submit(engine, p, new, effects, b"" if known else data, result, watch, children or ())
        if word == "no_definition":
            await keep_definitions(engine.ns, p, children or {})
            word = await _submit(engine, p, new, effects, data, result, watch, children or ())
        engine.stored.add((p, address))
    finally:
        if word != "started":
            engine.waiting.expect_no_more(run)
    return accepted(run, word, spec)


async def _start_committed(
    engine: Engine, data: bytes, spec: RunSpec, input: Any, children: Mapping[str, bytes]
) -> Started:
    """Accepts a run that stands in the database, with what it follows, before the store hears of it."""
    await engine.open()
    p, given = engine.home(spec.key), pack_input(input)
    home = await commits_of(engine).check(p)
    same = same_digest(spec, plain_spelling(given)) if spec.key else ""
    made = make_start(new_run_id(p), p, spec, given, home, same=same, follows=Blueprint(data, dict(children)))
    run, word = await start_one(engine, made, home)
    return accepted(run, word, spec)


async def _submit(
    engine: Engine,
    p: int,
    new: NewRun,
    effects: Sequence[Effect],
    definition: bytes,
    result: bytes,
    watch: str,
    below: Iterable[str],
) -> str:
    told: dict[str, Any] = {"definition": definition, "result": result, "by": engine.id, "watch": watch, "below": below}
    return await engine.insist(p, lambda: start_graph(engine.ns, p, new, effects, **told))


async def commit_nodes(
    ns: Namespace, p: int, ends: Sequence[NodeEnd], *, session: str, caller: Any = None
) -> list[str]:
    """Commits the ends of steps of graph runs; returns a word per end."""
    return await informed(ns, p, lambda: store.commit_nodes(ns, p, ends, session=session, caller=caller))


@dataclass(slots=True, frozen=True)
class Known:
    """What a follower keeps of a run. The definition may be an old one: the commit says so, and it is read again."""

    keep_ms: int
    input: Any
    definition: str
    #: The definition the run started with.
    first: str
    tags: dict[str, str]


class Follower:
    """Follows graph runs of one partition: from the end of a step to what its commit does."""

    def __init__(self, ns: Namespace, p: int) -> None:
        self.ns, self.p = ns, p
        self._reads = Reads(ns, p)
        self._known: OrderedDict[str, Known] = OrderedDict()
        self._chunks: OrderedDict[tuple[str, str, int], list[Any]] = OrderedDict()

    # --- ends of steps ----------------------------------------------------------------------------

    def at_once(self, outcome: Outcome) -> NodeEnd | None:
        """Turns the end of a node's step into its commit where nothing has to be read; else None, and `after` does it."""
        token, spec = outcome.token, outcome.token.spec
        published = definitions.get(spec.definition)
        if published is None or outcome.blob or outcome.kind != "completed" or published.undoes or spec.memo:
            return None
        end = NodeEnd(token, outcome.kind, outcome.value, outcome.started_ms, 0)
        known = self._known.get(end.run)
        if known is not None and known.definition != spec.definition:
            return None
        if "#" in end.step:
            end.hedged = hedges(published, end.step)
        else:
            way = published.way(end.step)
            if way is None:
                return None
            if (opens := None if spec.tags else way.opens) is None:
                try:
                    value = decode_plain(VALUE_DECODER.decode(outcome.value).inline)
                    opens = go_straight(published, way.ahead, end.step, value, spec.tags)
                except WeftError:
                    return None
            end.effects.append(opens)
            end.alone = token.delivery == 1 and end.step in published.leading
        # Refers to the outcome, not to the end: an end that refers to itself would be left to the garbage collector.
        end.again = lambda: self._after_anew(outcome)
        return end

    async def _after_anew(self, outcome: Outcome) -> NodeEnd:
        return await self._anew(run_of(outcome.token.run), lambda: self.after(outcome))

    async def after(self, outcome: Outcome) -> NodeEnd:
        """Turns the end of a node's step into its commit."""
        outcome = discarded(outcome)
        token = outcome.token
        end = NodeEnd(token, outcome.kind, outcome.value, outcome.started_ms, 0, blob=outcome.blob)
        run, step = end.run, end.step
        end.again = lambda: self._after_anew(outcome)
        known, published = await self._guess(token, step)
        end.definition = published.address
        if step.endswith(UNDOES):
            known = known or await self.known(run)
            end.effects = await undoing.following(self, published, run, known.input, outcome=outcome)
        else:
            end.hedged = hedges(published, step)
            end.effects = await self._follow_node(outcome, run, step, known, published)
        if any(isinstance(effect, (Fail, Finish)) for effect in end.effects):
            end.keep_ms = (await self.known(run)).keep_ms
        return end

    async def _follow_node(
        self, outcome: Outcome, run: str, step: str, known: Known | None, published: Published
    ) -> list[Effect]:
        id, iterations = parse_step(published.plan, step)
        node, token, extra = published.plan.node(id), outcome.token, list[Effect]()
        if outcome.kind == "completed":
            if id + UNDOES in published.steps:
                extra.append(Undoable())
            if token.spec.memo:
                extra += await memos.remember(self.ns, self.p, run, node, outcome)
        elif outcome.kind == "failed":
            extra += letter_of(node, step, token.spec, outcome.value, token.attempt)
        if "#" in step:
            return extra + after_item(published, node, outcome.kind, outcome.value, step.removesuffix(COPY))
        behind = published.behind(id)
        # A step carries its run's tags, mixed with those of its own task.
        if known is None and (behind.input or published.steps[id].spec.tags):
            known = await self.known(run)
        input, tags = (None, token.spec.tags) if known is None else (known.input, known.tags)
        scope = await self.scope(published.plan, run, behind.reads, input, tags)
        router = Router(published, scope)
        router.kept = memos.kept_by(outcome, extra) if extra else {}
        if outcome.kind == "completed":
            scope.values[id] = await self.value(run, outcome.value)
        if outcome.kind in ("completed", "skipped"):
            scope.status[id] = outcome.kind
            router.ended(id, iterations, "+" if outcome.kind == "completed" else "-")
        else:
            router.note_failure(id, iterations, ERROR_DECODER.decode(outcome.value))
            router.go(())
        result = await self._result(run, id, scope, outcome) if router.may_end else None
        return extra + await self.effects_of(router, run, step, result)

    async def _result(self, run: str, id: str, scope: Scope, outcome: Outcome) -> bytes | None:
        """Returns what a run returns whose last node has ended; None where a step of its own has to put it together."""
        if outcome.kind != "completed":
            return None
        known = await self.known(run)
        # What a run returns is fixed by the definition it started with.
        first = await definition_of(self.ns, self.p, known.first)
        plan = first.plan
        if plan.result.node == id:
            return outcome.value
        # Where a join does not wait for all, something may still end while this is decided.
        if plan.result.output is None or plan.terminals != (id,) or not first.waits_for_all:
            return None
        found = await self.scope(plan, run, result_names(plan) - scope.values.keys(), known.input, known.tags)
        found.values |= scope.values
        found.status |= scope.status
        try:
            data = encode_stored(result_of(plan, found), what="the result of the run")
        except WeftError:
            return None
        return _pack(Value(data)) if len(data) <= INLINE_BYTES else None

    async def route(self, token: Token, started_ms: int) -> NodeEnd:
        """Executes a step that decides."""
        run, step = run_of(token.run), step_of(token.run)
        known, published = await self._follow(run, step)
        end = NodeEnd(token, "completed", b"", started_ms, known.keep_ms, definition=known.definition)
        end.again = lambda: self._anew(run, lambda: self.route(token, started_ms))
        try:
            await self._route(published, run, step, token, known, end)
        except WeftError as error:
            if error.code in ("unavailable", "outcome_unknown", "not_executed"):
                raise
            packed = _pack(record_of(error))
            end.effects = [Fail(packed)] if step == UNDO else fail_effects(published, packed)
        return end

    async def _follow(self, run: str, step: str) -> tuple[Known, Published]:
        """Returns a run and its definition, one that knows the step: a patch may have added its node since it was read."""
        known = await self.known(run)
        published = await definition_of(self.ns, self.p, known.definition)
        if "$" not in step and ">" not in step and parse_step(published.plan, step)[0] not in published.plan:
            self.forget(run)
            known = await self.known(run)
            published = await definition_of(self.ns, self.p, known.definition)
        return known, published

    async def _guess(self, token: Token, step: str) -> tuple[Known | None, Published]:
        """Returns what a step's run follows without reading the run: the definition under which the step was opened.

        A commit that was decided on another one than the run follows by then is refused, and decided anew.
        """
        run = run_of(token.run)
        known = self._known.get(run)
        address = token.spec.definition if known is None else known.definition
        published = await definition_of(self.ns, self.p, address)
        if parse_step(published.plan, step)[0] not in published.plan:
            return await self._follow(run, step)
        return known, published

    async def _anew(self, run: str, decide: Callable[[], Awaitable[NodeEnd]]) -> NodeEnd:
        """Decides once more, on the definition that the run follows now."""
        self.forget(run)
        await self.known(run)
        return await decide()

    async def _route(self, published: Published, run: str, step: str, token: Token, known: Known, end: NodeEnd) -> None:
        plan, input = published.plan, known.input
        if step == END:
            # What a run returns is fixed by the definition it started with.
            first = (await definition_of(self.ns, self.p, known.first)).plan
            scope = await self.scope(first, run, result_names(first), input, known.tags)
            value = await self._packed(run, result_of(first, scope), end)
            end.effects = [Finish(value, published.plain)]
            return
        if step == UNDO:
            end.effects = await undoing.begin(self, published, run, input)
            return
        if step.endswith(">"):
            jobs = [
                Job(*job)
                for job in msgspec.msgpack.decode(token.spec.input, type=list[tuple[str, str, Iterations, str]])
            ]
            begins = bool(jobs) and jobs[0].what == "begin"
            wanted = published.reads_at_start() if begins else published.reads_for(jobs)
            router = Router(published, await self.scope(plan, run, wanted, input, known.tags))
            router.begin() if begins else router.go(jobs)
        else:
            id, iterations = parse_step(plan, step)
            node = plan.node(id)
            if "#" in step:
                end.kind, end.value = "failed", token.spec.input
                end.effects = letter_of(node, step, published.steps[id].spec, end.value)
                end.effects += after_item(published, node, end.kind, end.value, step)
                return
            if "+" in step:
                end.effects = await maps.refill(self, published, step.partition("+")[0], run, known)
                return
            if step.endswith(ENDS):
                end.effects = [Over(step[:-1])]
                return
            names = published.reads_of(id) | published.reads_behind(id)
            scope = await self.scope(plan, run, names, input, known.tags)
            router = Router(published, scope)
            if step.endswith("="):
                await maps.gather(self, router, node, iterations, run, step[:-1])
            elif token.spec.name in WAITS:
                await conclude_step(self.ns, token, router, node, iterations, end, self._packed)
            elif step.endswith("?"):
                router.decide(id, iterations, await read_arrivals(self.ns, self.p, run, step[:-1]))
            else:  # a wait whose time has come: it is the node itself that ends
                scope.values[id], scope.status[id] = None, "completed"
                end.value, end.started_ms = _pack(Value(encode_plain(None))), await waited_since(self.ns, token)
                router.ended(id, iterations)
        end.effects = [*end.effects, *await self.effects_of(router, run, step)]

    # --- effects ----------------------------------------------------------------------------------

    async def effects_of(self, router: Router, run: str, origin: str, result: bytes | None = None) -> list[Effect]:
        """Returns what a router decided, with maps begun and large values uploaded."""
        while await memos.pass_over(self, router, run) or router.maps:
            if not router.maps:
                continue
            step, items = router.maps.pop()
            router.effects += await maps.begin(self, router, run, step, items)
        effects = router.close(origin, result)
        for effect in effects:
            if isinstance(effect, Letter):
                effect.keep_ms = keep_failed_ms(effect.spec)
            if isinstance(effect, (Mark, Given)) and is_large(effect):
                data = VALUE_DECODER.decode(effect.value).inline
                effect.blob = await stage_blob(self.ns, self.p, run, data)
                effect.value = _pack(Value(blob=effect.blob, size=len(data)))
        return effects

    # --- what is known ----------------------------------------------------------------------------

    def forget(self, run: str) -> None:
        """Has what is known of a run read anew."""
        self._known.pop(run, None)

    async def known(self, run: str) -> Known:
        """Returns what is known of a run: how long it is kept, its input and tags, the definition it follows."""
        known = self._known.get(run)
        if known is None:
            key = self.ns.keys.run(self.p, run)
            packed, definition = await self._reads.read("HMGET", key, "spec", "def", p=self.p)
            if packed is None or definition is None:
                raise NotFound(f"there is no run {run}", run=run)
            spec = SPEC_DECODER.decode(packed)
            data = await read_blob(self.ns, self.p, run, spec.blob) if spec.blob else spec.input
            known = self._known[run] = Known(
                spec.keep_ms, decode_plain(data), definition.decode(), spec.definition, spec.tags
            )
            while len(self._known) > MAX_KEPT:
                self._known.popitem(last=False)
        return known

    async def scope(
        self, plan: Plan, run: str, names: frozenset[str] | set[str], input: Any, tags: dict[str, str]
    ) -> Scope:
        """Returns what is known of some nodes of a run, besides its input and tags."""
        scope = Scope(input=input, tags=tags, names=names)
        if not names:
            return scope
        fields = sorted({*names, *(name + ERRORS for name in names if plan.node(name).is_map)})
        for name, given in (await read_context(self._reads, self.p, run, fields)).items():
            if name.endswith(ERRORS):
                if errors := await self.value(run, given.value):
                    scope.errors[name[:-1]] = errors
                continue
            scope.status[name] = given.status
            if given.status == "completed":
                scope.values[name] = await self.value(run, given.value)
            elif given.status == "failed":
                record = ERROR_DECODER.decode(given.value)
                scope.errors[name] = {"type": record.type, "message": record.message}
        return scope

    async def value(self, run: str, packed: bytes) -> Any:
        value = VALUE_DECODER.decode(packed)
        data = await read_blob(self.ns, self.p, run, value.blob) if value.blob else value.inline
        return decode_plain(data)

    async def tell(self, run: str, given: Gave, *, output: bool = True) -> dict[str, Any]:
        """Returns what a node gave, as people read it."""
        about: dict[str, Any] = {"status": given.status, "attempt": given.attempt}
        if given.status == "completed" and output:
            about["output"] = await self.value(run, given.value)
        elif given.status == "failed":
            about["error"] = dict(msgspec.to_builtins(ERROR_DECODER.decode(given.value)))
        elif given.status == "skipped" and given.value:
            about["reason"] = given.value.decode(errors="replace")
        if given.cached:
            about["cached"] = True
        if given.ended_ms:
            about |= {"started_ms": given.started_ms, "ended_ms": given.ended_ms}
        return about

    async def _packed(self, run: str, value: Any, end: NodeEnd) -> bytes:
        data = encode_stored(value, what="the result of the run")
        if len(data) <= INLINE_BYTES:
            return _pack(Value(data))
        end.blob = await stage_blob(self.ns, self.p, run, data)
        return _pack(Value(blob=end.blob, size=len(data)))

    async def item(self, run: str, step: str, index: int) -> Any:
        """Returns one item of a map."""
        chunk = await self._chunk(run, step, index // CHUNK)
        if index % CHUNK >= len(chunk):
            raise NotFound(f"item {index} of the map {step} of run {run} is gone")
        return chunk[index % CHUNK]

    async def _chunk(self, run: str, step: str, chunk: int) -> list[Any]:
        key = (run, step, chunk)
        found = self._chunks.get(key)
        if found is None:
            found = self._chunks[key] = await read_items(self.ns, self.p, run, step, chunk)
            while len(self._chunks) > MAX_KEPT:
                self._chunks.popitem(last=False)
        return found


__all__ = [
    "PAUSE",
    "Follower",
    "bundle_bytes",
    "commit_nodes",
    "definition_of",
    "start",
    "step_name",
]
