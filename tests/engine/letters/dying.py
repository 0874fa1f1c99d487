"""Runs that end badly, for tests of dead letters."""

from __future__ import annotations

import asyncio

UNKNOWN = "r0-0000000000000000000000"


async def ends(*runs) -> None:
    """Waits until runs have ended, however."""
    await asyncio.gather(*(run.result(timeout=30) for run in runs), return_exceptions=True)


async def dead(task, *args):
    """A run of a task that has failed."""
    run = await task.enqueue(*args)
    await ends(run)
    return run
