"""One spelling for equal values, by which calls are compared. What it returns is compared, never read back.

A set has no order, and processes write the same one differently; a mapping keeps the order it was made in; a float may be given
as a whole number. Values of types that nobody here can take apart are compared as they were written.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Raw

from weft.codec import TypeCodec, decode_plain


def _fields(value: Any) -> Any:
    if isinstance(value, type) or not hasattr(value, "model_dump"):
        raise TypeError(f"objects of type {type(value).__name__} cannot be taken apart")
    return value.model_dump(mode="python")


_encoder = msgspec.msgpack.Encoder(enc_hook=_fields, order="deterministic")

#: First bytes of texts, bytes, nothing, true and false in msgpack: these have one spelling.
_SINGLE = frozenset([*range(0xA0, 0xC0), 0xC0, 0xC2, 0xC3, 0xC4, 0xC5, 0xC6, 0xD9, 0xDA, 0xDB])

#: Stands before the pairs of a mapping whose keys are no texts; no value that is stored has such a mark.
_MAPPING = 77


def one_spelling(codec: TypeCodec, data: bytes) -> bytes:
    """Returns what every value that equals the one in `data` is spelled as."""
    if data[0] in _SINGLE:
        return data
    try:
        return _spelled(codec.decode(data))
    except Exception:  # noqa: BLE001 - also what a class of the user's own says when it is made or taken apart
        return data


def plain_spelling(data: bytes) -> bytes:
    """Returns the same of a value that no annotation describes, such as the input of a graph."""
    try:
        return _spelled(decode_plain(data))
    except Exception:  # noqa: BLE001 - as above
        return data


def _spelled(value: Any) -> bytes:
    try:
        return _encoder.encode(value)
    except TypeError:
        # Keys that are no texts, and elements of several kinds, have no order there: that of their bytes will do.
        if isinstance(value, dict):
            pairs = sorted((_spelled(key), _spelled(each)) for key, each in value.items())
            # Marked, as a list of pairs is another value.
            told = _encoder.encode([(Raw(key), Raw(each)) for key, each in pairs])
            return _encoder.encode(msgspec.msgpack.Ext(_MAPPING, told))
        if isinstance(value, set | frozenset):
            return _encoder.encode([Raw(each) for each in sorted(map(_spelled, value))])
        if isinstance(value, list | tuple):
            return _encoder.encode([Raw(_spelled(each)) for each in value])
        raise
