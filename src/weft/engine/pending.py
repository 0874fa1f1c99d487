"""Lists approvals that nobody has decided, the oldest first, page by page.

Pages go by when an approval was opened, not by place: what is opened or decided between two of them shifts nothing. What is
open all the while is listed once; one that its retried run asks anew stands where it was asked anew. Only the hot store is
asked: it has whatever is open.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Sequence

from weft.core.approvals import ApprovalPage, Record, describe
from weft.engine.engine import Engine
from weft.errors import InvalidOption
from weft.store.approvals import read_approvals, walk_pending
from weft.store.namespace import Namespace

#: Approvals read in one round trip: what each shows comes along.
PAGE = 100

_CURSOR = re.compile(r"(\d{1,18})\.(\S{1,200})")


async def list_pending(
    engine: Engine, *, people: Sequence[str], run: str | None, limit: int, cursor: str = ""
) -> ApprovalPage:
    """Returns those that `people` (or roles) may decide, behind a cursor that an earlier page gave."""
    after = _read_cursor(cursor)
    await engine.open()
    found: list[Record] = []
    for p in range(engine.ns.partitions):
        mine: list[Record] = []
        async for record in _walk(engine.ns, p, after, run):
            approvers = record.state.approvers
            if not people or not approvers or any(name in approvers for name in people):
                mine.append(record)
                if len(mine) > limit:  # one more than is wanted: whether there are more
                    break
        found += mine
    found.sort(key=_place)
    page = ApprovalPage(map(describe, found[:limit]))
    if len(found) > limit:
        page.cursor = "{}.{}".format(*_place(found[limit - 1]))
    return page


async def _walk(ns: Namespace, p: int, after: tuple[int, str], run: str | None) -> AsyncIterator[Record]:
    async for places in walk_pending(ns, p, oldest_ms=after[0], page=PAGE):
        wanted = {id: ms for ms, id in places if (ms, id) > after and (run is None or id.partition("/")[0] == run)}
        for record in await read_approvals(ns, p, list(wanted)):
            # One that was asked anew since its place was read comes at its new place.
            if record is not None and record.status == "pending" and record.opened_ms == wanted[record.id]:
                yield record


def _read_cursor(text: str) -> tuple[int, str]:
    if not text:
        return 0, ""
    found = _CURSOR.fullmatch(text) if isinstance(text, str) else None
    if found is None:
        raise InvalidOption(
            f"{str(text)[:60]!r} is not a cursor: use what the page before gave, or none for the first page",
            option="cursor",
        )
    return int(found[1]), found[2]


def _place(record: Record) -> tuple[int, str]:
    return record.opened_ms, record.id
