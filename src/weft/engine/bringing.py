"""Ended graph runs that only the archive has: what is known of them there, and the way back for those that are retried."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from weft.core.effects import ERRORS
from weft.core.history import read_history
from weft.core.model import VALUE_DECODER
from weft.core.published import Published
from weft.core.regrow import Regrown, regrow
from weft.engine.coldruns import cold_blob, find_cold
from weft.engine.definitions import decode_bundle, definitions
from weft.engine.engine import Engine
from weft.engine.housekeeping.regrowing import items_name
from weft.engine.lines import archived_lines
from weft.errors import Conflict, NotFound, ResultExpired
from weft.ids import partition_of
from weft.store.blobs import stage_blob
from weft.store.definitions import keep_definitions
from weft.store.retries import Brought, bring_back_graph
from weft.store.runs import RunRow

if TYPE_CHECKING:
    from weft.store.scripts import Arg

#: Milliseconds that a run which was brought back stands if nobody retries it.
KEEP_MS = 600_000
#: Milliseconds that reading what a run left may take.
READING_MS = 10_000


@dataclass(slots=True)
class ColdGraph:
    """An ended graph run, told by its events."""

    row: RunRow
    published: Published
    found: Regrown


async def is_hot(engine: Engine, row: RunRow, *, for_ms: int = 0) -> bool:
    """Tells whether the hot store has all that a run left, and will for so long."""
    p = partition_of(row.id)
    if p >= engine.ns.partitions:
        return False
    away, time = await engine.ns.read_many([("HMGET", engine.ns.keys.run(p, row.id), "open", "away"), ("TIME",)], p=p)
    if away[0] is None:
        return False
    return away[1] is None or int(away[1]) > int(time[0]) * 1000 + int(time[1]) // 1000 + for_ms


async def read_cold_graph(engine: Engine, run: str) -> ColdGraph | None:
    """Returns an ended graph run as the archive has it; None when it has none of that id. Raises Conflict for another kind."""
    row = await find_cold(engine, run)
    if row is None:
        return None
    if not row.spec.definition:
        raise Conflict(f"run {run} is of no graph: replay it, or start it anew", run=run)
    found = regrow(row.spec.definition, read_history(run, await engine.cold.reader.all_events(run)))
    data = await _definition(engine, run, found.definition)
    return ColdGraph(row, definitions.make(found.definition, data), found)


async def bring_back(engine: Engine, cold: ColdGraph) -> None:
    """Writes a run into the hot store, as it stood when it ended: for a while, unless somebody retries it.

    1. The definitions it follows, and large values it may need: both stay a while by themselves. 2. All else, behind a look
    whether it went on meanwhile; the run itself last.
    """
    row, found = cold.row, cold.found
    run, p, ns = row.id, partition_of(row.id), engine.ns
    if p >= ns.partitions:
        raise Conflict(
            f"run {run} is of partition {p}, and this namespace has {ns.partitions}: it came from elsewhere; fork it",
            run=run,
        )
    before = found.before if found.before and await cold_blob(engine, found.before) is not None else ""
    wanted = {found.definition, row.spec.definition, before} - {""}
    await keep_definitions(ns, p, await definitions_of(engine, run, wanted))
    blobs = {row.spec.blob, *_blobs(found)} - {""}
    for digest in sorted(blobs):
        await stage_blob(ns, p, run, await value_of(engine, run, digest))
    items = await _items(engine, run, found)
    total, lines = await archived_lines(engine, run)
    fields: dict[str, Any] = {**row.fields, "def": found.definition, "spec": await _spec(engine, run)}
    fields |= {"revision": b"%d" % found.revision} if found.revision > 1 else {}
    fields |= {"before": before.encode()} if before else {}
    fields |= {"by_steps": b"%d" % found.by_steps} if found.by_steps else {}
    fields |= {"lives": b"%d" % found.lives} if found.lives else {}
    fields |= {"parent": found.parent.encode()} if found.parent else {}
    fields |= {"logged": b"%d" % total} if total else {}
    maps = {step: one.n for step, one in found.maps.items() if step in items}
    brought = Brought(
        row.number("seq", 1),
        fields,
        {name: one.pack() for name, one in found.given.items()},
        found.arrivals,
        _signals(found),
        [*(f"blob {digest}" for digest in sorted(blobs)), *(f"map {step} {n}" for step, n in maps.items())],
        [step.encode() + b"\n" + value for step, value in found.undoable],
        lines,
        items,
    )
    await bring_back_graph(ns, p, run, brought, keep_ms=KEEP_MS)


async def definitions_of(engine: Engine, run: str, digests: set[str]) -> dict[str, bytes]:
    """Returns definitions of the archive by digest, and those that their subgraphs follow."""
    found: dict[str, bytes] = {}
    line = set(digests)
    while line:
        digest = line.pop()
        found[digest] = await _definition(engine, run, digest)
        line |= {base.child for base in decode_bundle(found[digest]).steps.values() if base.child} - found.keys()
    return found


async def value_of(engine: Engine, run: str, digest: str) -> bytes:
    """Returns a large value of the archive; raises ResultExpired."""
    data = await cold_blob(engine, digest)
    if data is None:
        raise ResultExpired(
            f"the value cas://sha256:{digest} of run {run} is not in the archive: start it anew", run=run
        )
    return data


async def _definition(engine: Engine, run: str, digest: str) -> bytes:
    data = await cold_blob(engine, digest)
    if data is None:
        raise NotFound(f"the definition cas://sha256:{digest} of run {run} is not in the archive", run=run)
    return data


async def _spec(engine: Engine, run: str) -> bytes:
    found = await engine.cold.reader.run(run)
    if found is None:
        raise NotFound(f"there is no run {run}: it is no longer kept", run=run)
    return found.state.spec


def _blobs(found: Regrown) -> set[str]:
    values = [one.value for name, one in found.given.items() if one.status == "completed" or name.endswith(ERRORS)]
    values += [value for _, value in found.undoable]
    return {VALUE_DECODER.decode(value).blob for value in values if value}


async def _items(engine: Engine, run: str, found: Regrown) -> dict[str, dict[str, bytes]]:
    """Returns the items of maps that may be undone, as they are kept."""
    chunks: dict[str, dict[str, bytes]] = {}
    for step in {step.partition("#")[0] for step, _ in found.undoable if "#" in step}:
        data = await value_of(engine, run, items_name(run, step))
        chunks[step] = msgspec.msgpack.decode(data, type=dict[str, bytes])
    return chunks


def _signals(found: Regrown) -> dict[str, Arg]:
    """Returns signals that nobody has taken, as they are kept."""
    fields: dict[str, Arg] = {}
    for name, values in found.signals.items():
        if values:
            fields[f"#{name}"] = f"1 {len(values) + 1}"
            fields |= {f"+{name} {n}": value for n, value in enumerate(values, start=1)}
    return fields
