"""The one door that requests leave by: every connection goes to an address that was judged, and to no other.

The judgement is made where the connection is opened, in the backend of the pool. So nothing lies between looking and
leaping: not another parser of the URL, not a second answer of DNS, not a redirect. Names stay in `Host` and in TLS, which is
always verified. Proxies, netrc and cookies of the environment are not looked at. An exchange ends at its caps: bytes after
decoding, bytes of headers, and one clock over the whole of it.
"""

from __future__ import annotations

import asyncio
import logging
import re
import socket
import ssl
import zlib
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, replace
from ipaddress import ip_address
from types import TracebackType
from typing import Any

import httpcore2
import httpx2

from weft.errors import EgressDenied, HttpBadResponse, HttpTimeout, HttpUnreachable, InvalidOption
from weft.nodes.addresses import Address, Policy, plain, read_host
from weft.nodes.coding import Unfolding

#: Turns a name into addresses.
Resolver = Callable[[str, int], Awaitable[Sequence[str]]]

#: Longest URL, in characters.
MAX_URL = 8 * 1024

#: Seconds that one address of a host gets to accept a connection, so that a dead one leaves time for the next.
CONNECT_SECONDS = 5.0

#: Characters of a path, and of a scheme, that errors tell of what is no whole URL.
MAX_SHOWN_PATH, MAX_SHOWN_SCHEME = 200, 20

#: Addresses of one host that are tried.
MAX_TRIED = 4

#: Seconds an idle connection is kept for the next request to the same origin.
KEEP_SECONDS = 5.0

#: What may follow a request to another origin: nothing that could be meant for the first one alone.
_HARMLESS = frozenset({"accept", "accept-encoding", "accept-language", "content-type", "user-agent"})

_DEFAULT_PORTS = {"http": 80, "https": 443}
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_URL = re.compile(r"(https?)://([^/?#]*)(.*)", re.IGNORECASE | re.DOTALL)
_AUTHORITY = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^\[\]:]+)(?::([0-9]{0,5}))?")
#: Control characters and blanks smuggle lines; a backslash is a slash to some parsers and not to others.
_SMUGGLED = re.compile(r"[\x00-\x20\x7f-\xa0\\\u2028\u2029]")


@dataclass(frozen=True)
class Outgoing:
    """One request, ready to be sent: nothing in it is looked up or filled in any more."""

    method: str
    url: str
    headers: tuple[tuple[str, str], ...] = ()
    content: bytes = b""


@dataclass(frozen=True)
class Caps:
    """Where an exchange ends at the latest."""

    #: The whole exchange in seconds: names, connections, redirects and the last byte.
    seconds: float = 30.0
    #: The body, before and after decoding.
    max_bytes: int = 4 * 1024 * 1024
    #: All headers together.
    max_header_bytes: int = 32 * 1024
    #: Redirects that are followed.
    max_redirects: int = 0


@dataclass(frozen=True)
class Answer:
    """What came back: the body is decoded by its content coding, and nothing else."""

    status: int
    headers: tuple[tuple[str, str], ...]
    content: bytes
    url: str


async def resolve(host: str, port: int) -> list[str]:
    """Asks the system for all addresses of a name, in the order it prefers."""
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [str(entry[4][0]) for entry in found]


