"""Ended graph runs that open again, in Redis."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from weft.core.effects import Mark, Open
from weft.store.namespace import Namespace
from weft.store.numbers import Numbers
from weft.store.records import Records
from weft.store.scripts import Arg

#: Fields that one call brings back.
PAGE = 500


async def retry_graph(
    ns: Namespace,
    p: int,
    run: str,
    *,
    seq: int,
    deadline_ms: int,
    forget: Sequence[str],
    reset: Sequence[str],
    opens: Open,
    blobs: Sequence[str],
    payload: bytes,
    by: str,
    maps: Sequence[str] = (),
    recall: Sequence[Mark] = (),
) -> str:
    """Opens an ended run again; returns a word (see retry_graph.lua). Raises NotFound, StaleControls.

    `maps` are those whose items may be undone; `recall` is what nodes gave before they gave what is forgotten.
    """
    keys, records = ns.keys, Records(ns, p)
    records.runs.of(keys.run(p, run))
    for node in forget:
        records.forget(node)
    for join in reset:
        records.reset(join)
    for mark in recall:
        records.effect(run, opens.spec.definition, 0, mark)
    records.effect(run, opens.spec.definition, 0, opens)
    reply = await ns.call(
        "retry_graph",
        p,
        {
            **records.keys(),
            "ledger": [keys.ledger(p, run)],
            "arrivals": [keys.arrivals(p, run)],
            "context": [keys.context(p, run)],
            "belongings": [keys.belongings(p, run)],
            "signals": [keys.signals(p, run)],
            "undo": [keys.undo(p, run)],
            "tasklog": [keys.tasklog(p, run)],
            "items": [keys.items(p, run, step) for step in maps],
            "blob": [keys.blob(p, run, digest) for digest in blobs],
        },
        {
            "controls": ns.controls[p].version,
            "by": by,
            "seq": seq,
            "deadline_ms": deadline_ms,
            "payload": payload,
        },
        [row[:10] for row in records.rows],
    )
    return str(reply.decode())


@dataclass(slots=True)
class Brought:
    """An ended graph run as the archive has it, in the form in which Redis keeps it."""

    seq: int
    #: Fields of its hash, what its nodes gave, who has come to its joins, and its signals.
    fields: dict[str, bytes]
    context: dict[str, bytes]
    arrivals: dict[str, str]
    signals: dict[str, Arg]
    belongings: list[str]
    undo: list[bytes]
    lines: list[bytes]
    #: Items of maps that may be undone, by chunk.
    items: dict[str, dict[str, bytes]]


async def bring_back_graph(ns: Namespace, p: int, run: str, found: Brought, *, keep_ms: int) -> str:
    """Writes an ended run for somebody to retry; returns a word (see bring_back_graph.lua)."""
    keys, maps, rows = ns.keys, Numbers(), list[tuple[Arg, ...]]()
    rows += [("context", 0, node, one) for node, one in found.context.items()]
    rows += [("arrivals", 0, join, who) for join, who in found.arrivals.items()]
    rows += [("signals", 0, name, value) for name, value in found.signals.items()]
    rows += [("belongings", 0, member, "") for member in found.belongings]
    for step, chunks in found.items.items():
        place = maps.of(keys.items(p, run, step))
        rows += [("items", place, chunk, data) for chunk, data in chunks.items()]
    tail: list[tuple[Arg, ...]] = [("undo", 0, "", entry) for entry in found.undo]
    tail += [("tasklog", 0, "", line) for line in found.lines]
    tail += [("run", 0, name, value) for name, value in found.fields.items()]
    pages = [rows[at : at + PAGE] for at in range(0, len(rows), PAGE)]
    named = {
        name: getattr(keys, name)(p, run) for name in ("run", "context", "arrivals", "undo", "belongings", "signals")
    }
    here = {**named, "tasklog": keys.tasklog(p, run), "items": maps}
    word = ""
    for n, page in enumerate([*pages, tail], start=1):
        args: dict[str, Arg] = {"seq": found.seq, "keep_ms": keep_ms, "last": int(n == len(pages) + 1)}
        word = str((await ns.call("bring_back_graph", p, here, args, page)).decode())
        if word != "written":
            return word
    return word


async def read_joins(ns: Namespace, p: int, run: str) -> list[str]:
    """Returns the joins of a run that somebody has come to, iterations included."""
    return [name.decode() for name in await ns.read("HKEYS", ns.keys.arrivals(p, run), p=p)]


async def drop_maps(ns: Namespace, p: int, keys: Sequence[str]) -> None:
    """Deletes what maps of an ended run left, so that they can begin anew."""
    for at in range(0, len(keys), 500):
        await ns.read_many([("UNLINK", key) for key in keys[at : at + 500]], p=p)
