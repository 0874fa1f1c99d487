"""Which stored definitions of graphs are needed; those that are not go.

Nothing here goes by the time a run takes: it may sleep, or wait for people, for years. The sweeper looks at all runs that are
kept, round after round. What none of them needs is marked; whoever starts or patches a run takes the mark away in the same
script. What bore its mark when a round began, and was needed by no run in all of it, is needed by none.
"""

from __future__ import annotations

from collections.abc import Sequence

from weft.core.routing import Published
from weft.engine.definitions import decode_bundle, definition_of
from weft.store.definitions import NEEDED, drop_definitions, mark_definitions, read_marks
from weft.store.graphs import read_definition
from weft.store.namespace import Namespace
from weft.store.runs import RunRow
from weft.store.timers import read_now
from weft.telemetry import get_logger

log = get_logger("weft.housekeeping")

#: Milliseconds for which a definition that nobody needs is kept all the same: its next run may come soon.
GRACE_MS = 3_600_000


async def definitions_below(ns: Namespace, p: int, published: Published) -> list[str]:
    """Returns the digests of what the subgraphs of a definition follow, and theirs."""
    found: dict[str, None] = {}
    line = [published]
    while line:
        for base in line.pop().steps.values():
            if base.child and base.child not in found:
                found[base.child] = None
                line.append(await definition_of(ns, p, base.child))
    return list(found)


class Keeper:
    """Drops the definitions of one partition that no run needs."""

    def __init__(self, ns: Namespace, p: int) -> None:
        self._ns, self._p = ns, p
        self._seen: set[str] = set()
        #: The marks as they stood when this round over all runs began; None before the first.
        self._marks: dict[str, str] | None = None
        #: Pages of this round that were asked for, and those that came: with one missing nothing is known.
        self._asked = self._came = 0
        #: What the subgraphs of each definition follow.
        self._below: dict[str, frozenset[str]] = {}

    async def ask(self) -> None:
        """A page of runs is about to be read."""
        if self._marks is None:
            self._marks = await read_marks(self._ns, self._p)
        self._asked += 1

    def note(self, rows: Sequence[RunRow]) -> None:
        """Notes what the runs of a page need."""
        self._came += 1
        for row in rows:
            self._seen |= {digest for digest in (row.spec.definition, row.text("def"), row.text("before")) if digest}

    async def end_round(self) -> None:
        """All runs were looked at: drops what was marked before and none of them needs, and marks what else none needs."""
        whole, self._asked, self._came = self._asked == self._came, 0, 0
        seen, self._seen, marks, self._marks = self._seen, set(), self._marks or {}, None
        stored = await read_marks(self._ns, self._p)
        if not whole or not stored:
            return
        needed, now = await self._with_below(seen), await read_now(self._ns, self._p)
        old = {one: since for one, since in marks.items() if since != NEEDED and now - int(since) >= GRACE_MS}
        gone = await drop_definitions(self._ns, self._p, {one: old[one] for one in old if one not in needed})
        if n := gone.count("dropped"):
            log.info("definitions of graphs that no run needs were dropped", n=n)
        await mark_definitions(
            self._ns, self._p, [one for one in stored if stored[one] != NEEDED and one in needed], NEEDED
        )
        fresh = [one for one in stored if stored[one] == NEEDED and one not in needed]
        await mark_definitions(self._ns, self._p, fresh, str(now))
        self._below = {one: below for one, below in self._below.items() if one in stored}

    async def _with_below(self, digests: set[str]) -> set[str]:
        found, line = set(digests), list(digests)
        while line:
            digest = line.pop()
            below = self._below.get(digest)
            if below is None:
                data = await read_definition(self._ns, self._p, digest)
                steps = {} if data is None else decode_bundle(data).steps
                below = self._below[digest] = frozenset(base.child for base in steps.values() if base.child)
            line += below - found
            found |= below
        return found