class Egress:
    """A pool of judged connections. Belongs to one event loop; open it once and close it at the end."""

    def __init__(
        self,
        policy: Policy | None = None,
        *,
        resolver: Resolver = resolve,
        ssl_context: ssl.SSLContext | None = None,
        max_connections: int = 100,
    ) -> None:
        self._pool = httpcore2.AsyncConnectionPool(
            ssl_context=ssl_context or httpx2.create_ssl_context(trust_env=False),
            max_connections=max_connections,
            keepalive_expiry=KEEP_SECONDS,
            network_backend=_JudgedBackend(policy or Policy.read(), resolver),
        )

    async def __aenter__(self) -> Egress:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Closes the connections that are kept."""
        await self._pool.aclose()

    async def exchange(self, request: Outgoing, caps: Caps | None = None) -> Answer:
        """Sends a request and returns the answer, whatever its status.

        Raises `EgressDenied` for where it must not go, `HttpUnreachable` and `HttpTimeout` when no whole answer came, and
        `HttpBadResponse` for one beyond the caps.
        """
        caps = caps or Caps()
        quiet = _OURS.set(True)
        try:
            async with asyncio.timeout(caps.seconds):
                return await self._follow(request, caps)
        except TimeoutError as error:
            raise HttpTimeout(
                f"{request.method} {show(request.url)} did not end within {caps.seconds:g}s; whether the server acted on it"
                " is not known"
            ) from error
        except (httpcore2.NetworkError, httpcore2.ProtocolError, httpcore2.TimeoutException, OSError) as error:
            raise HttpUnreachable(
                f"{request.method} {show(request.url)} failed: {_why(error)}", kind=type(error).__name__
            ) from error
        finally:
            _OURS.reset(quiet)

    async def _follow(self, request: Outgoing, caps: Caps) -> Answer:
        for _ in range(caps.max_redirects):
            answer = await self._send(request, caps)
            place = next((value for name, value in answer.headers if name == "location"), "")
            if answer.status not in _REDIRECTS or not place:
                return answer
            request = _redirected(request, answer.status, place)
        return await self._send(request, caps)

    async def _send(self, request: Outgoing, caps: Caps) -> Answer:
        url = read_url(request.url)
        headers = [("Host", url.netloc.decode("ascii")), *request.headers]
        if request.content or request.method in ("POST", "PUT", "PATCH"):
            headers.append(("Content-Length", str(len(request.content))))
        sent = httpcore2.Request(
            request.method,
            httpcore2.URL(scheme=url.raw_scheme, host=url.raw_host, port=url.port, target=url.raw_path),
            headers=[(name.encode("ascii"), value.encode("ascii")) for name, value in headers],
            content=request.content,
        )
        response = await self._pool.handle_async_request(sent)
        try:
            _check_headers(response.headers, caps, request)
            content = await _read(response, caps, request)
        finally:
            await response.aclose()
        decoded = tuple((name.decode("latin-1").lower(), value.decode("latin-1")) for name, value in response.headers)
        return Answer(response.status, decoded, content, request.url)


class _JudgedBackend(httpcore2.AsyncNetworkBackend):
    """Opens connections, and only to addresses that the policy has judged."""

    def __init__(self, policy: Policy, resolver: Resolver) -> None:
        self._policy, self._resolver = policy, resolver
        self._sockets = httpcore2.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        addresses = await self._judged(host, port)
        failed: list[str] = []
        for address in addresses[:MAX_TRIED]:
            try:
                stream = await self._sockets.connect_tcp(
                    str(address), port, CONNECT_SECONDS, local_address, socket_options
                )
            except (httpcore2.ConnectError, httpcore2.ConnectTimeout) as error:
                failed.append(f"{address}: {_why(error)}")
                continue
            peer = stream.get_extra_info("server_addr")
            if peer is None or plain(ip_address(peer[0])) != address:
                await stream.aclose()
                raise EgressDenied(
                    f"the connection to {host}:{port} was judged for {address} but leads to {peer and peer[0]}: something"
                    " between redirects connections; nothing was sent",
                    host=host,
                    address=str(address),
                    rule="peer",
                )
            return stream
        raise httpcore2.ConnectError(f"no connection to {host}:{port} ({'; '.join(failed)})")

    async def _judged(self, host: str, port: int) -> list[Address]:
        meant = read_host(host)
        if not isinstance(meant, str):
            return self._policy.judge(meant, port, [meant])
        try:
            found = await self._resolver(meant, port)
        except (OSError, UnicodeError) as error:
            raise httpcore2.ConnectError(f"the name {meant} cannot be resolved: {error}") from error
        if not found:
            raise httpcore2.ConnectError(f"the name {meant} has no address")
        return self._policy.judge(meant, port, found)

    async def connect_unix_socket(
        self, path: str, timeout: float | None = None, socket_options: Iterable[Any] | None = None
    ) -> httpcore2.AsyncNetworkStream:
        raise EgressDenied("requests go by TCP only, not to unix sockets", rule="unix")

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


def read_url(text: str) -> httpx2.URL:
    """Returns a URL that names an http or https server plainly, its host in ASCII without a trailing dot.

    Raises `InvalidOption` for what is no URL, `EgressDenied` for one that hides where it leads.
    """
    if not isinstance(text, str) or len(text) > MAX_URL:
        raise InvalidOption(f"url: a text of at most {MAX_URL} characters is needed", option="url")
    if _SMUGGLED.search(text):
        raise denied_url(text, "it holds a blank, a control character or a backslash; percent-encode them")
    found = _URL.fullmatch(text)
    if found is None:
        raise denied_url(text, "only http:// and https:// are spoken")
    if "@" in found[2]:
        raise denied_url(text, "it holds a user name or a password; send them in a header, by a secret's handle")
    authority = _AUTHORITY.fullmatch(found[2])
    if authority is None or "%" in found[2]:
        raise denied_url(text, "its host is no name and no address")
    try:
        url = httpx2.URL(text).copy_with(fragment=None)
    except (httpx2.InvalidURL, ValueError, UnicodeError):
        raise denied_url(text, "its host is no name and no address") from None
    host = read_host(url.raw_host.decode("ascii"))
    port = int(authority[2]) if authority[2] else None
    if port is not None and not 1 <= port <= 65535:
        raise denied_url(text, "ports go from 1 to 65535")
    return url.copy_with(host=str(host), port=port)


def show(url: str) -> str:
    """Returns a URL as errors and logs may tell it: without user, query and fragment."""
    found = _URL.fullmatch(url)
    if found is None:
        return _show_odd(url)
    path, mark, _ = re.sub("#.*", "", found[3], flags=re.DOTALL).partition("?")
    clean = _SMUGGLED.sub("�", f"{found[2].rpartition('@')[2]}{path}")
    return f"{found[1]}://{clean}{'?…' if mark else ''}"


def _show_odd(text: str) -> str:
    """Returns what is no whole URL as it may be told: a path without its query, or the scheme of something else."""
    head, mark = text, ""
    if found := re.search("[?#:@]", text):
        head, mark = text[: found.start()], found[0] + "…"
    if head.startswith("//"):  # a host, with a user perhaps
        head, mark = "//…", ""
    most = MAX_SHOWN_PATH if head.startswith("/") else MAX_SHOWN_SCHEME
    return repr(head[:most] + (mark if len(head) <= most else "…"))


def denied_url(url: str, why: str) -> EgressDenied:
    """Makes the error for a URL that is not even resolved."""
    return EgressDenied(f"a request to {show(url)} is refused: {why}", rule="url")


def _redirected(request: Outgoing, status: int, place: str) -> Outgoing:
    """Returns the request that a redirect asks for, without what is not the next server's to know."""
    before = read_url(request.url)
    if _SMUGGLED.search(place):
        raise denied_url(place, "a redirect to it holds a blank, a control character or a backslash")
    try:
        text = str(before.join(place))
    except (httpx2.InvalidURL, ValueError) as error:
        raise HttpBadResponse(f"{show(request.url)} redirects to what is no URL") from error
    after = read_url(text)
    if before.scheme == "https" and after.scheme == "http":
        raise denied_url(text, f"{show(request.url)} redirects to it, from TLS to plain text")
    next_request = replace(request, url=text)
    if status == 303 or (status in (301, 302) and request.method == "POST"):
        kept = tuple((name, value) for name, value in request.headers if not name.lower().startswith("content-"))
        method = "HEAD" if request.method == "HEAD" else "GET"
        next_request = replace(next_request, method=method, content=b"", headers=kept)
    if _origin(before) != _origin(after):
        if next_request.content:
            raise denied_url(text, f"{show(request.url)} redirects to it, and the body is not meant for another origin")
        kept = tuple((name, value) for name, value in next_request.headers if name.lower() in _HARMLESS)
        next_request = replace(next_request, headers=kept)
    return next_request


