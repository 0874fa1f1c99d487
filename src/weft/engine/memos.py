"""The verbs on what steps gave and others may take: recall where a step would be opened, list, forget."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import msgspec

from weft.codec import decode_plain
from weft.core.effects import Mark, Open, Remember
from weft.core.graph.compile import NodePlan
from weft.core.memo import MEMO_DECODER, Memo
from weft.core.model import VALUE_DECODER, Outcome, Value
from weft.core.routing import Published, Router, parse_step
from weft.engine.engine import Engine
from weft.engine.runs import result_at
from weft.errors import InvalidOption, ResultExpired, WeftError
from weft.store.memos import drop_memos, read_memos, walk_memos
from weft.store.namespace import Namespace

if TYPE_CHECKING:
    from weft.engine.graphs import Follower

#: Bytes of an output that is kept for others; a larger one is made anew each time.
MAX_BYTES = 256 * 1024


class MemoInfo(msgspec.Struct, frozen=True):
    """An output that is kept for steps like the one that gave it."""

    graph: str
    node: str
    #: Digest of what the step was asked, and what `cache.key` gave (JSON); empty when the arguments are the key.
    digest: str
    key: str
    run_id: str
    made_at: datetime
    expires_at: datetime
    size: int


def place_of(memo: str) -> tuple[str, str]:
    """Returns where a memo is kept: `<graph>.<node>` and digest."""
    node, digest, _ = memo.split(":", 2)
    return node, digest


async def recall(ns: Namespace, p: int, opens: Sequence[Open], fresh: Mapping[str, bytes]) -> dict[int, bytes]:
    """Returns, by position, the outputs of steps that need not be made again; `fresh` are those not in the store yet."""
    found = {i: fresh[effect.spec.memo] for i, effect in enumerate(opens) if effect.spec.memo in fresh}
    places = [i for i, effect in enumerate(opens) if effect.spec.memo and i not in found]
    kept = await read_memos(ns, p, [place_of(opens[i].spec.memo) for i in places]) if places else []
    stored = zip(places, kept, strict=True)
    return found | {i: MEMO_DECODER.decode(data).data for i, data in stored if data is not None}


async def pass_over(follower: Follower, router: Router, run: str) -> bool:
    """Goes on behind nodes whose output is kept from an earlier step; tells whether there were any."""
    opens = [effect for effect in router.effects if isinstance(effect, Open) and effect.spec.memo]
    opens = [effect for effect in opens if "#" not in effect.step and effect.step not in router.asked]
    router.asked |= {effect.step for effect in opens}
    found = await recall(follower.ns, follower.p, opens, router.kept)
    for at, data in found.items():
        effect = opens[at]
        id, iterations = parse_step(router.plan, effect.step)
        router.effects.remove(effect)
        packed = msgspec.msgpack.encode(Value(data))
        router.effects.append(Mark(id, effect.step, "completed", packed, cached=True))
        router.scope.add(await follower.scope(router.plan, run, router.published.reads_behind(id), None, {}))
        router.note(id, "completed", decode_plain(data))
        router.ended(id, iterations)
    return bool(found)


def kept_by(outcome: Outcome, effects: Sequence[object]) -> dict[str, bytes]:
    """Returns what the commit of a step keeps, which is not in the store yet: in a loop the next step may be the same again."""
    kept = next((effect for effect in effects if isinstance(effect, Remember)), None)
    return {} if kept is None else {outcome.token.spec.memo: MEMO_DECODER.decode(kept.data).data}


async def remember(ns: Namespace, p: int, run: str, node: NodePlan, outcome: Outcome) -> list[Remember]:
    """Returns what the commit of a step keeps for others: its output, unless that is too large."""
    memo, ttl_ms = outcome.token.spec.memo, node.duration_ms("cache.ttl")
    if not memo or not ttl_ms or VALUE_DECODER.decode(outcome.value).size > MAX_BYTES:
        return []
    try:
        data = await result_at(ns, p, run, outcome.value)
    except ResultExpired:
        return []
    entry = Memo(run, outcome.started_ms, memo.split(":", 2)[2], data)
    return [Remember(*place_of(memo), msgspec.msgpack.encode(entry), ttl_ms)]


async def take_back(follower: Follower, published: Published, run: str, step: str, input: Any) -> None:
    """Forgets what a step gave that is about to be undone: nobody is to take it from now on.

    Which memo that is follows from what the step was asked, as things stand now. In a loop another iteration may have been
    asked something else since: then what the earlier one gave is kept until its time is over.
    """
    id, iterations = parse_step(published.plan, step)
    node = published.plan.node(id)
    if node.spec.cache is None:
        return
    scope = await follower.scope(published.plan, run, published.reads_of(id), input, {})
    extra: dict[str, Any] = {}
    if "#" in step:
        extra = {"index": int(step.partition("#")[2])}
        extra["item"] = await follower.item(run, step.partition("#")[0], extra["index"])
    try:
        spec = Router(published, scope).spec_of(node, scope.view(published.plan, iterations, id, **extra))
    except WeftError as error:
        if error.retryable:
            raise
        return
    place = place_of(spec.memo)
    (kept,) = await read_memos(follower.ns, follower.p, [place])
    if kept is not None and MEMO_DECODER.decode(kept).run == run:
        await drop_memos(follower.ns, follower.p, [place])


async def entries(
    engine: Engine, *, graph: str | None = None, node: str | None = None, key: str | None = None
) -> AsyncIterator[tuple[int, MemoInfo]]:
    """Yields what is kept, with its partition. `key` is a digest, or what `cache.key` gave."""
    if node is not None and graph is None:
        raise InvalidOption("node names a node of a graph: name the graph too", option="node")
    await engine.open()
    pattern = f"{graph or '*'}.{node or '*'}"
    for p in range(engine.ns.partitions):
        seen: set[tuple[str, str]] = set()
        async for page in walk_memos(engine.ns, p, pattern):
            fresh = [found for found in page if found[:2] not in seen and (graph is None or _graph(found[0]) == graph)]
            seen |= {found[:2] for found in fresh}
            kept = await read_memos(engine.ns, p, [found[:2] for found in fresh])
            for (place, digest, left_ms), data in zip(fresh, kept, strict=True):
                if data is not None:
                    info = _describe(place, digest, left_ms, data)
                    if key is None or key in (digest, info.key, info.key.strip('"')):
                        yield p, info


async def forget(engine: Engine, *, graph: str | None = None, node: str | None = None, key: str | None = None) -> int:
    """Forgets what is kept, by graph, node and key; returns how many outputs that were. What runs already is not changed."""
    meant: dict[int, list[tuple[str, str]]] = {}
    async for p, info in entries(engine, graph=graph, node=node, key=key):
        meant.setdefault(p, []).append((f"{info.graph}.{info.node}", info.digest))
    return sum([await drop_memos(engine.ns, p, places) for p, places in meant.items()])


def _graph(place: str) -> str:
    return place.rpartition(".")[0]


def _describe(place: str, digest: str, left_ms: int, data: bytes) -> MemoInfo:
    memo = MEMO_DECODER.decode(data)
    graph, _, node = place.rpartition(".")
    now_ms = datetime.now(UTC).timestamp() * 1000
    expires = datetime.fromtimestamp((now_ms + left_ms) / 1000, UTC)
    made = datetime.fromtimestamp(memo.at_ms / 1000, UTC)
    return MemoInfo(graph, node, digest, memo.key, memo.run, made, expires, len(memo.data))
