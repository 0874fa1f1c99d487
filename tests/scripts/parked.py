"""Brings a partition into a state where steps of graph runs wait for something from outside."""

from __future__ import annotations

from typing import Any

import msgspec
from partition import Partition

from weft.core.approvals import Ask, Record, State
from weft.core.effects import Effect, Open
from weft.core.model import ROUTES, SPEC_ENCODER, RunSpec, Token
from weft.core.waits import APPROVAL, SIGNAL
from weft.ids import new_run_id
from weft.store.approvals import read_approvals
from weft.store.graphs import start_graph
from weft.store.runs import NewRun
from weft.store.waits import park_step


async def claimed_steps(part: Partition, *steps: str, name: str = SIGNAL) -> list[Token]:
    """Starts a graph run with these steps open, and claims them."""
    spec = RunSpec("graph", definition="d")
    effects: list[Effect] = [Open(step, RunSpec(name, queue=ROUTES, definition="d")) for step in steps]
    new = NewRun(new_run_id(part.p), spec, SPEC_ENCODER.encode(spec))
    word = await start_graph(part.ns, part.p, new, effects, definition=b"{}", result=b"", by="c-test")
    assert word == "started"
    tokens = await part.claim(queues=[ROUTES])
    assert len(tokens) == len(steps)
    return tokens


async def parked_signal(part: Partition, token: Token, name: str = "go", wait_ms: int = 0) -> str:
    return await park_step(part.ns, part.p, token, kind=f"signal:{name}", wait_ms=wait_ms, by="s-1")


async def parked_approval(part: Partition, **ask: Any) -> Record:
    """Returns the record of an approval that is open."""
    (token,) = await claimed_steps(part, "review", name=APPROVAL)
    about = Ask(**ask)
    record = {
        "about": msgspec.json.encode(about),
        "show": b"\xc0",
        "digest": "d1",
        "state": msgspec.json.encode(State(about.approvers)),
    }
    assert await park_step(part.ns, part.p, token, kind="approval", by="s-1", record=record) == "parked"
    return await record_of(part, token.run)


async def record_of(part: Partition, id: str) -> Record:
    (record,) = await read_approvals(part.ns, part.p, [id])
    assert record is not None
    return record


def graph_of(id: str) -> str:
    """Returns the run that a step belongs to."""
    return id.partition("/")[0]


def signals_of(part: Partition, run: str) -> dict[str, str]:
    found = part.raw.hgetall(part.keys.signals(part.p, run))
    return {key.decode(): value.decode() for key, value in found.items()}
