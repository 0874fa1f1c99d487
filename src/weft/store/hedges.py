"""Items of maps that are run a second time, in Redis."""

from __future__ import annotations

from collections.abc import Sequence

from weft.core.effects import rival_of, run_of, step_of
from weft.core.gates import needed
from weft.store.keys import GROUP
from weft.store.namespace import Namespace
from weft.store.records import Records
from weft.store.runs import RunRow


async def hedge_items(ns: Namespace, p: int, step: str, items: Sequence[RunRow], *, by: str) -> list[str]:
    """Starts items of one map a second time; returns a word per item (see hedge_items.lua). Raises StaleControls."""
    keys, records, run = ns.keys, Records(ns, p), run_of(items[0].id)
    records.runs.of(keys.run(p, run))
    rows = []
    for item in items:
        copy, spec = rival_of(item.id), item.spec
        rows.append(
            (
                step_of(copy),
                item.text("open"),
                records.runs.of(keys.run(p, item.id)),
                records.runs.of(keys.run(p, copy)),
                records.tasks.of(keys.tasks(p, spec.queue, spec.priority)),
                records.wakes.of(keys.wake(p, spec.queue)),
                records.gates.refs(needed(spec, ns.controls[p], run=copy)),
                spec.priority,
                spec.fair,
            )
        )
    reply = await ns.call(
        "hedge_items",
        p,
        {**records.keys(), "map": keys.map(p, run, step), "ledger": [keys.ledger(p, run)]},
        {"controls": ns.controls[p].version, "by": by},
        rows,
    )
    return [word.decode() for word in reply]


async def read_running_ms(ns: Namespace, p: int, items: Sequence[RunRow]) -> dict[str, int]:
    """Returns for how many ms workers have had the tokens of items in hand; those that nobody has are left out."""
    out = [row for row in items if row.token]
    streams = [ns.keys.tasks(p, row.spec.queue, row.spec.priority) for row in out]
    commands = [("XPENDING", s, GROUP, row.token, row.token, 1) for s, row in zip(streams, out, strict=True)]
    replies = await ns.read_many(commands, p=p)
    return {
        row.id: int(reply[0][2])
        for row, reply in zip(out, replies, strict=True)
        if reply and not isinstance(reply, Exception)
    }
