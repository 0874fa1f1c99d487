"""Inboxes: a pub/sub channel per client or worker session. Lossy by nature, so whoever listens also re-checks slowly."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

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
        #: Whether messages arrive now, as far as we know.
        self.listening = False

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
        failures = 0
        while True:
            try:
                with connection.bounded("SUBSCRIBE"):
                    ear = await self._ns.server.ear(self.channel, self._on_message)
                try:
                    failures = 0
                    # Whatever was published while we were not subscribed is lost: let the listener look again.
                    if self._ready.is_set():
                        self._on_gap()
                    self._ready.set()
                    self.listening = True
                    error = await ear.until_deaf()
                finally:
                    self.listening = False
                    await ear.close(nowait=True)
            except Exception as problem:  # noqa: BLE001 - whatever it was, without an inbox every wait is a slow one
                error = problem
            log.debug("inbox lost its connection", channel=self.channel, error=error)
            await asyncio.sleep(backoff(failures))
            failures += 1


def parse_news(message: bytes) -> Iterator[tuple[str, str, bytes]]:
    """Reads the framing of lib/tell.lua: yields run id, word and payload."""
    at = 0
    while at < len(message):
        end = message.index(b"\n", at)
        run, word, size = message[at:end].split(b" ")
        at = end + 1 + int(size)
        yield run.decode(), word.decode(), message[end + 1 : at]
