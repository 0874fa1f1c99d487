"""Wires: connections lent to one caller at a time, the quick way to send a command.

redis-py's asyncio client packs commands in Python, reads through a stream and starts a task per write for its timeout;
for the few calls a step needs that costs more than all the rest. Here redis-py makes the connection (address, TLS,
password, database) and a wire takes it over: commands are packed and replies parsed by hiredis, in C, and one timer
stands behind a whole exchange. A wire whose exchange was cut short (timeout, cancellation, error) is closed, never
reused: the reply that is still to come would be taken for the next one's.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import hiredis
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import InvalidResponse
from redis.exceptions import TimeoutError as RedisTimeoutError

from weft.store.unreached import reason_of

#: Wires one pool may hold; beyond that a caller waits for one.
MAX_WIRES = 16

#: What is to be sent; bytes are packed already.
Command = Sequence[str | bytes | int | float] | bytes


def pack(command: Command) -> bytes:
    """Returns a command as it goes over the wire."""
    return command if isinstance(command, bytes) else hiredis.pack_command(tuple(command))  # type: ignore[arg-type]


class NotConnected(RedisConnectionError):
    """No connection could be made, so nothing was sent."""


class Line(asyncio.Protocol, ABC):
    """One connection taken over from redis-py: bytes go out, replies come in."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._transport: Any = None
        self._reader: Any = None
        #: redis-py's own protocol object, told of the end: its side of the connection waits for that.
        self._former: Any = None
        self._loop = asyncio.get_running_loop()

    @property
    def open(self) -> bool:
        return self._transport is not None

    async def connect(self) -> None:
        """Makes the connection and takes it over from redis-py."""
        await self._connection.connect()
        transport = self._connection._writer.transport
        self._reader = hiredis.Reader(
            protocolError=InvalidResponse, replyError=self._connection._parser.parse_error, notEnoughData=...
        )
        self._former = transport.get_protocol()
        transport.set_protocol(self)
        self._transport = transport

    def why(self, error: BaseException, seconds: float | None = None) -> str:
        """Says why it could not connect; `seconds`: how long it had, unless that was redis-py's own limit."""
        return reason_of(self._connection, error, seconds)

    async def close(self, *, nowait: bool = False) -> None:
        self._transport = None
        await self._connection.disconnect(nowait=nowait)

    def eof_received(self) -> bool:
        self._break(RedisConnectionError("Connection closed by server."))
        return False

    def connection_lost(self, error: Exception | None) -> None:
        self._break(RedisConnectionError(f"Connection lost: {error}" if error else "Connection closed by server."))
        self._former.connection_lost(error)

    @abstractmethod
    def _break(self, error: Exception) -> None:
        """Tells whoever waits that nothing more will come."""


