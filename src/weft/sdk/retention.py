"""`app.retention`: what the archive keeps for how long, and letting go of the rest."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from weft.engine.retention import KeptRule, Swept, apply_retention, read_policy, show_retention

if TYPE_CHECKING:
    from weft.sdk.app import Weft

__all__ = ["KeptRule", "Retention", "Swept", "SyncRetention"]


class Retention:
    """What the archive keeps for how long. A policy is text as in `WEFT_KEEP_COLD`, which is what counts without one."""

    def __init__(self, app: Weft) -> None:
        self._app = app

    @property
    def sync(self) -> SyncRetention:
        """The same verbs for code without a loop."""
        return SyncRetention(self._app)

    async def show(self, policy: str | None = None) -> list[KeptRule]:
        """Returns the rules in order, and how many ended runs each is about."""
        return await show_retention(self._app.engine(), read_policy(policy))

    async def apply(
        self,
        *,
        dry_run: bool = False,
        policy: str | None = None,
        progress: Callable[[Swept], None] | None = None,
    ) -> Swept:
        """Lets go of what is kept no longer, and returns what that was; with `dry_run` what it would be.

        A run whose result is still kept (`keep_result`, dead letters) stays, whatever the policy says.
        """
        return await apply_retention(self._app.engine(), read_policy(policy), dry_run=dry_run, progress=progress)


class SyncRetention:
    """`app.retention.sync`."""

    def __init__(self, app: Weft) -> None:
        self._app = app

    def show(self, policy: str | None = None) -> list[KeptRule]:
        return self._app.portal.call(self._app.retention.show(policy))

    def apply(self, **how: Any) -> Swept:
        return self._app.portal.call(self._app.retention.apply(**how))
