"""The verbs on graph runs: start, follow, read. Load -> decide -> commit."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import msgspec

from weft.codec import decode_plain, encode_plain, join_packed
from weft.core.effects import (
    CHUNK,
    END,
    PAUSE,
    Arrive,
    Cursor,
    Effect,
    Fail,
    Finish,
    Mark,
    NodeEnd,
    Open,
    Scatter,
    Shut,
    route_spec,
    run_of,
    step_id,
    step_of,
)
from weft.core.graph.compile import NodePlan, Plan
from weft.core.model import (
    ERROR_DECODER,
    INLINE_BYTES,
    SPEC_DECODER,
    SPEC_ENCODER,
    VALUE_DECODER,
    ErrorRecord,
    Outcome,
    RunSpec,
    Token,
    Value,
)
from weft.core.published import Iterations, Job, Published, go_straight
from weft.core.routing import (
    Router,
    Scope,
    parse_step,
    record_of,
    result_names,
    result_of,
    step_name,
)
from weft.engine.definitions import DEFINITIONS, bundle_bytes, definition_of
from weft.engine.engine import Engine
from weft.engine.runs import Started, accepted, load
from weft.errors import NotFound, WeftError
from weft.ids import new_run_id, partition_of
from weft.store import graphs as store
from weft.store.blobs import read_blob, stage_blob
from weft.store.controls import informed
from weft.store.graphs import (
    Given,
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
from weft.store.reads import Reads
from weft.store.runs import NewRun, read_holders, read_runs

#: Inputs of runs that a process keeps, and chunks of items.
MAX_KEPT = 256
#: Items of one map that may be open at once, whatever it allows.
MAX_OPEN = 1000
#: Items opened by one commit.
OPEN_BATCH = 250

_pack = msgspec.msgpack.Encoder().encode
_NULL = _pack(None)


async def start(engine: Engine, data: bytes, spec: RunSpec, input: Any) -> Started:
    """Accepts a run of a stored definition. The same idempotency key gives the same run."""
    await engine.open()
    address = hashlib.sha256(data).hexdigest()
    published = DEFINITIONS.make(address, data)
    packed_input = encode_plain(input, what="the input of the run")
    p = engine.home(spec.key)
    run = new_run_id(p)
    spec = msgspec.structs.replace(spec, definition=address)
    if len(packed_input) > INLINE_BYTES:
        spec = msgspec.structs.replace(spec, blob=await stage_blob(engine.ns, p, run, packed_input))
    else:
        spec = msgspec.structs.replace(spec, input=packed_input)
    scope = Scope(input=decode_plain(packed_input), names=published.reads_at_start())
    router = Router(published, scope)
    router.begin()
    effects, result = router.effects, b""
    left = bool(router.maps or router.todo or router.failed or any(_is_large(effect) for effect in effects))
    if not left and not any(isinstance(effect, (Open, Arrive)) for effect in effects):
        try:
            result = _pack(Value(encode_plain(result_of(published.plan, scope))))
        except WeftError:
            left = True
    if left or len(result) > INLINE_BYTES:
        # What is more than a few steps is left to a worker, whose commit knows about maps, failures and large values.
        begin = _pack([("begin", "", (), "+")])
        effects = [Open("$start>", msgspec.structs.replace(route_spec(address), input=begin))]
    new = NewRun(run, spec, SPEC_ENCODER.encode(spec))
    if spec.key:
        new.key_digest = hashlib.sha256(spec.key.encode()).hexdigest()[:32]
        new.payload_digest = hashlib.sha256(f"{spec.name}\0".encode() + packed_input).hexdigest()[:32]
        new.window_ms = spec.key_ms
    if engine.waiting.expect(run):
        new.watched = True
    watch = engine.waiting.channel if new.watched else ""
    word = ""
    try:
        known = (p, address) in engine.stored
        word = await _submit(engine, p, new, effects, b"" if known else data, result, watch)
        if word == "no_definition":
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


def _is_large(effect: Effect) -> bool:
    return isinstance(effect, Mark) and effect.status == "completed" and len(effect.value) > INLINE_BYTES + 64


class Follower:
    """Follows graph runs of one partition: from the end of a step to what its commit does."""

    def __init__(self, ns: Namespace, p: int) -> None:
        self._ns, self._p = ns, p
        self._reads = Reads(ns, p)
        self._inputs: OrderedDict[str, tuple[int, Any]] = OrderedDict()
        self._chunks: OrderedDict[tuple[str, str, int], list[Any]] = OrderedDict()

    # --- ends of steps ----------------------------------------------------------------------------

    def at_once(self, outcome: Outcome) -> NodeEnd | None:
        """Turns the end of a node's step into its commit where nothing has to be read; else None, and `after` does it."""
        token = outcome.token
        published = DEFINITIONS.get(token.spec.definition)
        step = step_of(token.run)
        if published is None or outcome.blob or outcome.kind != "completed":
            return None
        end = NodeEnd(token, outcome.kind, outcome.value, outcome.started_ms, 0)
        if "#" in step:
            return end
        ahead = published.straight(step) if step in published.plan else None
        if ahead is not None:
            try:
                value = decode_plain(VALUE_DECODER.decode(outcome.value).inline)
                end.effects.append(go_straight(published, ahead, step, value))
            except WeftError:
                return None
            return end
        return None

    async def after(self, outcome: Outcome) -> NodeEnd:
        """Turns the end of a node's step into its commit."""
        token = outcome.token
        published = await definition_of(self._ns, self._p, token.spec.definition)
        run, step = run_of(token.run), step_of(token.run)
        id, iterations = parse_step(published.plan, step)
        end = NodeEnd(token, outcome.kind, outcome.value, outcome.started_ms, 0, blob=outcome.blob)
        if "#" in step:
            end.effects = _after_item(published.plan.node(id), outcome.kind, outcome.value, step)
            if end.effects:
                end.keep_ms, _ = await self._run(run)
            return end
        behind = published.behind(id)
        input = (await self._run(run))[1] if behind.input else None
        scope = await self._scope(published.plan, run, behind.reads, input)
        router = Router(published, scope)
        if outcome.kind == "completed":
            scope.values[id] = await self._value(run, outcome.value)
            scope.status[id] = "completed"
            router.ended(id, iterations)
        else:
            router.note_failure(id, iterations, ERROR_DECODER.decode(outcome.value))
            router.go(())
        alone = published.plan.result.node == id and outcome.kind == "completed"
        result = outcome.value if alone else await self._output(published, run, id, scope)
        end.effects = await self.effects_of(router, run, step, result)
        if any(isinstance(effect, (Fail, Finish)) for effect in end.effects):
            end.keep_ms, _ = await self._run(run)
        return end

    async def _output(self, published: Published, run: str, id: str, scope: Scope) -> bytes | None:
        """Returns the filled-in output of a run whose last node has ended; None where a step of its own has to make it."""
        plan = published.plan
        output = plan.result.output
        if output is None or plan.terminals != (id,) or scope.status.get(id) != "completed":
            return None
        missing = result_names(plan) - scope.values.keys()
        input = (await self._run(run))[1] if "input" in output.names else None
        known = await self._scope(plan, run, missing, input)
        known.values |= scope.values
        known.status |= scope.status
        try:
            data = encode_plain(result_of(plan, known), what="the result of the run")
        except WeftError:
            return None
        return _pack(Value(data)) if len(data) <= INLINE_BYTES else None

    async def route(self, token: Token, started_ms: int) -> NodeEnd:
        """Executes a step that decides."""
        run, step = run_of(token.run), step_of(token.run)
        published = await definition_of(self._ns, self._p, token.spec.definition)
        keep_ms, input = await self._run(run)
        end = NodeEnd(token, "completed", b"", started_ms, keep_ms)
        try:
            await self._route(published, run, step, token, input, end)
        except WeftError as error:
            if error.code in ("unavailable", "outcome_unknown", "not_executed"):
                raise
            end.effects = [Fail(_pack(record_of(error)))]
        return end

    async def _route(self, published: Published, run: str, step: str, token: Token, input: Any, end: NodeEnd) -> None:
        plan = published.plan
        if step == END:
            scope = await self._scope(plan, run, result_names(plan), input)
            value = await self._packed(run, result_of(plan, scope), end)
            end.effects = [Finish(value, published.plain)]
            return
        if step.endswith(">"):
            jobs = [
                Job(*job)
                for job in msgspec.msgpack.decode(token.spec.input, type=list[tuple[str, str, Iterations, str]])
            ]
            begins = bool(jobs) and jobs[0].what == "begin"
            wanted = published.reads_at_start() if begins else published.reads_for(jobs)
            router = Router(published, await self._scope(plan, run, wanted, input))
            router.begin() if begins else router.go(jobs)
        else:
            id, iterations = parse_step(plan, step)
            node = plan.node(id)
            if "#" in step:
                end.kind, end.value = "failed", token.spec.input
                end.effects = _after_item(node, end.kind, end.value, step)
                return
            if step.endswith("+"):
                end.effects = await self._refill(published, node, iterations, run, step[:-1], input)
                return
            names = published.reads_of(id) | published.reads_behind(id)
            scope = await self._scope(plan, run, names, input)
            router = Router(published, scope)
            if step.endswith("="):
                await self._gather(router, node, iterations, run, step[:-1], end)
            elif step.endswith("?"):
                router.decide(id, iterations, await read_arrivals(self._ns, self._p, run, step[:-1]))
            else:  # a wait whose time has come: it is the node itself that ends
                scope.values[id], scope.status[id] = None, "completed"
                end.value = _pack(Value(encode_plain(None)))
                router.ended(id, iterations)
        end.effects = [*end.effects, *await self.effects_of(router, run, step)]

    async def _gather(
        self, router: Router, node: NodePlan, iterations: Iterations, run: str, step: str, end: NodeEnd
    ) -> None:
        """Puts the results of a map together, in index order; what did not finish is null."""
        row = await read_map(self._ns, self._p, run, step)
        if row is None:
            raise NotFound(f"the map {step} of run {run} is gone")
        found = await read_results(self._ns, self._p, run, step, row.n)
        parts = [_NULL] * row.n
        errors: list[dict[str, Any]] = []
        for index, (status, value) in found.items():
            if status == "completed":
                given = VALUE_DECODER.decode(value)
                parts[index] = await read_blob(self._ns, self._p, run, given.blob) if given.blob else given.inline
            else:
                record = ERROR_DECODER.decode(value)
                errors.append({"index": index, "type": record.type, "message": record.message})
        if row.need and row.done < row.need:
            text = f"map {node.id} needed {row.need} of {row.n} items, and only {row.done} completed"
            router.fail_node(node.id, iterations, ErrorRecord("GatherFailed", text, code="gather_failed"))
            router.go(())
        else:
            errors.sort(key=lambda error: error["index"])
            whole = join_packed(parts, what=f"the output of map {node.id}")
            router.note(node.id, "completed", decode_plain(whole), errors or None)
            router.effects.append(Mark(node.id, step, "completed", _pack(Value(whole))))
            if errors or iterations:
                # `errors.<node>` of a map, which has an output all the same; in a loop it replaces that of the last iteration.
                router.effects.append(Mark(f"{node.id}!", step, "completed", _pack(Value(encode_plain(errors)))))
            router.ended(node.id, iterations)
        router.effects.append(Shut(step))

    async def _refill(
        self, published: Published, node: NodePlan, iterations: Iterations, run: str, step: str, input: Any
    ) -> list[Effect]:
        row = await read_map(self._ns, self._p, run, step)
        if row is None or row.at >= row.n:
            return []
        scope = await self._scope(published.plan, run, published.reads_of(node.id), input)
        router = Router(published, scope)
        room = row.most - (row.at - row.done - row.failed)
        return await self._open_items(router, node, iterations, run, step, row.at, row.n, max(1, room), None)

    # --- effects ----------------------------------------------------------------------------------

    async def effects_of(self, router: Router, run: str, origin: str, result: bytes | None = None) -> list[Effect]:
        """Returns what a router decided, with maps begun and large values uploaded."""
        while router.maps:
            step, items = router.maps.pop()
            id, iterations = parse_step(router.plan, step)
            node = router.plan.node(id)
            await stage_items(self._ns, self._p, run, step, items)
            most = min(node.spec.max_parallel or MAX_OPEN, MAX_OPEN)
            router.effects.append(Scatter(step, len(items), most, node.gather.needed(len(items))))
            router.effects += await self._open_items(router, node, iterations, run, step, 0, len(items), most, items)
        effects = router.close(origin, result)
        for effect in effects:
            if isinstance(effect, Mark) and _is_large(effect):
                data = VALUE_DECODER.decode(effect.value).inline
                effect.blob = await stage_blob(self._ns, self._p, run, data)
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
            item = items[index] if items is not None else (await self._chunk(run, step, index // CHUNK))[index % CHUNK]
            view = router.scope.view(router.plan, iterations, item=item, index=index)
            name = f"{step}#{index}"
            try:
                effects.append(router.open_of(name, node, view))
            except WeftError as error:
                # An item that cannot be asked for fails by itself: by a step that only tells so.
                failure = _pack(record_of(error))
                effects.append(Open(name, msgspec.structs.replace(route_spec(router.published.address), input=failure)))
        more = to < n and to - at < room
        effects.append(Cursor(step, to, busy=more))
        if more:
            effects.append(Open(f"{step}+", route_spec(router.published.address)))
        return effects

    # --- what is known ----------------------------------------------------------------------------

    async def _run(self, run: str) -> tuple[int, Any]:
        """Returns how long a run is kept, and its input."""
        known = self._inputs.get(run)
        if known is None:
            packed = await self._reads.read("HGET", self._ns.keys.run(self._p, run), "spec", p=self._p)
            if packed is None:
                raise NotFound(f"there is no run {run}", run=run)
            spec = SPEC_DECODER.decode(packed)
            data = await read_blob(self._ns, self._p, run, spec.blob) if spec.blob else spec.input
            known = self._inputs[run] = (spec.keep_ms, decode_plain(data))
            while len(self._inputs) > MAX_KEPT:
                self._inputs.popitem(last=False)
        return known

    async def _scope(self, plan: Plan, run: str, names: frozenset[str] | set[str], input: Any) -> Scope:
        scope = Scope(input=input, names=names)
        if not names:
            return scope
        fields = sorted({*names, *(f"{name}!" for name in names if plan.node(name).is_map)})
        for name, given in (await read_context(self._reads, self._p, run, fields)).items():
            if name.endswith("!"):
                if errors := await self._value(run, given.value):
                    scope.errors[name[:-1]] = errors
                continue
            scope.status[name] = given.status
            if given.status == "completed":
                scope.values[name] = await self._value(run, given.value)
            elif given.status == "failed":
                record = ERROR_DECODER.decode(given.value)
                scope.errors[name] = {"type": record.type, "message": record.message}
        return scope

    async def _value(self, run: str, packed: bytes) -> Any:
        value = VALUE_DECODER.decode(packed)
        data = await read_blob(self._ns, self._p, run, value.blob) if value.blob else value.inline
        return decode_plain(data)

    async def tell(self, run: str, given: Given) -> dict[str, Any]:
        """Returns what a node gave, as people read it."""
        about: dict[str, Any] = {"status": given.status, "attempt": given.attempt}
        if given.status == "completed":
            about["output"] = await self._value(run, given.value)
        elif given.status == "failed":
            about["error"] = dict(msgspec.to_builtins(ERROR_DECODER.decode(given.value)))
        if given.ended_ms:
            about |= {"started_ms": given.started_ms, "ended_ms": given.ended_ms}
        return about

    async def _packed(self, run: str, value: Any, end: NodeEnd) -> bytes:
        data = encode_plain(value, what="the result of the run")
        if len(data) <= INLINE_BYTES:
            return _pack(Value(data))
        end.blob = await stage_blob(self._ns, self._p, run, data)
        return _pack(Value(blob=end.blob, size=len(data)))

    async def _chunk(self, run: str, step: str, chunk: int) -> list[Any]:
        key = (run, step, chunk)
        found = self._chunks.get(key)
        if found is None:
            found = self._chunks[key] = await read_items(self._ns, self._p, run, step, chunk)
            while len(self._chunks) > MAX_KEPT:
                self._chunks.popitem(last=False)
        return found


def _after_item(node: NodePlan, kind: str, value: bytes, step: str) -> list[Effect]:
    """What follows an item of a map: its failure is the run's where all items are needed and none may fail."""
    if kind == "completed" or node.on_error == "continue" or node.gather.kind != "all":
        return []
    record = ERROR_DECODER.decode(value)
    return [Fail(_pack(msgspec.structs.replace(record, message=f"{step}: {record.message}")))]


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
    for step in open_steps:
        id, iterations = parse_step(published.plan, step)
        if id not in nodes:
            continue
        held, about = rows.get(step), nodes[id]
        about["iteration"] = iterations[-1] if iterations else 0
        if held is None or step[-1] in "?=+>":
            about["status"] = "running" if published.plan.node(id).is_map else "ready"
            if published.plan.node(id).is_map and (progress := await read_map(engine.ns, p, run, step.rstrip("=+"))):
                about |= {"items": progress.n, "done": progress.done, "failed": progress.failed}
        else:
            waits = held.due_ms is not None or bool(held.line)
            about["status"] = "running" if held.id in holders else "waiting" if waits else "ready"
            about["attempt"] = held.number("attempt", 1)
    return {"revision": row.number("revision", 1), "definition": row.text("def"), "nodes": nodes}


__all__ = ["PAUSE", "Follower", "bundle_bytes", "commit_nodes", "definition_of", "graph_of", "start", "step_name"]
