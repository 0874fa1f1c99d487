"""Runs in Redis: start, watch, end, read. One function per script, same verb and noun."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
from redis.exceptions import RedisError

from weft.core.effects import run_of, step_id
from weft.core.flow import DIVERGED, is_flow
from weft.core.gates import needed, takes_turns
from weft.core.model import SPEC_DECODER, ErrorRecord, Limit, RunSpec
from weft.store.blobs import STAGING_MS
from weft.store.faults import translate
from weft.store.forms import Form
from weft.store.heirs import refs_and_slots
from weft.store.keys import GROUP, TIMER_WAKE
from weft.store.lone import is_lone_id, parse_lone, unfold_run, unfold_steps
from weft.store.namespace import Namespace
from weft.store.numbers import GateKeys, Numbers
from weft.store.scripts import Arg, load

#: Why a call that was dropped ended.
DROPPED = msgspec.msgpack.encode(
    ErrorRecord("RunCancelled", "dropped: a call like it had been made (unique='drop')", code="run_cancelled")
)


@dataclass(slots=True)
class NewRun:
    """A run about to be started."""

    id: str
    spec: RunSpec
    packed: bytes
    key_digest: str = ""
    payload_digest: str = ""
    window_ms: int = 0
    #: How calls with the same record count as one: `j` join, `d` drop, `r` replace; for how long. Replays have two more:
    #: `t` takes the record or does not start, `f` starts in any case.
    policy: str = ""
    unique: str = ""
    unique_ms: int = 0
    #: A run that has ended, whose record a replay may take.
    ended: str = ""
    #: The caller is told of its end without asking.
    watched: bool = False

    @property
    def is_bare(self) -> bool:
        """Whether its start asks for nothing but a token in its queue."""
        spec = self.spec
        return not (
            spec.limits
            or spec.delay_ms
            or spec.due_ms
            or spec.deadline_ms
            or spec.blob
            or spec.fair
            or self.key_digest
            or self.policy
        )


async def start_runs(ns: Namespace, p: int, runs: Sequence[NewRun], *, by: str, watch: str = "") -> list[str]:
    """Starts runs of one partition; returns a word per run (see start_runs.lua). Raises StaleControls."""
    if len(runs) == 1 and not ns.controls[p].entries and runs[0].is_bare:
        return [await _start_run(ns, p, runs[0], by=by, watch=watch)]
    keys, items = start_call(ns, p, runs)
    reply = await ns.call("start_runs", p, keys, start_args(ns, p, by, watch), items)
    return [word.decode() for word in reply]


async def _start_run(ns: Namespace, p: int, run: NewRun, *, by: str, watch: str) -> str:
    """Starts one bare run; returns a word (see start_run.lua)."""
    script, spec = load("start_run"), run.spec

    def make() -> Form:
        keys, queue = ns.keys, spec.queue
        families: dict[str, str | Collection[str]] = {
            "log": keys.log(p),
            "queues": keys.queues(p),
            "wake": keys.wake(p, queue),
            "wf.tasks": keys.tasks(p, queue, spec.priority),
            "run": "blank key",
        }
        blanks: dict[str, Arg] = {"watch": "blank channel", "run": "blank run", "spec": "blank spec"}
        args = {"controls": ns.controls[p].version, "by": by, "queue": queue, **blanks}
        return Form(ns.pack(script, p, families, args, ()), ["blank key", *blanks.values()])

    def pack() -> list[Arg]:
        fixed = ("start", p, ns.epochs[p], ns.controls[p].version, by, spec.queue, spec.priority)
        return ns.forms.of(fixed, make).fill(ns.keys.run(p, run.id), watch, run.id, run.packed)

    word = await ns.send(script, pack)
    return str(word.decode())


def start_args(ns: Namespace, p: int, by: str, watch: str = "") -> dict[str, Arg]:
    """Returns the arguments of a call that starts runs, for start_runs and for scripts that include it."""
    return {"controls": ns.controls[p].version, "by": by, "dropped": DROPPED, "watch": watch}


def start_call(
    ns: Namespace, p: int, runs: Sequence[NewRun]
) -> tuple[dict[str, str | Collection[str]], list[tuple[Arg, ...]]]:
    """Returns the keys and records of a call that starts runs, for start_runs and for scripts that include it."""
    keys, gates, controls = ns.keys, GateKeys(ns.keys, p), ns.controls[p]
    wakes, tasks, blobs = Numbers({keys.wake(p, TIMER_WAKE): 1}), Numbers(), Numbers()
    records, uniques = Numbers(), Numbers()
    # Nearly all runs of a call go to one stream.
    places: dict[tuple[str, int], tuple[int, int]] = {}
    items: list[tuple[Arg, ...]] = []
    for run in runs:
        spec = run.spec
        place = places.get((spec.queue, spec.priority))
        if place is None:
            place = tasks.of(keys.tasks(p, spec.queue, spec.priority)), wakes.of(keys.wake(p, spec.queue))
            places[spec.queue, spec.priority] = place
        limits = needed(spec, controls) if spec.limits or controls.entries else []
        refs, slots = refs_and_slots(gates, spec, limits) if limits else ("", "")
        items.append(
            (
                run.packed,
                *place,
                f"@{spec.due_ms}" if spec.due_ms else spec.delay_ms,
                spec.deadline_ms,
                blobs.of(keys.blob(p, run.id, spec.blob)) if spec.blob else 0,
                records.of(keys.idempotency(p, run.key_digest)) if run.key_digest else 0,
                run.payload_digest,
                run.window_ms,
                refs,
                slots,
                spec.priority,
                # Keys take turns in some lines only; elsewhere the field is left out, so that records are equal bytes.
                spec.fair if spec.fair and not slots and _takes_turns(limits) else "",
                f"{run.policy}{uniques.of(keys.unique(p, run.unique))}:{run.ended}" if run.policy else 0,
                run.unique_ms,
                spec.keep_ms,
            )
        )
    return {
        "log": keys.log(p),
        "timers": keys.timers(p),
        "queues": keys.queues(p),
        "lines": keys.lines(p),
        "admit": keys.admit(p),
        "wake": wakes,
        "wf.tasks": tasks,
        "run": [keys.run(p, run.id) for run in runs],
        "blob": blobs,
        "idempotency": records,
        "unique": uniques,
        **gates.families(),
    }, items


def _takes_turns(limits: Sequence[Limit]) -> bool:
    if len(limits) == 1:  # nearly always, and a generator would cost more than what it looks at
        return takes_turns(limits[0].gate)
    return any(takes_turns(limit.gate) for limit in limits)


async def read_records(ns: Namespace, p: int, digests: Sequence[str]) -> list[str]:
    """Returns the run that each record names, or nothing."""
    replies = await ns.read_many([("GET", ns.keys.unique(p, digest)) for digest in digests], p=p)
    return [reply.decode() if isinstance(reply, bytes) else "" for reply in replies]


async def read_unique(ns: Namespace, p: int, digest: str) -> str:
    """Returns the run that a record names, or nothing."""
    found = await ns.read("GET", ns.keys.unique(p, digest), p=p)
    return found.decode() if found else ""


async def forget_unique(ns: Namespace, p: int, digest: str, run: str, *, after_ms: int = 0) -> None:
    """Removes a record if it still names that run, now or after some time."""
    await ns.call("forget_unique", p, {"unique": ns.keys.unique(p, digest)}, {"run": run, "after_ms": after_ms})


async def debounce_run(ns: Namespace, p: int, run: str, new: NewRun, *, by: str) -> str:
    """Gives a waiting run newer arguments and lets it wait anew; returns a word (see debounce_run.lua).

    A large input that it had goes: nothing else names it.
    """
    keys, spec = ns.keys, new.spec
    fresh = [keys.blob(p, run, spec.blob)] if spec.blob else []
    word, had, seen = "look", "", ""
    while word == "look":
        reply = await ns.call(
            "debounce_run",
            p,
            {
                "log": keys.log(p),
                "timers": keys.timers(p),
                "wake": keys.wake(p, TIMER_WAKE),
                "unique": keys.unique(p, new.unique),
                "run": keys.run(p, run),
                "blob": [*fresh, *([keys.blob(p, run, had)] if had and had != spec.blob else [])],
            },
            {
                "by": by,
                "spec": new.packed,
                "delay_ms": spec.delay_ms,
                "deadline_ms": spec.deadline_ms,
                "record_ms": new.unique_ms,
                "n_new": len(fresh),
                "seen": seen,
                "staging_ms": STAGING_MS,
            },
        )
        word = str(reply.decode())
        if word == "look":
            (row,) = await read_runs(ns, p, [run])
            if row is None:
                return "gone"
            had, seen = row.spec.blob, row.text("seq", "1")
    return word


async def reschedule_run(ns: Namespace, p: int, run: str, when: str, *, by: str) -> int:
    """Moves the moment at which a waiting run goes on (`<ms>` from now or `@<ms>`); returns it in ms."""
    await unfold_steps(ns, p, [run])
    due = await ns.call(
        "reschedule_run",
        p,
        {
            "log": ns.keys.log(p),
            "timers": ns.keys.timers(p),
            "wake": [ns.keys.wake(p, TIMER_WAKE)],
            "run": [ns.keys.run(p, run)],
        },
        {"by": by, "when": when},
    )
    return int(due)


async def watch_runs(ns: Namespace, p: int, run_ids: Sequence[str], channel: str) -> list[tuple[str, bytes]]:
    """Registers a channel with runs; returns status and value of each, an empty status while it is open."""
    await unfold_steps(ns, p, run_ids)
    reply = await ns.call("watch_runs", p, {"run": [ns.keys.run(p, run) for run in run_ids]}, {"channel": channel})
    return [(reply[i].decode(), reply[i + 1]) for i in range(0, len(reply), 2)]


async def end_run(
    ns: Namespace,
    p: int,
    row: RunRow,
    *,
    kind: str,
    value: bytes,
    keep_ms: int,
    by: str,
    deadline: bool = False,
) -> tuple[str, bool]:
    """Ends an open run from outside; returns its status now and whether this call ended it.

    The status `again` means that the run has gone through a gate, or was changed, since it was read: read it again.
    """
    keys, spec, run, gates = ns.keys, row.spec, row.id, GateKeys(ns.keys, p)
    if row.is_lone:
        await unfold_steps(ns, p, [run])
    elif row.fields.get("lone"):
        # The run's hash expires, but its lone open step must stay known: somebody still has to end it.
        await unfold_run(ns, p, run)
    if row.line:
        gates.line(row.line)
    refs = gates.held("" if row.line else row.text("gates"))
    status, ended = await ns.call(
        "end_run",
        p,
        {
            "log": keys.log(p),
            "timers": keys.timers(p),
            "lines": keys.lines(p),
            "admit": keys.admit(p),
            "wake": keys.wake(p, TIMER_WAKE),
            "dlq": keys.dlq(p),
            "wf.tasks": keys.tasks(p, spec.queue, spec.priority),
            "run": keys.run(p, run),
            "tasklog": keys.tasklog(p, run),
            "blob": [keys.blob(p, run, spec.blob)] if spec.blob else [],
            "unique": [keys.unique(p, spec.unique)] if spec.unique else [],
            **gates.families(),
        },
        {
            "by": by,
            "group": GROUP,
            "kind": kind,
            "value": value,
            "keep_ms": keep_ms,
            "due_before": "deadline" if deadline else "",
            "refs": refs,
            # To wait at a gate and to hold a slot of it are told apart: it may have been let through since.
            "gates": f"#{row.line}" if row.line else row.text("gates"),
            # Debounced, it may have another queue and another input by now.
            "seen": row.text("open") if spec.once and row.text("open").startswith("1:@") else "",
            # A session listens on one channel, whatever partition its steps are in.
            "inbox": keys.inbox(0, ""),
            "closes": "1" if is_flow(spec) else "",
        },
    )
    return status.decode(), ended == b"1"


#: The ledger of a run or step, open or closed: its delivery and what stands for it.
_LEDGER = re.compile(rb"=?\d+:.+", re.DOTALL)


@dataclass(slots=True)
class RunRow:
    """A run's hash, as read."""

    id: str
    spec: RunSpec
    fields: dict[str, bytes] = field(default_factory=dict)

    def text(self, name: str, default: str = "") -> str:
        value = self.fields.get(name)
        return default if value is None else value.decode()

    def number(self, name: str, default: int) -> int:
        value = self.fields.get(name)
        return default if value is None else int(value)

    @property
    def open(self) -> bool:
        return not self.fields["open"].startswith(b"=")

    @property
    def is_lone(self) -> bool:
        """Whether it is a step that stood alone in the hash of its run when it was read."""
        return bool(self.fields.get("lone")) and "/" in self.id

    @property
    def delivery(self) -> int:
        return int(self.text("open").lstrip("=").partition(":")[0])

    @property
    def token(self) -> str:
        """The entry id of the token that is out, or empty."""
        token = self.text("open").partition(":")[2]
        return "" if not self.open or token.startswith(("@", "#", "*", "?")) else token

    @property
    def waits(self) -> str:
        """What it waits for from outside, `signal:<name>` or `approval`; or empty."""
        token = self.text("open").partition(":")[2]
        return token[1:] if self.open and token.startswith("?") else ""

    @property
    def is_graph(self) -> bool:
        """Whether its steps are runs of their own."""
        return self.text("open").endswith(":*")

    @property
    def line(self) -> str:
        """The gate it waits at, or empty."""
        token = self.text("open").partition(":")[2]
        return token[1:].partition(" ")[0] if self.open and token.startswith("#") else ""

    @property
    def due_ms(self) -> int | None:
        """When the timer that opens the next attempt is due, if one is set."""
        token = self.text("open").partition(":")[2]
        return int(token[1:]) if self.open and token.startswith("@") else None

    @property
    def pointers(self) -> list[str]:
        """The moments (ms) at which the log tells of this run, in order."""
        ended = [self.text("ended")] if "ended" in self.fields else []
        return list(dict.fromkeys([self.text("born"), *self.text("more").split(), *ended]))


