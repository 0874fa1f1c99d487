"""The verbs on workflow runs: start, signal, cancel, commit; and what the end of a call or of a child means for one."""

from __future__ import annotations

import asyncio
import hashlib
from collections import defaultdict
from collections.abc import Sequence
from functools import partial
from typing import Any

import msgspec

from weft.codec import decode_plain, encode_plain
from weft.core.flow import ID_MS, MAX_MAIL, CallEnd, Entry, FlowRecord, flow_mark, parent_of, renewal_in
from weft.core.model import INLINE_BYTES, SPEC_ENCODER, VALUE_DECODER, ErrorRecord, Outcome, RunSpec, Token, Value
from weft.engine import runs, steps
from weft.engine.closing import end_open_steps
from weft.engine.engine import Engine
from weft.engine.runs import Once, Started, find
from weft.errors import AlreadyRunning, Conflict, InvalidOption, NotFound, PartitionLost, Unavailable
from weft.ids import home_of_key, partition_of
from weft.store import flows as store
from weft.store.approvals import close_approvals
from weft.store.blobs import read_blob, stage_blob
from weft.store.controls import informed
from weft.store.graphs import expire, read_belongings
from weft.store.namespace import Namespace
from weft.store.runs import NewRun, RunRow, end_run, read_runs, read_unique, start_runs
from weft.store.sessions import read_sessions
from weft.store.waits import read_given

#: A moment that never comes.
FAR_MS = 1 << 60
#: Things of an ended life of a run that the commit lets go which begins the next.
MAX_DROPS = 2_000
#: Milliseconds a child is kept at least once it has ended: longer than workers may be away.
CHILD_KEEP_MS = 24 * 3_600_000

_pack = msgspec.msgpack.Encoder().encode
ORPHANED = _pack(ErrorRecord("RunCancelled", "the run that started it has ended", code="run_cancelled"))


async def start(
    engine: Engine, spec: RunSpec, data: bytes, same: bytes, id: str = "", once: Once | None = None
) -> Started:
    """Accepts a workflow run. An id that a run in progress has is refused with AlreadyRunning."""
    spec = msgspec.structs.replace(spec, flow=spec.flow or flow_mark())
    if not id:
        return await runs.start(engine, spec, data, once, same)
    if once is not None:
        raise InvalidOption(
            f"workflow {spec.name} has its own rule for equal starts (unique_for or throttle): an id beside it would be a"
            " second one",
            option="id",
        )
    if spec.key:
        raise InvalidOption("id and idempotency_key both say which starts count as one: give one of them", option="id")
    started = await runs.start(engine, spec, data, Once(id_digest(id), "j", ID_MS, forgiving=True))
    if started.deduplicated:
        raise AlreadyRunning(
            f"a workflow with id {id!r} is running: run {started.id}. Wait for its end, or use another id",
            run=started.id,
            id=id,
        )
    return started


async def running(engine: Engine, id: str, names: Sequence[str]) -> str:
    """Returns the run of one of these workflows that is in progress and has an id. Raises NotFound."""
    await engine.open()
    digest = id_digest(id)
    run = await read_unique(engine.ns, home_of_key(digest, engine.ns.partitions), digest)
    row = (await read_runs(engine.ns, partition_of(run), [run]))[0] if run else None
    if row is None or not row.open:
        raise NotFound(f"no workflow with id {id!r} is running: it has ended, or was never started", id=id)
    if row.spec.name not in names:
        raise NotFound(f"the workflow with id {id!r} is a {row.spec.name}, not a {names[0]}: run {row.id}", id=id)
    return row.id


def id_digest(id: str) -> str:
    return hashlib.sha256(f"workflow\0{id}".encode()).hexdigest()[:32]


