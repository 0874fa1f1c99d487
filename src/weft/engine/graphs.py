"""The verbs on graph runs: start, follow, read. Load -> decide -> commit."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from weft.codec import decode_plain, encode_plain
from weft.core.effects import (
    CHUNK,
    END,
    ENDS,
    ERRORS,
    PAUSE,
    UNDO,
    UNDOES,
    Cursor,
    Effect,
    Fail,
    Finish,
    Given,
    Last,
    Letter,
    Mark,
    NodeEnd,
    Open,
    Over,
    Scatter,
    Shut,
    Undoable,
    Weigh,
    route_spec,
    run_of,
    step_of,
)
from weft.core.failing import fail_effects, item_fails_run, item_failure, letter_spec, record_of
from weft.core.graph.compile import NodePlan, Plan
from weft.core.model import (
    ERROR_DECODER,
    INLINE_BYTES,
    SPEC_DECODER,
    VALUE_DECODER,
    ErrorRecord,
    Outcome,
    RunSpec,
    Token,
    Value,
)
from weft.core.routing import (
    Iterations,
    Job,
    Published,
    Router,
    Scope,
    parse_step,
    result_names,
    result_of,
    step_name,
)
from weft.core.waits import WAITS
from weft.engine import memos, undoing
from weft.engine.definitions import bundle_bytes, definition_of, definitions
from weft.engine.engine import Engine
from weft.engine.opening import is_large, prepare
from weft.engine.runs import Started, accepted
from weft.engine.steps import keep_failed_ms
from weft.engine.waiters import conclude_step
from weft.errors import NotFound, WeftError
from weft.ids import new_run_id
from weft.store import graphs as store
from weft.store.blobs import read_blob, stage_blob
from weft.store.controls import informed
from weft.store.graphs import (
    Gave,
    read_arrivals,
    read_context,
    read_items,
    read_map,
    read_results,
    stage_items,
    start_graph,
)
from weft.store.namespace import Namespace
from weft.store.runs import NewRun

#: Runs whose input a follower keeps.
MAX_KEPT = 256
#: Items of one map that may be open at once, whatever it allows.
MAX_OPEN = 1000
#: Items opened by one commit.
OPEN_BATCH = 250

_pack = msgspec.msgpack.Encoder().encode


async def start(
    engine: Engine, data: bytes, spec: RunSpec, input: Any, children: Mapping[str, bytes] | None = None
) -> Started:
    """Accepts a run of a stored definition, whose subgraphs follow `children`. The same idempotency key gives the same run."""
    await engine.open()
    address = hashlib.sha256(data).hexdigest()
    published = definitions.make(address, data)
    p = engine.home(spec.key)
    run = new_run_id(p)
    spec = msgspec.structs.replace(spec, definition=address)
    new, effects, result = await prepare(engine.ns, p, run, published, spec, input)
    if engine.waiting.expect(run):
        new.watched = True
    watch = engine.waiting.channel if new.watched else ""
    word = ""
    try:
        known = (p, address) in engine.stored
        if not known:
            await store.keep_definitions(engine.ns, p, children or {})
        word = await _submit(engine, p, new, effects, b"" if known else data, result, watch)
        if word == "no_definition":
            await store.keep_definitions(engine.ns, p, children or {})
            word = await _submit(engine, p, new, effects, data, result, watch)
        engine.stored.add((p, address))
    finally:
        if word != "started":
            engine.waiting.expect_no_more(run)
    return accepted(run, word, spec)


async def _submit(
    engine: Engine, p: int, new: NewRun, effects: Sequence[Effect], definition: bytes, result: bytes, watch: str
) -> str:
    return await engine.insist(
        p,
        lambda: start_graph(
            engine.ns, p, new, effects, definition=definition, result=result, by=engine.id, watch=watch
        ),
    )


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
        self._known: OrderedDict[str, Known] = OrderedDict()
        self._chunks: OrderedDict[tuple[str, str, int], list[Any]] = OrderedDict()

    # --- ends of steps ----------------------------------------------------------------------------

    async def after(self, outcome: Outcome) -> NodeEnd:
        """Turns the end of a node's step into its commit."""
        token = outcome.token
        run, step = run_of(token.run), step_of(token.run)
        known, published = await self._follow(run, step)
        id, iterations = parse_step(published.plan, step)
        end = NodeEnd(token, outcome.kind, outcome.value, outcome.started_ms, known.keep_ms, blob=outcome.blob)
        end.definition = known.definition
        end.again = lambda: self._anew(run, lambda: self.after(outcome))
        if step.endswith(UNDOES):
            end.effects = await undoing.following(self, published, run, known.input, outcome=outcome)
            return end
        node = published.plan.node(id)
        extra: list[Effect] = []
        if outcome.kind == "completed":
            if id + UNDOES in published.steps:
                extra.append(Undoable())
            if token.spec.memo:
                extra += await memos.remember(self.ns, self.p, run, node, outcome)
        elif outcome.kind == "failed":
            extra += _letter(node, step, token.spec, outcome.value, token.attempt)
        if "#" in step:
            end.effects = extra + _after_item(published, node, outcome.kind, outcome.value, step)
            return end
        scope = await self.scope(published.plan, run, published.reads_behind(id), known.input)
        router = Router(published, scope)
        if outcome.kind == "completed":
            scope.values[id] = await self.value(run, outcome.value)
            scope.status[id] = "completed"
            router.ended(id, iterations)
        else:
            router.note_failure(id, iterations, ERROR_DECODER.decode(outcome.value))
            router.go(())
        first = await definition_of(self.ns, self.p, known.first)
        alone = first.plan.result.node == id and outcome.kind == "completed"
        end.effects = extra + await self.effects_of(router, run, step, outcome.value if alone else None)
        return end

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
        known = await self._run(run)
        published = await definition_of(self.ns, self.p, known.definition)
        if "$" not in step and ">" not in step and parse_step(published.plan, step)[0] not in published.plan:
            self._known.pop(run, None)
            known = await self._run(run)
            published = await definition_of(self.ns, self.p, known.definition)
        return known, published

    async def _anew(self, run: str, decide: Callable[[], Awaitable[NodeEnd]]) -> NodeEnd:
        """Decides once more, on the definition that the run follows now."""
        self._known.pop(run, None)
        return await decide()

    async def _route(self, published: Published, run: str, step: str, token: Token, known: Known, end: NodeEnd) -> None:
        plan, input = published.plan, known.input
        if step == END:
            # What a run returns is fixed by the definition it started with.
            first = (await definition_of(self.ns, self.p, known.first)).plan
            scope = await self.scope(first, run, result_names(first), input)
            value = await self._packed(run, result_of(first, scope), end)
            end.effects = [Finish(value)]
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
            router = Router(published, await self.scope(plan, run, wanted, input))
            router.begin() if begins else router.go(jobs)
        else:
            id, iterations = parse_step(plan, step)
            node = plan.node(id)
            if "#" in step:
                end.kind, end.value = "failed", token.spec.input
                end.effects = _letter(node, step, published.steps[id].spec, end.value)
                end.effects += _after_item(published, node, end.kind, end.value, step)
                return
            if "+" in step:
                end.effects = await self._refill(published, node, iterations, run, step.partition("+")[0], input)
                return
            if step.endswith(ENDS):
                end.effects = [Over(step[:-1])]
                return
            names = published.reads_of(id) | published.reads_behind(id)
            scope = await self.scope(plan, run, names, input)
            router = Router(published, scope)
            if step.endswith("="):
                await self._gather(router, node, iterations, run, step[:-1], end)
            elif token.spec.name in WAITS:
                await conclude_step(self.ns, token, router, node, iterations, end, self._packed)
            elif step.endswith("?"):
                router.decide(id, iterations, await read_arrivals(self.ns, self.p, run, step[:-1]))
            else:  # a wait whose time has come: it is the node itself that ends
                scope.values[id], scope.status[id] = None, "completed"
                end.value = _pack(Value(encode_plain(None)))
                router.ended(id, iterations)
        end.effects = [*end.effects, *await self.effects_of(router, run, step)]

    async def _gather(
        self, router: Router, node: NodePlan, iterations: Iterations, run: str, step: str, end: NodeEnd
    ) -> None:
        """Puts the results of a map together, in index order; what did not finish is null."""
        row = await read_map(self.ns, self.p, run, step)
        if row is None:
            raise NotFound(f"the map {step} of run {run} is gone")
        found = await read_results(self.ns, self.p, run, step, row.n)
        values: list[Any] = [None] * row.n
        errors: list[dict[str, Any]] = []
        for index, (status, value) in found.items():
            if status == "completed":
                values[index] = await self.value(run, value)
            else:
                record = ERROR_DECODER.decode(value)
                errors.append({"index": index, "type": record.type, "message": record.message})
        if row.need and row.done < row.need:
            text = f"map {node.id} needed {row.need} of {row.n} items, and only {row.done} completed"
            router.fail_node(node.id, iterations, ErrorRecord("GatherFailed", text, code="gather_failed"))
            router.go(())
        else:
            errors.sort(key=lambda error: error["index"])
            router.note(node.id, "completed", values, errors or None)
            router.effects.append(Mark(node.id, step, "completed", _pack(Value(encode_plain(values)))))
            if errors or iterations:
                # `errors.<node>` of a map, which has an output all the same; in a loop it replaces that of the last iteration.
                router.effects.append(Mark(node.id + ERRORS, step, "completed", _pack(Value(encode_plain(errors)))))
            router.ended(node.id, iterations)
        router.effects.append(Shut(step))
        if node.gather.kind == "deadline":
            router.effects.append(Shut(step + ENDS))

    async def _refill(
        self, published: Published, node: NodePlan, iterations: Iterations, run: str, step: str, input: Any
    ) -> list[Effect]:
        row = await read_map(self.ns, self.p, run, step)
        if row is None or row.at >= row.n or row.over:
            return [Last()]
        scope = await self.scope(published.plan, run, published.reads_of(node.id), input)
        router = Router(published, scope)
        room = row.most - row.left
        opened = await self._open_items(router, node, iterations, run, step, row.at, row.n, max(1, room), None)
        # A map that did not wait for all may have ended meanwhile: then this is the last step of the run.
        return [*opened, Last()]

    # --- effects ----------------------------------------------------------------------------------

    async def effects_of(self, router: Router, run: str, origin: str, result: bytes | None = None) -> list[Effect]:
        """Returns what a router decided, with maps begun and large values uploaded."""
        while await memos.pass_over(self, router, run) or router.maps:
            if not router.maps:
                continue
            step, items = router.maps.pop()
            id, iterations = parse_step(router.plan, step)
            node = router.plan.node(id)
            await stage_items(self.ns, self.p, run, step, items)
            most = min(node.spec.max_parallel or MAX_OPEN, MAX_OPEN)
            timed = node.gather.kind == "deadline"
            router.effects.append(Scatter(step, len(items), most, node.gather.needed(len(items)), timed))
            if timed:
                router.effects.append(Open(step + ENDS, route_spec(router.published.address), str(node.gather.ms)))
            router.effects += await self._open_items(router, node, iterations, run, step, 0, len(items), most, items)
        effects = router.close(origin, result)
        for effect in effects:
            if isinstance(effect, Letter):
                effect.keep_ms = keep_failed_ms(effect.spec)
            if isinstance(effect, (Mark, Given)) and is_large(effect):
                data = VALUE_DECODER.decode(effect.value).inline
                effect.blob = await stage_blob(self.ns, self.p, run, data)
                effect.value = _pack(Value(blob=effect.blob, size=len(data)))
        return effects

    async def _open_items(
        self,
        router: Router,
        node: NodePlan,
        iterations: Iterations,
        run: str,
        step: str,
        at: int,
        n: int,
        room: int,
        items: Sequence[Any] | None,
    ) -> list[Effect]:
        """Opens the next items of a map, as many as there is room for and one commit may open."""
        to = min(n, at + min(room, OPEN_BATCH))
        effects: list[Effect] = []
        for index in range(at, to):
            item = items[index] if items is not None else await self.item(run, step, index)
            view = router.scope.view(router.plan, iterations, item=item, index=index)
            try:
                spec = router.spec_of(node, view)
            except WeftError as error:
                # An item that cannot be asked for fails by itself: by a step that only tells so.
                failure = _pack(record_of(error))
                spec = msgspec.structs.replace(route_spec(router.published.address), input=failure)
            effects.append(Open(f"{step}#{index}", spec))
        opens = [effect for effect in effects if isinstance(effect, Open)]
        found = await memos.recall(self.ns, self.p, opens)
        for place, data in found.items():
            effects[place] = Given(opens[place].step, _pack(Value(data)))
        more = to < n and to - at < room
        effects.append(Cursor(step, to, busy=more))
        if more:
            effects.append(Open(f"{step}++{to}", route_spec(router.published.address)))
        if found:
            effects.append(Weigh(step, to))
        return effects

    # --- what is known ----------------------------------------------------------------------------

    async def _run(self, run: str) -> Known:
        """Returns what is known of a run: how long it is kept, its input and tags, the definition it follows."""
        known = self._known.get(run)
        if known is None:
            key = self.ns.keys.run(self.p, run)
            packed, definition = await self.ns.read("HMGET", key, "spec", "def", p=self.p)
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

    async def scope(self, plan: Plan, run: str, names: frozenset[str] | set[str], input: Any) -> Scope:
        scope = Scope(input=input, tags=(await self._run(run)).tags, names=names)
        fields = sorted({*names, *(name + ERRORS for name in names if plan.node(name).is_map)})
        for name, given in (await read_context(self.ns, self.p, run, fields)).items():
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
        if given.cached:
            about["cached"] = True
        if given.ended_ms:
            about |= {"started_ms": given.started_ms, "ended_ms": given.ended_ms}
        return about

    async def _packed(self, run: str, value: Any, end: NodeEnd) -> bytes:
        data = encode_plain(value, what="the result of the run")
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


def _letter(node: NodePlan, step: str, spec: RunSpec, error: bytes, attempt: int = 1) -> list[Effect]:
    """A step that has failed becomes a dead letter where its node says so."""
    if node.on_error != "dead_letter":
        return []
    spec = letter_spec(spec)
    return [Letter(step, spec, error, keep_failed_ms(spec), attempt)]


def _after_item(published: Published, node: NodePlan, kind: str, value: bytes, step: str) -> list[Effect]:
    """What follows an item of a map."""
    if kind == "completed" or not item_fails_run(node):
        return []
    return fail_effects(published, item_failure(value, step))


__all__ = [
    "PAUSE",
    "Follower",
    "bundle_bytes",
    "commit_nodes",
    "definition_of",
    "start",
    "step_name",
]
