"""Pebbles: how a process without work learns that there is some, without polling."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from redis.exceptions import RedisError

from weft.store import connection
from weft.store.connection import Caller
from weft.store.faults import translate
from weft.store.keys import TIMER_WAKE
from weft.store.namespace import Namespace
from weft.store.wire import Wires, pack

#: Seconds a blocking call may outlast its block time before the connection counts as dead.
SLACK = 10.0


class Pebbles:
    """Blocks on wake keys of one partition, on a connection of its own."""

    def __init__(self, ns: Namespace, p: int, queues: Sequence[str], *, seconds: float) -> None:
        self._keys = [ns.keys.wake(p, queue) for queue in queues]
        self._seconds = seconds
        self._caller: Caller = ns.server.caller(timeout=seconds + SLACK)
        self._wait = pack(("BLPOP", *self._keys, seconds))

    async def wait(self) -> bool:
        """Returns True when a pebble fell, False after the block time."""
        connection.boundary("before", "BLPOP")
        try:
            reply = await self._caller.execute_command("BLPOP", *self._keys, self._seconds)
        except (RedisError, OSError) as error:
            raise translate(error) from error
        connection.boundary("after", "BLPOP")
        return reply is not None

    @property
    def can_call(self) -> bool:
        """Whether a call may wait in the server behind the blocking one.

        Not on a Cluster, whose client sends each by itself, nor on a connection that is still to be made: who answers
        there is to be verified before anything is asked of it.
        """
        return isinstance(self._caller, Wires) and self._caller.connected

    async def wait_and_call(self, call: bytes) -> Any:
        """Blocks like `wait`; returns the reply to a call, packed, that the server makes as soon as the wait ends."""
        connection.boundary("before", "BLPOP")
        try:
            _, reply = await self._caller.execute_many((self._wait, call))
        except (RedisError, OSError) as error:
            raise translate(error) from error
        connection.boundary("after", "BLPOP")
        return reply

    async def close(self) -> None:
        await self._caller.aclose()


def timer_pebbles(ns: Namespace, p: int, *, seconds: float) -> Pebbles:
    """Returns what the timer service waits on."""
    return Pebbles(ns, p, [TIMER_WAKE], seconds=seconds)
