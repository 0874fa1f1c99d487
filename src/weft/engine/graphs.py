"""The verbs on graph runs: start, follow, read. Load -> decide -> commit."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from weft.codec import decode_plain, encode_plain
from weft.core.effects import (
    CHUNK,
    END,
    ENDS,
    PAUSE,
    UNDO,
    UNDOES,
    Cursor,
    Effect,
    Fail,
    Finish,
    Given,
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
    step_id,
    step_of,
)
from weft.core.failing import fail_effects, goes_on, item_failure, letter_spec
from weft.core.graph.compile import NodePlan
from weft.core.graph.model import NodeSpec
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
from weft.engine import memos, undoing
from weft.engine.definitions import bundle_bytes, definition_of, definitions
from weft.engine.engine import Engine
from weft.engine.opening import is_large, prepare
from weft.engine.runs import Started, accepted, error_dict, load
from weft.engine.steps import keep_failed_ms
from weft.errors import NotFound, WeftError
from weft.ids import child_run_id, new_run_id, partition_of
from weft.store import graphs as store
from weft.store.blobs import read_blob, stage_blob
from weft.store.controls import informed
from weft.store.graphs import (
    Gave,
    read_arrivals,
    read_context,
    read_items,
    read_map,
    read_open_steps,
    read_results,
    read_whole_context,
    stage_items,
    start_graph,
)
from weft.store.namespace import Namespace
from weft.store.runs import NewRun, read_holders, read_runs

#: Inputs of runs, and chunks of items, that a worker keeps ready.
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


class Follower:
    """Follows graph runs of one partition: from the end of a step to what its commit does."""

    def __init__(self, ns: Namespace, p: int) -> None:
        self.ns, self.p = ns, p
        self._inputs: OrderedDict[str, Any] = OrderedDict()
        self._chunks: OrderedDict[tuple[str, str, int], list[Any]] = OrderedDict()

    # --- ends of steps ----------------------------------------------------------------------------

    async def after(self, outcome: Outcome) -> NodeEnd:
        """Turns the end of a node's step into its commit."""
        token = outcome.token
        published = await definition_of(self.ns, self.p, token.spec.definition)
        run, step = run_of(token.run), step_of(token.run)
        id, iterations = parse_step(published.plan, step)
        end = NodeEnd(token, outcome.kind, outcome.value, outcome.started_ms, 0, blob=outcome.blob)
        end.keep_ms, input = await self._run(run)
        if step.endswith(UNDOES):
            end.effects = await undoing.following(self, published, run, input, outcome=outcome)
            return end
        node = published.plan.node(id)
        extra: list[Effect] = []
        if outcome.kind == "completed":
            if id + UNDOES in published.steps:
                extra.append(Undoable())
            if token.spec.memo:
                extra += await memos.remember(self.ns, self.p, run, node, outcome)
        elif node.on_error == "dead_letter" and outcome.kind == "failed":
            spec = letter_spec(token.spec)
            extra.append(Letter(step, spec, outcome.value, keep_failed_ms(spec), token.attempt))
        if "#" in step:
            if outcome.kind != "completed" and not goes_on(node):
                extra += fail_effects(published, item_failure(outcome.value, step))
            end.effects = extra
            return end
        scope = await self.scope(run, published.reads_behind(id), input)
        router = Router(published, scope)
        if outcome.kind == "completed":
            scope.values[id] = await self.value(run, outcome.value)
            scope.status[id] = "completed"
            router.ended(id, iterations)
        else:
            router.note_failure(id, iterations, ERROR_DECODER.decode(outcome.value))
            router.go(())
        alone = published.plan.result.node == id and outcome.kind == "completed"
        end.effects = extra + await self.effects_of(router, run, step, outcome.value if alone else None)
        return end

    async def route(self, token: Token, started_ms: int) -> NodeEnd:
        """Executes a step that decides."""
        run, step = run_of(token.run), step_of(token.run)
        published = await definition_of(self.ns, self.p, token.spec.definition)
        keep_ms, input = await self._run(run)
        end = NodeEnd(token, "completed", b"", started_ms, keep_ms)
        try:
            await self._route(published, run, step, token, input, end)
        except WeftError as error:
            if error.code in ("unavailable", "outcome_unknown", "not_executed"):
                raise
            record = ErrorRecord(type(error).__name__, str(error), code=error.code)
            failed = Fail(_pack(record))
            end.effects = [failed] if step == UNDO else fail_effects(published, failed.error)
        return end

    async def _route(self, published: Published, run: str, step: str, token: Token, input: Any, end: NodeEnd) -> None:
        plan = published.plan
        if step == END:
            scope = await self.scope(run, result_names(plan), input)
            value = await self._packed(run, result_of(plan, scope), end)
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
            wanted = published.reads_for([Job("enter", id) for id in plan.entries] if begins else jobs)
            router = Router(published, await self.scope(run, wanted, input))
            router.begin() if begins else router.go(jobs)
        else:
            id, iterations = parse_step(plan, step)
            node = plan.node(id)
            if step.endswith("+"):
                end.effects = await self._refill(published, node, iterations, run, step[:-1], input)
                return
            if step.endswith(ENDS):
                end.effects = [Over(step[:-1])]
                return
            names = published.reads_of(id) | published.reads_behind(id)
            scope = await self.scope(run, names, input)
            router = Router(published, scope)
            if step.endswith("="):
                await self._gather(router, node, iterations, run, step[:-1], end)
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
            router.scope.values[node.id], router.scope.status[node.id] = values, "completed"
            if errors:
                router.scope.errors[node.id] = sorted(errors, key=lambda error: error["index"])
            packed = _pack(Value(encode_plain(values)))
            router.effects.append(Mark(node.id, step, "completed", packed))
            router.ended(node.id, iterations)
        router.effects.append(Shut(step))
        if node.gather.kind == "deadline":
            router.effects.append(Shut(step + ENDS))

    async def _refill(
        self, published: Published, node: NodePlan, iterations: Iterations, run: str, step: str, input: Any
    ) -> list[Effect]:
        row = await read_map(self.ns, self.p, run, step)
        if row is None or row.at >= row.n:
            return []
        scope = await self.scope(run, published.reads_of(node.id), input)
        router = Router(published, scope)
        room = row.most - (row.at - row.done - row.failed)
        return await self._open_items(router, node, iterations, run, step, row.at, row.n, max(1, room), None)

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
            try:
                router.effects += await self._open_items(
                    router, node, iterations, run, step, 0, len(items), most, items
                )
            except WeftError as error:
                router.fail_node(id, iterations, ErrorRecord(type(error).__name__, str(error), code=error.code))
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
            effects.append(Open(f"{step}#{index}", router.spec_of(node, view)))
        opens = [effect for effect in effects if isinstance(effect, Open) and effect.spec.memo]
        found = await memos.recall(self.ns, self.p, opens) if opens else {}
        for place, data in found.items():
            effects[place] = Given(opens[place].step, _pack(Value(data)))
        more = to < n and to - at < room
        effects.append(Cursor(step, to, busy=more))
        if more:
            effects.append(Open(f"{step}+", route_spec(router.published.address)))
        if found:
            effects.append(Weigh(step))
        return effects

    # --- what is known ----------------------------------------------------------------------------

    async def _run(self, run: str) -> tuple[int, Any]:
        """Returns how long a run is kept, and its input."""
        known = self._inputs.get(run)
        if known is None:
            packed = await self.ns.read("HGET", self.ns.keys.run(self.p, run), "spec", p=self.p)
            if packed is None:
                raise NotFound(f"there is no run {run}", run=run)
            spec = SPEC_DECODER.decode(packed)
            data = await read_blob(self.ns, self.p, run, spec.blob) if spec.blob else spec.input
            known = self._inputs[run] = (spec.keep_ms, decode_plain(data))
            while len(self._inputs) > MAX_KEPT:
                self._inputs.popitem(last=False)
        return known

    async def scope(self, run: str, names: frozenset[str] | set[str], input: Any) -> Scope:
        scope = Scope(input=input)
        for name, given in (await read_context(self.ns, self.p, run, sorted(names))).items():
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

    async def tell(self, run: str, given: Gave) -> dict[str, Any]:
        """Returns what a node gave, as people read it."""
        about: dict[str, Any] = {"status": given.status, "attempt": given.attempt}
        if given.status == "completed":
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
        return (await self._chunk(run, step, index // CHUNK))[index % CHUNK]

    async def _chunk(self, run: str, step: str, chunk: int) -> list[Any]:
        key = (run, step, chunk)
        found = self._chunks.get(key)
        if found is None:
            found = self._chunks[key] = await read_items(self.ns, self.p, run, step, chunk)
            while len(self._chunks) > MAX_KEPT:
                self._chunks.popitem(last=False)
        return found


def _node_of(step: str) -> str:
    return step.rstrip(UNDOES).partition("#")[0].partition("~")[0]


async def graph_of(engine: Engine, run: str) -> dict[str, Any]:
    """Tells how a graph run stands, node by node."""
    row = await load(engine, run)
    if not row.spec.definition:
        raise NotFound(f"run {run} is of a task, not of a graph", run=run)
    p = partition_of(run)
    follower = Follower(engine.ns, p)
    published = await definition_of(engine.ns, p, row.text("def"))
    given = await read_whole_context(engine.ns, p, run)
    open_steps = await read_open_steps(engine.ns, p, run) if row.open else {}
    steps = await read_runs(engine.ns, p, [step_id(run, step) for step in open_steps])
    rows = {step: found for step, found in zip(open_steps, steps, strict=True) if found is not None}
    holders = await read_holders(engine.ns, p, list(rows.values()))
    nodes: dict[str, dict[str, Any]] = {}
    for id, spec in published.plan.spec.nodes.items():
        about = nodes[id] = {
            "type": spec.type,
            "status": "pending",
            "after": list(published.plan.node(id).predecessors),
        }
        if id in given:
            about |= await follower.tell(run, given[id])
            if given[id].status != "skipped":
                about |= _child_of(run, spec, given[id].step, given[id].attempt)
        undone = {name: one for name, one in given.items() if name.endswith(UNDOES) and _node_of(name) == id}
        if undone:
            told = [{"step": name[:-1], **await follower.tell(run, one)} for name, one in undone.items()]
            about["compensation"] = told
    for step in open_steps:
        id, iterations = parse_step(published.plan, step)
        if id not in nodes:
            continue
        held, about = rows.get(step), nodes[id]
        if step.endswith(UNDOES) or (held is not None and not held.open):
            continue
        about["iteration"] = iterations[-1] if iterations else 0
        if held is None or step[-1] in "?=+>@":
            about["status"] = "running" if published.plan.node(id).is_map else "ready"
            if published.plan.node(id).is_map and (progress := await read_map(engine.ns, p, run, step.rstrip("=+@"))):
                about |= {"items": progress.n, "done": progress.done, "failed": progress.failed}
        else:
            waits = held.due_ms is not None or bool(held.line)
            about["status"] = "running" if held.id in holders else "waiting" if waits else "ready"
            about["attempt"] = held.number("attempt", 1)
            about |= _child_of(run, published.plan.node(id).spec, step, about["attempt"])
    failing = {"failing": error_dict(row.fields["failing"])} if row.open and "failing" in row.fields else {}
    return {"revision": row.number("revision", 1), "definition": row.text("def"), "nodes": nodes, **failing}


def _child_of(run: str, spec: NodeSpec, step: str, attempt: int) -> dict[str, str]:
    """Returns the run that a step has started, if it is one that does."""
    is_parent = spec.type == "subgraph" and spec.map is None
    return {"child": child_run_id(run, step, attempt)} if is_parent else {}


__all__ = ["PAUSE", "Follower", "bundle_bytes", "commit_nodes", "definition_of", "graph_of", "start", "step_name"]
