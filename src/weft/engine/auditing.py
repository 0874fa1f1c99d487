"""The verbs on the audit: list, verify. What people did reaches it by the log, or is done in the database itself."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime

from weft.core.acts import AuditPage, Verdict
from weft.engine.coldruns import open_archive
from weft.engine.engine import Engine
from weft.errors import InvalidOption

#: Entries that a page has at most: its cursor leads to the rest.
MAX_PAGE = 100_000

_CURSOR = re.compile(r"(\d{1,18})\.(-?\d{1,9})\.(\d{1,18})")
_ANCHOR = re.compile(r"(-?\d{1,9}):(\d{1,18}):([0-9a-f]{64})")


async def list_audit(
    engine: Engine,
    *,
    actor: str | None,
    action: str | None,
    object: str | None,
    run: str | None,
    since: datetime | None,
    until: datetime | None,
    cursor: str,
    limit: int,
) -> AuditPage:
    """Returns entries, the newest first."""
    if isinstance(limit, bool) or not isinstance(limit, int) or limit < 1:
        raise InvalidOption(f"limit must be a whole number from 1, not {limit!r}", option="limit")
    found = _CURSOR.fullmatch(cursor) if isinstance(cursor, str) and cursor else None
    if cursor and found is None:
        raise InvalidOption(f"cursor: {str(cursor)[:60]!r} is not what an earlier page gave", option="cursor")
    since_ms, until_ms = _ms(since, "since"), _ms(until, "until")
    if not await open_archive(engine, "acts"):
        return AuditPage([], "")
    from weft.archive.acts import Sought, read

    before = None if found is None else (int(found[1]), int(found[2]), int(found[3]))
    sought = Sought(actor, action, object, run, since_ms, until_ms, before)
    limit = min(limit, MAX_PAGE)
    # One more than asked for tells whether there is a next page.
    rows = await read(engine.cold.database, engine.ns.keys.namespace, sought, limit=limit + 1)
    if len(rows) <= limit:
        return AuditPage([entry for _, entry in rows], "")
    at_ms, last = rows[limit - 1]
    return AuditPage([entry for _, entry in rows[:limit]], f"{at_ms}.{last.id.replace(':', '.')}")


async def verify(engine: Engine, anchors: Sequence[str]) -> Verdict:
    """Checks every chain of the audit, and that entries which were noted elsewhere are still there."""
    noted: list[tuple[int, int, str]] = []
    for anchor in [anchors] if isinstance(anchors, str) else anchors:
        found = _ANCHOR.fullmatch(anchor) if isinstance(anchor, str) else None
        if found is None:
            raise InvalidOption(
                f"anchors: {str(anchor)[:90]!r} is not what an earlier check gave, <chain>:<number>:<hash>",
                option="anchors",
            )
        noted.append((int(found[1]), int(found[2]), found[3]))
    if not await open_archive(engine, "acts"):
        missing = [f"{chain}:{number}, which was noted, is missing" for chain, number, _ in noted]
        return Verdict(not missing, 0, [], missing)
    from weft.archive.acts import verify as check

    return await check(engine.cold.database, engine.ns.keys.namespace, noted)


def _ms(value: datetime | None, what: str) -> int | None:
    if value is None:
        return None
    if not isinstance(value, datetime) or value.tzinfo is None:
        raise InvalidOption(f"{what} must be a datetime with a timezone, not {value!r:.80}", option=what)
    return int(value.timestamp() * 1000)
