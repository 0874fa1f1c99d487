"""Blobs in Redis: values too large to keep inline, addressed by their content within their run.

A blob is uploaded with a staging expiry before the script that refers to it; that script keeps it, or refuses
when it is gone. So a process that dies between the two leaves nothing behind.
"""

from __future__ import annotations

import asyncio
import hashlib

from weft.errors import ResultExpired
from weft.store.namespace import Namespace

#: Milliseconds an uploaded blob stays without anything referring to it.
STAGING_MS = 3_600_000


#: Bytes from which a digest is made in a thread: a megabyte takes a millisecond or two, for which everything else would wait.
LARGE = 256 * 1024


def digest_of(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


async def stage_blob(ns: Namespace, p: int, run: str, data: bytes) -> str:
    """Uploads a value and returns its digest."""
    digest = digest_of(data) if len(data) < LARGE else await asyncio.to_thread(digest_of, data)
    key = ns.keys.blob(p, run, digest)
    if await ns.read("SET", key, data, "NX", "PX", STAGING_MS, p=p) is None:
        # Another step of the run has the same value: if it is kept it stays kept, if it is staged its expiry starts over.
        await ns.read("PEXPIRE", key, STAGING_MS, "GT", p=p)
    return digest


async def read_blob(ns: Namespace, p: int, run: str, digest: str) -> bytes:
    """Returns a blob's bytes; raises when it has expired."""
    data = await ns.read("GET", ns.keys.blob(p, run, digest), p=p)
    if data is None:
        raise ResultExpired(f"the value cas://sha256:{digest} of run {run} is no longer kept", run=run)
    return bytes(data)
