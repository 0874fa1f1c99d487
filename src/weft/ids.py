"""Names and numbers of things: ids are made here, and everything that names something is checked here.

A run id is `r<partition>-` and 22 characters of Crockford base32: 48 bits of Unix milliseconds, then 62
random bits, so the ids of one partition sort by the millisecond they were made in, and whoever holds an id
knows the partition without asking. Ids and names end up inside Redis keys and come from outside, so this
room refuses whatever is not of the exact form, with a message that never repeats more than a few characters.
"""

from __future__ import annotations

import functools
import hashlib
import math
import os
import re
import time
import unicodedata
import zlib
from collections.abc import Mapping

from weft.errors import InvalidOption, NotFound

#: Crockford base32: digits and capitals without I, L, O and U. In ASCII order, so text order is number order.
ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
PAIRS = [a + b for a in ALPHABET for b in ALPHABET]

#: Longest task, queue, graph or workflow name, in characters.
MAX_NAME_CHARS = 200

#: Longest idempotency key, in characters.
MAX_KEY_CHARS = 512

#: Most tags on one run; longest tag name and tag value, in characters.
MAX_TAGS, MAX_TAG_NAME_CHARS, MAX_TAG_VALUE_CHARS = 32, 64, 256

#: How many random tails one draw from the operating system fills. More is faster per id and costs ~100 bytes each.
TAILS_PER_DRAW = 512

#: How much of a refused value an error message repeats, in characters.
SHOWN_CHARS = 60

#: Random bytes behind one id: one of which two bits are used, and twelve that become a character each.
_TAIL_BYTES = 13

#: Every byte to a character of the alphabet; 256 is a multiple of 32, so no character is favoured.
_BYTE_TO_CHAR = bytes(ord(ALPHABET[byte % 32]) for byte in range(256))

_RUN_ID = re.compile(rf"r(0|[1-9][0-9]{{0,4}})-[{ALPHABET}]{{22}}")
_NAME = re.compile(r"[A-Za-z0-9_.\-/]+")
_FORBIDDEN_CATEGORIES = frozenset({"Cc", "Cs", "Cn", "Co", "Zl", "Zp"})

# Tails not handed out yet. `list.pop` is atomic, so threads share the pool without a lock.
_tails: list[tuple[int, str]] = []
# (millisecond, the four 10-character heads of that millisecond), replaced as one object for the same reason.
_head: tuple[int, tuple[str, ...]] = (-1, ())

# A forked child must not hand out the tails that its parent will hand out too.
os.register_at_fork(after_in_child=_tails.clear)


def new_run_id(partition: int) -> str:
    """Return a new run id that lives in `partition`."""
    return f"r{partition}-{_stamp()}"


def new_run_ids(partition: int, n: int) -> list[str]:
    """Return `n` new run ids of one partition, all of the same millisecond; none when `n` is 0."""
    heads = _heads()
    return [f"r{partition}-{heads[low]}{tail}" for low, tail in _draw_tails(n)]


def tick_run_id(partition: int, schedule: str, tick_ms: int) -> str:
    """Return the id of the run that one tick of a schedule starts: the same whoever starts it, and however often."""
    drawn = hashlib.sha256(f"{schedule}\0{tick_ms}".encode()).digest()
    stem = "".join(ALPHABET[tick_ms >> shift & 31] for shift in range(43, 0, -5))
    head = stem + ALPHABET[(tick_ms & 7) << 2 | drawn[0] & 3]
    return f"r{partition}-{head}" + drawn[1:_TAIL_BYTES].translate(_BYTE_TO_CHAR).decode("ascii")


def tick_ms_of(run_id: str) -> int:
    """Return the tick whose run has this id; of any other run, the moment at which its id was made."""
    head = run_id.partition("-")[2]
    return (
        functools.reduce(lambda ms, char: ms << 5 | ALPHABET.index(char), head[:9], 0) << 3
        | ALPHABET.index(head[9]) >> 2
    )


def stamp_of(ms: int) -> str:
    """Return what the ids made in a millisecond, without their partition, are not smaller than."""
    ms = min(max(ms, 0), (1 << 48) - 1)
    return "".join(ALPHABET[ms >> shift & 31] for shift in range(43, 0, -5)) + ALPHABET[(ms & 7) << 2]


def home_of_key(key: str, partitions: int) -> int:
    """Return the partition where everybody looks for what is known by a key."""
    return zlib.crc32(key.encode()) % partitions


def moved_to(run: str, partition: int) -> str:
    """Return the id of a run as it is in another partition."""
    return f"r{partition}{run[run.index('-') :]}"


def child_run_id(parent: str, step: str, attempt: int, life: int = 0) -> str:
    """Return the id of the run that a step of another run starts: the same whoever starts it. It sorts beside its parent.

    `life` counts how often a retry of the parent has opened the step anew.
    """
    place = parent.index("-") + 11
    seed = f"{parent}\0{step}\0{attempt}" + (f"\0{life}" if life else "")
    drawn = hashlib.sha256(seed.encode()).digest()
    return parent[:place] + drawn[1:_TAIL_BYTES].translate(_BYTE_TO_CHAR).decode("ascii")


def new_id(prefix: str) -> str:
    """Return a new id of another kind: `s` for a worker session, `c` for a client."""
    return f"{prefix}-{_stamp()}"


