"""Walks over every key of a namespace and says which of them should not be as they are.

Used by `weft keys` on live servers and by the leak check after every test, so a healthy system in full flight must
give no finding. Redis offers no snapshot over several commands; instead each relation is read as a sandwich (A, B,
A again, in one pipeline): scripts change A and B together, so a B that contradicts an A which stood still on both
sides is really wrong. Whatever looks wrong is looked at once more before it is reported. This room changes nothing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from redis.exceptions import RedisClusterException, RedisError

from weft.core.effects import run_of, step_id
from weft.core.model import SPEC_DECODER, RunSpec
from weft.errors import OutcomeUnknown
from weft.store.audit_gates import check_gates, check_waiting
from weft.store.audit_graphs import check_graph_keys, check_ledgers
from weft.store.audit_schedules import check_cron, check_schedules
from weft.store.audit_sessions import check_sessions
from weft.store.connection import ClusterCaller
from weft.store.faults import translate
from weft.store.findings import MAX_PER_KEY, PAGE, Finding, Key, text_of
from weft.store.keys import FAMILIES, GROUP, PRIORITIES, Lifetime
from weft.store.lone import lone_ledger, parse_lone
from weft.store.namespace import Namespace
from weft.store.runs import read_ledgers
from weft.store.schedules import MEMBER
from weft.store.scripts import Arg


async def audit(ns: Namespace, *, progress: Callable[[int], None] = lambda n: None) -> list[Finding]:
    """Returns what is wrong with the keys of a namespace; `progress` is told the number of keys of each page."""
    await ns.open()
    suspects: dict[tuple[str, str], Finding] = {}
    raw: dict[str, bytes] = {}
    async for page in scan_keys(ns):
        names = {_shown(key): key for key in page}
        for finding in await _examine(ns, page):
            suspects[finding.key, finding.problem] = finding
            raw[finding.key] = names[finding.key]
        progress(len(page))
    again = await _examine(ns, raw.values())
    confirmed = {(finding.key, finding.problem) for finding in again}
    return sorted((f for at, f in suspects.items() if at in confirmed), key=lambda f: (f.family, f.key, f.problem))


async def scan_keys(ns: Namespace, *, pattern: str = "") -> AsyncIterator[list[bytes]]:
    """Yields the keys of a namespace page by page. A key may come twice while the server resizes its table."""
    for node in await nodes(ns):
        cursor = 0
        while True:
            cursor, found = await ask(
                ns, "SCAN", cursor, "MATCH", pattern or ns.keys.pattern(), "COUNT", PAGE, node=node
            )
            if found:
                yield list(dict.fromkeys(found))
            if not int(cursor):
                break


async def count_keys(ns: Namespace) -> int:
    """Returns how many keys the whole store holds, of all namespaces: an upper bound for a scan."""
    return sum([int(await ask(ns, "DBSIZE", node=node)) for node in await nodes(ns)])


async def nodes(ns: Namespace) -> list[Any]:
    """Returns the nodes that hold keys; one that is None where there is only one server."""
    if not isinstance(ns.caller, ClusterCaller):
        return [None]
    with _translated():
        await ns.caller.client.initialize()
    return list(ns.caller.client.get_primaries())


async def ask(ns: Namespace, *command: Arg, node: Any = None) -> Any:
    """Runs a reading command on one node, also where the namespace cannot be opened."""
    with _translated():
        if node is None:
            return await ns.on_node(0, *command)
        assert isinstance(ns.caller, ClusterCaller), "only a Cluster has nodes"
        reply = await ns.caller.client.execute_command(*command, target_nodes=node)
    return next(iter(reply.values())) if isinstance(reply, dict) and len(reply) == 1 else reply


@contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except RedisClusterException as error:  # no relation of RedisError: no node could be asked
        raise OutcomeUnknown(f"the store does not answer: {error}") from error
    except (RedisError, OSError) as error:
        raise translate(error) from error


# --- one page of keys -----------------------------------------------------------------------------


async def _examine(ns: Namespace, page: Iterable[bytes]) -> list[Finding]:
    findings: list[Finding] = []
    by_partition: defaultdict[int, list[Key]] = defaultdict(list)
    for raw in page:
        parsed = _parse(ns, raw)
        if isinstance(parsed, Finding):
            findings.append(parsed)
        else:
            by_partition[parsed.p].append(parsed)
    for p, keys in by_partition.items():
        sound, shape_findings = await _check_shapes(ns, p, keys)
        findings += shape_findings
        for name, check in _CHECKS.items():
            if members := [key for key in sound if key.family.name == name]:
                findings += await check(ns, p, members)
    return findings


def _parse(ns: Namespace, raw: bytes) -> Key | Finding:
    text = _shown(raw)
    parsed = ns.keys.parse(text) if text.encode(errors="replace") == raw else None
    if parsed is None:
        return Finding(
            text,
            "",
            "no declared family has such a key",
            "Weft did not write it: UNLINK it, or keep it under another prefix",
        )
    p, family, parts = parsed
    key = Key(text, p, family, parts)
    if p >= ns.partitions or (family.name == "namespace" and p):
        return key.finding(
            f"it lies in partition {p}, where nobody looks: the namespace has {ns.partitions}",
            "it was written under another number of partitions: UNLINK it once its content is not needed",
        )
    return key


def _shown(raw: bytes) -> str:
    return raw.decode(errors="backslashreplace")


async def _check_shapes(ns: Namespace, p: int, keys: list[Key]) -> tuple[list[Key], list[Finding]]:
    """Checks type and expiry; returns the keys that can be looked into, and what was wrong with the others."""
    replies = await ns.read_many([c for key in keys for c in (("TYPE", key.text), ("PTTL", key.text))], p=p)
    sound, findings = [], []
    for i, key in enumerate(keys):
        kind, ttl = text_of(replies[2 * i]), int(replies[2 * i + 1])
        if kind == "none" or ttl == -2:
            continue
        if kind != key.family.type:
            advice = "scripts refuse to touch it: RENAME or UNLINK it, and find out who wrote it"
            findings.append(key.finding(f"it is a {kind}, and should be a {key.family.type}", advice))
            continue
        sound.append(key)
        match key.family.lifetime:
            case Lifetime.LEASE | Lifetime.WINDOW if ttl == -1:
                findings.append(
                    key.finding("it never expires, and should", "PEXPIRE it, or UNLINK it if nobody uses it")
                )
            case Lifetime.FOREVER | Lifetime.QUEUE if ttl >= 0:
                findings.append(key.finding("it is about to expire, and should stay", f"PERSIST {key.text}"))
    return sound, findings


# --- runs and blobs -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Run:
    """An open run, and where the stream of its token is."""

    key: Key
    id: str
    spec: RunSpec
    ledger: str
    deadline: bool
    stream: str
    #: All there is of a step that stands alone in its run's hash, whose key is `key` then.
    lone: bytes = b""

    @property
    def stands(self) -> tuple[str, str]:
        """The field that says how it stands, and what it said."""
        return ("lone", text_of(self.lone)) if self.lone else ("open", self.ledger)

    @property
    def token(self) -> str:
        token = self.ledger.partition(":")[2]
        return "" if token.startswith(("@", "#")) else token

    @property
    def line(self) -> str:
        token = self.ledger.partition(":")[2]
        return token[1:].partition(" ")[0] if token.startswith("#") else ""

    @property
    def place(self) -> str:
        return "token" if self.token else "place in the line" if self.line else "timer"


async def _check_runs(ns: Namespace, p: int, keys: list[Key]) -> list[Finding]:
    readable = {row.id for row in await read_ledgers(ns, p, [key.parts[0] for key in keys])}
    commands: list[Sequence[str]] = []
    for key in keys:
        commands += [("PTTL", key.text), ("HMGET", key.text, "open", "spec", "deadline", "lone"), ("PTTL", key.text)]
    replies = await ns.read_many(commands, p=p)
    findings, open_runs = [], []
    for i, key in enumerate(keys):
        before, (ledger, packed, deadline, lone), after = replies[3 * i : 3 * i + 3]
        if after == -2:
            continue
        if ledger is None or packed is None:
            advice = "something else wrote it: UNLINK it, or restore the run from a backup"
            findings.append(key.finding("it lacks the fields of a run (spec, open)", advice))
        elif key.parts[0] not in readable:
            advice = "something else wrote into it: restore the run from a backup, or UNLINK it"
            findings.append(key.finding("its fields cannot be read (spec, open, born, seq or lone)", advice))
        elif ledger.startswith(b"="):
            if after == -1:
                advice = f"PEXPIRE {key.text} 3600000; its blobs likewise"
                findings.append(key.finding("the run is finished and never expires: leaked", advice))
        else:
            if before >= 0:
                findings.append(key.finding("the run is open and about to expire", f"PERSIST {key.text}"))
            if ledger.endswith(b":*"):
                if lone is not None:
                    step, about = parse_lone(lone)
                    spec = SPEC_DECODER.decode(about["spec"])
                    stream = ns.keys.tasks(p, spec.queue, spec.priority)
                    id = step_id(key.parts[0], step)
                    open_runs.append(_Run(key, id, spec, about["open"].decode(), False, stream, lone))
                continue  # a graph run: its ledger represents it, and is looked at by itself
            spec = SPEC_DECODER.decode(packed)
            stream = ns.keys.tasks(p, spec.queue, spec.priority)
            # A graph run is represented by its steps, and nothing stands for a step that waits for something from outside.
            if ledger.partition(b":")[2][:1] in (b"*", b"?"):
                continue
            open_runs.append(_Run(key, key.parts[0], spec, ledger.decode(), deadline is not None, stream))
    return findings + await _check_open_runs(ns, p, open_runs)


async def _check_open_runs(ns: Namespace, p: int, runs: list[_Run]) -> list[Finding]:
    """Looks for the token or timer that each open run must have, and for its deadline and input."""
    # Read before the tokens: what was delivered by now must be pending when it is looked at below.
    delivered = await _delivered(ns, p, sorted({run.stream for run in runs}))
    commands: list[Sequence[str | int]] = []
    for run in runs:
        token, ledger = run.token, ("HGET", run.key.text, run.stands[0])
        commands += [
            ledger,
            ("XRANGE", run.stream, token, token)
            if token
            else ("ZSCORE", ns.keys.line(p, run.line), run.id)
            if run.line
            else ("ZSCORE", ns.keys.timers(p), f"open:{run.id}"),
            ("XPENDING", run.stream, GROUP, token, token, 1) if token else ledger,
            ("ZSCORE", ns.keys.timers(p), f"deadline:{run.id}") if run.deadline else ledger,
            ("EXISTS", ns.keys.blob(p, run.id, run.spec.blob)) if run.spec.blob else ledger,
            ledger,
        ]
    replies = await ns.read_many(commands, p=p)
    findings: list[Finding] = []
    for i, run in enumerate(runs):
        before, place, pending, deadline, blob, after = replies[6 * i : 6 * i + 6]
        if before != after or text_of(before) != run.stands[1]:
            continue  # it moved on while we looked: that is what healthy runs do
        represented = bool(place) if run.token else place is not None
        if represented and run.token and not pending and _entry(run.token) <= delivered.get(run.stream, (0, 0)):
            represented = False
        if not represented:
            advice = "a live worker gives it a new one within a minute; if this stays, see the worker's log"
            findings.append(
                run.key.finding(f"the run is open, but its {run.place} is gone: nobody will run it", advice)
            )
        if run.deadline and deadline is None:
            advice = f"ZADD {ns.keys.timers(p)} <its field `deadline`> deadline:{run.id}"
            findings.append(run.key.finding("the run has a deadline without a timer: it never fails by it", advice))
        if run.spec.blob and blob == 0:
            advice = f"it cannot run: weft runs cancel {run.id}, and enqueue it again"
            findings.append(run.key.finding("the run is open, but the blob of its input is gone", advice))
    return findings


async def _delivered(ns: Namespace, p: int, streams: list[str]) -> dict[str, tuple[int, int]]:
    """Returns the last entry that was handed out of each stream; a stream without readers is left out."""
    replies = await ns.read_many([("XINFO", "GROUPS", stream) for stream in streams], p=p)
    found = {}
    for stream, reply in zip(streams, replies, strict=True):
        for about in reply if isinstance(reply, list) else ():
            facts = {text_of(name): value for name, value in zip(about[::2], about[1::2], strict=True)}
            if text_of(facts["name"]) == GROUP:
                found[stream] = _entry(text_of(facts["last-delivered-id"]))
    return found


async def _check_belongings(ns: Namespace, p: int, keys: list[Key]) -> list[Finding]:
    """Looks at what a run has besides its hash: an open one keeps its input and its log, and nothing outlives its run."""
    commands: list[Sequence[str]] = []
    for key in keys:
        ttl, run = ("PTTL", key.text), ("HMGET", ns.keys.run(p, key.parts[0]), "open", "spec")
        kept = ("SISMEMBER", ns.keys.belongings(p, key.parts[0]), f"blob {key.parts[-1]}")
        commands += [ttl, run, kept, ("ZSCORE", ns.keys.timers(p), f"close:{key.parts[0]}"), ttl]
    replies = await ns.read_many(commands, p=p)
    findings = []
    for i, key in enumerate(keys):
        before, (ledger, packed), kept, closing, after = replies[5 * i : 5 * i + 5]
        if after == -2 or closing is not None:
            continue  # gone, or about to be put away with its run
        is_open = ledger is not None and not ledger.startswith(b"=")
        role = "log" if key.family.name == "tasklog" else "value" if kept == 1 else "input"
        is_needed = is_open and (role != "input" or (packed and SPEC_DECODER.decode(packed).blob == key.parts[1]))
        if after == -1 and ledger is None:
            findings.append(key.finding("it belongs to no run and never expires: leaked", f"UNLINK {key.text}"))
        elif after == -1 and not is_needed:
            findings.append(key.finding("its run does not need it, and it never expires: leaked", f"UNLINK {key.text}"))
        elif is_needed and before >= 0 and after >= 0:
            findings.append(key.finding(f"it is the {role} of an open run, and about to expire", f"PERSIST {key.text}"))
    return findings


# --- what points at runs --------------------------------------------------------------------------


async def _check_streams(ns: Namespace, p: int, keys: list[Key]) -> list[Finding]:
    findings = []
    for key in keys:
        if key.parts[1] not in {str(priority) for priority in PRIORITIES}:
            findings.append(
                key.finding(f"{key.parts[1]!r} is not a priority: no worker reads it", f"UNLINK {key.text}")
            )
        findings += await _check_consumers(ns, p, key)
        findings += (await _check_tokens(ns, p, key))[:MAX_PER_KEY]
    return findings


async def _check_consumers(ns: Namespace, p: int, key: Key) -> list[Finding]:
    """A session holds tokens only while the directory lists it: what others hold is never swept."""
    summary = ("XPENDING", key.text, GROUP)
    (before,) = await ns.read_many([summary], p=p)
    holders = _holders(before)
    if not holders:
        return []
    commands = [("HEXISTS", ns.keys.sessions(p), holder) for holder in holders]
    *listed, after = await ns.read_many([*commands, summary], p=p)
    still = _holders(after)
    return [
        key.finding(
            f"consumer {holder} holds tokens, but no such session exists: they are stuck",
            f"XGROUP DELCONSUMER {key.text} {GROUP} {holder}; a live worker then emits them anew",
        )
        for holder, known in zip(holders, listed, strict=True)
        if known == 0 and holder in still
    ]


def _holders(summary: Any) -> list[str]:
    """Returns the consumers that hold entries, from XPENDING's summary; an error means that nobody reads yet."""
    return [text_of(name) for name, _ in summary[3] or ()] if isinstance(summary, list) else []


