"""Tokens in Redis: claim, commit, report, reclaim, emit again."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from weft.core.effects import run_of
from weft.core.model import SPEC_DECODER, Limit, Outcome, RunSpec, Token
from weft.store.controls import informed
from weft.store.forms import Form
from weft.store.keys import GROUP, PRIORITIES, TIMER_WAKE
from weft.store.namespace import Namespace
from weft.store.numbers import GateKeys, Numbers
from weft.store.runs import RunRow
from weft.store.scripts import Arg, load
from weft.store.wake import Pebbles

#: What stands for no log lines at all.
NO_LINES = b"1|"

#: Milliseconds a swept session is remembered as dead, so that it is refused when it wakes up.
TOMBSTONE_MS = 24 * 3_600_000


def queue_streams(ns: Namespace, p: int, queues: Sequence[str]) -> list[str]:
    """Returns the streams of some queues in claiming order: queue by queue, highest priority first."""
    return [ns.keys.tasks(p, queue, priority) for queue in queues for priority in reversed(PRIORITIES)]


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
        streams = queue_streams(ns, p, queues if after != ">" else ns.controls[p].running(queues))
        keys, args = _claim(ns, p, session, queues, streams, room, after, aging_ms)
        return streams, await ns.call("claim_steps", p, keys, args, caller=caller)

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
    streams = queue_streams(ns, p, ns.controls[p].running(queues))

    def make() -> Form:
        script, (keys, args) = load("claim_steps"), _claim(ns, p, session, queues, streams, room, ">", aging_ms)
        return Form(["EVALSHA", script.sha, *ns.pack(script, p, keys, args, ())], ())

    fixed = ("claim", p, ns.epochs[p], ns.controls[p].version, session, *queues, room, aging_ms)
    reply = await pebbles.wait_and_call(ns.forms.of(fixed, make).fill())
    if isinstance(reply, Exception):
        return await claim_steps(ns, p, session=session, queues=queues, room=room, aging_ms=aging_ms)
    return await _tokens(ns, p, streams, reply)


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
        "group": GROUP,
        "consumer": session,
        "room": room,
        "aging_ms": aging_ms,
        "after": after,
    }


async def _tokens(ns: Namespace, p: int, streams: Sequence[str], reply: Any) -> list[Token]:
    epoch, now_ms = ns.epoch(p), int(reply[0])
    tokens: list[Token] = []
    bare: list[tuple[str, Token]] = []
    again: list[Token] = []
    for i in range(1, len(reply), 6):
        run, packed, numbers, gates = reply[i + 2].decode(), reply[i + 3], reply[i + 4], reply[i + 5].decode()
        delivery, _, attempt = numbers.partition(b":")
        spec = SPEC_DECODER.decode(packed) if packed else RunSpec("")
        token = Token(p, epoch, run, reply[i + 1].decode(), int(delivery), int(attempt), spec, now_ms, gates)
        tokens.append(token)
        if not packed:
            bare.append((streams[int(reply[i]) - 1], token))
        if delivery != attempt:
            again.append(token)
    if again:
        await _read_crashes(ns, p, again)
    if bare:
        await _read_specs(ns, p, bare)
        tokens = [token for token in tokens if token.spec.name]
    return tokens


async def _read_crashes(ns: Namespace, p: int, tokens: Sequence[Token]) -> None:
    """Learns which tokens are suspects. A death raises the delivery and not the attempt: where both agree, nobody asks."""
    replies = await ns.read_many([("HGET", ns.keys.run(p, token.run), "crashes") for token in tokens], p=p)
    for token, crashes in zip(tokens, replies, strict=True):
        token.crashes = int(crashes) if isinstance(crashes, bytes) else 0


async def _read_specs(ns: Namespace, p: int, held: Sequence[tuple[str, Token]]) -> None:
    """Fills in the specs that were too large to ride with their tokens (stream, token).

    A run that is gone keeps an empty name, and its token is dropped: nobody else would ever take it off the pending list.
    """
    replies = await ns.read_many([("HGET", ns.keys.run(p, token.run), "spec") for _, token in held], p=p)
    gone: list[tuple[Arg, ...]] = []
    for (stream, token), packed in zip(held, replies, strict=True):
        if isinstance(packed, bytes):
            token.spec = SPEC_DECODER.decode(packed)
        elif packed is None:
            gone += [("XACK", stream, GROUP, token.entry), ("XDEL", stream, token.entry)]
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


async def commit_steps(
    ns: Namespace, p: int, outcomes: Sequence[Outcome], *, session: str, heads: Sequence[Head] = (), caller: Any = None
) -> tuple[list[str], bool]:
    """Commits the ends of attempts in one call; slots they give back go to `heads`.

    Returns a word per outcome, and whether somebody else waits at a gate they left.
    """
    if len(outcomes) == 1 and not heads and _is_bare(outcomes[0]):
        (outcome,) = outcomes
        token = outcome.token
        reply = await ns.send(
            load("commit_steps"),
            lambda: _bare_form(ns, p, outcome, session).fill(
                ns.keys.run(p, token.run), token.ledger, outcome.started_ms, outcome.value
            ),
            caller=caller,
        )
        return [reply[0].decode()], len(reply) > 1
    keys, args, items = _commit(ns, p, outcomes, session, heads)
    reply = await ns.call("commit_steps", p, keys, args, items, caller=caller)
    return [word.decode() for word in reply[: len(outcomes)]], len(reply) > len(items)


def _is_bare(outcome: Outcome) -> bool:
    """Whether an attempt left nothing but a small result."""
    token = outcome.token
    spec = token.spec
    return not (
        outcome.kind != "completed"
        or token.gates
        or token.delivery != 1
        or outcome.lines is not None
        or outcome.blob
        or spec.blob
        or spec.unique
    )


def _bare_form(ns: Namespace, p: int, outcome: Outcome, session: str) -> Form:
    """Returns the form for committing one bare outcome like this one."""
    spec, keep_ms = outcome.token.spec, outcome.after_ms

    def make() -> Form:
        token = Token(p, 0, "blank", "blank entry", 1, 1, spec, 0)
        sample = Outcome(token, "completed", b"blank", keep_ms, -1)
        packed = ns.pack(load("commit_steps"), p, *_commit(ns, p, [sample], session, ()))
        return Form(packed, [ns.keys.run(p, token.run), token.ledger, sample.started_ms, sample.value])

    fixed = ("commit", p, ns.epochs[p], ns.controls[p].version, session, spec.queue, spec.priority, keep_ms)
    return ns.forms.of(fixed, make)


def _commit(
    ns: Namespace, p: int, outcomes: Sequence[Outcome], session: str, heads: Sequence[Head]
) -> tuple[dict[str, str | Collection[str]], dict[str, Arg], list[tuple[Arg, ...]]]:
    """Returns keys, arguments and records of a call that commits."""
    keys, gates = ns.keys, GateKeys(ns.keys, p)
    wakes, tasks, blobs, uniques = Numbers({keys.wake(p, TIMER_WAKE): 1}), Numbers(), Numbers(), Numbers()
    lines = LineKeys(ns, p, len(outcomes) + len(heads))
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
                gates.held(token.gates),
                # An earlier delivery may have logged what this one has to keep or let expire.
                b""
                if outcome.lines is None and token.delivery == 1
                else lines.place(token.run) + (outcome.lines or NO_LINES),
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
        told = lines.get(token.key)
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
    return [word == b"ok" for word in reply]


async def read_lines(ns: Namespace, p: int, run: str) -> list[bytes]:
    """Returns the log lines that are kept of a run, packed."""
    return list(await ns.read("LRANGE", ns.keys.tasklog(p, run), 0, -1, p=p))


async def read_pending(ns: Namespace, p: int, stream: str, session: str, *, limit: int) -> list[tuple[str, str]]:
    """Lists (entry id, run id) of tokens a session holds in one stream; an entry deleted meanwhile has no run."""
    pending = await ns.read("XPENDING", stream, GROUP, "-", "+", limit, session, p=p)
    entries = [_entry_id(row) for row in pending or []]
    rows = await ns.read_many([("XRANGE", stream, entry, entry) for entry in entries], p=p)
    return [(entry, _run_of(row)) for entry, row in zip(entries, rows, strict=True)]


def _entry_id(row: Any) -> str:
    return str(row[0].decode())


def _run_of(row: Any) -> str:
    if not row or isinstance(row, Exception):
        return ""
    return str(row[0][1][1].decode())


async def reclaim_steps(
    ns: Namespace,
    p: int,
    *,
    dead: str,
    queue: str,
    stream: str,
    held: Sequence[tuple[str, str, RunSpec, str]],
    keep_ms: Callable[[RunSpec], int],
    by: str,
    max_crashes: int,
    poison: bytes,
) -> list[str]:
    """Takes tokens (entry, run, spec, gates) of one stream from a dead session; with none, only tombstones the session.

    `keep_ms` tells how long a run is kept that turns out to be poison.
    """
    keys, blobs, uniques, gates = ns.keys, Numbers(), Numbers(), GateKeys(ns.keys, p)
    items: list[tuple[Arg, ...]] = [
        (
            entry,
            keep_ms(spec),
            blobs.of(keys.blob(p, run, spec.blob)) if spec.blob else 0,
            gates.held(names),
            uniques.of(keys.unique(p, spec.unique)) if spec.unique else 0,
        )
        for entry, run, spec, names in held
    ]
    reply = await ns.call(
        "reclaim_steps",
        p,
        {
            "log": keys.log(p),
            "timers": keys.timers(p),
            "repair": keys.repair(p),
            "lines": keys.lines(p),
            "admit": keys.admit(p),
            "dlq": keys.dlq(p),
            "session": keys.session(p, dead),
            "wake": [keys.wake(p, queue), keys.wake(p, TIMER_WAKE)],
            "wf.tasks": [stream],
            "run": [keys.run(p, run) for _, run, _, _ in held],
            "blob": blobs,
            "unique": uniques,
            "tasklog": [keys.tasklog(p, run) for _, run, _, _ in held],
            **gates.families(),
        },
        {
            "by": by,
            "group": GROUP,
            "consumer": dead,
            "tombstone_ms": TOMBSTONE_MS,
            "max_crashes": max_crashes,
            "poison": poison,
        },
        items,
    )
    return [word.decode() for word in reply]


async def read_lost(ns: Namespace, p: int, rows: Sequence[RunRow]) -> list[RunRow]:
    """Returns the open runs that seem to have neither token nor timer. A guess: the script verifies each again."""
    commands: list[tuple[Arg, ...]] = []
    # Its steps stand for a graph run, and nothing stands for a step that waits for something from outside; see store/waits.
    rows = [row for row in rows if not row.is_graph and not row.waits]
    for row in rows:
        stream = ns.keys.tasks(p, row.spec.queue, row.spec.priority)
        if row.line:
            commands.append(("ZSCORE", ns.keys.line(p, row.line), row.id))
            commands.append(("EXISTS", stream))
        elif row.token:
            commands.append(("XRANGE", stream, row.token, row.token))
            commands.append(("XPENDING", stream, GROUP, row.token, row.token, 1))
        else:
            commands.append(("ZSCORE", ns.keys.timers(p), f"open:{row.id}"))
            commands.append(("EXISTS", stream))
    replies = await ns.read_many(commands, p=p)
    lost = []
    for i, row in enumerate(rows):
        first, second = replies[2 * i], replies[2 * i + 1]
        if row.token:
            if isinstance(first, Exception) or not first or isinstance(second, Exception) or not second:
                lost.append(row)
        elif first is None:
            lost.append(row)
    return lost


async def emit_lost_steps(ns: Namespace, p: int, rows: Sequence[RunRow], *, by: str) -> list[str]:
    """Gives lost runs their token or timer back; returns a word per run (see emit_lost_steps.lua)."""
    keys, gates = ns.keys, GateKeys(ns.keys, p)
    wakes, tasks = Numbers({keys.wake(p, TIMER_WAKE): 1}), Numbers()
    items: list[tuple[Arg, ...]] = [
        (
            tasks.of(keys.tasks(p, row.spec.queue, row.spec.priority)),
            wakes.of(keys.wake(p, row.spec.queue)),
            row.text("open"),
            gates.line(row.line) if row.line else 0,
            row.spec.priority,
            row.text("gates"),
            gates.held(row.text("gates")),
        )
        for row in rows
    ]
    reply = await ns.call(
        "emit_lost_steps",
        p,
        {
            "log": keys.log(p),
            "timers": keys.timers(p),
            "lines": keys.lines(p),
            "admit": keys.admit(p),
            "wake": wakes,
            "wf.tasks": tasks,
            "run": [keys.run(p, row.id) for row in rows],
            **gates.families(),
        },
        {"by": by, "group": GROUP},
        items,
    )
    return [word.decode() for word in reply]