async def start_child(ns: Namespace, run: str, spec: RunSpec, data: bytes, *, id: str, by: str) -> str:
    """Starts a child, or finds that it was; returns the run that has its id when that is another one."""
    p = partition_of(run)
    spec = msgspec.structs.replace(spec, keep_ms=max(spec.keep_ms, CHILD_KEEP_MS))
    if len(data) > INLINE_BYTES:
        spec = msgspec.structs.replace(spec, blob=await stage_blob(ns, p, run, data))
    else:
        spec = msgspec.structs.replace(spec, input=data)
    unique = id_digest(id) if id else ""
    if unique:
        spec = msgspec.structs.replace(spec, unique=unique, once_ms=ID_MS)
    new = NewRun(run, spec, SPEC_ENCODER.encode(spec))
    if unique:
        new.policy, new.unique, new.unique_ms = "j", unique, ID_MS
    (word,) = await informed(ns, p, lambda: start_runs(ns, p, [new], by=by))
    verdict, _, other = word.partition(" ")
    if verdict == "exists":
        # It may have ended before its parent came here, which a loss had sent back: nobody listened then.
        (row,) = await read_runs(ns, p, [run])
        if row is not None and not row.open:
            (error,) = await tell_parents(ns, [row], by=by)
            if error is not None:
                raise error
    return other if verdict == "joined" and other != run else ""


async def signal(engine: Engine, row: RunRow, name: str, data: bytes, *, request: str, by: str) -> bool:
    """Gives a workflow run a signal; it is kept until the code receives it. Repeating a request changes nothing."""
    run = row.id
    entry = Entry(0, "signal", name, "", data)
    facts = f"name={name},request={request}"
    send = partial(store.mail_run, engine.ns, partition_of(run), run, row.spec, entry, event="signalled", facts=facts)
    words = await engine.insist(partition_of(run), lambda: send(request=request, by=by))
    if words == "full":
        raise Conflict(f"run {run} has {MAX_MAIL} pieces of mail that it did not take yet: wait", run=run, name=name)
    if words != "given":
        raise Conflict(f"run {run} has ended ({words.partition(' ')[2]}): it takes no signal any more", run=run)
    return True


async def state_of(engine: Engine, run: str) -> dict[str, Any]:
    """Returns what a workflow run shows of itself."""
    row = await find(engine, run, whole=True)
    return dict(decode_plain(row.fields["state"])) if "state" in row.fields else {}


async def tell_parents(ns: Namespace, rows: Sequence[RunRow], *, by: str) -> list[BaseException | None]:
    """Tells the runs that started these children how they ended; returns why one could not be told, per child.

    Told twice it changes nothing. Children of nobody are told of to nobody.
    """
    wanted: dict[int, set[str]] = defaultdict(set)
    for row in rows:
        if parent := parent_of(row.spec)[0]:
            wanted[partition_of(parent)].add(parent)
    above: dict[str, RunRow | Unavailable | None] = {}
    for p, parents in wanted.items():
        ids = sorted(parents)
        try:
            above |= zip(ids, await read_runs(ns, p, ids), strict=True)
        except Unavailable as error:  # those of other partitions need not wait for this one
            above |= dict.fromkeys(ids, error)
    tell = [_tell_parent(ns, row, above.get(parent_of(row.spec)[0]), by=by) for row in rows]
    return await asyncio.gather(*tell, return_exceptions=True)


async def _tell_parent(ns: Namespace, row: RunRow, above: RunRow | Unavailable | None, *, by: str) -> None:
    parent, key = parent_of(row.spec)
    if isinstance(above, Unavailable):
        raise above
    if not parent or (above is not None and not above.open):
        return
    own, p = partition_of(row.id), partition_of(parent)
    if above is None:
        if p != own and await ns.read("HGET", ns.keys.epoch(p), "number", p=p) is None:
            # It may be that its partition was lost and nobody has rebuilt it yet: then it is told later.
            raise PartitionLost(
                f"run {parent} is not told of its child {row.id}: partition {p} is being rebuilt", run=parent
            )
        return
    status = row.text("status")
    payload = row.fields["result" if status == "completed" else "error"]
    value = VALUE_DECODER.decode(payload) if status == "completed" else None
    if value is not None and value.blob:
        # The parent keeps its own copy: the child's goes with the child.
        data = await read_blob(ns, own, row.id, value.blob)
        digest = await stage_blob(ns, p, parent, data)
        payload = _pack(Value(blob=digest, size=len(data)))
        await store.keep_value(ns, p, parent, digest)
    entry = Entry(0, "ended", key, status, payload)
    await store.mail_run(
        ns, p, parent, above.spec, entry, event=f"child_{status}", facts=f"step={key},run={row.id}", by=by
    )


