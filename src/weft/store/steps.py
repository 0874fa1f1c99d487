"""Tokens in Redis: claim, commit, report, reclaim, emit again."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from typing import Any

import msgspec

from weft.core.effects import SUBGRAPH, run_of
from weft.core.flow import is_flow, is_step
from weft.core.model import SPEC_DECODER, Limit, Outcome, RunSpec, Token
from weft.store.bare import commit_bare, is_bare
from weft.store.controls import informed
from weft.store.forms import Form
from weft.store.heirs import Heirs
from weft.store.keys import GROUP, PRIORITIES, TIMER_WAKE, Keyspace
from weft.store.lone import may_be_lone, unfold_tokens
from weft.store.namespace import Namespace
from weft.store.numbers import GateKeys, Numbers
from weft.store.runs import RunRow
from weft.store.scripts import Arg, load
from weft.store.wake import Pebbles
from weft.store.ways import commit_both_ways
from weft.telemetry import get_logger

log = get_logger("weft.store")

#: So many bare ends are worth a call of their own beside that of the others.
WORTH_A_CALL = 8
#: What stands for no log lines at all.
NO_LINES = b"1|"
#: How calls without arguments are packed: those of tasks, and of nodes.
_NOTHING = (b"", b"\x80")
#: Specs of such calls that are kept, by how they are packed: they come again and again.
MAX_ARGLESS = 1024
_ARGLESS: dict[bytes, RunSpec] = {}


#: All priorities, as the store names those in use.
ALL_LEVELS = " ".join(map(str, reversed(PRIORITIES)))


def queue_streams(ns: Namespace, p: int, queues: Sequence[str], levels: str = ALL_LEVELS) -> tuple[str, ...]:
    """Returns the streams of some queues in claiming order: queue by queue, highest priority first."""
    return _queue_streams(ns.keys, p, levels, *queues)


@lru_cache(maxsize=256)
def _queue_streams(keys: Keyspace, p: int, levels: str, *queues: str) -> tuple[str, ...]:
    # A worker asks with every claim, mostly for the same streams.
    return tuple(keys.tasks(p, queue, int(level)) for queue in queues for level in levels.split())


async def claim_steps(
    ns: Namespace,
    p: int,
    *,
    session: str,
    queues: Sequence[str],
    room: int,
    after: str = ">",
    aging_ms: int = 0,
    caller: Any = None,
) -> list[Token]:
    """Takes up to `room` tokens; with `after` an entry id, lists the session's own pending tokens after it instead."""

    async def call() -> tuple[Sequence[str], Any]:
        while True:
            streams = queue_streams(ns, p, queues if after != ">" else ns.controls[p].running(queues), ns.levels[p])
            keys, args = _claim(ns, p, session, queues, streams, room, after, aging_ms)
            reply = await ns.call("claim_steps", p, keys, args, caller=caller)
            if not _learns_levels(ns, p, reply):
                return streams, reply

    tokens = await _tokens(ns, p, *await informed(ns, p, call))
    if after != ">" and tokens:
        await _read_gates(ns, p, tokens)
    return tokens


async def _read_gates(ns: Namespace, p: int, tokens: Sequence[Token]) -> None:
    """Learns what own tokens passed since they were emitted: the reply that told of a slot may have been lost."""
    replies = await ns.read_many([("HGET", ns.keys.run(p, token.run), "gates") for token in tokens], p=p)
    for token, gates in zip(tokens, replies, strict=True):
        if isinstance(gates, bytes):
            token.gates = gates.decode()


async def await_steps(
    ns: Namespace, p: int, *, session: str, queues: Sequence[str], room: int, pebbles: Pebbles, aging_ms: int = 0
) -> list[Token]:
    """Blocks until a pebble falls and takes tokens at once: the claim waits in the server behind the blocking call.

    A claim that is refused there is made again in the ordinary way, which knows what each refusal means.
    """
    await ns.ready()
    levels = ns.levels[p]
    streams = queue_streams(ns, p, ns.controls[p].running(queues), levels)

    def make() -> Form:
        script, (keys, args) = load("claim_steps"), _claim(ns, p, session, queues, streams, room, ">", aging_ms)
        return Form(["EVALSHA", script.sha, *ns.pack(script, p, keys, args, ())], ())

    fixed = ("claim", p, ns.epochs[p], ns.controls[p].version, levels, session, *queues, room, aging_ms)
    reply = await pebbles.wait_and_call(ns.forms.of(fixed, make).wired())
    if isinstance(reply, Exception) or _learns_levels(ns, p, reply):
        return await claim_steps(ns, p, session=session, queues=queues, room=room, aging_ms=aging_ms)
    return await _tokens(ns, p, streams, reply)


