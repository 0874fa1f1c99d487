"""Says why a store could not be reached: TLS asked of a plain port, plain words said to a TLS port, or no store at all.

redis-py says "Timeout" or "Protocol error" for these, without a place. Nothing is connected to here.
"""

from __future__ import annotations

import ssl
from typing import Any

from redis.asyncio.connection import SSLConnection
from redis.exceptions import InvalidResponse
from redis.exceptions import TimeoutError as RedisTimeoutError

#: What OpenSSL calls an answer that is no TLS.
NO_TLS = frozenset(
    ["WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "PACKET_LENGTH_TOO_LONG", "HTTP_REQUEST", "UNKNOWN_PROTOCOL"]
)
#: How redis-py and hiredis show the first byte of a TLS alert, which is what a TLS port answers to plain words.
ALERT = ("\\x15", "\x15")
#: How redis-py says that a connection which was made has ended.
ENDED = ("Connection closed by server", "Error while reading")
#: What whoever chose the wrong one of the two is told.
PLAIN = "if that is a plain port, begin the URL with redis, not rediss"
TLS = "if that is a TLS port, begin the URL with rediss, not redis"
OTHER = "see whether host and port are those of the store"


def reason_of(connection: Any, error: BaseException, seconds: float | None) -> str:
    """Returns why a connection of redis-py could not be made; `seconds`: what it had, unless that was its own limit."""
    if path := getattr(connection, "path", ""):
        place = str(path)
    else:
        place = f"{connection.host}:{connection.port}" if connection.host else "the store"
    limit = connection.socket_connect_timeout if seconds is None else seconds
    return reason(error, place=place, tls=isinstance(connection, SSLConnection), seconds=limit)


def reason(error: BaseException, *, place: str, tls: bool, seconds: float) -> str:
    """Returns the same for a place; what is clear as it stands (refused, a certificate) stays as redis-py says it."""
    # No further back: what was being handled when somebody tried again has nothing to do with it.
    both = (error, error.__cause__ or error.__context__)
    said = str(error)
    if isinstance(error, InvalidResponse):
        if not tls and any(alert in said for alert in ALERT):
            return f"{place} speaks TLS: begin the URL with rediss, not redis"
        return f"{place} is no Redis or Valkey server ({said}): {OTHER}"
    if isinstance(error, (TimeoutError, RedisTimeoutError)):
        if not tls:
            return f"{place} did not answer within {seconds:g} s"
        return f"{place} did not answer a TLS handshake within {seconds:g} s: {PLAIN}; else {OTHER}"
    if any(isinstance(each, ssl.SSLError) and each.reason in NO_TLS for each in both):
        return f"{place} does not speak TLS: {PLAIN}"
    if said.startswith(ENDED):
        return f"{place} closed the connection before it answered: {OTHER if tls else TLS}"
    if tls and any(isinstance(each, (ConnectionResetError, ConnectionAbortedError, ssl.SSLEOFError)) for each in both):
        return f"{place} closed the connection during the TLS handshake: {PLAIN}"
    return said
