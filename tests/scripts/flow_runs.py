"""Workflow runs for script tests: started, claimed, and taken turns with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from partition import Partition

from weft.core.flow import Added, CallEnd, Entry, FlowRecord, Turn, call_mark, flow_mark
from weft.core.model import RunSpec, Token
from weft.store.flows import commit_flows, mail_run


async def begun(part: Partition, **options: Any) -> Token:
    """Starts a workflow run, claims it and journals its beginning."""
    token = await part.claimed(name="flow", timeout_ms=0, **{"flow": flow_mark(), **options})
    assert (await commit(part, turn(token, "1.1", added=[entry("begin", "-", "1")])))[0] == "ok"
    return token


def entry(type: str, key: str, more: str = "", payload: bytes = b"", **facts: Any) -> Added:
    return Added(Entry(0, type, key, more, payload), **facts)


def turn(token: Token, id: str, *, kind: str = "go", **facts: Any) -> Turn:
    return Turn(token, facts.pop("value", b""), kind=kind, id=id, **facts)


async def commit(part: Partition, *records: FlowRecord, session: str = "s-1") -> list[str]:
    """Commits; returns the words."""
    return [reply[0].decode() for reply in await replies(part, *records, session=session)]


async def replies(part: Partition, *records: FlowRecord, session: str = "s-1") -> Sequence[Any]:
    return await commit_flows(part.ns, part.p, records, session=session)


def call(**options: Any) -> RunSpec:
    return RunSpec("job", flow=call_mark("default", 5), **options)


def end(token: Token, value: bytes = b"v", kind: str = "completed", **facts: Any) -> CallEnd:
    return CallEnd(token, value, kind=kind, started_ms=token.claimed_ms, **facts)


async def mail(part: Partition, token: Token, name: str = "go", *, request: str = "", value: bytes = b"v") -> str:
    signal = Entry(0, "signal", name, "", value)
    return await mail_run(
        part.ns,
        part.p,
        token.run,
        token.spec,
        signal,
        event="signalled",
        facts=f"name={name}",
        request=request,
        by="c-1",
    )


async def ask(part: Partition, token: Token, id: str, *, watch: str = "c-1") -> str:
    update = Entry(0, "update", "add", id, b"v")
    facts = {"event": "update_received", "facts": "name=add", "update": id, "watch": watch}
    return await mail_run(part.ns, part.p, token.run, token.spec, update, **facts, by="c-1")


def journal(part: Partition, run: str) -> list[str]:
    """Returns a journal without the times: `<type> <key> <more>|<payload>`."""
    return [_told(data) for data in part.raw.lrange(part.keys.journal(part.p, run), 0, -1)]


def mailbox(part: Partition, run: str) -> list[str]:
    return [_told(data) for data in part.raw.lrange(part.keys.mail(part.p, run), 0, -1)]


def _told(data: bytes) -> str:
    head, _, payload = data.decode().partition("\n")
    return f"{head.partition(' ')[2].strip()}|{payload}"
