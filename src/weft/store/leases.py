"""Leases of housekeeping services: one session of the fleet runs each service of a partition."""

from __future__ import annotations

from weft.store.namespace import Namespace


async def take_lease(ns: Namespace, p: int, service: str, *, owner: str, lease_ms: int) -> bool:
    """Takes or renews a lease; returns whether the caller holds it."""
    held = await ns.call("take_lease", p, {"lock": ns.keys.lock(p, service)}, {"owner": owner, "lease_ms": lease_ms})
    return int(held) == 1


async def drop_lease(ns: Namespace, p: int, service: str, *, owner: str) -> None:
    """Gives a lease back so that another session need not wait for it to run out."""
    await ns.call("drop_lease", p, {"lock": ns.keys.lock(p, service)}, {"owner": owner})
