"""Patched graph runs in Redis."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

from weft.core.effects import Open
from weft.core.gates import run_gate
from weft.store.graphs import Records
from weft.store.namespace import Namespace


async def patch_graph(
    ns: Namespace,
    p: int,
    run: str,
    *,
    definition: bytes,
    revision: int,
    open_steps: Mapping[str, int],
    withdraw: Sequence[str],
    reset: Sequence[str],
    opens: Sequence[Open],
    payload: bytes,
    by: str,
) -> str:
    """Gives a run another definition; returns a word (see patch_graph.lua). Raises NotFound, StaleControls."""
    keys, records = ns.keys, Records(ns, p)
    digest = hashlib.sha256(definition).hexdigest()
    records.runs.of(keys.run(p, run))
    records.gates.line(run_gate(run))
    for step in withdraw:
        records.withdraw(run, step)
    for join in reset:
        records.reset(join)
    for effect in opens:
        records.effect(run, digest, 0, effect)
    reply = await ns.call(
        "patch_graph",
        p,
        {
            **records.keys(),
            "ir": keys.ir(p, digest),
            "ledger": [keys.ledger(p, run)],
            "arrivals": [keys.arrivals(p, run)],
            "context": [keys.context(p, run)],
        },
        {
            "controls": ns.controls[p].version,
            "by": by,
            "definition": definition,
            "revision": revision,
            "seen": " ".join(f"{step} {opened}" for step, opened in open_steps.items()),
            "payload": payload,
        },
        [row[:10] for row in records.rows],
    )
    return str(reply.decode())
