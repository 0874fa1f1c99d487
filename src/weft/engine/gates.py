"""The verbs on gates: let waiting steps through, hold back claimed ones, set and lift what operators decide."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

from weft.codec import decode_plain
from weft.core.acts import Act, pack_act
from weft.core.gates import Controls, counts_slots, needed
from weft.core.model import Outcome, RunSpec, Token
from weft.errors import UserError
from weft.store.blobs import read_blob
from weft.store.controls import informed, read_controls, set_control
from weft.store.gates import (
    admit_steps,
    drop_holders,
    drop_waiting,
    hold_steps,
    read_admissible,
    read_heads,
    read_holders_of,
    read_lines,
    read_many_heads,
)
from weft.store.namespace import Namespace
from weft.store.runs import read_ledgers, read_runs
from weft.store.steps import Head

#: Heads of lines that one script call looks at, and of one line.
HEADS, HEADS_PER_LINE = 256, 64
#: Lines that one call looks at.
LINES = 128
#: Lines mended in one round.
MEND_LINES = 50
#: Holders of one gate that are looked at when it is mended.
MEND_HOLDERS = 500


async def admit(ns: Namespace, p: int, gates: Sequence[str] | None = None) -> int:
    """Lets steps through wherever a slot became free; returns how many."""
    waiting = list(gates) if gates is not None else await read_admissible(ns, p)
    admitted = 0
    while waiting:
        group, waiting = waiting[:LINES], waiting[LINES:]
        n, more = await _admit_group(ns, p, group)
        admitted += n
        waiting += more
    return admitted


async def _admit_group(ns: Namespace, p: int, gates: Sequence[str]) -> tuple[int, list[str]]:
    per_line = max(1, min(HEADS_PER_LINE, HEADS // len(gates)))
    lines = dict(zip(gates, await read_heads(ns, p, gates, limit=per_line), strict=True))
    rows = {row.id: row for row in await read_ledgers(ns, p, [run for runs in lines.values() for run in runs])}
    for gate, runs in lines.items():
        await drop_waiting(ns, p, gate, [run for run in runs if run not in rows])
    standing = [(rows[run], gate) for gate, runs in lines.items() for run in runs if run in rows]

    async def call() -> tuple[list[str], list[str]]:
        controls = ns.controls[p]
        heads = [
            Head(row, gate, needed(row.spec, controls, await struck(ns, p, row.id, row.spec, controls), row.id))
            for row, gate in standing
        ]
        return await admit_steps(ns, p, gates, heads)

    words, more = await informed(ns, p, call)
    return words.count("admitted"), more


async def next_heads(ns: Namespace, p: int, outcomes: Sequence[Outcome]) -> list[Head]:
    """Returns the runs that may get the slots these outcomes give back: their commit lets them through at once."""
    wanted = Counter(
        gate
        for outcome in outcomes
        # A commit that knows its heir hands the slot over itself.
        if outcome.token.gates and not outcome.token.heirs
        for gate in outcome.token.gates.split()
        if counts_slots(gate)
    )
    if not wanted:
        return []
    controls = ns.controls[p]
    lines = await read_many_heads(ns, p, wanted)
    standing = [(run, gate) for gate, runs in lines.items() for run in runs]
    rows = {row.id: row for row in await read_ledgers(ns, p, [run for run, _ in standing])}
    return [
        Head(rows[run], gate, needed(rows[run].spec, controls, run=run))
        for run, gate in standing
        # A step that may be struck takes the ordinary way, which reads its arguments.
        if run in rows and not controls.strikes(rows[run].spec.name)
    ]


async def hold_back(ns: Namespace, p: int, tokens: list[Token], *, session: str, again: bool = False) -> list[Token]:
    """Returns the claimed steps that may run, with their rates spent: one that meets a shut gate goes back to wait.

    `again`: they were looked at before and have spent their rates; only what was set up since is to be passed.
    """
    if not ns.controls[p].entries and (again or not any(token.gates and "rate|" in token.gates for token in tokens)):
        return tokens
    kept: list[Token] = []

    async def call() -> list[str]:
        controls = ns.controls[p]
        kept.clear()
        stopped = []
        for token in tokens:
            passed = token.gates.split(" ")
            wanted = needed(token.spec, controls, await struck(ns, p, token.run, token.spec, controls), token.run)
            missing = [limit for limit in wanted if limit.gate not in passed or (limit.window_ms and not again)]
            if missing:
                stopped.append((token, missing))
            else:
                kept.append(token)
        if not stopped:
            return []
        words = await hold_steps(ns, p, stopped, session=session)
        for (token, _), word in zip(stopped, words, strict=True):
            verdict, _, gates = word.partition(" ")
            if verdict == "go":
                token.gates = gates
                kept.append(token)
        return words

    await informed(ns, p, call)
    return kept


async def look_again(ns: Namespace, p: int, tokens: list[Token], *, session: str) -> tuple[list[Token], list[Token]]:
    """Returns which of some steps that were claimed a while ago may begin now, and which belong to a paused queue.

    The others went back to wait at what was set up in the meantime.
    """
    ns.controls[p] = controls = await read_controls(ns, p)
    paused = [token for token in tokens if controls.paused_queue(token.spec.queue) is not None]
    others = [token for token in tokens if controls.paused_queue(token.spec.queue) is None]
    return await hold_back(ns, p, others, session=session, again=True), paused


async def struck(ns: Namespace, p: int, run: str, spec: RunSpec, controls: Controls) -> list[str]:
    """Returns the ids of the strikes that hit a call."""
    strikes = controls.strikes(spec.name) if controls.entries else []
    if not strikes:
        return []
    if any(strike.where for strike in strikes):
        try:
            data = await read_blob(ns, p, run, spec.blob) if spec.blob else spec.input
            arguments = decode_plain(data) if data else {}
            return [strike.id for strike in strikes if strike.hits(arguments)]
        except UserError:
            # Arguments that cannot be read are the run's own failure: they must not keep its neighbours from going on.
            strikes = [strike for strike in strikes if not strike.where]
    return [strike.id for strike in strikes]


async def known_controls(ns: Namespace) -> Controls:
    """Reads what is set now. Every partition holds the same; the first one is asked."""
    return await read_controls(ns, 0)


async def change(
    ns: Namespace,
    name: str,
    value: dict[str, Any] | None,
    *,
    affects: Sequence[str],
    queues: Sequence[str] = (),
    act: Act | None = None,
) -> bool:
    """Sets (or lifts, with None) one thing in every partition; lines of gates of those classes look again at once.

    The audit is told once, by the first partition.
    """
    changed = False
    if value is not None:
        value = {**value, "at_ms": int(time.time() * 1000)}
    for p in range(ns.partitions):
        known = (await read_controls(ns, p)).entries.get(name)
        wanted = value
        if value is not None and known is not None:
            wanted = _still(known, value)
            if wanted == known:
                continue
        gates = [gate for gate in await read_lines(ns, p) if _belongs(gate, affects)]
        told = pack_act(act) if act is not None and p == 0 else b""
        by = act.via if act is not None else ""
        changed |= await set_control(ns, p, name, wanted, gates=gates, queues=queues, act=told, by=by)
    return changed


def _still(known: dict[str, Any], value: dict[str, Any]) -> dict[str, Any]:
    """Returns what stands when something that is set is set again: since when stays, and why, unless it is said anew."""
    if "value" in value and value["value"] != known.get("value"):
        return value  # another limit holds since now
    if "also" in value:
        known = {**known, "also": value["also"]}  # the task was renamed since
    if value.get("reason"):
        said = {"reason": value["reason"], "by": value["by"]} if value["reason"] != known.get("reason") else {}
        return {**known, **said}
    return known


def _belongs(gate: str, classes: Sequence[str]) -> bool:
    return any(gate == word or gate.startswith(word + "|") for word in classes)


class Mender:
    """Finds slots held by runs that are gone, and lines that nobody looks at; an operator or a fault may leave such."""

    def __init__(self, ns: Namespace, p: int) -> None:
        self._ns, self._p = ns, p
        self._queue: list[str] = []
        self._looked_lost: dict[str, set[str]] = {}

    async def mend(self) -> None:
        """Looks at some of the lines. A holder is dropped when it looked lost in two looks: the reads are no snapshot."""
        if not self._queue:
            self._queue = await read_lines(self._ns, self._p)
        gates, self._queue = self._queue[:MEND_LINES], self._queue[MEND_LINES:]
        for gate in gates:
            holders = await read_holders_of(self._ns, self._p, gate, limit=MEND_HOLDERS)
            rows = await read_runs(self._ns, self._p, holders)
            lost = {
                run
                for run, row in zip(holders, rows, strict=True)
                if row is None or not row.open or gate not in row.text("gates").split(" ")
            }
            confirmed = lost & self._looked_lost.pop(gate, set())
            if lost - confirmed:
                self._looked_lost[gate] = lost - confirmed
            await drop_holders(self._ns, self._p, gate, sorted(confirmed))
        # At once, without a mark for whoever looks next: with no timer set, nobody may look for a minute.
        if gates:
            await admit(self._ns, self._p, gates)
