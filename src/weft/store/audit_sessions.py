"""Looks at the directory of sessions for entries that nobody can read. Used by audit.py; changes nothing."""

from __future__ import annotations

import msgspec

from weft.core.model import SESSION_DECODER
from weft.store.findings import MAX_PER_KEY, Finding, Key, text_of
from weft.store.namespace import Namespace


async def check_sessions(ns: Namespace, p: int, keys: list[Key]) -> list[Finding]:
    (key,) = keys
    findings = []
    reply = await ns.read("HGETALL", key.text, p=p)
    for name, about in zip(reply[::2], reply[1::2], strict=True):
        try:
            SESSION_DECODER.decode(about)
        except msgspec.DecodeError:
            findings.append(key.finding(f"session {text_of(name)} cannot be read", f"HDEL {key.text} {text_of(name)}"))
    return findings[:MAX_PER_KEY]
