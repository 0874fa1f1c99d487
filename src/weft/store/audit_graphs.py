"""What `weft keys audit` says about graph runs: their ledgers, and the keys that go with them."""

from __future__ import annotations

from collections.abc import Sequence

from weft.core.effects import step_id
from weft.store.findings import MAX_PER_KEY, Finding, Key, text_of
from weft.store.namespace import Namespace


async def check_graph_keys(ns: Namespace, p: int, keys: list[Key]) -> list[Finding]:
    """Looks at what a graph run has besides its hash: it stays while the run is open, and goes with it."""
    commands: list[Sequence[str]] = []
    for key in keys:
        ttl, run = ("PTTL", key.text), ("HGET", ns.keys.run(p, key.parts[0]), "open")
        commands += [ttl, run, ("ZSCORE", ns.keys.timers(p), f"close:{key.parts[0]}"), ttl]
    replies = await ns.read_many(commands, p=p)
    findings = []
    for i, key in enumerate(keys):
        before, ledger, closing, after = replies[4 * i : 4 * i + 4]
        if after == -2 or isinstance(ledger, Exception) or closing is not None:
            continue  # gone, of a run that is no hash, or about to be put away
        is_open = ledger is not None and not ledger.startswith(b"=")
        if after == -1 and not is_open:
            why = "belongs to no run" if ledger is None else "is of a run that has ended"
            findings.append(key.finding(f"it {why}, and never expires: leaked", f"UNLINK {key.text}"))
        elif is_open and before >= 0 and after >= 0 and key.family.name != "items":
            # Items are uploaded with an expiry, before their map begins.
            findings.append(key.finding("it is of an open run, and about to expire", f"PERSIST {key.text}"))
    return findings


async def check_ledgers(ns: Namespace, p: int, keys: list[Key]) -> list[Finding]:
    """Looks for the run of each ledger, and for the steps that stand in it: a map by its hash, the others by their own."""
    findings = await check_graph_keys(ns, p, keys)
    for key in keys:
        run, own = key.parts[0], ("HKEYS", key.text)
        (names,) = await ns.read_many([own], p=p)
        steps = [text_of(name) for name in names]
        commands: list[Sequence[str]] = []
        for step in steps:
            commands += [("EXISTS", ns.keys.run(p, step_id(run, step))), ("EXISTS", ns.keys.map(p, run, step))]
        *replies, ledger, after = await ns.read_many([*commands, ("HGET", ns.keys.run(p, run), "open"), own], p=p)
        if ledger is None or isinstance(ledger, Exception) or ledger.startswith(b"="):
            continue
        still = {text_of(name) for name in after}
        for i, step in enumerate(steps[:MAX_PER_KEY]):
            if step in still and not replies[2 * i] and not replies[2 * i + 1]:
                advice = f"it never ends: weft runs cancel {run}"
                findings.append(key.finding(f"step {step} is open, but there is no such step", advice))
    return findings
