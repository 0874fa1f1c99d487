"""What the audit checks about schedules."""

from __future__ import annotations

from collections.abc import Sequence

from weft.store.findings import Finding, Key
from weft.store.namespace import Namespace
from weft.store.schedules import MEMBER


async def check_cron(ns: Namespace, p: int, key: Key, members: list[str]) -> list[Finding]:
    """Checks that every timer of a schedule belongs to one that ticks."""
    commands: list[Sequence[str]] = []
    for member in members:
        name = member.removeprefix(MEMBER)
        commands += [("HMGET", ns.keys.schedule(p, name), "rev", "paused"), ("ZSCORE", key.text, member)]
    replies = await ns.read_many(commands, p=p)
    findings = []
    for i, member in enumerate(members):
        state, still = replies[2 * i : 2 * i + 2]
        if still is None or isinstance(state, Exception) or (state[0] is not None and state[1] != b"1"):
            continue
        why = "belongs to a schedule that is gone" if state[0] is None else "belongs to a paused schedule"
        findings.append(
            key.finding(f"timer {member} {why}", f"the timer service drops it; or ZREM {key.text} {member}")
        )
    return findings


async def check_schedules(ns: Namespace, p: int, keys: list[Key]) -> list[Finding]:
    """Checks that schedules are whole: listed, and with a timer while they tick."""
    commands: list[Sequence[str]] = []
    for key in keys:
        name = key.parts[0]
        read = ("HMGET", key.text, "rev", "spec", "next", "paused")
        commands += [
            read,
            ("ZSCORE", ns.keys.timers(p), f"{MEMBER}{name}"),
            ("SISMEMBER", ns.keys.schedules(p), name),
            read,
        ]
    replies = await ns.read_many(commands, p=p)
    findings = []
    for i, key in enumerate(keys):
        before, timer, listed, after = replies[4 * i : 4 * i + 4]
        if before != after:
            continue  # it ticked or was changed while we looked
        rev, spec, coming, paused = before
        if rev is None or spec is None:
            findings.append(
                key.finding("it lacks the fields of a schedule (rev, spec)", "something else wrote it: UNLINK it")
            )
        elif coming is not None and paused != b"1" and timer is None:
            advice = f"weft schedules pause {key.parts[0]}, then resume it"
            findings.append(key.finding("the schedule has no timer: it never ticks", advice))
        if not listed and rev is not None:
            advice = f"SADD {ns.keys.schedules(p)} {key.parts[0]}"
            findings.append(key.finding("the list of schedules lacks it: it is not shown", advice))
    return findings
