"""A small graph run given as raw steps, for tests of the scripts that commit them."""

from __future__ import annotations

from typing import Any

import msgspec
from partition import RESULT, Partition

from weft.core.effects import Effect, NodeEnd, Open
from weft.core.model import SPEC_ENCODER, RunSpec, Token
from weft.ids import new_run_id
from weft.store.graphs import commit_nodes, start_graph
from weft.store.lone import unfold_run
from weft.store.runs import NewRun

DIGEST = "d" * 64


def new_graph(p: int, **facts: Any) -> NewRun:
    spec = RunSpec("g", definition=DIGEST, **facts.pop("spec", {}))
    return NewRun(new_run_id(p), spec, SPEC_ENCODER.encode(spec), **facts)


def step(name: str, **options: Any) -> Open:
    return Open(name, RunSpec("job", definition=DIGEST, **options))


async def begin(
    part: Partition, *effects: Effect, new: NewRun | None = None, alone: bool = False, **options: Any
) -> str:
    """Starts a run of a graph and returns its id; its only step has a hash of its own unless it may stand `alone`."""
    new = new or new_graph(part.p)
    word = await start_graph(
        part.ns, part.p, new, effects, definition=b"{}", result=options.pop("result", b""), by="c-1", **options
    )
    assert word == "started"
    if not alone:
        await unfold_run(part.ns, part.p, new.id)
    return new.id


def end(token: Token, *effects: Effect, kind: str = "completed", value: bytes = RESULT, **changes: Any) -> NodeEnd:
    return NodeEnd(token, kind, value, token.claimed_ms, 60_000, list(effects), **changes)


async def commit(part: Partition, *ends: NodeEnd) -> list[str]:
    return await commit_nodes(part.ns, part.p, ends, session="s-1")


async def claim(part: Partition, queue: str = "default") -> dict[str, Token]:
    """Claims what is there, by the name of the step."""
    tokens = await part.claim(queues=[queue], room=100)
    return {token.run.partition("/")[2]: token for token in tokens}


def ledger(part: Partition, run: str) -> set[str]:
    return {name.decode() for name in part.raw.hkeys(part.keys.ledger(part.p, run))}


def given(part: Partition, run: str) -> dict[str, str]:
    """Returns the status of each node in the context."""
    found = part.raw.hgetall(part.keys.context(part.p, run))
    return {name.decode(): value.decode(errors="replace").split(" ")[0] for name, value in found.items()}


def packed(value: Any) -> bytes:
    return msgspec.msgpack.encode(value)
