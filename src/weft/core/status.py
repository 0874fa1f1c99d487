"""The status of work that runs elsewhere: what was observed of it, and how an observation is packed. Pure."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import msgspec

from weft.codec import decode_plain, encode_plain
from weft.errors import InvalidOption
from weft.ids import check_key

#: Longest status, in characters.
MAX_STATUS_CHARS = 100
#: Most bytes that one observation may say besides its status: it is kept in the history, in the feed and in the log.
MAX_META_BYTES = 65_536
#: What events of tasks elsewhere begin with in the log, where a run's begin with its id.
MARK = "@"

_PLACE = re.compile(r"(0|[1-9][0-9]{0,19})-(0|[1-9][0-9]{0,19})")


class Observation(msgspec.Struct, frozen=True):
    """What somebody saw of a task at one moment."""

    #: Where the log tells of it; in order of time within one task.
    id: str
    task_id: str
    status: str
    meta: dict[str, Any]
    at: datetime
    event_id: str = ""
    parent_id: str = ""
    source: str = ""
    #: Of `publish`: it was known already, and this is what is known.
    deduplicated: bool = False


class FeedPage(msgspec.Struct, frozen=True):
    """Some observations of all tasks, the oldest first, and the cursor from which the next ones follow."""

    observations: list[Observation]
    cursor: str


class Seen(msgspec.Struct, array_like=True, frozen=True):
    """An observation as it is packed: everything but when and where it was told."""

    task: str
    status: str
    meta: bytes
    event: str
    parent: str
    source: str


_encode = msgspec.msgpack.Encoder().encode
_sorted = msgspec.msgpack.Encoder(order="sorted").encode
_decode = msgspec.msgpack.Decoder(Seen).decode


def check_seen(
    task_id: str, status: str, meta: Mapping[str, Any] | None, event_id: str | None, parent_id: str | None, source: str
) -> Seen:
    """Checks what is to be published. Raises InvalidOption, PayloadRefused or PayloadTooLarge."""
    task = check_task(task_id)
    if len(check_key(status, what="status")) > MAX_STATUS_CHARS:
        raise InvalidOption(
            f"status: {len(status)} characters are too many, at most {MAX_STATUS_CHARS} are kept: details go into meta",
            option="status",
        )
    if meta is not None and not (isinstance(meta, Mapping) and all(isinstance(key, str) for key in meta)):
        raise InvalidOption(f"meta: a dict with texts as keys is wanted, not {type(meta).__name__}", option="meta")
    packed = encode_plain(dict(meta), what="meta", max_bytes=MAX_META_BYTES) if meta else b""
    event = "" if event_id is None else check_key(event_id, what="event_id")
    parent = "" if parent_id is None else check_key(parent_id, what="parent_id")
    if parent == task:
        raise InvalidOption(f"parent_id: task {task!r} cannot be its own parent", option="parent_id")
    return Seen(task, status, packed, event, parent, check_key(source, what="source") if source != "" else "")


def check_task(task_id: str) -> str:
    """Returns the id of a task that runs elsewhere, if it can be one; raises InvalidOption."""
    return check_key(task_id, what="task_id")


def check_place(text: str, *, what: str) -> tuple[int, int]:
    """Returns where in the log an observation stands; raises InvalidOption for what is no id of one."""
    found = _PLACE.fullmatch(text) if isinstance(text, str) else None
    if found is None:
        raise InvalidOption(
            f"{what}: {str(text)[:60]!r} is no place among the observations, such as 1763200000000-0: pass on what an"
            " earlier call gave",
            option=what,
        )
    return int(found[1]), int(found[2])


def digest_of(text: str) -> str:
    """Returns the name of a task, or of an event of it, as keys and tables have it: ids from elsewhere may hold anything."""
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def event_digest(seen: Seen) -> str:
    """Returns the name under which an event id is remembered: events of different tasks have nothing to do with each other."""
    return digest_of(f"{len(seen.task)} {seen.task}{seen.event}")


def content_of(seen: Seen) -> str:
    """Returns a digest of what was observed, whichever event it came by, and in whichever order its fields stood."""
    meta = decode_plain(seen.meta) if seen.meta else {}
    try:
        plain = _sorted(meta)
    except TypeError:  # keys of several types have no order
        plain = seen.meta
    content = _encode((seen.status, plain, seen.parent, seen.source))
    return hashlib.sha256(content).hexdigest()[:32]


def pack_seen(seen: Seen) -> bytes:
    """Returns an observation as it is stored."""
    return _encode(seen)


def read_seen(payload: bytes) -> Seen:
    """Returns an observation that was stored."""
    return _decode(payload)


def unpack(id: str, at_ms: int, payload: bytes, *, parent: str = "", known: bool = False) -> Observation:
    """Returns a stored observation as people read it. `parent`: what an earlier one said, where this one does not."""
    seen = _decode(payload)
    return Observation(
        id=id,
        task_id=seen.task,
        status=seen.status,
        meta=dict(decode_plain(seen.meta)) if seen.meta else {},
        at=datetime.fromtimestamp(at_ms / 1000, UTC),
        event_id=seen.event,
        parent_id=seen.parent or parent,
        source=seen.source,
        deduplicated=known,
    )
