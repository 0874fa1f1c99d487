"""What a failing graph run has to undo, in Redis."""

from __future__ import annotations

from weft.store.namespace import Namespace


async def read_undoable(ns: Namespace, p: int, run: str, n: int) -> list[tuple[str, bytes]]:
    """Returns the newest steps that can be undone, the newest first, each with what it gave."""
    found = await ns.read("LRANGE", ns.keys.undo(p, run), -n, -1, p=p)
    return [(step.decode(), value) for step, _, value in (entry.partition(b"\n") for entry in reversed(found))]


async def read_failing(ns: Namespace, p: int, run: str) -> bytes | None:
    """Returns the error with which a run will end once what it did is undone."""
    found = await ns.read("HGET", ns.keys.run(p, run), "failing", p=p)
    return None if found is None else bytes(found)