def partition_of(run_id: str) -> int:
    """Return the partition a run lives in. Raises `NotFound` for what cannot be the id of any run."""
    match = _RUN_ID.fullmatch(run_id) if isinstance(run_id, str) else None
    if match is None:
        raise NotFound(
            f"there is no run {_show(run_id)}: a run id is r, the partition, a dash and 22 letters and digits, "
            "such as r3-01J9ZC5T0FQ8M2X7K4VNBW"
        )
    return int(match[1])


def check_name(value: str, *, what: str) -> str:
    """Return `value` if it can name a task, queue, graph or workflow; raise `InvalidOption` if not."""
    return _check_name(value, what, MAX_NAME_CHARS)


def check_key(value: str, *, what: str) -> str:
    """Return `value` if it can be an idempotency key; raise `InvalidOption` if not.

    Any text of 1 to 512 characters goes, in any script, as long as it holds no control characters.
    """
    if not isinstance(value, str) or not value:
        raise InvalidOption(f"{what}: {_show(value)} is not a text of 1 to {MAX_KEY_CHARS} characters", option=what)
    return _check_text(value, what, MAX_KEY_CHARS)


def check_tags(tags: Mapping[str, str | int | float | bool]) -> dict[str, str]:
    """Return tags as they are stored, numbers and booleans as text (`true`, `false`); raise `InvalidOption`."""
    if not isinstance(tags, Mapping):
        raise InvalidOption(f"tags: a {type(tags).__name__} is not a dict of names and values", option="tags")
    if len(tags) > MAX_TAGS:
        raise InvalidOption(f"tags: {len(tags)} given, at most {MAX_TAGS} are kept", option="tags")
    return {_check_name(name, "tag name", MAX_TAG_NAME_CHARS): _tag_value(name, value) for name, value in tags.items()}


def _stamp() -> str:
    while True:
        try:
            low, tail = _tails.pop()
        except IndexError:
            # Another thread may empty the pool again before this one takes from it: hence the loop.
            _tails.extend(_draw_tails(TAILS_PER_DRAW))
        else:
            return _heads()[low] + tail


def _heads() -> tuple[str, ...]:
    """Return the four possible first ten characters of an id made now: 48 bits of time, then two random bits."""
    global _head  # noqa: PLW0603 - one immutable pair, replaced whole
    now_ms = time.time_ns() // 1_000_000
    made_ms, heads = _head
    if made_ms != now_ms:
        stem = PAIRS[now_ms >> 38] + PAIRS[now_ms >> 28 & 1023] + PAIRS[now_ms >> 18 & 1023] + PAIRS[now_ms >> 8 & 1023]
        stem += ALPHABET[now_ms >> 3 & 31]
        low = (now_ms & 7) << 2
        heads = (stem + ALPHABET[low], stem + ALPHABET[low + 1], stem + ALPHABET[low + 2], stem + ALPHABET[low + 3])
        _head = (now_ms, heads)
    return heads


def _draw_tails(n: int) -> list[tuple[int, str]]:
    """Return `n` pairs of two random bits and twelve random characters, from one read of the system's randomness."""
    drawn = os.urandom(n * _TAIL_BYTES)
    chars = drawn.translate(_BYTE_TO_CHAR).decode("ascii")
    return [(drawn[at] & 3, chars[at + 1 : at + _TAIL_BYTES]) for at in range(0, len(drawn), _TAIL_BYTES)]


def _check_name(value: str, what: str, max_chars: int) -> str:
    if not isinstance(value, str) or not _NAME.fullmatch(value) or len(value) > max_chars:
        raise InvalidOption(
            f"{what}: {_show(value)} is not a name; use 1 to {max_chars} of the characters A-Z a-z 0-9 _ . - /",
            option=what,
        )
    return value


def _check_text(value: str, what: str, max_chars: int) -> str:
    if len(value) > max_chars:
        raise InvalidOption(f"{what}: {len(value)} characters are too many, at most {max_chars} are kept", option=what)
    # `isprintable` is quick but also refuses joiners and unusual spaces, which names in many scripts need.
    if not value.isprintable() and any(unicodedata.category(char) in _FORBIDDEN_CATEGORIES for char in value):
        raise InvalidOption(f"{what}: {_show(value)} holds control characters or is not valid text", option=what)
    return value


def _tag_value(name: str, value: str | int | float | bool) -> str:
    what = f"tag {name}"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        # `str.__str__`, so that a member of a string enum is stored as its value.
        return _check_text(str.__str__(value), what, MAX_TAG_VALUE_CHARS)
    if isinstance(value, int) and value.bit_length() <= 512:
        return str(int(value))
    if isinstance(value, float) and math.isfinite(value):
        return repr(float(value))
    raise InvalidOption(f"{what}: {_show(value)} is not a text, finite number or boolean", option=what)


def _show(value: object) -> str:
    """Return a short `repr`, safe for a value from outside: cut before it is printed, never megabytes long."""
    if isinstance(value, str):
        return repr(value) if len(value) <= SHOWN_CHARS else f"{value[:SHOWN_CHARS]!r}… ({len(value)} characters)"
    return f"a value of type {type(value).__name__}"
