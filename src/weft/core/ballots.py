"""Ballots: votes that stand in the database before the store is told of them. Pure data.

Those of one approval are numbered as they were stored, and the store is told of them in that order, by whoever comes: so what
was decided is decided again in the same way if the store loses it.
"""

from __future__ import annotations

import msgspec

from weft.core.approvals import Vote


class Ballot(msgspec.Struct, frozen=True):
    """What one person said, and about what. Whether they may was asked before it was stored."""

    run: str
    partition: int
    step: str
    #: When that approval was opened: a run that is retried asks again.
    opened_ms: int
    #: Of what was shown.
    digest: str
    #: In which life of the partition it was said: its epoch, and the server process that held it.
    life: str
    vote: Vote
    #: Its place among those of the approval; 0: it was not stored.
    number: int = 0

    @property
    def id(self) -> str:
        """The id of the approval."""
        return f"{self.run}/{self.step}"