def is_diverged(row: RunRow) -> bool:
    """Tells whether a workflow run waits because its code does not fit its journal."""
    return row.open and not row.token and row.text("awaits").startswith(DIVERGED)


async def read_runs(ns: Namespace, p: int, run_ids: Sequence[str]) -> list[RunRow | None]:
    """Reads runs of one partition in one round trip; None where there is no such run, or none that can be read."""
    steps = [run for run in run_ids if is_lone_id(run)]
    # In this order: a lone step may get a hash of its own meanwhile, never the other way round.
    commands = [("HGET", ns.keys.run(p, run_of(step)), "lone") for step in steps]
    replies = await ns.read_many([*commands, *[("HGETALL", ns.keys.run(p, run)) for run in run_ids]], p=p)
    lone = {row.id: row for step, reply in zip(steps, replies, strict=False) if (row := _lone_row(run_of(step), reply))}
    return [_row(run, reply) or lone.get(run) for run, reply in zip(run_ids, replies[len(steps) :], strict=True)]


async def read_ledgers(
    ns: Namespace, p: int, run_ids: Sequence[str], *, damaged: list[str] | None = None
) -> list[RunRow]:
    """Reads only spec, ledger, gates and definitions of runs, for looking at many; runs that are gone are left out.

    So are those that nobody can read: `damaged` gets their ids.
    """
    names = ("spec", "open", "gates", "def", "before", "lone", "born", "seq")
    replies = await ns.read_many([("HMGET", ns.keys.run(p, run), *names) for run in run_ids], p=p)
    rows: list[RunRow] = []
    for run, reply in zip(run_ids, replies, strict=True):
        if isinstance(reply, Exception) or reply[0] is None or reply[1] is None:
            continue
        row = _parsed(run, {n: v or b"" for n, v in zip(names, reply, strict=True)})
        if row is not None and not (row.fields["lone"] and row.open and _lone_row(run, row.fields["lone"]) is None):
            rows.append(row)
        elif damaged is not None:
            damaged.append(run)
    return rows


