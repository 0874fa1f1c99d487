"""`app.status`: the status of work that runs elsewhere, published by whoever knows it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from weft.core.status import FeedPage, Observation, check_seen
from weft.engine import status as verbs

if TYPE_CHECKING:
    from weft.sdk.app import Weft


class Status:
    """`app.status`."""

    def __init__(self, app: Weft) -> None:
        self._app = app

    @property
    def sync(self) -> SyncStatus:
        """The same verbs for code without a loop."""
        return SyncStatus(self._app)

    async def publish(
        self,
        task_id: str,
        status: str,
        meta: Mapping[str, Any] | None = None,
        event_id: str | None = None,
        *,
        parent_id: str | None = None,
        source: str = "",
    ) -> Observation:
        """Publishes how a task elsewhere stands. The same `event_id` again, or without one what was said last, changes nothing.

        Raises Conflict when an event id comes back with something else, or a task with another parent.
        """
        seen = check_seen(task_id, status, meta, event_id, parent_id, source)
        return await verbs.publish(self._app.engine(), seen)

    async def latest(self, task_id: str) -> Observation:
        """How a task stands. Raises NotFound."""
        return await verbs.latest(self._app.engine(), task_id)

    async def history(self, task_id: str, *, limit: int = 100, before: str | None = None) -> list[Observation]:
        """What was observed of a task, the newest first; `before`: only what is older than the observation of that id."""
        return await verbs.history(self._app.engine(), task_id, limit=limit, before=before)

    async def children(self, parent_id: str, *, limit: int = 100) -> list[Observation]:
        """How the children of a task stand, in the order in which they were first observed."""
        return await verbs.children(self._app.engine(), parent_id, limit=limit)

    async def feed(self, *, after: str | None = None, limit: int = 100) -> FeedPage:
        """What was observed of all tasks after a cursor, the oldest first, and the next cursor.

        Without `after` it begins with the oldest that is there, after `"$"` with what comes from now on. Raises HistoryExpired.
        """
        return await verbs.feed(self._app.engine(), after=after, limit=limit)


class SyncStatus:
    """`app.status.sync`."""

    def __init__(self, app: Weft) -> None:
        self._app = app

    def publish(
        self,
        task_id: str,
        status: str,
        meta: Mapping[str, Any] | None = None,
        event_id: str | None = None,
        *,
        parent_id: str | None = None,
        source: str = "",
    ) -> Observation:
        """Takes what `app.status.publish` takes."""
        call = self._app.status.publish(task_id, status, meta, event_id, parent_id=parent_id, source=source)
        return self._app.portal.call(call)

    def latest(self, task_id: str) -> Observation:
        """How a task stands. Raises NotFound."""
        return self._app.portal.call(self._app.status.latest(task_id))

    def history(self, task_id: str, *, limit: int = 100, before: str | None = None) -> list[Observation]:
        """What was observed of a task, the newest first."""
        return self._app.portal.call(self._app.status.history(task_id, limit=limit, before=before))

    def children(self, parent_id: str, *, limit: int = 100) -> list[Observation]:
        """How the children of a task stand."""
        return self._app.portal.call(self._app.status.children(parent_id, limit=limit))

    def feed(self, *, after: str | None = None, limit: int = 100) -> FeedPage:
        """What was observed of all tasks after a cursor, the oldest first."""
        return self._app.portal.call(self._app.status.feed(after=after, limit=limit))