async def _check_tokens(ns: Namespace, p: int, key: Key) -> list[Finding]:
    findings: list[Finding] = []
    start = "-"
    while len(findings) < MAX_PER_KEY:
        entries = await ns.read("XRANGE", key.text, start, "+", "COUNT", PAGE, p=p)
        commands: list[Sequence[str]] = []
        for entry, fields in entries:
            run = text_of(fields[1])
            # A lone step may get a hash of its own meanwhile, never the other way round.
            commands += [
                ("HGET", ns.keys.run(p, run_of(run)), "lone"),
                ("HGET", ns.keys.run(p, run), "open"),
                ("XRANGE", key.text, text_of(entry), text_of(entry)),
            ]
        replies = await ns.read_many(commands, p=p)
        for i, (entry, fields) in enumerate(entries):
            lone, ledger, still = replies[3 * i : 3 * i + 3]
            if isinstance(ledger, Exception):
                continue  # the run is no hash: that is a finding of its own
            ledger = ledger or lone_ledger(text_of(fields[1]), lone)
            if still and (ledger is None or text_of(ledger).partition(":")[2] != text_of(entry)):
                why = "is gone" if ledger is None else "does not wait for it"
                findings.append(
                    key.finding(
                        f"token {text_of(entry)} belongs to run {text_of(fields[1])}, which {why}",
                        f"a worker drops it when it meets it; or XDEL {key.text} {text_of(entry)}",
                    )
                )
        if len(entries) < PAGE:
            break
        start = "(" + text_of(entries[-1][0])
    return findings