def lone_steps(rows: Sequence[RunRow]) -> list[RunRow]:
    """Returns the steps that stand alone in the hashes of open graph runs."""
    return [found for row in rows if row.open and (found := _lone_row(row.id, row.fields.get("lone")))]


async def note_damaged(ns: Namespace, p: int, run_ids: Sequence[str]) -> int:
    """Puts up for repair runs that nobody can read; returns how many were not known yet."""
    return int(await ns.call("note_damaged", p, {"repair": ns.keys.repair(p)}, {}, [(run,) for run in run_ids]))


def _lone_row(run: str, reply: Any) -> RunRow | None:
    if not reply or not isinstance(reply, bytes):
        return None
    try:
        step, fields = parse_lone(reply)
    except ValueError:
        return None
    return _parsed(step_id(run, step), fields)


def _parsed(run: str, fields: dict[str, bytes]) -> RunRow | None:
    """Returns a run's hash as it is understood; None when something else wrote into it, for nothing is guessed then."""
    numbers = (fields.get("born"), fields.get("seq"))
    if not _LEDGER.fullmatch(fields.get("open", b"")) or any(number and not number.isdigit() for number in numbers):
        return None
    try:
        return RunRow(run, SPEC_DECODER.decode(fields["spec"]), fields)
    except msgspec.DecodeError:
        return None


