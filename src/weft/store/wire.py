"""Wires: connections lent to one caller at a time, the quick way to send a command.

redis-py's asyncio client packs commands in Python and starts a task per write for its timeout; for calls of a few
hundred arguments that costs more than all the rest. A wire packs with hiredis, in C, and sets one timeout around
the whole exchange. A connection whose exchange was cut short (timeout, cancellation, error) is closed, never reused:
the reply that is still to come would be taken for the next one's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import hiredis
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError

#: Wires one pool may hold; beyond that a caller waits for one.
MAX_WIRES = 16

Command = Sequence[str | bytes | int | float]


class NotConnected(RedisConnectionError):
    """No connection could be made, so nothing was sent."""


class Wires:
    """A pool of wires to one server."""

    def __init__(self, connect: Callable[[], Any], *, timeout: float) -> None:
        self._connect, self._timeout = connect, timeout
        self._idle: list[Any] = []
        self._room = asyncio.Semaphore(MAX_WIRES)
        self._closed = False

    async def execute_command(self, *command: str | bytes | int | float) -> Any:
        """Sends one command and returns its raw reply; raises the server's error."""
        (reply,) = await self._exchange([command])
        if isinstance(reply, Exception):
            raise reply
        return reply

    async def execute_many(self, commands: Sequence[Command]) -> list[Any]:
        """Sends commands in one write; an error stands in its place in the list."""
        return await self._exchange(commands)

    async def aclose(self) -> None:
        self._closed = True
        while self._idle:
            await self._idle.pop().disconnect()

    async def _exchange(self, commands: Sequence[Command]) -> list[Any]:
        packed = [hiredis.pack_command(tuple(command)) for command in commands]  # type: ignore[arg-type]
        async with self._room:
            wire = self._idle.pop() if self._idle else self._connect()
            sent = False
            try:
                async with asyncio.timeout(self._timeout):
                    if not wire.is_connected or await wire.can_read():
                        # Closed by the server while it lay idle, or not made yet.
                        await wire.disconnect(nowait=True)
                        await wire.connect()
                    sent = True
                    await wire.send_packed_command(packed, check_health=False)
                    replies = [await _reply(wire) for _ in packed]
            except BaseException as error:
                await wire.disconnect(nowait=True)
                late = isinstance(error, TimeoutError)
                if not sent and (late or type(error) in (RedisConnectionError, RedisTimeoutError)):
                    raise NotConnected(f"no connection within {self._timeout:g} s" if late else str(error)) from error
                if late:
                    raise RedisTimeoutError(f"no answer within {self._timeout:g} s") from error
                raise
            if self._closed:
                await wire.disconnect()
            else:
                self._idle.append(wire)
            return replies


async def _reply(wire: Any) -> Any:
    try:
        return await wire.read_response(disconnect_on_error=False)
    except RedisConnectionError:
        raise
    except ResponseError as error:
        return error