class Wire(Line):
    """Writes commands, and wakes its one user when all their replies are here."""

    def __init__(self, connection: Any) -> None:
        super().__init__(connection)
        self._replies: list[Any] = []
        self._wanted = 0
        self._done: asyncio.Future[list[Any]] | None = None
        #: How long the exchange under way may take, until when that is, and the timer that looks.
        self._seconds = self._due = 0.0
        self._timer: asyncio.TimerHandle | None = None

    async def exchange(self, packed: Sequence[bytes], seconds: float) -> list[Any]:
        """Sends commands in one write and returns their replies; a reply may be an exception."""
        self._replies, self._wanted = [], len(packed)
        self._done = self._loop.create_future()
        self._seconds, self._due = seconds, self._loop.time() + seconds
        # A timer for each exchange would cost more than packing it: one that stands already looks again when it is due.
        if self._timer is None or self._timer.when() > self._due:
            self._watch()
        try:
            self._transport.write(packed[0] if len(packed) == 1 else b"".join(packed))
            return await self._done
        finally:
            self._done = None

    async def close(self, *, nowait: bool = False) -> None:
        if self._timer is not None:
            self._timer.cancel()
        await super().close(nowait=nowait)

    def data_received(self, data: bytes) -> None:
        if self._done is None or self._done.done():
            return self._break(RedisConnectionError("the server sent something unasked"))
        try:
            self._reader.feed(data)
            while (reply := self._reader.gets()) is not ...:
                self._replies.append(reply)
        except InvalidResponse as error:
            return self._break(error)
        if len(self._replies) >= self._wanted:
            self._done.set_result(self._replies)

    def _watch(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_at(self._due, self._look)

    def _look(self) -> None:
        self._timer = None
        if self._done is None or self._done.done():
            return
        if self._loop.time() < self._due:
            self._watch()
        else:
            self._break(RedisTimeoutError(f"no answer within {self._seconds:g} s"))

    def _break(self, error: Exception) -> None:
        self._transport = None
        if self._done is not None and not self._done.done():
            self._done.set_exception(error)


class Ear(Line):
    """Listens on one channel; every message is handed on as it arrives, with no task between."""

    def __init__(self, connection: Any, on_message: Callable[[bytes], None]) -> None:
        super().__init__(connection)
        self._on_message = on_message
        self._subscribed: asyncio.Future[None] = self._loop.create_future()
        self._deaf: asyncio.Future[Exception] = self._loop.create_future()

    async def subscribe(self, channel: str) -> None:
        """Returns once the server has confirmed it."""
        self._transport.write(hiredis.pack_command(("SUBSCRIBE", channel)))  # type: ignore[arg-type]
        await self._subscribed

    async def until_deaf(self) -> Exception:
        """Returns why the connection ended, once it has."""
        return await self._deaf

    def data_received(self, data: bytes) -> None:
        try:
            self._reader.feed(data)
            while (reply := self._reader.gets()) is not ...:
                if isinstance(reply, Exception):
                    return self._break(reply)
                if reply[0] == b"message":
                    self._on_message(reply[2])
                elif not self._subscribed.done():
                    self._subscribed.set_result(None)
        except Exception as error:  # noqa: BLE001 - a message that cannot be read: whoever listens looks by himself
            self._break(error)

    def _break(self, error: Exception) -> None:
        self._transport = None
        if not self._deaf.done():
            self._deaf.set_result(error)
        if not self._subscribed.done():
            self._subscribed.set_exception(error)


class Wires:
    """A pool of wires to one server; `revive` sees to one that cannot be reached, and raises NotConnected if it cannot."""

    def __init__(
        self, connect: Callable[[], Any], *, timeout: float, revive: Callable[[], Awaitable[None]] | None = None
    ) -> None:
        self._connect, self._timeout, self._revive = connect, timeout, revive
        self._idle: list[Wire] = []
        #: Wires there are, lent or idle, and callers that wait for one.
        self._n = 0
        self._waiting: deque[asyncio.Future[Wire | None]] = deque()
        self._closed = False

    @property
    def connected(self) -> bool:
        """Whether the next exchange goes over a connection that exists already."""
        return bool(self._idle) and self._idle[-1].open

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
            self._n -= 1
            await self._idle.pop().close()

    async def _exchange(self, commands: Sequence[Command]) -> list[Any]:
        packed = [pack(command) for command in commands]
        wire = self._idle.pop() if self._idle else await self._take()
        try:
            if wire is None or not wire.open:
                wire = await self._fresh(wire)
            replies = await wire.exchange(packed, self._timeout)
            for reply in replies:
                if isinstance(reply, RedisConnectionError):  # it is loading its data, or will not have us
                    raise reply
        except BaseException:
            self._give(None)
            if wire is not None:
                await wire.close(nowait=True)
            raise
        if self._closed:
            self._give(None)
            await wire.close()
        else:
            self._give(wire)
        return replies

    async def _take(self) -> Wire | None:
        """Waits for a wire, or for leave to make one."""
        if self._n < MAX_WIRES:
            self._n += 1
            return None
        waiter: asyncio.Future[Wire | None] = asyncio.get_running_loop().create_future()
        self._waiting.append(waiter)
        try:
            return await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled():
                self._give(waiter.result())
            raise

    def _give(self, wire: Wire | None) -> None:
        """Takes a wire back, or the place of one that is no more; whoever has waited longest gets it."""
        while self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.done():
                return waiter.set_result(wire)
        if wire is None:
            self._n -= 1
        else:
            self._idle.append(wire)

    async def _fresh(self, old: Wire | None) -> Wire:
        """Makes a connection in place of one that the server closed while it lay idle, or a first one."""
        if old is not None:
            await old.close(nowait=True)
        if self._revive is not None:
            try:
                return await self._connected()
            except NotConnected as error:
                # One that only does not answer in time is there, and asking it again would take as long again.
                if isinstance(error.__cause__, (TimeoutError, RedisTimeoutError)):
                    raise
                await self._revive()
        return await self._connected()

    async def _connected(self) -> Wire:
        wire = Wire(self._connect())
        try:
            async with asyncio.timeout(self._timeout):
                await wire.connect()
        except BaseException as error:
            await wire.close(nowait=True)
            if isinstance(error, TimeoutError):
                raise NotConnected(wire.why(error, self._timeout)) from error
            if type(error) in (RedisConnectionError, RedisTimeoutError, InvalidResponse):
                raise NotConnected(wire.why(error)) from error
            raise
        return wire
