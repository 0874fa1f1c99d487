"""What the audit finds wrong with gates and the lines before them."""

from __future__ import annotations

from collections.abc import Sequence

from weft.store.findings import MAX_PER_KEY, PAGE, Finding, Key, text_of
from weft.store.gates import read_holders_of
from weft.store.namespace import Namespace


async def check_gates(ns: Namespace, p: int, keys: list[Key]) -> list[Finding]:
    """A slot belongs to an open run that says so; one that does not would be lost for ever."""
    findings: list[Finding] = []
    for key in keys:
        gate, heirs = key.parts[0], ns.keys.heirs(p)
        holders = await read_holders_of(ns, p, gate, limit=PAGE)
        commands: list[Sequence[str]] = []
        for run in holders:
            commands += [("HMGET", ns.keys.run(p, run), "open", "gates"), ("ZSCORE", key.text, run)]
        replies = await ns.read_many([*commands, ("HGET", heirs, gate), ("ZSCORE", key.text, ">")], p=p)
        for i, run in enumerate(holders):
            fields, still = replies[2 * i : 2 * i + 2]
            handed = run == text_of(replies[-2] or b">") and replies[-1] is not None
            if (still is None and not handed) or isinstance(fields, Exception):
                continue
            if fields[0] is None or fields[0].startswith(b"=") or gate not in text_of(fields[1] or b"").split(" "):
                by_hand = f"ZREM {key.text} >, then HDEL {heirs} {gate}" if handed else f"ZREM {key.text} {run}"
                advice = f"a live worker drops it when somebody waits; or {by_hand}"
                findings.append(key.finding(f"a slot is held by run {run}, which does not have it", advice))
    return findings[:MAX_PER_KEY]


async def check_waiting(ns: Namespace, p: int, keys: list[Key]) -> list[Finding]:
    findings: list[Finding] = []
    for key in keys:
        waiting = [text_of(run) for run in await ns.read("ZRANGE", key.text, 0, PAGE - 1, p=p)]
        commands: list[Sequence[str]] = []
        for run in waiting:
            commands += [("HGET", ns.keys.run(p, run), "open"), ("ZSCORE", key.text, run)]
        replies = await ns.read_many(commands, p=p)
        for i, run in enumerate(waiting):
            ledger, still = replies[2 * i : 2 * i + 2]
            if still is None or isinstance(ledger, Exception):
                continue
            # Behind the gate a ledger may say what its run is like.
            if ledger is None or text_of(ledger).partition(":")[2].partition(" ")[0] != f"#{key.parts[0]}":
                advice = f"a worker drops it when it is its turn; or ZREM {key.text} {run}"
                findings.append(key.finding(f"run {run} stands in this line, but does not wait here", advice))
    return findings[:MAX_PER_KEY]
