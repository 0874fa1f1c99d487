"""Links that decide with one click: a text that nobody can make, or change, who does not know the key. Pure."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re

import msgspec

from weft.errors import LinkRefused

#: The longest text that is looked at.
MAX_CHARS = 2_000
#: Where the page of a link is, below the address of the server.
PATH = "/approvals/links/"

#: The last part of a URL's path.
_LAST = re.compile(r"^https?://[^?#]*/([^/?#]+)/?(?:[?#].*)?$", re.DOTALL)


class Link(msgspec.Struct, frozen=True):
    """What a link says: this person decides so about exactly this, until then."""

    id: str
    decision: str
    approver: str
    digest: str
    expires_ms: int
    #: When the question was asked: one that a retried run asks anew is another, even if it shows the same.
    opened_ms: int


_decoder = msgspec.json.Decoder(Link)


def sign(link: Link, key: bytes) -> str:
    """Returns a link's text: what it says, then the proof that we said so."""
    said = _text(msgspec.json.encode(link))
    return f"{said}.{_text(_proof(said, key))}"


def text_in(given: str) -> str:
    """Returns the text of a link, given that or the URL of its page."""
    found = _LAST.match(given.strip()) if isinstance(given, str) and len(given) <= 2 * MAX_CHARS else None
    return found[1] if found else given


def read(text: str, key: bytes, now_ms: int) -> Link:
    """Returns what a link says; raises LinkRefused when it is not ours, was changed, or is too old."""
    said, dot, proof = text.partition(".") if isinstance(text, str) and len(text) <= MAX_CHARS else ("", "", "")
    if not dot or not hmac.compare_digest(_text(_proof(said, key)).encode(), proof.encode("utf-8", "replace")):
        raise LinkRefused("this link was not made here, or it was changed: ask for a new one", reason="forged")
    try:
        link = _decoder.decode(base64.urlsafe_b64decode(said + "=" * (-len(said) % 4)))
    except (binascii.Error, ValueError) as error:
        raise LinkRefused("this link cannot be read: ask for a new one", reason="forged") from error
    if now_ms >= link.expires_ms:
        raise LinkRefused(f"this link to approval {link.id} has expired: ask for a new one", reason="expired")
    return link


def confirmation(text: str, key: bytes) -> str:
    """Returns what the page of a link puts into its form: only who was shown the page has it."""
    return _text(hmac.new(key, b"weft approval page\0" + text.encode("utf-8", "replace"), hashlib.sha256).digest())


def _proof(said: str, key: bytes) -> bytes:
    # The purpose is part of it: a key may sign other things some day.
    return hmac.new(key, b"weft approval link\0" + said.encode("utf-8", "replace"), hashlib.sha256).digest()


def _text(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()