async def _check_timers(ns: Namespace, p: int, keys: list[Key]) -> list[Finding]:
    (key,) = keys
    findings: list[Finding] = []
    cursor = 0
    while True:
        cursor, flat = await ns.read("ZSCAN", key.text, cursor, "COUNT", PAGE, p=p)
        members = (
            [text_of(pair[0]) for pair in flat] if flat and isinstance(flat[0], tuple) else [*map(text_of, flat[::2])]
        )
        findings += await _check_members(ns, p, key, members)
        if not int(cursor) or len(findings) >= MAX_PER_KEY:
            return findings[:MAX_PER_KEY]


async def _check_members(ns: Namespace, p: int, key: Key, members: list[str]) -> list[Finding]:
    cron = [member for member in members if member.startswith(MEMBER)]
    return await check_cron(ns, p, key, cron) + await _check_run_timers(ns, p, key, sorted({*members} - {*cron}))


async def _check_run_timers(ns: Namespace, p: int, key: Key, members: list[str]) -> list[Finding]:
    commands: list[Sequence[str]] = []
    for member in members:
        kind, _, id = member.partition(":")
        # A map has no hash of its own kind: its run has.
        run = id.partition("/")[0] if kind in ("shut", "hedge") else id
        commands += [("HGET", ns.keys.run(p, run), "open"), ("ZSCORE", key.text, member)]
    replies = await ns.read_many(commands, p=p)
    findings = []
    for i, member in enumerate(members):
        kind = member.partition(":")[0]
        ledger, still = replies[2 * i : 2 * i + 2]
        if still is None or isinstance(ledger, Exception):
            continue
        why = ""
        if kind == "gate":
            continue
        if kind not in ("open", "deadline", "end", "close", "route", "wait", "shut", "hedge", "stop", "hold"):
            why = "is of no known kind"
        elif ledger is None:
            why = "belongs to a run that is gone"
        elif kind in ("shut", "hedge", "stop", "hold"):
            continue  # the next look at it ends it
        elif kind in ("close", "route"):
            why = "" if ledger.startswith(b"=") else "belongs to a run that is open"
        elif (
            ledger.startswith(b"=")
            or (kind == "open" and b":@" not in ledger)
            or (kind == "wait" and b":?" not in ledger)
        ):
            why = "belongs to a run that does not wait for it"
        if why:
            findings.append(key.finding(f"timer {member} {why}", f"ZREM {key.text} {member}"))
    return findings


async def _check_repair(ns: Namespace, p: int, keys: list[Key]) -> list[Finding]:
    (key,) = keys
    members = await ns.read("ZRANGE", key.text, 0, MAX_PER_KEY - 1, p=p)
    return [
        key.finding(
            f"run {text_of(run)} made a script fail; nothing is guessed about it",
            f"weft keys explain {text_of(run)}; mend or UNLINK its key, then ZREM {key.text} {text_of(run)}",
        )
        for run in members
    ]


def _entry(id: str) -> tuple[int, int]:
    ms, _, n = id.partition("-")
    return int(ms), int(n or 0)


_CHECKS = {
    "run": _check_runs,
    "blob": _check_belongings,
    "tasklog": _check_belongings,
    "ledger": check_ledgers,
    **dict.fromkeys(
        ("arrivals", "context", "belongings", "map", "items", "results", "journal", "mail", "updates"), check_graph_keys
    ),
    "wf.tasks": _check_streams,
    "timers": _check_timers,
    "gate": check_gates,
    "line": check_waiting,
    "schedule": check_schedules,
    "repair": _check_repair,
    "sessions": check_sessions,
}
assert _CHECKS.keys() <= FAMILIES.keys(), "a check must be of a declared family"
