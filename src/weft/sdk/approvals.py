"""`app.approvals`: what people are asked to decide. List, read, approve, reject, delegate; links that decide with one click."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

from weft.clock import Duration, parse_duration_ms
from weft.core.approvals import Approval, ApprovalPage
from weft.core.links import PATH
from weft.engine import approvals as verbs
from weft.engine import links
from weft.engine.approvals import Actor
from weft.engine.pending import list_pending
from weft.errors import InvalidOption, SettingsError
from weft.settings import read_setting

if TYPE_CHECKING:
    from weft.sdk.app import Weft


class DecisionOptions(TypedDict, total=False):
    """What goes with a decision."""

    comment: str
    #: What was filled in, where the approval has a form; checked against its schema.
    form: Any
    #: Roles in which the person decides, for approvers that are roles. Who has which role is for the caller to know.
    roles: Sequence[str]
    #: From where: `api` by default.
    via: str
    #: A repeated call with the same one answers the same.
    request_id: str | None
    #: Decide whoever the approvers are.
    admin: bool


class Approvals:
    """Verbs on the approvals of an app's namespace."""

    def __init__(self, app: Weft) -> None:
        self._app = app

    @property
    def sync(self) -> SyncApprovals:
        """The same verbs for code without a loop."""
        return SyncApprovals(self._app)

    async def list(
        self, *, approver: str | Sequence[str] | None = None, run: str | None = None, limit: int = 100, cursor: str = ""
    ) -> ApprovalPage:
        """Lists what waits for a decision, the oldest first; what these people or roles may decide, or of one run.

        `cursor` of the page leads to the next one, and is empty on the last. What opens or is decided between two pages shifts
        nothing: none that waits all the while is left out or comes twice.
        """
        if isinstance(limit, bool) or not isinstance(limit, int) or limit < 1:
            raise InvalidOption(f"limit must be a whole number from 1, not {limit!r}", option="limit")
        people = [approver] if isinstance(approver, str) else list(approver or ())
        return await list_pending(self._app.engine(), people=people, run=run, limit=limit, cursor=cursor or "")

    async def get(self, id: str) -> Approval:
        """Returns one approval, decided or not; raises NotFound."""
        return await verbs.get(self._app.engine(), id)

    async def approve(self, id: str, *, by: str, digest: str, **options: Unpack[DecisionOptions]) -> Approval:
        """Approves what was shown; `digest` is that of the approval that was looked at.

        Raises Conflict when it is decided already (the decision is in its facts) or shows something else by now, NotAllowed
        for somebody who may not decide, InvalidArguments for a form that does not fit.
        """
        return await self._decide(id, "approved", by, digest, options)

    async def reject(self, id: str, *, by: str, digest: str, **options: Unpack[DecisionOptions]) -> Approval:
        """Rejects what was shown. One rejection decides, whatever the quorum."""
        return await self._decide(id, "rejected", by, digest, options)

    async def delegate(
        self,
        id: str,
        *,
        by: str,
        to: str | Sequence[str],
        comment: str = "",
        roles: Sequence[str] = (),
        request_id: str | None = None,
        admin: bool = False,
    ) -> Approval:
        """Lets others decide in a person's place."""
        others = [to] if isinstance(to, str) else list(to)
        actor = Actor(by, tuple(roles), admin=admin)
        return await verbs.delegate(self._app.engine(), id, actor, others, comment=comment, request_id=request_id)

    async def link(self, id: str, *, approver: str, decision: str, expires: Duration = "7d") -> str:
        """Returns a signed text by which `approver` decides so (`approve` or `reject`), once, until it expires."""
        expires_ms = parse_duration_ms(expires, what="expires", allow_zero=False)
        return await links.link(self._app.engine(), id, approver, decision, expires_ms=expires_ms)

    def url(self, link: str) -> str:
        """Returns where a person opens a link in a browser: its page on the server at `WEFT_PUBLIC_URL`."""
        base = read_setting("WEFT_PUBLIC_URL")
        if base is None:
            raise SettingsError(
                "set WEFT_PUBLIC_URL to where people reach the server, such as https://weft.example.com",
                setting="WEFT_PUBLIC_URL",
            )
        return f"{base}{PATH}{link}"

    async def redeem(self, link: str, *, comment: str = "", form: Any = None, ip: str = "") -> Approval:
        """Decides by a link, given its text or its URL; `ip` is the client's address, if you want it recorded.

        Raises LinkRefused for one that is forged, changed or too old, Conflict when it was used.
        """
        return await links.redeem(self._app.engine(), link, comment=comment, form=form, ip=ip)

    async def _decide(self, id: str, decision: str, by: str, digest: str, options: DecisionOptions) -> Approval:
        if unknown := options.keys() - DecisionOptions.__annotations__.keys():
            raise InvalidOption(f"a decision takes no {', '.join(sorted(unknown))}", option=min(unknown))
        actor = Actor(by, tuple(options.get("roles", ())), options.get("via", "api"), admin=options.get("admin", False))
        return await verbs.decide(
            self._app.engine(),
            id,
            actor,
            decision,
            digest=digest,
            comment=options.get("comment", ""),
            form=options.get("form"),
            request_id=options.get("request_id"),
        )


class SyncApprovals:
    """`app.approvals.sync`: the same verbs, for code without a loop."""

    def __init__(self, app: Weft) -> None:
        self._app = app

    def list(self, **filters: Any) -> ApprovalPage:
        return self._app.portal.call(self._app.approvals.list(**filters))

    def get(self, id: str) -> Approval:
        return self._app.portal.call(self._app.approvals.get(id))

    def approve(self, id: str, *, by: str, digest: str, **options: Unpack[DecisionOptions]) -> Approval:
        return self._app.portal.call(self._app.approvals.approve(id, by=by, digest=digest, **options))

    def reject(self, id: str, *, by: str, digest: str, **options: Unpack[DecisionOptions]) -> Approval:
        return self._app.portal.call(self._app.approvals.reject(id, by=by, digest=digest, **options))

    def delegate(self, id: str, *, by: str, to: str | Sequence[str], **options: Any) -> Approval:
        return self._app.portal.call(self._app.approvals.delegate(id, by=by, to=to, **options))

    def link(self, id: str, *, approver: str, decision: str, expires: Duration = "7d") -> str:
        return self._app.portal.call(
            self._app.approvals.link(id, approver=approver, decision=decision, expires=expires)
        )

    def url(self, link: str) -> str:
        return self._app.approvals.url(link)

    def redeem(self, link: str, *, comment: str = "", form: Any = None, ip: str = "") -> Approval:
        return self._app.portal.call(self._app.approvals.redeem(link, comment=comment, form=form, ip=ip))
