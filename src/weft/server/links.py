"""`/approvals/links/{link}`: the page that asks, and the decision. GET changes nothing: mail scanners follow links."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from weft.core.approvals import Approval
from weft.engine.engine import Engine
from weft.engine.links import Linked, follow
from weft.errors import Conflict, InvalidArguments, NotAllowed, PayloadRefused
from weft.sdk.app import Weft
from weft.server import linkpage
from weft.server.answers import HEADERS, document, wants_json
from weft.server.forms import Filled, fields_of, fill, start
from weft.server.health import PATIENCE
from weft.server.requests import check_origin, client_ip, is_confirmed, is_form, read_fields, read_object


async def serve_link(request: Request) -> Response:
    """Answers whoever opens a link, or uses it."""
    return await (use_link(request) if request.method == "POST" else show_link(request))


async def show_link(request: Request) -> Response:
    """Shows what a link is about, and asks; or tells how it stands, once its person or somebody else has decided."""
    linked = await follow(await _engine(request), request.path_params["link"])
    if wants_json(request):
        return document(_linked(linked))
    if _is_over(linked):
        return linkpage.tell(linked)
    _check_allowed(linked)
    schema = _schema(linked)
    fields = fields_of(schema) if schema else []
    return linkpage.ask(linked, fields, start(fields, linked.approval.show))


async def use_link(request: Request) -> Response:
    """Decides by a link. Whoever presses twice is shown the same outcome twice."""
    if is_form(request):
        return await _use_by_page(request)
    given = await read_object(request)
    linked = await follow(await _engine(request), request.path_params["link"])
    check_origin(request, confirmed=False)
    return await _use_by_program(request, linked, given.get("comment", ""), given.get("form"))


async def _use_by_page(request: Request) -> Response:
    given = await read_fields(request)
    linked = await follow(await _engine(request), request.path_params["link"])
    check_origin(request, confirmed=is_confirmed(given.get("confirm", ""), linked.confirm))
    comment, schema = given.get("comment", "").replace("\r\n", "\n"), _schema(linked)
    fields = fields_of(schema) if schema else []
    filled = fill(schema, fields, given) if schema else Filled()
    filled.comment = comment
    if wants_json(request):
        if not filled.fits and not _is_over(linked):
            raise InvalidArguments("the form does not fit", problems=[*filled.problems.values(), *filled.general])
        return await _use_by_program(request, linked, comment, filled.value)
    if not _is_over(linked):
        if filled.fits:
            try:
                await _redeem(request, comment, filled.value)
            except Conflict as error:
                linked = await follow(await _engine(request), request.path_params["link"])
                if not _is_over(linked):  # else somebody was quicker, and the page tells who
                    _blame(filled, error.message)
                    return linkpage.ask(linked, fields, filled, status=409)
            except (InvalidArguments, PayloadRefused) as error:
                _blame(filled, error.message)
        if not filled.fits:
            return linkpage.ask(linked, fields, filled, status=422)
    # Relative, so that it holds wherever this is mounted and whatever a proxy has cut off.
    return Response(status_code=303, headers={**HEADERS, "Location": request.path_params["link"]})


async def _use_by_program(request: Request, linked: Linked, comment: Any, form: Any) -> Response:
    try:
        return document(_approval(await _redeem(request, comment, form)))
    except Conflict:
        linked = await follow(await _engine(request), request.path_params["link"])
        if not linked.is_used:
            raise
        return document(_approval(linked.approval))


async def _redeem(request: Request, comment: str, form: Any) -> Approval:
    app: Weft = request.app.state.weft
    return await app.approvals.redeem(request.path_params["link"], comment=comment, form=form, ip=client_ip(request))


async def _engine(request: Request) -> Engine:
    app: Weft = request.app.state.weft
    engine = app.engine()
    await engine.reach(PATIENCE)
    return engine


def _blame(filled: Filled, message: str) -> None:
    """Notes a refusal where it belongs on the page."""
    if message.startswith("comment "):
        filled.problems["comment"] = message.removeprefix("comment ")
    else:
        filled.general.append(message)


def _is_over(linked: Linked) -> bool:
    return linked.approval.status != "pending" or linked.vote is not None


def _schema(linked: Linked) -> dict[str, Any] | None:
    """Returns the schema of what is filled in: a rejection takes nothing."""
    return linked.approval.form if linked.link.decision == "approve" else None


def _check_allowed(linked: Linked) -> None:
    approvers, who = linked.approval.approvers, linked.link.approver
    if approvers and who not in approvers:
        raise NotAllowed(f"{who} may not decide this any more: {', '.join(approvers)} may", approvers=approvers)


def _approval(found: Approval) -> dict[str, Any]:
    return {name: getattr(found, name) for name in found.__struct_fields__}


def _linked(linked: Linked) -> dict[str, Any]:
    link = linked.link
    said = {"approver": link.approver, "decision": link.decision, "expires_at": linked.expires_at}
    return {**_approval(linked.approval), "link": said}
