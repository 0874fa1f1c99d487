"""What was observed of work elsewhere comes back with a rebuilt store: as much of it as the store keeps."""

from __future__ import annotations

from weft.engine.cold import Cold
from weft.engine.status import read_bounds
from weft.store.recovery import Closed
from weft.store.status import restore_statuses


async def reobserve(closed: Closed, p: int, cold: Cold, *, now_ms: int, dry_run: bool = False) -> int:
    """Writes the newest observations of a partition, with the event ids they came by; returns how many."""
    from weft.archive.statuses import read_feed, read_newest

    bounds, namespace = read_bounds(), closed.keys.namespace
    since_ms = now_ms - bounds.keep_ms
    rows = await read_newest(cold.database, namespace, p, since_ms=since_ms, limit=bounds.feed)
    if rows and not dry_run:
        earlier = await read_feed(cold.database, namespace, p, after=(0, 0), before=rows[0][0], limit=1)
        await restore_statuses(closed, p, rows, bounds, now_ms=now_ms, whole=not earlier)
    return len(rows)
