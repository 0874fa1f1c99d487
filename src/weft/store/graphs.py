"""Graph runs in Redis: start, commit, read. One function per script, same verb and noun."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from weft.core.effects import CHUNK, Effect, NodeEnd, Open
from weft.core.given import Gave, parse_given
from weft.store.blobs import STAGING_MS
from weft.store.faults import translate
from weft.store.keys import GROUP
from weft.store.lone import begins_alone, parse_lone
from weft.store.namespace import Namespace
from weft.store.reads import Reads
from weft.store.records import Records
from weft.store.runs import NewRun
from weft.store.scripts import Arg
from weft.store.straight import commit_straight, is_straight
from weft.store.ways import commit_both_ways


async def start_graph(
    ns: Namespace,
    p: int,
    new: NewRun,
    effects: Sequence[Effect],
    *,
    definition: bytes,
    result: bytes,
    by: str,
    watch: str = "",
    blobs: Sequence[str] = (),
    parent: tuple[str, str] = ("", ""),
    below: Iterable[str] = (),
) -> str:
    """Starts a graph run; returns a word (see start_graph.lua). Raises StaleControls.

    `blobs` are staged values that it begins with; `parent` is a step, and its ledger; `below` are the
    digests of definitions that its subgraphs follow.
    """
    keys, records, spec = ns.keys, Records(ns, p), new.spec
    records.runs.of(keys.run(p, new.id))
    for effect in effects:
        records.effect(new.id, spec.definition, spec.keep_ms, effect)
    above = records.runs.of(keys.run(p, parent[0])) if parent[0] else 0
    reply = await ns.call(
        "start_graph",
        p,
        {
            **records.keys(),
            "definitions": keys.definitions(p),
            "ir": [keys.ir(p, digest) for digest in dict.fromkeys((spec.definition, *below))],
            "ledger": [keys.ledger(p, new.id)],
            "arrivals": [keys.arrivals(p, new.id)],
            "context": [keys.context(p, new.id)],
            "belongings": [keys.belongings(p, new.id)],
            "blob": [keys.blob(p, new.id, digest) for digest in dict.fromkeys([spec.blob, *blobs]) if digest],
            "idempotency": [keys.idempotency(p, new.key_digest)] if new.key_digest else [],
        },
        {
            "controls": ns.controls[p].version,
            "by": by,
            "spec": new.packed,
            "definition": definition,
            "deadline_ms": spec.deadline_ms,
            "keep_ms": spec.keep_ms,
            "digest": new.payload_digest,
            "window_ms": new.window_ms,
            "watch": watch,
            "parent": above,
            "parent_open": parent[1],
            "result": result,
            "lone": int(begins_alone(effects, records.rows)),
        },
        [row[:10] for row in records.rows],
    )
    return str(reply.decode())


async def commit_nodes(
    ns: Namespace, p: int, ends: Sequence[NodeEnd], *, session: str, caller: Any = None
) -> list[str]:
    """Commits the ends of steps of graph runs; returns a word per end. Raises StaleControls.

    Those that may go the short way do, in a call of their own; both are under way at once.
    """
    short = [i for i, end in enumerate(ends) if is_straight(ns, p, end)]
    if short and len(short) < len(ends):
        # Ends of the same run stay in order.
        straight = set(short)
        others = {end.run for i, end in enumerate(ends) if i not in straight}
        short = [i for i in short if ends[i].run not in others]
    about: dict[str, Any] = {"session": session, "caller": caller}
    return await commit_both_ways(
        ends,
        short,
        lambda some: commit_straight(ns, p, some, **about),
        lambda some: _commit_wide(ns, p, some, **about),
    )


async def _commit_wide(
    ns: Namespace, p: int, ends: Sequence[NodeEnd], *, session: str, caller: Any = None
) -> list[str]:
    keys, records = ns.keys, Records(ns, p)
    # Where steps are only opened, only ledger and context are written: most runs need no more keys. The others come first.
    wide = dict.fromkeys([end.run for end in ends if end.blob or any(type(one) is not Open for one in end.effects)])
    graphs = {run: number for number, run in enumerate(dict.fromkeys([*wide, *[end.run for end in ends]]), start=1)}
    for run in graphs:
        records.runs.of(keys.run(p, run))
    at = []
    for end in ends:
        at.append(len(records.rows))
        records.end(graphs[end.run], end)
    reply = await ns.call(
        "commit_nodes",
        p,
        {
            **records.keys(),
            "repair": keys.repair(p),
            "dlq": keys.dlq(p),
            "ledger": [keys.ledger(p, run) for run in graphs],
            "arrivals": [keys.arrivals(p, run) for run in wide],
            "context": [keys.context(p, run) for run in graphs],
            "belongings": [keys.belongings(p, run) for run in wide],
            "undo": [keys.undo(p, run) for run in wide],
            "map": records.maps,
            "items": records.items,
            "results": records.results,
            "blob": records.blobs,
            "tasklog": records.lists,
            "cache": records.caches,
        },
        {"controls": ns.controls[p].version, "by": session, "group": GROUP},
        records.rows,
        caller=caller,
    )
    return [reply[i].decode() for i in at]


async def read_definition(ns: Namespace, p: int, digest: str) -> bytes | None:
    """Returns a definition's JSON."""
    data = await ns.read("GET", ns.keys.ir(p, digest), p=p)
    return None if data is None else bytes(data)


