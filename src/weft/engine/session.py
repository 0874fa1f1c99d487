"""A worker session: the name under which a worker holds tokens, its lease and its inbox.

A session that was declared dead is never revived: its worker takes a new one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from weft.core.model import SessionInfo
from weft.engine.steps import queue_streams
from weft.store.inbox import Inbox
from weft.store.namespace import Namespace
from weft.store.sessions import end_session, renew_session, renew_session_sync


class Session:
    """One session in all partitions of a namespace."""

    def __init__(
        self,
        ns: Namespace,
        about: SessionInfo,
        *,
        lease: float,
        on_message: Callable[[bytes], None],
        on_gap: Callable[[], None],
    ) -> None:
        self.id = about.id
        self._ns, self._queues, self._lease_ms = ns, about.served, int(lease * 1000)
        self._about = msgspec.msgpack.encode(about)
        self._inbox = Inbox(ns, self.id, on_message, on_gap)
        self._thread_client = ns.server.sync_client()
        #: The epochs under which it was last renewed.
        self._epochs: list[str] = []

    async def open(self) -> None:
        """Takes the lease in every partition and listens for news."""
        for p in range(self._ns.partitions):
            await renew_session(self._ns, p, session=self.id, lease_ms=self._lease_ms, about=self._about)
        self._epochs = list(self._ns.epochs)
        await self._inbox.open()

    @property
    def moved(self) -> bool:
        """Whether a partition has another life since it was last renewed, and knows nothing of this session."""
        return self._epochs != self._ns.epochs

    def renew(self) -> None:
        """Renews the lease; called by the pulse thread, on a connection of its own."""
        self._epochs = list(self._ns.epochs)
        for p in range(self._ns.partitions):
            renew_session_sync(
                self._thread_client, self._ns, p, session=self.id, lease_ms=self._lease_ms, about=self._about
            )

    async def end(self, p: int) -> int:
        """Leaves one partition, unless tokens are still held there; returns how many queues have some."""
        streams: Sequence[str] = queue_streams(self._ns, p, self._queues)
        return await end_session(self._ns, p, session=self.id, streams=streams, swept=False)

    async def close(self) -> None:
        """Closes the session's connections."""
        self._thread_client.close()
        await self._inbox.close()
