"""Reading in groups: what is asked for while a read is under way goes out together, in one round trip."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from weft.store.faults import translate
from weft.store.namespace import Namespace
from weft.store.scripts import Arg

#: Commands of one round trip.
MAX_COMMANDS = 256

_Wish = tuple[tuple[Arg, ...], asyncio.Future[Any]]


class Reads:
    """Plain reading commands on one partition, as `Namespace.read` makes them, sent in groups. Never a timer."""

    def __init__(self, ns: Namespace, p: int) -> None:
        self.keys = ns.keys
        self._ns, self._p = ns, p
        self._wishes: list[_Wish] = []
        self._sending: asyncio.Task[None] | None = None

    async def read(self, *command: Arg, p: int) -> Any:
        """Runs one plain reading command; whoever asks in the same turn of the loop shares the round trip."""
        if p != self._p:
            return await self._ns.read(*command, p=p)
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._wishes.append((command, future))
        if self._sending is None:
            self._sending = asyncio.create_task(self._send(), name="weft reads")
        return await future

    async def read_many(self, commands: Sequence[Sequence[Arg]], *, p: int) -> list[Any]:
        """Runs commands, in order; raises the first error among them."""
        return list(await asyncio.gather(*[self.read(*command, p=p) for command in commands]))

    async def _send(self) -> None:
        try:
            while self._wishes:
                group, self._wishes = self._wishes[:MAX_COMMANDS], self._wishes[MAX_COMMANDS:]
                await self._exchange(group)
        finally:
            self._sending = None
            for _, future in self._wishes:
                future.cancel()
            self._wishes = []

    async def _exchange(self, group: Sequence[_Wish]) -> None:
        try:
            replies = await self._ns.read_many([command for command, _ in group], p=self._p)
        except BaseException as error:
            for _, future in group:
                if isinstance(error, Exception) and not future.done():
                    future.set_exception(error)
                future.cancel()
            if not isinstance(error, Exception):
                raise
            return
        for (_, future), reply in zip(group, replies, strict=True):
            if future.done():
                continue
            if isinstance(reply, Exception):
                future.set_exception(translate(reply))
            else:
                future.set_result(reply)
