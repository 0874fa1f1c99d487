"""What a graph run begins with, decided before it is started."""

from __future__ import annotations

from typing import Any

import msgspec

from weft.codec import decode_plain, encode_stored
from weft.core.effects import Arrive, Effect, Given, Letter, Mark, Open, route_spec
from weft.core.graph.schema import pack_input
from weft.core.model import INLINE_BYTES, SPEC_ENCODER, RunSpec, Value
from weft.core.routing import Published, Router, Scope, result_of
from weft.core.starts import key_digest, same_digest
from weft.errors import WeftError
from weft.sameness import plain_spelling
from weft.store.blobs import stage_blob
from weft.store.namespace import Namespace
from weft.store.runs import NewRun

_pack = msgspec.msgpack.Encoder().encode


async def prepare(
    ns: Namespace, p: int, run: str, published: Published, spec: RunSpec, input: Any
) -> tuple[NewRun, list[Effect], bytes]:
    """Returns a run that is about to start, what it begins with, and the result of one that has nothing to do."""
    packed_input = pack_input(input)
    address = published.address
    if len(packed_input) > INLINE_BYTES:
        spec = msgspec.structs.replace(spec, blob=await stage_blob(ns, p, run, packed_input))
    else:
        spec = msgspec.structs.replace(spec, input=packed_input)
    scope = Scope(input=decode_plain(packed_input), tags=spec.tags, names=published.reads_at_start())
    router = Router(published, scope)
    router.begin()
    effects, result = router.effects, b""
    left = bool(router.maps or router.todo or router.failed or any(_is_for_worker(effect) for effect in effects))
    if not left and not any(isinstance(effect, (Open, Arrive)) for effect in effects):
        try:
            result = _pack(Value(encode_stored(result_of(published.plan, scope))))
        except WeftError:
            left = True
    if left or len(result) > INLINE_BYTES:
        # What is more than a few steps is left to a worker, whose commit knows about maps, failures and large values.
        begin = _pack([("begin", "", (), "+")])
        effects = [Open("$start>", msgspec.structs.replace(route_spec(address), input=begin))]
    new = NewRun(run, spec, SPEC_ENCODER.encode(spec))
    if spec.key:
        new.key_digest, new.payload_digest = key_digest(spec.key), same_digest(spec, plain_spelling(packed_input))
        new.window_ms = spec.key_ms
    return new, effects, result


def _is_for_worker(effect: Effect) -> bool:
    return isinstance(effect, Letter) or (isinstance(effect, Open) and bool(effect.spec.memo)) or is_large(effect)


def is_large(effect: Effect) -> bool:
    """Tells whether an effect carries a value that does not stand inline."""
    if isinstance(effect, Mark) and effect.status != "completed":
        return False
    return isinstance(effect, (Mark, Given)) and len(effect.value) > INLINE_BYTES + 64