def _learns_levels(ns: Namespace, p: int, reply: Any) -> bool:
    """Notes which priorities are in use, if that is all that a claim was told."""
    if reply[0] != b"levels":
        return False
    ns.levels[p] = reply[1].decode()
    return True


def _claim(
    ns: Namespace,
    p: int,
    session: str,
    queues: Sequence[str],
    streams: Sequence[str],
    room: int,
    after: str,
    aging_ms: int,
) -> tuple[dict[str, str | Collection[str]], dict[str, Arg]]:
    keys: dict[str, str | Collection[str]] = {
        "session": ns.keys.session(p, session),
        "wake": [ns.keys.wake(p, queue) for queue in queues],
        "wf.tasks": streams,
    }
    return keys, {
        "controls": ns.controls[p].version,
        "levels": ns.levels[p],
        "group": GROUP,
        "consumer": session,
        "room": room,
        "aging_ms": aging_ms,
        "after": after,
    }


def _spec_of(packed: bytes) -> RunSpec:
    """Reads what a token is asked: the same as others before, where a task or a node is given nothing."""
    spec = _ARGLESS.get(packed)
    if spec is None:
        spec = SPEC_DECODER.decode(packed)
        if spec.input in _NOTHING:
            if len(_ARGLESS) >= MAX_ARGLESS:
                _ARGLESS.clear()
            _ARGLESS[packed] = spec
    return spec


async def _tokens(ns: Namespace, p: int, streams: Sequence[str], reply: Any) -> list[Token]:
    epoch, now_ms = ns.epoch(p), int(reply[0])
    tokens: list[Token] = []
    bare: list[tuple[str, Token]] = []
    again: list[Token] = []
    foreign: list[tuple[str, str]] = []
    for told in islice(reply, 1, None):
        head, _, packed = told.partition(b"\n")
        try:
            stream, entry, run, numbers, *passed = head.decode().split(" ", 4)
            delivery, _, attempt = numbers.partition(":")
            spec = _spec_of(packed) if packed else RunSpec("")
            token = Token(p, epoch, run, entry, int(delivery), int(attempt), spec, now_ms)
        except (ValueError, msgspec.DecodeError):
            place, entry, *_ = head.decode(errors="replace").split(" ", 2)
            foreign.append((streams[int(place) - 1], entry))
            continue
        if passed:
            token.gates, _, token.heirs = passed[0].partition(" >")
        tokens.append(token)
        if not packed:
            bare.append((streams[int(stream) - 1], token))
        if delivery != attempt:
            again.append(token)
    if again:
        await _read_crashes(ns, p, again)
    if bare:
        await _read_specs(ns, p, bare)
        tokens = [token for token in tokens if token.spec.name]
    if foreign:
        await _put_aside(ns, p, foreign)
    return tokens


async def _put_aside(ns: Namespace, p: int, entries: Sequence[tuple[str, str]]) -> None:
    """Takes out of queues what is no token (stream, entry). If it stood for a run, the reconciler gives that another one."""
    await ns.read_many([command for where in entries for command in _out(*where)], p=p)
    log.error("what was in a queue and is no token was taken out", n=len(entries), entries=entries[:5])


def _out(stream: str, entry: str) -> list[tuple[Arg, ...]]:
    return [("XACK", stream, GROUP, entry), ("XDEL", stream, entry)]


async def _read_crashes(ns: Namespace, p: int, tokens: Sequence[Token]) -> None:
    """Learns which tokens are suspects. A death raises the delivery and not the attempt: where both agree, nobody asks."""
    replies = await ns.read_many([("HGET", ns.keys.run(p, token.run), "crashes") for token in tokens], p=p)
    for token, crashes in zip(tokens, replies, strict=True):
        token.crashes = int(crashes) if isinstance(crashes, bytes) else 0


