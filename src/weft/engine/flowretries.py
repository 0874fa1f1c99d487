"""The verb that tries an ended workflow run again: a new run that has done what the old one did, but for what failed."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from weft.core.flow import MAX_ENTRIES, Entry, begun_of, flow_mark, is_flow, renewal_of
from weft.core.model import RunSpec, RunStatus, Value
from weft.engine.coldruns import readable
from weft.engine.engine import Engine
from weft.engine.histories import history
from weft.engine.letters import retry_act
from weft.engine.resolving import Stored, read_archived, read_stored
from weft.engine.runs import blob_of, find, input_of
from weft.errors import Conflict, ResultExpired
from weft.ids import child_run_id, moved_to, new_run_id, partition_of
from weft.store.blobs import stage_blob
from weft.store.durability import read_home
from weft.store.letters import mark_replays, reserve_replays
from weft.store.resolving import retry_flow
from weft.store.runs import RunRow

#: Entries behind which the code does not go on.
_SILENT = frozenset({"version", "marker", "answered", "kept"})

_pack = msgspec.msgpack.Encoder().encode


async def read_ended(engine: Engine, run: str) -> Stored:
    """Reads a failed or cancelled workflow run with its journal, from whichever store has it. Raises Conflict for any other."""
    row = await find(engine, run, whole=True)
    if not is_flow(row.spec):
        raise Conflict(f"run {run} is none of a workflow", run=run)
    if row.open:
        raise Conflict(f"run {run} has not ended: cancel it first", run=run)
    if row.text("status") == RunStatus.COMPLETED:
        raise Conflict(f"run {run} has completed: there is nothing to try again", run=run)
    hot = bool(await engine.ns.read("EXISTS", engine.ns.keys.journal(partition_of(run), run), p=partition_of(run)))
    if not hot and not await readable(engine) and all(event.type != "began" for event in await history(engine, run)):
        return Stored(row, [], await input_of(engine, row), {})  # it did nothing
    stored = await read_stored(engine, run, row) if hot else await read_archived(engine, run)
    if len(stored.entries) > MAX_ENTRIES:
        raise Conflict(f"the journal of run {run} is full: start it anew, by `weft dlq replay {run}`", run=run)
    return Stored(row, stored.entries, stored.data, stored.blobs)


async def retry(
    engine: Engine,
    stored: Stored,
    places: Sequence[int],
    *,
    reason: str,
    by: str,
    child_of: tuple[str, str] | None = None,
    delay_ms: int = 0,
) -> str:
    """Starts a run with these entries of another one's journal; returns its id. Repeated it is the same run.

    `child_of`: the run and the command that it is the child of.
    """
    row, run = stored.row, stored.row.id
    p = partition_of(run)
    new = moved_to(child_run_id(*child_of, 1), p) if child_of else await _reserve(engine, p, row)
    blobs = {row.spec.blob} | {digest for i, digest in stored.blobs.items() if i in set(places)}
    for digest in sorted(blobs - {""}):
        try:
            await stage_blob(engine.ns, p, new, await blob_of(engine, run, digest))
        except ResultExpired:
            text = f"values of run {run} that a retry needs are no longer kept: start it anew"
            raise ResultExpired(text, run=run) from None
    now_ms = (await read_home(engine.ns, p)).now_ms
    # What the code asks for behind it is asked now: time limits and sleeps that begin there have not passed meanwhile.
    last = max((i for i in places if stored.entries[i].type not in _SILENT), default=-1)
    begin = next((renewal_of(entry) for entry in stored.entries if entry.type == "begin"), None)
    words = await retry_flow(
        engine.ns,
        p,
        run,
        new,
        _spec(row, child_of),
        [_entry_of(stored, i, now_ms if i == last else 0) for i in places],
        blobs=sorted(blobs - {""}),
        lived=begin.before if begin is not None else 0,
        state=row.fields.get("state", b""),
        reason=reason,
        by=by,
        delay_ms=delay_ms,
    )
    if words in ("started", "exists"):
        if row.text("status") == RunStatus.FAILED:
            await mark_replays(engine.ns, p, [(run, new)], acts=[retry_act(engine, run, new, by)], by=engine.id)
        return new
    if words.startswith("active "):
        active = words.partition(" ")[2]
        raise Conflict(
            f"run {run} is not tried again: run {active} has its id and is in progress", run=run, active=active
        )
    raise Conflict(f"run {run} was changed by somebody else just now ({words})", run=run)


async def _reserve(engine: Engine, p: int, row: RunRow) -> str:
    """Returns the id of the new run, the same for all who try at the same time."""
    if row.text("status") != RunStatus.FAILED:
        return child_run_id(row.id, "$retry", 1)
    (word,) = await reserve_replays(engine.ns, p, [(row.id, new_run_id(p))], force=False)
    verdict, _, id = word.partition(" ")
    if verdict == "replayed":
        raise Conflict(f"run {row.id} was tried again before, as {id}: look at that run", run=row.id, replayed_as=id)
    return id if verdict == "reserved" else child_run_id(row.id, "$retry", 1)


def _spec(row: RunRow, child_of: tuple[str, str] | None) -> RunSpec:
    """The same work, with the code at hand and without the old parent, which has seen the end already."""
    mark = flow_mark(*child_of) if child_of else flow_mark()
    spec = msgspec.structs.replace(row.spec, version="", replay_of=row.id, key="", flow=mark, durability="")
    return msgspec.structs.replace(spec, delay_ms=0, due_ms=0)


def _entry_of(stored: Stored, i: int, at_ms: int) -> bytes:
    """Returns an entry as it is stored: large values stand elsewhere, and chance is that of the first run.

    `at_ms`: when its code is told that; 0: when it was told.
    """
    entry = stored.entries[i]
    header, payload = entry.header, entry.payload
    if entry.type == "begin":
        ms, version, seed = begun_of(entry)
        header = Entry(0, "begin", "-", f"{at_ms or ms} {version or '-'} {seed or stored.row.id}").header
    elif i in stored.blobs:
        size = len(msgspec.msgpack.decode(payload, type=Value).inline)
        payload = _pack(Value(blob=stored.blobs[i], size=size))
    return f"{at_ms or entry.at_ms} {header}\n".encode() + payload
