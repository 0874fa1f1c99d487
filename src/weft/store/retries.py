"""Ended graph runs that open again, in Redis."""

from __future__ import annotations

from collections.abc import Sequence

from weft.core.effects import Open
from weft.store.namespace import Namespace
from weft.store.records import Records


async def retry_graph(
    ns: Namespace,
    p: int,
    run: str,
    *,
    seq: int,
    deadline_ms: int,
    forget: Sequence[str],
    reset: Sequence[str],
    opens: Open,
    blobs: Sequence[str],
    payload: bytes,
    by: str,
) -> str:
    """Opens an ended run again; returns a word (see retry_graph.lua). Raises NotFound, StaleControls."""
    keys, records = ns.keys, Records(ns, p)
    records.runs.of(keys.run(p, run))
    for node in forget:
        records.forget(node)
    for join in reset:
        records.reset(join)
    records.effect(run, opens.spec.definition, 0, opens)
    reply = await ns.call(
        "retry_graph",
        p,
        {
            **records.keys(),
            "ledger": [keys.ledger(p, run)],
            "arrivals": [keys.arrivals(p, run)],
            "context": [keys.context(p, run)],
            "belongings": [keys.belongings(p, run)],
            "signals": [keys.signals(p, run)],
            "undo": [keys.undo(p, run)],
            "blob": [keys.blob(p, run, digest) for digest in blobs],
        },
        {
            "controls": ns.controls[p].version,
            "by": by,
            "seq": seq,
            "deadline_ms": deadline_ms,
            "payload": payload,
        },
        [row[:10] for row in records.rows],
    )
    return str(reply.decode())


async def read_joins(ns: Namespace, p: int, run: str) -> list[str]:
    """Returns the joins of a run that somebody has come to, iterations included."""
    return [name.decode() for name in await ns.read("HKEYS", ns.keys.arrivals(p, run), p=p)]


async def drop_maps(ns: Namespace, p: int, keys: Sequence[str]) -> None:
    """Deletes what maps of an ended run left, so that they can begin anew."""
    for at in range(0, len(keys), 500):
        await ns.read_many([("UNLINK", key) for key in keys[at : at + 500]], p=p)