def _origin(url: httpx2.URL) -> tuple[str, bytes, int]:
    return url.scheme, url.raw_host, url.port or _DEFAULT_PORTS[url.scheme]


def _check_headers(headers: list[tuple[bytes, bytes]], caps: Caps, request: Outgoing) -> None:
    size = sum(len(name) + len(value) + 4 for name, value in headers)
    if size > caps.max_header_bytes:
        raise HttpBadResponse(
            f"{show(request.url)} answered with {size} bytes of headers, at most {caps.max_header_bytes} are taken"
        )
    if (coding := _coding(headers)) not in ("", "gzip", "deflate", "identity"):
        raise HttpBadResponse(
            f"{show(request.url)} answered in content coding {coding!r}; only gzip or deflate were asked for"
        )


def _coding(headers: list[tuple[bytes, bytes]]) -> str:
    codings = [value.decode("latin-1") for name, value in headers if name.lower() == b"content-encoding"]
    return ", ".join(coding.strip().lower() for coding in codings)


async def _read(response: httpcore2.Response, caps: Caps, request: Outgoing) -> bytes:
    """Reads and decodes the body while it arrives, so that a bomb is put down before it has unfolded."""
    taken, size = bytearray(), 0
    unfolding = Unfolding(_coding(response.headers))
    try:
        async for chunk in response.aiter_stream():
            size += len(chunk)
            for piece in unfolding.take(chunk):
                taken += piece
                if len(taken) > caps.max_bytes:
                    break
            if max(size, len(taken)) > caps.max_bytes:
                raise _too_large(caps, request)
        taken += unfolding.end()
    except zlib.error as error:
        raise HttpBadResponse(f"{show(request.url)} answered with a body that cannot be decoded: {error}") from error
    if len(taken) > caps.max_bytes:
        raise _too_large(caps, request)
    return bytes(taken)


def _too_large(caps: Caps, request: Outgoing) -> HttpBadResponse:
    return HttpBadResponse(
        f"{show(request.url)} answered with more than {caps.max_bytes} bytes; raise max_bytes if that is meant",
        max_bytes=caps.max_bytes,
    )


def _why(error: BaseException) -> str:
    return str(error) or type(error).__name__


#: Whether this task is inside an exchange of ours.
_OURS: ContextVar[bool] = ContextVar("weft_egress", default=False)


def _not_ours(record: logging.LogRecord) -> bool:
    return not _OURS.get()


# The library writes headers of answers into its debug log, and an answer may repeat a secret. Its other users keep theirs.
for _name in ("httpcore2.connection", "httpcore2.http11"):
    logging.getLogger(_name).addFilter(_not_ours)
