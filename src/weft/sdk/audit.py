"""`app.audit`: what people and operators did, who, when and from where; and whether any of it was changed since."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from weft.core.acts import AuditPage, Verdict
from weft.engine import auditing as verbs

if TYPE_CHECKING:
    from weft.sdk.app import Weft


class Audit:
    """`app.audit`."""

    def __init__(self, app: Weft) -> None:
        self._app = app

    @property
    def sync(self) -> SyncAudit:
        """The same verbs for code without a loop."""
        return SyncAudit(self._app)

    async def list(
        self,
        *,
        actor: str | None = None,
        action: str | None = None,
        object: str | None = None,
        run: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        cursor: str = "",
        limit: int = 100,
    ) -> AuditPage:
        """What was done, the newest first; `cursor` of the page leads to the next one, and is empty on the last."""
        return await verbs.list_audit(
            self._app.engine(),
            actor=actor,
            action=action,
            object=object,
            run=run,
            since=since,
            until=until,
            cursor=cursor,
            limit=limit,
        )

    async def verify(self, anchors: Sequence[str] = ()) -> Verdict:
        """Checks that no entry was changed, removed or put in between. `anchors` of an earlier check, kept elsewhere, show
        that the entries up to them are still the same."""
        return await verbs.verify(self._app.engine(), anchors)


class SyncAudit:
    """`app.audit.sync`."""

    def __init__(self, app: Weft) -> None:
        self._app = app

    def list(self, **filters: Any) -> AuditPage:
        return self._app.portal.call(self._app.audit.list(**filters))

    def verify(self, anchors: Sequence[str] = ()) -> Verdict:
        return self._app.portal.call(self._app.audit.verify(anchors))