async def _read_specs(ns: Namespace, p: int, held: Sequence[tuple[str, Token]]) -> None:
    """Fills in the specs that were too large to ride with their tokens (stream, token).

    A run that is gone, or that nobody can read, keeps an empty name, and its token is dropped: nobody else would ever take it
    off the pending list.
    """
    replies = await ns.read_many([("HGET", ns.keys.run(p, token.run), "spec") for _, token in held], p=p)
    gone: list[tuple[Arg, ...]] = []
    for (stream, token), packed in zip(held, replies, strict=True):
        if isinstance(packed, bytes):
            with contextlib.suppress(msgspec.DecodeError):
                token.spec = SPEC_DECODER.decode(packed)
        if not token.spec.name and not isinstance(packed, Exception):
            gone += _out(stream, token.entry)
    await ns.read_many(gone, p=p)


async def begin_suspect(ns: Namespace, p: int, token: Token, *, session: str) -> bool:
    """Notes that a suspect begins; returns whether it is still the session's."""
    reply = await ns.call(
        "begin_suspect",
        p,
        {"session": ns.keys.session(p, session), "run": ns.keys.run(p, token.run)},
        {"ledger": token.ledger},
    )
    return bool(reply == b"ok")


@dataclass(slots=True)
class Head:
    """A run at the front of a line, and the limits it has to pass."""

    row: RunRow
    gate: str
    limits: Sequence[Limit]


class LineKeys:
    """Where log lines go: lists of runs, and for steps of graph runs the hash that counts them, behind `n` other runs."""

    def __init__(self, ns: Namespace, p: int, n: int) -> None:
        self._keys, self._p, self._n = ns.keys, p, n
        self.lists, self.homes = Numbers(), Numbers()

    def place(self, id: str) -> bytes:
        """Returns what lib/keep reads in front of the lines of a run, or of a step of one."""
        run = run_of(id)
        list_at = self.lists.of(self._keys.tasklog(self._p, run))
        if run == id:
            return b"%d|" % list_at
        return b"%d.%d|" % (list_at, self._n + self.homes.of(self._keys.run(self._p, run)))


def _place_of(lines: LineKeys, outcome: Outcome) -> bytes:
    """Returns where an outcome's log lines go, with the lines; empty when there is nothing to keep or to tell.

    An earlier delivery may have logged what this one has to keep or let expire; and a graph or workflow run is told of attempts
    that were not the last of their step. A step that looks at its subgraph logs nothing, and its looks are no attempts.
    """
    token = outcome.token
    if outcome.kind == "snoozed" and token.spec.name == SUBGRAPH:
        return b""
    told = outcome.kind in ("retrying", "snoozed") and is_step(token.spec)
    if outcome.lines is None and token.delivery == 1 and not told:
        return b""
    return lines.place(token.run) + (outcome.lines or NO_LINES)


async def commit_steps(
    ns: Namespace, p: int, outcomes: Sequence[Outcome], *, session: str, heads: Sequence[Head] = (), caller: Any = None
) -> tuple[list[str], bool]:
    """Commits the ends of attempts in one call; slots they give back go to `heads`.

    Returns a word per outcome, and whether somebody else waits at a gate they left.
    """
    behind = False

    async def by_short(some: list[Outcome]) -> list[str]:
        nonlocal behind
        words, awaited = await commit_bare(ns, p, some, session=session, caller=caller)
        behind = behind or awaited
        return words

    async def by_wide(some: list[Outcome]) -> list[str]:
        nonlocal behind
        turns = [outcome for outcome in some if is_flow(outcome.token.spec)]
        if turns and len(turns) < len(some):
            # Steps tell the workflow run they belong to under its numbers, which its own return takes too: not in one call.
            others = [outcome for outcome in some if not is_flow(outcome.token.spec)]
            words = dict(zip(map(id, [*others, *turns]), [*await by_wide(others), *await by_wide(turns)], strict=True))
            return [words[id(outcome)] for outcome in some]
        await unfold_tokens(ns, p, [outcome.token for outcome in some])
        keys, args, items = _commit(ns, p, some, session, heads)
        reply = await ns.call("commit_steps", p, keys, args, items, caller=caller)
        behind = behind or len(reply) > len(items)
        return [word.decode() for word in reply[: len(some)]]

    # Heads come with those whose slots they may get, which go the wide way then.
    bare = [i for i, outcome in enumerate(outcomes) if is_bare(outcome) and not (heads and outcome.token.gates)]
    if len(bare) < min(len(outcomes), WORTH_A_CALL):
        bare = []
    return await commit_both_ways(outcomes, bare, by_short, by_wide), behind


