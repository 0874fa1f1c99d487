"""What comes in: bounded bodies, forms and JSON, from where, and whether our own page sent it."""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import json
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from starlette.requests import ClientDisconnect, Request

from weft.errors import InvalidArguments, NotAllowed, PayloadTooLarge
from weft.server.answers import wants_json
from weft.settings import read_setting

#: Bytes of a body: a form of 64 KB, whose characters may each take three as they are sent, and a comment.
MAX_BODY = 256 * 1024
#: Seconds a body may take to arrive.
BODY_SECONDS = 30
#: Fields of a form.
MAX_FIELDS = 500


async def read_fields(request: Request) -> dict[str, str]:
    """Returns the fields of a form that a page sent."""
    try:
        text = (await _read_body(request)).decode("ascii")
        pairs = parse_qsl(text, keep_blank_values=True, errors="strict", max_num_fields=MAX_FIELDS)
    except ValueError as error:
        raise InvalidArguments(f"the form cannot be read: {error}") from error
    found = dict(pairs)
    if len(found) != len(pairs):
        raise InvalidArguments("a field of the form is there twice: only one of its values could be taken")
    return found


async def read_object(request: Request) -> dict[str, Any]:
    """Returns the JSON object that a program sent; nothing at all is an empty one."""
    found = parse_json((await _read_body(request)) or b"{}")
    if not isinstance(found, dict) or found.keys() - {"comment", "form"}:
        raise InvalidArguments('send a JSON object with nothing but "comment" and "form", or no body')
    return found


def parse_json(data: bytes | str) -> Any:
    """Reads JSON. Raises InvalidArguments for what is none, or would not come out as it is written."""
    try:
        return json.loads(data, object_pairs_hook=_once_each, parse_constant=_refuse_constant)
    except RecursionError:
        raise InvalidArguments("this JSON is nested too deeply") from None
    except ValueError as error:
        raise InvalidArguments(f"this is not JSON: {error}") from error


def _once_each(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name stands twice in one object")
    return found


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is no number of JSON")


async def _read_body(request: Request) -> bytes:
    body = bytearray()
    try:
        async with asyncio.timeout(BODY_SECONDS):
            async for part in request.stream():
                body += part
                if len(body) > MAX_BODY:
                    raise PayloadTooLarge(f"a request may have {MAX_BODY} bytes")
    except TimeoutError as error:
        raise InvalidArguments(f"the request did not arrive within {BODY_SECONDS} s") from error
    except ClientDisconnect as error:
        raise InvalidArguments("the request broke off") from error
    return bytes(body)


def is_form(request: Request) -> bool:
    """Whether a request has the body of a page's form. Raises InvalidArguments for one that is neither that nor JSON."""
    media = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media == "application/x-www-form-urlencoded":
        return True
    if not media:
        return not wants_json(request)
    if media == "application/json":
        return False
    raise InvalidArguments(f"a body is application/json or application/x-www-form-urlencoded, not {media:.100}")


def check_origin(request: Request, *, confirmed: bool) -> None:
    """Raises NotAllowed for what a page of another site sends.

    Browsers say where a request comes from by Sec-Fetch-Site; over plain HTTP by Origin only, which is `null` from our own
    pages too, since they send no referrer: those are known by what they confirm with. Programs say nothing.
    """
    site, origin = request.headers.get("sec-fetch-site"), request.headers.get("origin")
    if site is not None:
        ours = site in ("same-origin", "none")
    elif origin == "null":
        ours = confirmed
    else:
        ours = origin is None or urlsplit(origin).netloc.lower() in _hosts(request)
    if not ours:
        raise NotAllowed(
            "this was sent by a page of another site: open the link itself, and decide there", reason="cross_site"
        )


def _hosts(request: Request) -> set[str]:
    public = read_setting("WEFT_PUBLIC_URL")
    return {request.headers.get("host", "").lower(), urlsplit(public).netloc.lower() if public else ""} - {""}


def is_confirmed(given: str, expected: str) -> bool:
    """Whether a form has what our page for this link put into it."""
    return hmac.compare_digest(given.encode("utf-8", "replace"), expected.encode())


def client_ip(request: Request) -> str:
    """Returns the address of the client; nothing when it is not known."""
    try:
        return str(ipaddress.ip_address(request.client.host)) if request.client else ""
    except ValueError:
        return ""