async def end_child(ns: Namespace, child: str, *, by: str) -> None:
    """Ends a child whose parent has ended, or does not want it any more."""
    p = partition_of(child)
    row = (await read_runs(ns, p, [child]))[0]
    while row is not None and row.open:
        if "turn" in row.fields:
            await store.ask_to_end(ns, p, row, ORPHANED, by=by)
            return
        try:
            status, _ = await end_run(ns, p, row, kind="cancelled", value=ORPHANED, keep_ms=row.spec.keep_ms, by=by)
        except NotFound:
            return
        if status != "again":
            return
        row = (await read_runs(ns, p, [child]))[0]


async def given_to(ns: Namespace, token: Token) -> bytes:
    """Returns what a step was given that waited for people."""
    given = await read_given(ns, token.partition, token.run)
    if given is None:
        raise NotFound(f"step {token.run} was given nothing")
    return given[1:]


def ended_call(outcome: Outcome) -> CallEnd:
    """Turns the end of a call into its commit."""
    return CallEnd(
        outcome.token, outcome.value, outcome.blob, outcome.lines, kind=outcome.kind, started_ms=outcome.started_ms
    )


async def commit_flows(
    ns: Namespace, p: int, records: Sequence[FlowRecord], *, session: str, caller: Any = None
) -> list[list[bytes]]:
    """Commits turns of workflow runs and ends of calls; returns a reply per record."""
    return await informed(ns, p, lambda: store.commit_flows(ns, p, records, session=session, caller=caller))


async def fetch(ns: Namespace, p: int, run: str, entries: Sequence[Entry]) -> None:
    """Puts values in their entries that stand elsewhere because they are large."""
    for entry in entries:
        # What is kept for other code has its type in front.
        type, _, more = entry.more.partition(" ") if entry.type == "kept" else (entry.type, "", entry.more)
        if type == "completed" or (type == "ended" and more == "completed"):
            value = VALUE_DECODER.decode(entry.payload)
            if value.blob:
                entry.payload = _pack(Value(await read_blob(ns, p, run, value.blob)))


async def input_of_life(ns: Namespace, token: Token, entries: Sequence[Entry]) -> bytes:
    """Returns the arguments of the life that a journal tells of."""
    renewal = renewal_in(entries)
    if renewal is None:
        return await steps.input_bytes(ns, token)
    return await runs.value_bytes(ns, token.partition, token.run, renewal.input)


async def leave_life(ns: Namespace, token: Token, *, by: str) -> list[str]:
    """Ends what a life of a run left open, and returns what it lets go. Done twice it changes nothing."""
    p, run, keys = token.partition, token.run, ns.keys
    row = (await read_runs(ns, p, [run]))[0]
    if row is None or not row.open:
        return []
    while not await end_open_steps(ns, p, run, by=by, until_ms=FAR_MS):
        pass
    approvals = row.text("approvals").split()
    await close_approvals(ns, p, run, approvals)
    await expire(ns, p, [keys.approval(p, f"{run}/{step}") for step in approvals], keep_ms=row.spec.keep_ms)
    left: list[str] = []
    async for members in read_belongings(ns, p, run):
        left += members
    for member in left:
        what, _, name = member.partition(" ")
        if what == "child":
            await end_child(ns, name, by=by)
    # What is too much for one commit goes when the run continues as new, or ends.
    return sorted(set(left))[:MAX_DROPS]


def pack_state(state: dict[str, Any]) -> bytes:
    return encode_plain(state) if state else b""


async def versions_served(ns: Namespace, p: int) -> frozenset[tuple[str, str, str]]:
    """Returns queue, workflow and version of all that live workers have."""
    alive = [about for about, living in (await read_sessions(ns, p)).values() if living]
    return frozenset(
        (queue, name, version)
        for about in alive
        for queue in about.queues
        for name, versions in about.workflows.items()
        for version in versions
    )


read_ended, read_journal, read_told = store.read_ended, store.read_journal, store.read_told
