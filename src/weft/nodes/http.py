"""One HTTP request as a step: what it may say, what it expects, and what becomes of the answer.

A specification is checked whole before anything is sent; what is unknown or could mean two things is refused. Secrets are
filled in last and taken out of everything that comes back. This room repeats nothing: a request that failed raises, and
`steer` turns that into what the queue's own retries understand.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime
from email.message import Message
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import urlencode

import msgspec

from weft.clock import MAX_DURATION_MS, Duration, parse_duration_ms
from weft.codec import MAX_PAYLOAD, encode_plain
from weft.core.graph.fields import MAX_REDIRECTS
from weft.core.steering import Fatal, Retry
from weft.errors import Broken, HttpBadResponse, HttpFailed, HttpUnreachable, InvalidOption, PayloadRefused, WeftError
from weft.nodes.egress import Answer, Caps, Egress, Outgoing, read_url, show
from weft.nodes.secrets import Redactor, Secret, Secrets
from weft.sdk.current import CURRENT
from weft.telemetry import get_logger

log = get_logger("weft.nodes.http")

METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")

#: Statuses that another attempt may cure: too slow, too early, too many, and the server's own troubles.
RETRY_ON = (408, 425, 429, "5xx")

#: The longest pause that a server's `Retry-After` is believed, in milliseconds.
MAX_RETRY_AFTER_MS = 3_600_000

#: Bytes of headers that a request may carry.
MAX_HEAD_BYTES = 32 * 1024

#: Characters of an unexpected answer that its error keeps, among its facts.
EXCERPT_CHARS = 500

#: Headers that say how the message is framed or where it goes: whoever sets them can make two requests out of one.
_RESERVED = frozenset(
    "host content-length transfer-encoding connection keep-alive upgrade te trailer expect accept-encoding"
    " proxy-connection proxy-authorization proxy-authenticate".split()
)
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,200}")
_VALUE = re.compile(r"[\x21-\x7e](?:[\x20-\x7e\t]*[\x21-\x7e])?|")
_STATUSES = re.compile(r"([1-5])xx|([1-5][0-9]{2})(?:\s*-\s*([1-5][0-9]{2}))?", re.IGNORECASE)
_UNSET: Any = msgspec.UNSET

#: Charsets that answers are read in. Others of Python's are no charsets, or take quadratic time.
_CHARSETS = re.compile(
    r"utf-?8|utf-16(le|be)?|us-ascii|iso-8859-(1|2|5|7|9|15)|windows-125[0-8]|shift_jis|euc-(jp|kr)|gb2312|gbk|gb18030"
    r"|big5|koi8-r",
    re.IGNORECASE,
)

#: One status, a class of them ("2xx") or a span ("200-204").
Statuses = int | str


@dataclass(frozen=True, kw_only=True)
class HttpRequest:
    """What an HTTP step asks for. Values of headers, query, form and JSON may be a `Secret`."""

    url: str
    method: str = "GET"
    headers: Mapping[str, Any] = field(default_factory=dict)
    #: Added to what the URL has. A list repeats its name.
    query: Mapping[str, Any] = field(default_factory=dict)
    #: At most one of these three is the body.
    json: Any = _UNSET
    form: Mapping[str, Any] | None = None
    body: str | bytes | Secret | None = None
    #: Statuses that are a success.
    expect: Statuses | Sequence[Statuses] = "2xx"
    #: The whole exchange, to the last byte.
    timeout: Duration = "30s"
    #: The body of the answer, after decoding.
    max_bytes: int = 4 * 1024 * 1024
    #: How many redirects are followed; each is judged like the first address.
    redirects: int = 0
    #: True: the step's effect key, unless it only reads. A text: that. False: none.
    idempotency_key: str | bool = True

    def __post_init__(self) -> None:
        _check(self)

    @classmethod
    def read(cls, spec: Mapping[str, Any]) -> HttpRequest:
        """Reads a specification from data. Raises `InvalidOption` for fields that there are none of."""
        known = [item.name for item in fields(cls)]
        unknown = sorted(str(name) for name in spec if name not in known)
        if unknown:
            raise InvalidOption(f"an HTTP request has no {', '.join(unknown)[:100]}; it has {', '.join(known)}")
        if "url" not in spec:
            raise InvalidOption("an HTTP request needs a url", option="url")
        return cls(**spec)


async def request(
    spec: HttpRequest | Mapping[str, Any], *, egress: Egress | None = None, secrets: Secrets | None = None
) -> dict[str, Any]:
    """Sends a request and returns `{status, headers, body}` when the status is an expected one.

    The body is parsed where the content type says JSON, text where it says text, bytes otherwise, and None when empty.
    Without an `egress` it opens one for this request alone. Raises `HttpFailed` for other statuses, `EgressDenied`,
    `SecretMissing`, `HttpUnreachable`, `HttpTimeout`, `HttpBadResponse`; none of them tells a secret.
    """
    asked = spec if isinstance(spec, HttpRequest) else HttpRequest.read(spec)
    redactor = Redactor(secrets or Secrets())
    failure: WeftError
    try:
        outgoing = _outgoing(asked, redactor)
        if egress is None:
            async with Egress() as own:
                answer = await own.exchange(outgoing, _caps(asked))
        else:
            answer = await egress.exchange(outgoing, _caps(asked))
        result = _result(asked, answer, redactor)
        log.debug("requested", method=asked.method, url=redactor.text(show(asked.url)), status=answer.status)
        return result
    except WeftError as error:
        failure = redactor.error(error)
    except Exception as error:  # noqa: BLE001 - whatever it is, its text may hold a secret
        failure = Broken(redactor.text(f"{asked.method} {show(asked.url)} failed: {type(error).__name__}: {error}"))
    # Raised out here, so that it has no context: the first error's text and causes may hold a secret.
    raise failure


def steer(error: WeftError, retry_on: Sequence[Statuses] = RETRY_ON) -> Retry | Fatal:
    """Returns what the queue is to be told about a request that failed; to be raised `from` the error.

    Another attempt for the statuses in `retry_on`, after the time that the server asked for (an hour at most), and for
    servers that were not reached. Nothing else gets better by repeating it.
    """
    if isinstance(error, HttpFailed) and error.status in _spans(retry_on, "retry_on"):
        after = error.retry_after_ms
        return Retry(error.message, after=None if after is None else f"{min(after, MAX_RETRY_AFTER_MS)}ms")
    return Retry(error.message) if isinstance(error, HttpUnreachable) else Fatal(error.message)


def _check(asked: HttpRequest) -> None:
    if asked.method not in METHODS:
        raise InvalidOption(f"method: {str(asked.method)[:20]!r} is not one of {', '.join(METHODS)}", option="method")
    for name in ("headers", "query", "form"):
        value = getattr(asked, name)
        if not isinstance(value, Mapping) and not (name == "form" and value is None):
            raise InvalidOption(f"{name}: an object of names and values is needed", option=name)
    bodies = [name for name in ("json", "form", "body") if getattr(asked, name) not in (None, _UNSET)]
    if asked.json is None:
        bodies.append("json")
    if len(bodies) > 1:
        raise InvalidOption(f"a request has one body, not {' and '.join(bodies)}", option=bodies[1])
    if not isinstance(asked.body, str | bytes | Secret | None):
        raise InvalidOption("body: text or bytes; data goes into json or form", option="body")
    for name, least, most in (("max_bytes", 1, MAX_PAYLOAD), ("redirects", 0, MAX_REDIRECTS)):
        value = getattr(asked, name)
        if type(value) is not int or not least <= value <= most:
            raise InvalidOption(f"{name}: a whole number from {least} to {most} is needed", option=name)
    if not isinstance(asked.idempotency_key, str | bool):
        raise InvalidOption("idempotency_key: a text, true or false", option="idempotency_key")
    parse_duration_ms(asked.timeout, what="timeout", allow_zero=False)
    _spans(asked.expect, "expect")
    read_url(asked.url)


def _caps(asked: HttpRequest) -> Caps:
    seconds = parse_duration_ms(asked.timeout, what="timeout", allow_zero=False) / 1_000
    return Caps(seconds=seconds, max_bytes=asked.max_bytes, max_redirects=asked.redirects)


def _spans(statuses: Statuses | Sequence[Statuses], option: str) -> set[int]:
    found: set[int] = set()
    for status in [statuses] if isinstance(statuses, int | str) else statuses:
        match = _STATUSES.fullmatch(str(status).strip())
        if match is None:
            raise InvalidOption(
                f'{option}: {str(status)[:40]!r} is no status; write 200, "2xx" or "200-204"', option=option
            )
        first = int(match[2] or f"{match[1]}00")
        found.update(range(first, (first + 99 if match[1] else int(match[3] or first)) + 1))
    if not found:
        raise InvalidOption(f"{option}: no status is left", option=option)
    return found


def _outgoing(asked: HttpRequest, redactor: Redactor) -> Outgoing:
    """Makes the request that is sent, with the secrets in it."""
    content, kind = _content(asked, redactor)
    headers = {"accept": "*/*", "user-agent": "weft"}
    if kind:
        headers["content-type"] = kind
    headers |= _headers(asked, redactor)
    # Not ours to choose: what is decoded is bounded here, and other codings are refused.
    headers["accept-encoding"] = "gzip, deflate"
    if "idempotency-key" not in headers and (key := _idempotency_key(asked)):
        headers["idempotency-key"] = _header_value("idempotency_key", key)
    url = _with_query(asked, redactor)
    if sum(len(name) + len(value) + 4 for name, value in headers.items()) > MAX_HEAD_BYTES:
        raise InvalidOption(f"headers: at most {MAX_HEAD_BYTES} bytes are sent", option="headers")
    return Outgoing(asked.method, url, tuple(headers.items()), content)


def _headers(asked: HttpRequest, redactor: Redactor) -> dict[str, str]:
    headers: dict[str, str] = {}
    for name, value in asked.headers.items():
        if not isinstance(name, str) or not _TOKEN.fullmatch(name):
            raise InvalidOption(f"headers: {str(name)[:60]!r} is no name of a header", option="headers")
        if name.lower() in _RESERVED:
            raise InvalidOption(f"headers: {name} is set by Weft, because it frames the message", option="headers")
        if name.lower() in headers:
            raise InvalidOption(f"headers: {name} is given twice; join its values by a comma", option="headers")
        headers[name.lower()] = _header_value(
            f"headers: {name}", redactor.reveal(value) if isinstance(value, Secret) else value
        )
    return headers


def _header_value(what: str, value: Any) -> str:
    text = str(value) if type(value) in (int, float) else value
    # The value itself is not repeated: it may be a secret.
    if not isinstance(text, str):
        raise InvalidOption(
            f"{what}: a text, a number or a secret is needed, not {type(value).__name__}", option="headers"
        )
    if not _VALUE.fullmatch(text):
        raise InvalidOption(
            f"{what}: the value holds line breaks, control characters, letters beyond ASCII, or blanks at its ends",
            option="headers",
        )
    return text


def _idempotency_key(asked: HttpRequest) -> str:
    if isinstance(asked.idempotency_key, str):
        return asked.idempotency_key
    make = CURRENT.get(None)
    reads = asked.method in ("GET", "HEAD", "OPTIONS")
    return "" if reads or make is None or not asked.idempotency_key else make().effect_key


def _with_query(asked: HttpRequest, redactor: Redactor) -> str:
    query = urlencode(_pairs("query", asked.query, redactor))
    if not query:
        return asked.url
    head, mark, fragment = asked.url.partition("#")
    return f"{head}{'&' if '?' in head else '?'}{query}{mark}{fragment}"


def _pairs(option: str, values: Mapping[str, Any], redactor: Redactor) -> list[tuple[str, str]]:
    pairs: list[tuple[str, str]] = []
    for name, value in values.items():
        for item in value if isinstance(value, list | tuple) else [value]:
            if isinstance(item, bool):
                text = "true" if item else "false"
            elif isinstance(item, str | int) or (isinstance(item, float) and math.isfinite(item)):
                text = str(item)
            elif isinstance(item, Secret):
                text = redactor.reveal(item)
            else:
                kind = "null" if item is None else f"of type {type(item).__name__}"
                raise InvalidOption(
                    f"{option}: {name!s:.60} is {kind}; texts, numbers, booleans and lists go", option=option
                )
            pairs.append((_unicode(option, str(name)), _unicode(option, text)))
    return pairs


def _unicode(option: str, text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InvalidOption(f"{option}: a text is not valid Unicode", option=option) from None
    return text


def _content(asked: HttpRequest, redactor: Redactor) -> tuple[bytes, str]:
    """Returns the body and its type; the type is empty when there is no body."""
    if asked.json is not _UNSET:
        try:
            text = json.dumps(redactor.fill(asked.json), allow_nan=False, ensure_ascii=False, separators=(",", ":"))
        except (TypeError, ValueError, RecursionError) as error:
            why = error if isinstance(error, TypeError) else "it holds NaN, an infinity, or itself"
            raise InvalidOption(f"json: this is no JSON: {why}", option="json") from None
        return _unicode("json", text).encode(), "application/json"
    if asked.form is not None:
        return urlencode(_pairs("form", asked.form, redactor)).encode(), "application/x-www-form-urlencoded"
    body = redactor.reveal(asked.body) if isinstance(asked.body, Secret) else asked.body
    if isinstance(body, str):
        return _unicode("body", body).encode(), "text/plain; charset=utf-8"
    return body or b"", "" if body is None else "application/octet-stream"


def _result(asked: HttpRequest, answer: Answer, redactor: Redactor) -> dict[str, Any]:
    headers: dict[str, str] = {}
    for name, value in answer.headers:
        # Cookies hold commas of their own.
        joint = "\n" if name == "set-cookie" else ", "
        headers[name] = f"{headers[name]}{joint}{value}" if name in headers else value
    if answer.status not in _spans(asked.expect, "expect"):
        raise _unexpected(asked, answer, headers, redactor)
    result = {"status": answer.status, "headers": headers, "body": _body(answer, headers)}
    try:
        # Before it is walked: it bounds the depth, and says of what cannot be stored where that stands.
        encode_plain(result, what="the answer")
    except PayloadRefused as error:
        raise HttpBadResponse(f"{show(answer.url)}: {error.message}") from error
    cleaned: dict[str, Any] = redactor.clean(result)
    return cleaned


def _body(answer: Answer, headers: Mapping[str, str]) -> Any:
    if not answer.content:
        return None
    kind = Message()
    kind["content-type"] = headers.get("content-type", "")
    type_, charset = kind.get_content_type(), str(kind.get_param("charset", "utf-8"))
    if "content-type" not in headers:
        return answer.content
    if type_ == "application/json" or type_.endswith("+json"):
        try:
            return msgspec.json.decode(answer.content.removeprefix(b"\xef\xbb\xbf"))
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            raise HttpBadResponse(f"{show(answer.url)} says {type_}, but its body is no JSON: {error}") from error
    if type_.startswith("text/") or type_.endswith(("/xml", "+xml", "/javascript", "/x-www-form-urlencoded")):
        return answer.content.decode(charset if _CHARSETS.fullmatch(charset) else "utf-8", "replace")
    return answer.content


def _unexpected(asked: HttpRequest, answer: Answer, headers: Mapping[str, str], redactor: Redactor) -> HttpFailed:
    place = f", which redirects to {show(headers['location'])}" if "location" in headers else ""
    return HttpFailed(
        f"{asked.method} {show(answer.url)} was answered with status {answer.status}{place}; expected was {asked.expect}",
        status=answer.status,
        retry_after_ms=_retry_after_ms(headers.get("retry-after", "")),
        # Cut behind the redaction: half of a secret is one, too.
        excerpt=redactor.text(answer.content.decode("utf-8", "replace"))[:EXCERPT_CHARS],
    )


def _retry_after_ms(text: str) -> int | None:
    """Reads `Retry-After`: seconds, or a date. None for anything else."""
    if re.fullmatch(r"[0-9]{1,12}", text.strip()):
        return min(int(text) * 1_000, MAX_DURATION_MS)
    try:
        at = parsedate_to_datetime(text)
    except (TypeError, ValueError):
        return None
    wait = (at.replace(tzinfo=at.tzinfo or UTC) - datetime.now(UTC)).total_seconds()
    return max(0, min(int(wait * 1_000), MAX_DURATION_MS))