async def read_context(ns: Namespace | Reads, p: int, run: str, nodes: Sequence[str]) -> dict[str, Gave]:
    """Returns what some nodes of a run gave; those that have not ended are left out."""
    if not nodes:
        return {}
    replies = await ns.read("HMGET", ns.keys.context(p, run), *nodes, p=p)
    return {node: parse_given(reply) for node, reply in zip(nodes, replies, strict=True) if reply is not None}


async def read_whole_context(ns: Namespace, p: int, run: str) -> dict[str, Gave]:
    """Returns what all nodes of a run gave so far."""
    flat = await ns.read("HGETALL", ns.keys.context(p, run), p=p)
    return {flat[i].decode(): parse_given(flat[i + 1]) for i in range(0, len(flat), 2)}


async def read_open_steps(ns: Namespace | Reads, p: int, run: str) -> dict[str, int]:
    """Returns the open steps of a run and when they opened (ms)."""
    keys = ns.keys
    # In this order: a lone step may get a place in the ledger meanwhile, never the other way round.
    lone, flat = await ns.read_many([("HGET", keys.run(p, run), "lone"), ("HGETALL", keys.ledger(p, run))], p=p)
    if isinstance(flat, Exception):
        raise translate(flat)
    found = {flat[i].decode(): int(flat[i + 1]) for i in range(0, len(flat), 2)}
    if isinstance(lone, bytes):
        step, about = parse_lone(lone)
        found.setdefault(step, int(about["born"]))
    return found


async def read_arrivals(ns: Namespace, p: int, run: str, join: str) -> dict[str, str]:
    """Returns who has come to a join, and as what: `+`, `-` or `!`."""
    text = await ns.read("HGET", ns.keys.arrivals(p, run), join, p=p)
    words = text.decode().removeprefix("= ").split() if text else []
    return {word[:-1]: word[-1] for word in words}


@dataclass(slots=True)
class MapRow:
    """How far a map has come."""

    n: int
    most: int
    need: int
    at: int
    done: int
    failed: int
    #: Whether its results are put together, or were.
    over: int = 0
    #: How many items were started a second time.
    copies: int = 0
    #: How many items have their value from an earlier step.
    cached: int = 0

    @property
    def left(self) -> int:
        """How many items are open."""
        return self.at - self.done - self.failed


