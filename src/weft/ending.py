"""Ends asyncio tasks for certain.

One `cancel()` is not enough: on Python 3.11 `asyncio.wait_for` swallows a cancellation that arrives in the same turn
as its result, and libraries below us use it. So the cancellation is repeated until the task is done.
"""

from __future__ import annotations

import asyncio
from typing import Any

#: Seconds between two cancellations of the same task.
AGAIN = 0.1


async def end_tasks(*tasks: asyncio.Task[Any] | None) -> None:
    """Cancels tasks and returns once all of them are done, whatever they raise."""
    waiting = {task for task in tasks if task is not None and not task.done()}
    while waiting:
        for task in waiting:
            task.cancel()
        _, waiting = await asyncio.wait(waiting, timeout=AGAIN)
    # Looked at, so that the loop does not report their errors as lost.
    await asyncio.gather(*(task for task in tasks if task is not None), return_exceptions=True)
