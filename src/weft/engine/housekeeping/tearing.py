"""A log that lacks what follows the archive: the archive was restored from an older copy, or somebody trimmed the log.

What happened to runs in between, nobody can tell any more. Those that the archive takes for unfinished, and that the store has
ended, forgotten or seen go on, are marked: else they would run again after the next loss of the store.
"""

from __future__ import annotations

from typing import Any

from weft.engine.cold import Cold
from weft.store.runs import read_runs
from weft.telemetry import get_logger

log = get_logger("weft.archiver")


class Tearing:
    """Finds runs of one partition that are torn: told of once, and sure when everything that came meanwhile is archived."""

    def __init__(self, ns: Any, p: int, cold: Cold) -> None:
        self._ns, self._p, self._cold = ns, p, cold
        #: Runs that look torn, and the last event of each that is archived; None: there is nothing to look for.
        self._suspects: dict[str, int] | None = None
        self.is_due = False

    def begin(self) -> None:
        """Notes that the log is torn."""
        self._suspects, self.is_due = None, True

    async def look(self) -> None:
        """Looks for torn runs, and next time marks those that still look so. To be called when everything is archived."""
        from weft.archive.recovery import Recovery

        archive = Recovery(self._cold.database, self._ns.keys.namespace, self._p)
        if self._suspects is None:
            self._suspects = {}
            async for page in archive.unfinished():
                states = {run.state.id: run.state.seq for run in page if not run.state.gap}
                rows = await read_runs(self._ns, self._p, list(states))
                for (run, seq), row in zip(states.items(), rows, strict=True):
                    if row is None or not row.open or row.number("seq", 1) > seq:
                        self._suspects[run] = seq
            self.is_due = bool(self._suspects)
            return
        async with self._cold.turn:
            n = await archive.mark_gaps(self._suspects)
        self._suspects, self.is_due = None, False
        if n:
            log.error(
                "what became of runs while the log was not archived cannot be told any more; they are marked",
                partition=self._p,
                runs=n,
            )
