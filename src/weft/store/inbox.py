"""Inboxes: a pub/sub channel per client or worker session. Lossy by nature, so whoever listens also re-checks slowly."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator

from redis.exceptions import RedisError

from weft.clock import backoff
from weft.ending import end_tasks
from weft.errors import Unavailable
from weft.store import connection
from weft.store.connection import COMMAND_TIMEOUT
from weft.store.namespace import Namespace
from weft.telemetry import get_logger

log = get_logger("weft.store")


class Inbox:
    """Listens on one channel and hands every message to a callback."""

    def __init__(
        self, ns: Namespace, owner: str, on_message: Callable[[bytes], None], on_gap: Callable[[], None]
    ) -> None:
        self.channel = ns.keys.inbox(0, owner)
        self._ns = ns
        self._on_message, self._on_gap = on_message, on_gap
        self._ready = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Subscribes; returns once the server has confirmed it."""
        if self._ready.is_set():
            return
        if self._task is None:
            self._task = asyncio.create_task(self._listen(), name=f"weft inbox {self.channel}")
        try:
            async with asyncio.timeout(COMMAND_TIMEOUT):
                await self._ready.wait()
        except TimeoutError:
            raise Unavailable("the store does not confirm the subscription to an inbox") from None

    async def close(self) -> None:
        await end_tasks(self._task)
        self._task = None

    async def _listen(self) -> None:
        client = self._ns.server.subscriber()
        failures = 0
        try:
            while True:
                pubsub = client.pubsub()
                try:
                    if self._ns.server.clustered:
                        await client.initialize()  # or it does not know yet which node has the channel's slot
                    with connection.bounded("SUBSCRIBE"):
                        await pubsub.subscribe(self.channel)
                    async for message in pubsub.listen():
                        failures = 0
                        if message["type"] == "subscribe":
                            # Whatever was published while we were not subscribed is lost: let the listener look again.
                            if self._ready.is_set():
                                self._on_gap()
                            self._ready.set()
                        elif message["type"] == "message":
                            self._on_message(message["data"])
                except Exception as error:  # noqa: BLE001 - whatever it was, without an inbox every wait is a slow one
                    log.debug("inbox lost its connection", channel=self.channel, error=error)
                finally:
                    with contextlib.suppress(RedisError, OSError):
                        await pubsub.aclose()
                await asyncio.sleep(backoff(failures))
                failures += 1
        finally:
            with contextlib.suppress(RedisError, OSError):
                await client.aclose()


def parse_news(message: bytes) -> Iterator[tuple[str, str, bytes]]:
    """Reads the framing of lib/tell.lua: yields run id, word and payload."""
    at = 0
    while at < len(message):
        end = message.index(b"\n", at)
        run, word, size = message[at:end].split(b" ")
        at = end + 1 + int(size)
        yield run.decode(), word.decode(), message[end + 1 : at]
