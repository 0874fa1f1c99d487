"""Group commit: what arrives while a call is under way goes into the next one. Never a timer.

At low load an item goes out at once and costs one round trip; under load the batches grow by themselves.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

Item = TypeVar("Item")
Reply = TypeVar("Reply")


class Batcher(Generic[Item, Reply]):
    """Sends items in groups of at most `limit`, one group at a time, in order."""

    def __init__(self, send: Callable[[Sequence[Item]], Awaitable[Sequence[Reply]]], *, limit: int) -> None:
        self._send, self._limit = send, limit
        self._waiting: deque[tuple[Item, asyncio.Future[Reply]]] = deque()
        self._leading = False
        self._task: asyncio.Task[None] | None = None

    async def call(self, item: Item) -> Reply:
        """Returns the reply to an item, or raises the error of its whole group."""
        if self._leading or self._task is not None:
            future: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
            self._waiting.append((item, future))
            return await future
        # Nothing is under way: the first goes out at once, without a task of its own between it and the reply.
        self._leading = True
        try:
            (reply,) = await self._send([item])
            return reply
        finally:
            self._leading = False
            if self._waiting:
                self._task = asyncio.create_task(self._drain(), name="weft batcher")

    async def _drain(self) -> None:
        try:
            while self._waiting:
                group = [self._waiting.popleft() for _ in range(min(self._limit, len(self._waiting)))]
                try:
                    replies = await self._send([item for item, _ in group])
                except BaseException as error:
                    for _, future in group:
                        if isinstance(error, Exception) and not future.done():
                            future.set_exception(error)
                        future.cancel()
                    if not isinstance(error, Exception):
                        raise
                else:
                    for (_, future), reply in zip(group, replies, strict=True):
                        if not future.done():
                            future.set_result(reply)
        finally:
            self._task = None
            for _, future in self._waiting:
                if not future.done():
                    future.cancel()
            self._waiting.clear()