async def read_map(ns: Namespace, p: int, run: str, step: str) -> MapRow | None:
    fields = ("n", "most", "need", "at", "done", "failed", "over", "copies", "cached")
    reply = await ns.read("HMGET", ns.keys.map(p, run, step), *fields, p=p)
    return None if reply[0] is None else MapRow(*(int(value or 0) for value in reply))


async def read_open_items(ns: Namespace, p: int, run: str, step: str, at: int, *, limit: int) -> list[int]:
    """Returns the first items of a map that were opened (up to `at`) and have not ended; looks at a few thousand at most."""
    chunks = range((at + CHUNK - 1) // CHUNK)[-16:]
    replies = await ns.read_many([("HKEYS", ns.keys.results(p, run, step, chunk)) for chunk in chunks], p=p)
    ended = {int(index) for reply in replies if isinstance(reply, list) for index in reply}
    first = chunks[0] * CHUNK if chunks else 0
    return [index for index in range(first, at) if index not in ended][:limit]


async def stage_items(ns: Namespace, p: int, run: str, step: str, items: Sequence[Any]) -> None:
    """Uploads the items of a map before the script that begins it, which keeps them. Repeating it changes nothing."""
    pack = msgspec.msgpack.encode
    chunks: list[tuple[Arg, ...]] = [(at // CHUNK, pack(items[at : at + CHUNK])) for at in range(0, len(items), CHUNK)]
    keys = {"items": ns.keys.items(p, run, step)}
    for at in range(0, len(chunks), 16):
        await ns.call("stage_items", p, keys, {"staging_ms": STAGING_MS}, chunks[at : at + 16])


async def read_items(ns: Namespace, p: int, run: str, step: str, chunk: int) -> list[Any]:
    data = await ns.read("HGET", ns.keys.items(p, run, step), chunk, p=p)
    return [] if data is None else list(msgspec.msgpack.decode(data))


async def read_results(ns: Namespace, p: int, run: str, step: str, n: int) -> dict[int, tuple[str, bytes]]:
    """Returns what the items of a map gave, by index: status and value."""
    found: dict[int, tuple[str, bytes]] = {}
    chunks = range((n + CHUNK - 1) // CHUNK)
    for at in range(0, len(chunks), 16):
        keys = [("HGETALL", ns.keys.results(p, run, step, chunk)) for chunk in chunks[at : at + 16]]
        for flat in await ns.read_many(keys, p=p):
            for i in range(0, len(flat), 2):
                status, _, value = flat[i + 1].partition(b"\n")
                found[int(flat[i])] = (status.decode(), value)
    return found


async def read_belongings(ns: Namespace, p: int, run: str) -> AsyncIterator[list[str]]:
    """Yields what a run has besides its own keys, page by page; a member may come twice."""
    cursor = 0
    while True:
        cursor, found = await ns.read("SSCAN", ns.keys.belongings(p, run), cursor, "COUNT", 500, p=p)
        yield [member.decode() for member in found]
        if not int(cursor):
            return


async def expire(ns: Namespace, p: int, keys: Sequence[str], *, keep_ms: int) -> None:
    """Lets keys of an ended run expire with it."""
    await ns.read_many([("PEXPIRE", key, keep_ms) for key in keys], p=p)


async def put_away(ns: Namespace, p: int, run: str) -> None:
    """Ends the care for an ended run: no step of it is open any more."""
    await ns.read_many([("DEL", ns.keys.ledger(p, run)), ("ZREM", ns.keys.timers(p), f"close:{run}")], p=p)


async def read_result_indexes(ns: Namespace, p: int, run: str, step: str, n: int) -> set[int]:
    """Returns which of the first n items of a map have given something."""
    found: set[int] = set()
    chunks = range((n + CHUNK - 1) // CHUNK)
    for at in range(0, len(chunks), 64):
        keys = [("HKEYS", ns.keys.results(p, run, step, chunk)) for chunk in chunks[at : at + 64]]
        for indexes in await ns.read_many(keys, p=p):
            found.update(int(index) for index in indexes)
    return found
