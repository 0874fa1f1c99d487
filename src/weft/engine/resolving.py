"""The verbs on workflow runs whose code and journal do not fit: pin, accept, fork. What fits, the caller has found out."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass

import msgspec

from weft.core.flow import Entry, Told, begun_of, is_flow, parse_entry, renewal_in, renewal_of, version_in
from weft.core.model import VALUE_DECODER, Value
from weft.engine.carrying import cold_journal
from weft.engine.engine import Engine
from weft.engine.flows import fetch, read_journal
from weft.engine.living import load_living
from weft.engine.runs import blob_of, find, input_of, load, value_bytes
from weft.errors import Conflict, NotFound
from weft.ids import new_run_id, partition_of
from weft.store.resolving import fork_flow, resolve_flow
from weft.store.runs import RunRow, is_diverged, read_runs, scan_runs

#: A run as it is stored, for whoever looks at many.
Row = RunRow

#: What can be done about a run whose code does not fit its journal.
ACTIONS = ("pin", "fork", "accept")


@dataclass
class Stored:
    """A workflow run as it is stored: its hash, its journal with all values, and its arguments."""

    row: RunRow
    entries: list[Entry]
    data: bytes
    #: Values of the journal that stand elsewhere, by the place of their entry.
    blobs: dict[int, str]

    @property
    def version(self) -> str:
        """The version of the code that went on last."""
        return version_in(self.entries)

    @property
    def told(self) -> Told:
        """What the code was told, and how much of it it had heard when it committed last."""
        return Told(self.entries, self.row.text("turn"))


#: Runs the code of a stored run and returns the entries that do not fit, as they are to be told from now on.
Reconcile = Callable[[Stored], Mapping[int, Entry]]


async def read_stored(engine: Engine, run: str, row: RunRow | None = None) -> Stored:
    """Reads all that a replay needs. Raises Conflict for a run that is none of a workflow."""
    row, p = row or await load(engine, run), partition_of(run)
    if not is_flow(row.spec):
        raise Conflict(f"run {run} is none of a workflow: it has no code that could not fit", run=run)
    entries = await read_journal(engine.ns, p, run)
    blobs = {i: blob for i, entry in enumerate(entries) if (blob := _blob_of(entry))}
    await fetch(engine.ns, p, run, entries)
    renewal = renewal_in(entries)
    data = await input_of(engine, row) if renewal is None else await value_bytes(engine.ns, p, run, renewal.input)
    return Stored(row, entries, data, blobs)


async def read_archived(engine: Engine, run: str) -> Stored:
    """Reads all that a replay of an ended run needs, wherever it stands: its journal is told by its events."""
    row = await find(engine, run)
    if not is_flow(row.spec):
        raise Conflict(f"run {run} is none of a workflow: it has no code that could not fit", run=run)
    journal, doubts = await cold_journal(engine, run)
    if doubts:
        raise Conflict(f"what run {run} did cannot be told from its events: {'; '.join(doubts)}", run=run)
    entries, blobs = [parse_entry(data) for data in journal], dict[int, str]()
    for i, entry in enumerate(entries):
        if entry.type in ("completed", "ended") and (blob := _blob_of(entry)):
            blobs[i], entry.payload = blob, msgspec.msgpack.encode(Value(await blob_of(engine, run, blob)))
        elif entry.type == "begin" and (blob := _blob_of(entry)):
            blobs[i] = blob
    renewal = renewal_in(entries)
    if renewal is None:
        return Stored(row, entries, await input_of(engine, row), blobs)
    given = renewal.input
    return Stored(row, entries, await blob_of(engine, run, given.blob) if given.blob else given.inline, blobs)


async def read_newest(engine: Engine, page: int = 200) -> AsyncIterator[RunRow]:
    """Gives the runs that the store holds, newest first."""
    await engine.open()
    found: set[str] = set()
    for p in range(engine.ns.partitions):
        cursor = -1
        while cursor:
            cursor, some = await scan_runs(engine.ns, p, max(cursor, 0))
            found |= {run for run in some if "/" not in run}  # a call is no run of its own
    # Ids begin with the partition; what follows the dash is in order of time.
    ids = sorted(found, key=lambda run: run.partition("-")[2], reverse=True)
    for at in range(0, len(ids), page):
        rows: dict[str, RunRow] = {}
        for p in {partition_of(run) for run in ids[at : at + page]}:
            of_p = [run for run in ids[at : at + page] if partition_of(run) == p]
            rows |= {row.id: row for row in await read_runs(engine.ns, p, of_p) if row is not None}
        for run in ids[at : at + page]:
            if run in rows:
                yield rows[run]


async def pin(engine: Engine, run: str, *, by: str) -> str:
    """Has an open run go on with the version of the code that went on last; returns that version."""
    while True:
        row, p = await load_living(engine, run), partition_of(run)
        if not is_flow(row.spec):
            raise Conflict(f"run {run} is none of a workflow: there is no version to pin it to", run=run)
        entries = await read_journal(engine.ns, p, run)
        version = version_in(entries)
        if not version:
            raise Conflict(
                f"run {run} has not begun, or its journal does not say with which version: start it with"
                " .options(version=…)",
                run=run,
            )
        spec, goes_on = msgspec.structs.replace(row.spec, version=version), is_diverged(row)
        facts = f"action=pin,version={version}"
        words = await resolve_flow(engine.ns, p, row, goes_on=goes_on, spec=spec, facts=facts, by=by)
        if words == "resolved":
            return version
        _refuse_ended(run, words)


async def accept(engine: Engine, run: str, reconcile: Reconcile, *, version: str, by: str) -> int:
    """Has a parked run go on with the code at hand; returns how many entries did not fit."""
    while True:
        stored = await _parked(engine, run)
        changed, row = reconcile(stored), stored.row
        spec = msgspec.structs.replace(row.spec, version="") if row.spec.version else None
        length, kept = len(stored.entries), " ".join(map(str, sorted(changed)))
        facts = f"action=accept,version={version},changed={len(changed)},kept={kept}"
        p = partition_of(run)
        words = await resolve_flow(
            engine.ns, p, row, goes_on=True, length=length, changed=changed, spec=spec, facts=facts, by=by
        )
        if words == "resolved":
            return len(changed)
        _refuse_ended(run, words)


async def fork(engine: Engine, run: str, reconcile: Reconcile, *, by: str) -> str:
    """Starts a run that has done what a parked one did, as far as the code at hand wants it; returns its id."""
    p = partition_of(run)
    new = new_run_id(p)
    while True:
        stored = await _parked(engine, run)
        changed: dict[int, Entry | None] = {**reconcile(stored)}
        changed |= _without_open(stored, changed)
        at, begin = next((i, entry) for i, entry in enumerate(stored.entries) if entry.type == "begin")
        ms, version, seed = begun_of(begin)
        changed[at] = Entry(begin.at_ms, "begin", "-", f"{ms} {version or '-'} {seed or run}")
        row = stored.row
        spec = msgspec.structs.replace(
            row.spec, version="", replay_of=run, key="", unique="", once="", flow="w", delay_ms=0, due_ms=0
        )
        words = await fork_flow(
            engine.ns,
            p,
            row,
            new,
            spec,
            length=len(stored.entries),
            changed=changed,
            blobs=sorted(set(stored.blobs.values())),
            by=by,
        )
        if words in ("started", "exists"):
            return new
        if words == "blob_gone":
            raise NotFound(f"a value of run {run} is no longer kept: it cannot be forked", run=run)
        _refuse_ended(run, words)


async def _parked(engine: Engine, run: str) -> Stored:
    stored = await read_stored(engine, run)
    if not is_diverged(stored.row):
        why = "has ended" if not stored.row.open else "does not wait because of its code"
        raise Conflict(f"run {run} {why}: there is nothing to be resolved", run=run)
    return stored


def _without_open(stored: Stored, changed: Mapping[int, Entry | None]) -> dict[int, Entry | None]:
    """Leaves out that calls and children were begun which did not end: they are the other run's, and begin anew."""
    ended = {entry.key for entry in stored.entries if entry.type in ("ended", "completed", "failed")}
    ended |= {entry.key for entry in stored.entries if entry.type == "kept" and not entry.more.startswith("opened")}
    return {
        i: None
        for i, entry in enumerate(stored.entries)
        if entry.key not in ended
        and (entry.type == "opened" or (entry.type == "kept" and entry.more.startswith("opened")))
    }


def _blob_of(entry: Entry) -> str:
    if entry.type == "begin":
        renewal = renewal_of(entry)
        return "" if renewal is None else renewal.input.blob
    kind = entry.more.partition(" ") if entry.type == "kept" else (entry.type, "", entry.more)
    if kind[0] == "completed" or (kind[0] == "ended" and kind[2] == "completed"):
        return str(VALUE_DECODER.decode(entry.payload).blob)
    return ""


def _refuse_ended(run: str, words: str) -> None:
    if words != "again":
        raise Conflict(f"run {run} has ended ({words.partition(' ')[2]}): there is nothing to be resolved", run=run)
