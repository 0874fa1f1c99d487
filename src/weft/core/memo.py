"""What makes two steps the same, so that one may take what the other gave. Pure."""

from __future__ import annotations

import hashlib
from typing import Any

import msgspec

from weft.core.graph.compile import NodePlan
from weft.core.model import RunSpec

_pack = msgspec.msgpack.Encoder().encode
_definition = msgspec.json.Encoder(order="sorted").encode


class Memo(msgspec.Struct, frozen=True, array_like=True):
    """What a step gave, as it is kept for others."""

    #: The run whose step made it, and when (ms).
    run: str
    at_ms: int
    #: What `cache.key` gave, as JSON; empty when the arguments are the key.
    key: str
    data: bytes


MEMO_DECODER = msgspec.msgpack.Decoder(Memo)


def memo_of(graph: str, node: NodePlan, spec: RunSpec, key: Any) -> str:
    """Returns `<graph>.<node>:<digest>:<key>`: where what a step gives is kept, and what its author called it.

    The digest is of the node's definition, its task, and its arguments or the key that stands for them.
    """
    what = spec.input if node.template("cache.key") is None else _pack(key)
    digest = hashlib.sha256(_pack([_definition(node.spec), spec.name, what])).hexdigest()[:32]
    words = "" if node.template("cache.key") is None else msgspec.json.encode(key).decode()[:200]
    return f"{graph}.{node.id}:{digest}:{words}"
