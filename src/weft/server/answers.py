"""Answers: a page or JSON, as whoever asks prefers; errors with the codes they have everywhere; strict headers on all."""

from __future__ import annotations

from typing import Any

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from weft.errors import Broken, NotFound, OwnershipLost, Unavailable, UserError, WeftError
from weft.server.html import Html, element, join
from weft.server.style import POLICY, STYLE
from weft.telemetry import get_logger

log = get_logger("weft.server")

#: Seconds after which to ask again while the store does not answer.
RETRY_AFTER = 5

HEADERS = {
    "Content-Security-Policy": POLICY,
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "X-Robots-Tag": "noindex, nofollow",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Vary": "Accept",
}
#: What people read of errors that are not theirs: the whole of it, with addresses of servers, is in our log.
_OURS = {
    Unavailable: "The store does not answer just now. Try again in a moment: what was decided is shown then.",
    OwnershipLost: "The store is being rebuilt. Try again in a moment: what was decided is shown then.",
    Broken: "Something is wrong here, and nothing was changed. Tell whoever runs this server: its log says more.",
}
#: Headings by code, and by code and reason.
_TITLES = {
    "link_refused": "This link is not valid",
    "link_refused expired": "This link has expired",
    "link_refused asked_anew": "This was asked again since",
    "not_found": "This is gone",
    "not_allowed": "You cannot decide this any more",
    "not_allowed cross_site": "Not from there",
    "conflict": "This cannot be decided any more",
    "payload_too_large": "That is too much",
    "invalid_arguments": "That does not fit",
}


def wants_json(request: Request) -> bool:
    """Whether JSON is asked for; browsers ask for pages. Programs that send JSON and take anything get JSON."""
    accept = request.headers.get("accept", "")
    sent = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    return "text/html" not in accept and ("json" in accept or sent == "application/json")


def page(title: str, *inside: Html | None, status: int = 200, **headers: str) -> Response:
    """Returns a page."""
    body = join(
        Html("<!doctype html>"),
        element(
            "html",
            element(
                "head",
                element("meta", charset="utf-8"),
                element("meta", name="viewport", content="width=device-width, initial-scale=1"),
                element("title", f"{title} · Weft"),
                element("style", Html(STYLE)),
            ),
            element("body", element("main", _brand(), *inside)),
            lang="en",
        ),
    )
    return _answer(body.encode("utf-8", "backslashreplace"), "text/html; charset=utf-8", status, headers)


def _brand() -> Html:
    return element("p", element("b", "Weft"), element("span", "approvals"), class_="brand")


def document(value: Any, *, status: int = 200, media: str = "application/json", **headers: str) -> Response:
    """Returns a JSON document."""
    return _answer(msgspec.json.encode(value, enc_hook=str), media, status, headers)


def _answer(body: bytes, media: str, status: int, headers: dict[str, str]) -> Response:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Response(body, status, {**HEADERS, **named}, media)


def refuse(request: Request, error: WeftError) -> Response:
    """Returns an error: problem+json (RFC 9457) for programs, a page for people."""
    status = error.http_status
    said = explain(error)
    headers = {"Retry_After": str(RETRY_AFTER)} if status == 503 else {}
    if not isinstance(error, UserError):
        log.warning("a request could not be served", code=error.code, why=error.message)
    if wants_json(request):
        facts = error.facts if isinstance(error, UserError) else {}
        problem = {
            "type": "about:blank",
            "title": title_of(error),
            "status": status,
            "code": error.code,
            "detail": said,
        }
        return document({**problem, "facts": facts}, status=status, media="application/problem+json", **headers)
    return page(title_of(error), card(title_of(error), element("p", said, class_="lead")), status=status, **headers)


def explain(error: WeftError) -> str:
    """Returns what whoever asks is told of an error."""
    ours = next((words for cls, words in _OURS.items() if isinstance(error, cls)), "")
    return ours or f"{error.message[:1].upper()}{error.message[1:]}."


def title_of(error: WeftError) -> str:
    """Returns the heading of an error."""
    named = _TITLES.get(f"{error.code} {error.facts.get('reason')}") or _TITLES.get(error.code)
    return named or ("Not available just now" if error.retryable else "That did not work")


def card(title: str, *inside: Html | None) -> Html:
    """Returns the box that a page consists of."""
    return element("section", element("h1", title), *inside, class_="card")


def refuse_http(request: Request, error: HTTPException) -> Response:
    """Returns what is said of an address, or a method, that is not served."""
    known = error.status_code != 404
    why = f"{request.method} is not served here" if known else "there is nothing at this address"
    cls = UserError if known else NotFound
    answer = refuse(request, cls(f"{why}: this server has pages of links to approvals, and health"))
    answer.status_code = error.status_code
    answer.headers.update(error.headers or {})
    return answer
