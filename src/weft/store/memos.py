"""What steps of graphs gave, kept for steps like them: read, walk, forget. The commit of the step that made it writes it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

from redis.exceptions import RedisError

from weft.store.faults import translate
from weft.store.namespace import Namespace


async def read_memos(ns: Namespace, p: int, places: Sequence[tuple[str, str]]) -> list[bytes | None]:
    """Returns what is kept under (`<graph>.<node>`, digest); None where there is nothing."""
    replies = await ns.read_many([("GET", ns.keys.cache(p, *place)) for place in places], p=p)
    return [None if reply is None or isinstance(reply, Exception) else bytes(reply) for reply in replies]


async def walk_memos(
    ns: Namespace, p: int, pattern: str, *, count: int = 500
) -> AsyncIterator[list[tuple[str, str, int]]]:
    """Yields (`<graph>.<node>`, digest, ms left) of what is kept, some at a time. An entry may come twice."""
    cursor = 0
    while True:
        try:
            # A command without a key: on a Cluster it must be told the node.
            cursor, found = await ns.on_node(p, "SCAN", cursor, "MATCH", ns.keys.cache(p, pattern, "*"), "COUNT", count)
        except (RedisError, OSError) as error:
            raise translate(error) from error
        keys = [key.decode() for key in found]
        left = await ns.read_many([("PTTL", key) for key in keys], p=p)
        yield [(*key.rsplit(":", 2)[1:], int(ms)) for key, ms in zip(keys, left, strict=True) if int(ms) > 0]
        if not int(cursor):
            return


async def drop_memos(ns: Namespace, p: int, places: Sequence[tuple[str, str]]) -> int:
    """Forgets what is kept; returns how many there were."""
    replies = await ns.read_many([("UNLINK", ns.keys.cache(p, *place)) for place in places], p=p)
    return sum(int(reply) for reply in replies)
