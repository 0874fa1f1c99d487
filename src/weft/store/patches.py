"""Patched graph runs in Redis."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence

from weft.core.effects import Open
from weft.store.namespace import Namespace
from weft.store.records import Records


async def patch_graph(
    ns: Namespace,
    p: int,
    run: str,
    *,
    definition: bytes,
    revision: int,
    open_steps: Mapping[str, int],
    withdraw: Mapping[str, str],
    reset: Sequence[str],
    opens: Sequence[Open],
    payload: bytes,
    by: str,
    by_steps: int = 0,
    below: Iterable[str] = (),
) -> str:
    """Gives a run another definition; returns a word (see patch_graph.lua). Raises NotFound, StaleControls.

    `by_steps`: which patch by a step this is; 0: it is by somebody outside. `withdraw`: steps that are taken back, and the
    gates they wait at; `below`: digests of definitions that its subgraphs follow.
    """
    keys, records = ns.keys, Records(ns, p)
    digest = hashlib.sha256(definition).hexdigest()
    records.runs.of(keys.run(p, run))
    for step, gate in withdraw.items():
        records.withdraw(run, step, gate)
    for join in reset:
        records.reset(join)
    for effect in opens:
        records.effect(run, digest, 0, effect)
    reply = await ns.call(
        "patch_graph",
        p,
        {
            **records.keys(),
            "definitions": keys.definitions(p),
            "ir": [keys.ir(p, one) for one in dict.fromkeys((digest, *below))],
            "ledger": [keys.ledger(p, run)],
            "arrivals": [keys.arrivals(p, run)],
            "context": [keys.context(p, run)],
        },
        {
            "controls": ns.controls[p].version,
            "by": by,
            "by_steps": by_steps,
            "definition": definition,
            "revision": revision,
            "seen": " ".join(f"{step} {opened}" for step, opened in open_steps.items()),
            "payload": payload,
        },
        [row[:10] for row in records.rows],
    )
    return str(reply.decode())
