"""What operators set, in Redis: pauses, limits and strikes, under one version per partition."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

import msgspec

from weft.core.gates import Controls
from weft.errors import StaleControls, Unavailable
from weft.store.keys import TIMER_WAKE
from weft.store.namespace import Namespace

T = TypeVar("T")

#: Times a call is made again because the controls changed under it.
MAX_CHANGES = 50


async def read_controls(ns: Namespace, p: int) -> Controls:
    """Reads what is set in a partition; whoever calls scripts there must know it."""
    version, *flat = await ns.call("read_controls", p, {"controls": ns.keys.controls(p)}, {})
    entries = {name.decode(): msgspec.json.decode(value) for name, value in zip(flat[::2], flat[1::2], strict=True)}
    return Controls(version.decode(), entries)


async def set_control(
    ns: Namespace,
    p: int,
    name: str,
    value: dict[str, Any] | None,
    *,
    gates: Sequence[str],
    queues: Sequence[str],
    act: bytes = b"",
    by: str = "",
) -> bool:
    """Sets or lifts one thing; lines of those gates and workers of those queues look again. Returns whether it changed.

    `act` is what the audit is told.
    """
    wakes = [ns.keys.wake(p, word) for word in (TIMER_WAKE, *queues)]
    reply = await ns.call(
        "set_control",
        p,
        {"log": ns.keys.log(p), "controls": ns.keys.controls(p), "admit": ns.keys.admit(p), "wake": wakes},
        {"name": name, "value": b"" if value is None else msgspec.json.encode(value), "by": by, "act": act},
        [(gate,) for gate in gates],
    )
    return int(reply) == 1


async def informed(ns: Namespace, p: int, call: Callable[[], Awaitable[T]]) -> T:
    """Makes a call that depends on the controls; learns them and makes it again when they have changed since."""
    for _ in range(MAX_CHANGES):
        try:
            return await call()
        except StaleControls:
            ns.controls[p] = await read_controls(ns, p)
    raise Unavailable("what operators set changes faster than it can be read")