def _commit(
    ns: Namespace, p: int, outcomes: Sequence[Outcome], session: str, heads: Sequence[Head]
) -> tuple[dict[str, str | Collection[str]], dict[str, Arg], list[tuple[Arg, ...]]]:
    """Returns keys, arguments and records of a call that commits."""
    keys, gates = ns.keys, GateKeys(ns.keys, p)
    wakes, tasks, blobs, uniques = Numbers({keys.wake(p, TIMER_WAKE): 1}), Numbers(), Numbers(), Numbers()
    n = len(outcomes) + len(heads)
    heirs = Heirs(ns, p, n, outcomes)
    lines = LineKeys(ns, p, n + len(heirs))
    items: list[tuple[Arg, ...]] = []
    for outcome in outcomes:
        token = outcome.token
        spec = token.spec
        items.append(
            (
                outcome.kind,
                tasks.of(keys.tasks(p, spec.queue, spec.priority)),
                wakes.of(keys.wake(p, spec.queue)),
                token.ledger,
                outcome.after_ms,
                outcome.started_ms,
                blobs.of(keys.blob(p, token.run, spec.blob)) if spec.blob else 0,
                blobs.of(keys.blob(p, token.run, outcome.blob)) if outcome.blob else 0,
                outcome.value,
                # A workflow run that is only offered to others keeps what it has: it may have begun.
                heirs.refs(token, gates) if token.gates and not (outcome.kind == "returned" and is_flow(spec)) else "",
                _place_of(lines, outcome),
                uniques.of(keys.unique(p, spec.unique)) if spec.unique else 0,
            )
        )
    for head in heads:
        spec = head.row.spec
        items.append(
            (
                "head",
                tasks.of(keys.tasks(p, spec.queue, spec.priority)),
                wakes.of(keys.wake(p, spec.queue)),
                gates.line(head.gate),
                gates.turns(head.gate),
                spec.priority,
                0,
                0,
                spec.fair,
                gates.refs(head.limits),
                "",
                0,
            )
        )
    families: dict[str, str | Collection[str]] = {
        "log": keys.log(p),
        "timers": keys.timers(p),
        "repair": keys.repair(p),
        "lines": keys.lines(p),
        "admit": keys.admit(p),
        "dlq": keys.dlq(p),
        "wake": wakes,
        "wf.tasks": tasks,
        "run": [
            *(keys.run(p, run) for run in [*(o.token.run for o in outcomes), *(h.row.id for h in heads)]),
            *heirs,
            *lines.homes,
        ],
        "blob": blobs,
        "tasklog": lines.lists,
        "unique": uniques,
        **gates.families(),
    }
    return families, {"controls": ns.controls[p].version, "by": session, "group": GROUP}, items


async def report_steps(
    ns: Namespace,
    p: int,
    reports: Sequence[tuple[Token, int, str]],
    *,
    session: str,
    lines: Mapping[tuple[str, str], bytes] | None = None,
) -> list[bool]:
    """Tells that steps still run (token, started_ms, progress); returns for each whether it is still the session's.

    `lines` are log lines by the key of their token, packed.
    """
    lines, places = lines or {}, LineKeys(ns, p, len(reports))
    items: list[tuple[Arg, ...]] = []
    for token, started_ms, progress in reports:
        told = lines.get(token.key) or (NO_LINES if is_step(token.spec) else None)
        packed = b"" if told is None else places.place(token.run) + told
        items.append((token.ledger, started_ms, progress, packed))
    reply = await ns.call(
        "report_steps",
        p,
        {
            "log": ns.keys.log(p),
            "run": [*(ns.keys.run(p, token.run) for token, _, _ in reports), *places.homes],
            "tasklog": places.lists,
        },
        {"by": session},
        items,
    )
    words = [word == b"ok" for word in reply]
    # Only once: a step that was reported before has a hash of its own.
    left = [i for i, one in enumerate(reports) if not words[i] and may_be_lone(one[0])]
    if left and await unfold_tokens(ns, p, [reports[i][0] for i in left]):
        again = await report_steps(ns, p, [reports[i] for i in left], session=session, lines=lines)
        for i, word in zip(left, again, strict=True):
            words[i] = word
    return words


async def read_lines(ns: Namespace, p: int, run: str) -> list[bytes]:
    """Returns the log lines that are kept of a run, packed."""
    return list(await ns.read("LRANGE", ns.keys.tasklog(p, run), 0, -1, p=p))
