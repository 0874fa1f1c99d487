"""From a start that stands in the database to a run: the same for whoever asked, and for who finds it lying there.

Idempotent by the run's id, as long as the store or the archive knows the run.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import msgspec

from weft.codec import decode_plain
from weft.core.model import SPEC_ENCODER, RunSpec
from weft.core.starts import Blueprint, Start, key_digest
from weft.engine.definitions import definitions
from weft.engine.opening import prepare
from weft.store.blobs import stage_blob
from weft.store.controls import informed
from weft.store.definitions import keep_definitions
from weft.store.graphs import start_graph
from weft.store.namespace import Namespace
from weft.store.runs import NewRun, start_runs

_BLUEPRINT = msgspec.msgpack.Decoder(Blueprint)


async def begin(
    ns: Namespace, p: int, starts: Sequence[Start], *, now_ms: int, by: str, free: bool = False
) -> list[str]:
    """Starts runs of one partition in the store; returns a word each (see start_runs.lua and start_graph.lua).

    `free`: without their records of calls that count as one.
    """
    tasks = [start for start in starts if start.kind == "task"]
    words: dict[str, str] = {}
    if tasks:
        new = [await _new_run(ns, p, start, start.request(now_ms, free=free)) for start in tasks]
        replies = await informed(ns, p, lambda: start_runs(ns, p, new, by=by))
        words |= {run.id: word for run, word in zip(new, replies, strict=True)}
    for start in starts:
        if start.kind == "graph":
            words[start.run] = await _begin_graph(ns, p, start, start.request(now_ms, free=free), by=by)
    return [words[start.run] for start in starts]


async def _new_run(ns: Namespace, p: int, start: Start, spec: RunSpec) -> NewRun:
    if start.input:
        spec = msgspec.structs.replace(spec, blob=await stage_blob(ns, p, start.run, start.input))
    new = NewRun(start.run, spec, SPEC_ENCODER.encode(spec))
    if spec.key:
        new.key_digest, new.payload_digest, new.window_ms = key_digest(spec.key), start.same, spec.key_ms
    elif spec.once_ms:
        new.policy, new.unique, new.unique_ms = "j", spec.unique or spec.once, spec.once_ms
    return new


async def _begin_graph(ns: Namespace, p: int, start: Start, spec: RunSpec, *, by: str) -> str:
    follows = _BLUEPRINT.decode(start.more)
    address = hashlib.sha256(follows.definition).hexdigest()
    published = definitions.make(address, follows.definition)
    value = decode_plain(start.input or spec.input)
    new, effects, result = await prepare(
        ns, p, start.run, published, msgspec.structs.replace(spec, definition=address, input=b""), value
    )
    await keep_definitions(ns, p, follows.children)
    told: dict[str, Any] = {
        "definition": follows.definition,
        "result": result,
        "by": by,
        "below": list(follows.children),
    }
    return await informed(ns, p, lambda: start_graph(ns, p, new, effects, **told))
