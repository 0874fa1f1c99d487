"""Stored definitions of graphs in Redis: which there are, and since when nobody needs them."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from weft.store.namespace import Namespace

#: What stands for a definition that is needed.
NEEDED = "0"


async def keep_definitions(ns: Namespace, p: int, definitions: Mapping[str, bytes]) -> None:
    """Stores definitions by their digest. Repeating it changes nothing."""
    if definitions:
        await mark_definitions(ns, p, definitions, NEEDED)
        await ns.read_many([("SET", ns.keys.ir(p, digest), data, "NX") for digest, data in definitions.items()], p=p)


async def read_marks(ns: Namespace, p: int) -> dict[str, str]:
    """Returns all stored definitions, and since when (ms) nobody needs each; `0`: it is needed."""
    flat = await ns.read("HGETALL", ns.keys.definitions(p), p=p)
    return {flat[i].decode(): flat[i + 1].decode() for i in range(0, len(flat), 2)}


async def mark_definitions(ns: Namespace, p: int, digests: Collection[str], mark: str) -> None:
    """Notes of definitions that they are needed, or since when they are not."""
    if digests:
        await ns.read("HSET", ns.keys.definitions(p), *(part for one in digests for part in (one, mark)), p=p)


async def drop_definitions(ns: Namespace, p: int, marks: Mapping[str, str]) -> list[str]:
    """Removes definitions whose mark is still the one that was seen; returns a word per definition."""
    if not marks:
        return []
    keys = {"definitions": ns.keys.definitions(p), "ir": [ns.keys.ir(p, digest) for digest in marks]}
    reply = await ns.call("drop_definitions", p, keys, {}, list(marks.items()))
    return [word.decode() for word in reply]
