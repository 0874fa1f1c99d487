"""What a graph run has in the store, for tests that nothing of it may stay."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from weft import Weft
from weft.ids import partition_of


async def closed(run: Any, eventually: Callable[..., Awaitable[Any]]) -> None:
    """Waits until what an ended run left is put away."""
    ns, p = run._app.engine().ns, partition_of(run.id)

    async def is_put_away() -> bool:
        return await ns.read("ZSCORE", ns.keys.timers(p), f"close:{run.id}", p=p) is None

    await eventually(is_put_away, 30)


async def remains(app: Weft, raw: Any) -> list[str]:
    """Returns keys of graph runs without an expiry, timers, tokens and lines: at rest there are none."""
    ns = app.engine().ns
    found: list[str] = []
    for key in raw.scan_iter(ns.keys.pattern(), count=1000):
        parsed = ns.keys.parse(key.decode())
        assert parsed is not None
        _, family, _ = parsed
        if family.name in (
            "run",
            "ledger",
            "arrivals",
            "context",
            "undo",
            "map",
            "items",
            "results",
            "blob",
            "tasklog",
        ):
            if raw.pttl(key) == -1:
                found.append(key.decode())
        elif family.name in ("timers", "line"):
            found += [f"{family.name} {member.decode()}" for member in raw.zrange(key, 0, -1)]
        elif family.name == "wf.tasks" and raw.xlen(key):
            found.append(f"{key.decode()} has {raw.xlen(key)} tokens")
        elif family.name == "controls":
            found += [f"control {name.decode()}" for name in raw.hkeys(key)]
    return found
