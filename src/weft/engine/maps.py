"""Maps of graph runs: their items begin, their results are put together."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from weft.codec import decode_plain, encode_plain, join_packed
from weft.core.effects import (
    ENDS,
    ERRORS,
    Cursor,
    Effect,
    Given,
    Last,
    Mark,
    Open,
    Scatter,
    Shut,
    Watch,
    Weigh,
    route_spec,
)
from weft.core.failing import record_of
from weft.core.graph.compile import NodePlan
from weft.core.model import ERROR_DECODER, VALUE_DECODER, ErrorRecord, Value
from weft.core.published import Published
from weft.core.routing import Router, parse_step
from weft.core.scope import Iterations
from weft.engine import memos
from weft.errors import NotFound, PayloadTooLarge, WeftError
from weft.store.blobs import read_blob
from weft.store.graphs import MapRow, read_map, read_results, stage_items

if TYPE_CHECKING:
    from weft.engine.graphs import Follower, Known

#: Items of one map that may be open at once, whatever it allows.
MAX_OPEN = 1000
#: Failed items that the error of a map names.
MAX_CAUSES = 10
#: Items opened by one commit.
OPEN_BATCH = 250
#: Seconds after which a commit opens no more items: their arguments are evaluated where everything else of a worker runs.
MAX_SECONDS = 0.25

_pack = msgspec.msgpack.Encoder().encode
_NULL = _pack(None)


async def begin(follower: Follower, router: Router, run: str, step: str, items: Sequence[Any]) -> list[Effect]:
    """Begins a map: uploads its items, and opens the first of them."""
    node = router.plan.node(parse_step(router.plan, step)[0])
    await stage_items(follower.ns, follower.p, run, step, items)
    most = min(node.spec.max_parallel or MAX_OPEN, MAX_OPEN)
    timed = node.gather.kind == "deadline"
    effects: list[Effect] = [Scatter(step, len(items), most, node.gather.needed(len(items)), timed)]
    if hedge_ms := node.duration_ms("hedge"):
        effects.append(Watch(step, hedge_ms))
    if timed:
        effects.append(Open(step + ENDS, route_spec(router.published.address), str(node.gather.ms)))
    return effects + await _open_items(follower, router, run, step, 0, len(items), most, items)


async def refill(follower: Follower, published: Published, step: str, run: str, known: Known) -> list[Effect]:
    """Opens more items of a map that has room for them."""
    row = await read_map(follower.ns, follower.p, run, step)
    if row is None or row.at >= row.n or row.over:
        return [Last()]
    id, _ = parse_step(published.plan, step)
    scope = await follower.scope(published.plan, run, published.reads_of(id), known.input, known.tags)
    room = max(1, row.most - row.left)
    opened = await _open_items(follower, Router(published, scope), run, step, row.at, row.n, room, None)
    # A map that did not wait for all may have ended meanwhile: then this is the last step of the run.
    return [*opened, Last()]


async def _open_items(
    follower: Follower,
    router: Router,
    run: str,
    step: str,
    at: int,
    n: int,
    room: int,
    items: Sequence[Any] | None,
) -> list[Effect]:
    """Opens the next items of a map, as many as there is room for and one commit may open."""
    id, iterations = parse_step(router.plan, step)
    node, address = router.plan.node(id), router.published.address
    to = min(n, at + min(room, OPEN_BATCH))
    opens: list[Open] = []
    began = time.perf_counter()
    for index in range(at, to):
        if opens and time.perf_counter() - began > MAX_SECONDS:
            to = index  # costly arguments: the rest is for the next commit, and others have their turn before it
            break
        item = items[index] if items is not None else await follower.item(run, step, index)
        view = router.scope.view(router.plan, iterations, id, item=item, index=index)
        name = f"{step}#{index}"
        try:
            opens.append(router.open_of(name, node, view))
        except WeftError as error:
            # An item that cannot be asked for fails by itself: by a step that only tells so.
            failure = _pack(record_of(error))
            opens.append(Open(name, msgspec.structs.replace(route_spec(address), input=failure)))
    effects: list[Effect] = [*opens]
    found = await memos.recall(follower.ns, follower.p, opens, {})
    for place, data in found.items():
        effects[place] = Given(opens[place].step, _pack(Value(data)))
    more = to < n and to - at < room
    effects.append(Cursor(step, to, busy=more))
    if more:
        effects.append(Open(f"{step}++{to}", route_spec(address)))
    if found:
        effects.append(Weigh(step, to))
    return effects


async def gather(
    follower: Follower, router: Router, node: NodePlan, iterations: Iterations, run: str, step: str
) -> None:
    """Puts the results of a map together, in index order; what did not finish is null."""
    row = await read_map(follower.ns, follower.p, run, step)
    if row is None:
        raise NotFound(f"the map {step} of run {run} is gone")
    parts = [_NULL] * row.n
    errors: list[dict[str, Any]] = []
    for index, (status, value) in (await read_results(follower.ns, follower.p, run, step, row.n)).items():
        if status == "completed":
            given = VALUE_DECODER.decode(value)
            parts[index] = await read_blob(follower.ns, follower.p, run, given.blob) if given.blob else given.inline
        elif status == "failed":
            record = ERROR_DECODER.decode(value)
            errors.append({"index": index, "type": record.type, "message": record.message})
    failure: ErrorRecord | None = None
    if row.need and row.done < row.need:
        failure = _too_few(node, row, sorted(errors, key=lambda error: error["index"]))
    try:
        whole = join_packed(parts, what=f"the output of map {node.id}")
    except PayloadTooLarge as error:
        failure = failure or record_of(error)
    if failure is not None:
        router.fail_node(node.id, iterations, failure)
        router.go(())
    else:
        errors.sort(key=lambda error: error["index"])
        router.note(node.id, "completed", decode_plain(whole), errors or None)
        router.effects.append(Mark(node.id, step, "completed", _pack(Value(whole))))
        if errors or iterations:
            # `errors.<node>` of a map, which has an output all the same; in a loop it replaces that of the last iteration.
            router.effects.append(Mark(node.id + ERRORS, step, "completed", _pack(Value(encode_plain(errors)))))
        router.ended(node.id, iterations)
    router.effects.append(Shut(step))
    if node.gather.kind == "deadline":
        router.effects.append(Shut(step + ENDS))
    if node.spec.hedge is not None:
        router.effects.append(Watch(step, 0))


def _too_few(node: NodePlan, row: MapRow, errors: list[dict[str, Any]]) -> ErrorRecord:
    """Returns the failure of a map too few of whose items completed, with the errors of the first that failed."""
    text = f"map {node.id} needed {row.need} of {row.n} items, and only {row.done} completed"
    if errors:
        first = errors[0]
        text += f"; item {first['index']} failed with {first['type']}: {first['message']}"
    causes = [
        {"type": error["type"], "message": f"item {error['index']}: {error['message']}"}
        for error in errors[:MAX_CAUSES]
    ]
    return ErrorRecord("GatherFailed", text, causes=causes, code="gather_failed")