def hash_fields(reply: Sequence[bytes]) -> dict[str, bytes]:
    """Returns the fields of a run's hash; those that a completed task has in one are taken apart."""
    fields = {key.decode(): value for key, value in zip(reply[::2], reply[1::2], strict=True)}
    if closed := fields.pop("closed", b""):
        fields["seq"], fields["ended"], fields["started"], *result = closed.split(b" ", 3)
        fields["status"] = b"completed"
        if result:
            fields["result"] = result[0]
    return fields


def _row(run: str, reply: Any) -> RunRow | None:
    if not reply or isinstance(reply, Exception):
        return None
    fields = hash_fields(reply)
    return _parsed(run, fields) if "spec" in fields else None


async def read_holders(ns: Namespace, p: int, rows: Sequence[RunRow]) -> dict[str, str]:
    """Returns which session holds the token of each run, for the runs whose token is delivered."""
    out = [row for row in rows if row.token]
    replies = await ns.read_many(
        [
            ("XPENDING", ns.keys.tasks(p, row.spec.queue, row.spec.priority), GROUP, row.token, row.token, 1)
            for row in out
        ],
        p=p,
    )
    return {row.id: _consumer(reply) for row, reply in zip(out, replies, strict=True) if _consumer(reply)}


async def read_held_ms(ns: Namespace, p: int, row: RunRow) -> int:
    """Returns for how many ms the token of a run has been in its worker's hands."""
    stream = ns.keys.tasks(p, row.spec.queue, row.spec.priority)
    reply = await ns.read("XPENDING", stream, GROUP, row.token, row.token, 1, p=p)
    return int(reply[0][2]) if reply else 0


def _consumer(reply: Any) -> str:
    if isinstance(reply, Exception) or not reply:
        return ""
    return str(reply[0][1].decode())


async def scan_runs(ns: Namespace, p: int, cursor: int, *, count: int = 1000) -> tuple[int, list[str]]:
    """Walks over the ids of all runs of a partition: returns the next cursor (0: done) and some ids."""
    prefix = len(ns.keys.run(p, ""))
    try:
        # A command without a key: on a Cluster it must be told the node.
        cursor, found = await ns.on_node(p, "SCAN", cursor, "MATCH", ns.keys.runs_pattern(p), "COUNT", count)
    except (RedisError, OSError) as error:
        raise translate(error) from error
    return int(cursor), [key[prefix:].decode() for key in found]
