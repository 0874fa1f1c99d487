"""Workflow runs in Redis: commit, mail, read. One function per script, same verb and noun."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import msgspec

from weft.core.effects import Open
from weft.core.flow import (
    GRACE_MS,
    ID_MS,
    MAX_MAIL,
    Added,
    CallEnd,
    Entry,
    FlowRecord,
    Told,
    Turn,
    home_of_call,
    parent_of,
    parse_entry,
)
from weft.core.gates import counts_slots, is_kept_waiting
from weft.core.model import SPEC_ENCODER, RunSpec
from weft.store.blobs import STAGING_MS
from weft.store.keys import GROUP
from weft.store.namespace import Namespace
from weft.store.numbers import Numbers
from weft.store.records import Records
from weft.store.runs import RunRow
from weft.store.scripts import Arg
from weft.store.told import commit_told, is_told
from weft.store.waits import MAX_REMEMBERED

#: Entries of a journal that are read in one round trip.
PAGE = 2_000


class _Rows(Records):
    """The records of one commit of flows, and the keys they point at."""

    def __init__(self, ns: Namespace, p: int, records: Sequence[FlowRecord]) -> None:
        super().__init__(ns, p)
        self.flows, self.ledgers, self.belongings, self.uniques = Numbers(), Numbers(), Numbers(), Numbers()
        self.updates = Numbers()
        for record in records:
            run = record.token.run if isinstance(record, Turn) else record.run  # type: ignore[attr-defined]
            # Workflow runs come first among the runs: their journals and mail are numbered alike.
            self.flows.of(run)
            self.runs.of(ns.keys.run(p, run))

    def turn(self, turn: Turn) -> None:
        token, keys, p = turn.token, self.ns.keys, self.p
        spec, run, at = token.spec, token.run, len(self.rows)
        ends = turn.kind not in ("go", "park", "stall")
        held = token.gates
        self.rows.append(())
        if held and not ends:
            # A waiting run keeps its slots of limits that count runs, and gives back those of limits that count running steps.
            kept = [gate for gate in held.split(" ") if is_kept_waiting(gate)]
            held = "" if turn.kind == "go" else " ".join(gate for gate in held.split(" ") if gate not in kept)
            if held or turn.expect == 0:
                self._add("holds", name=" ".join(kept if turn.kind != "go" else _without_rates(token.gates)))
        if turn.expect == 0 and not ends and any(limit.window_ms for limit in spec.limits):
            # A rate counts starts, and this run has already started.
            left = [limit for limit in spec.limits if not limit.window_ms]
            self._add("spec", spec=SPEC_ENCODER.encode(msgspec.structs.replace(spec, limits=left)))
        if turn.lines is not None:
            self._add("lines", spec=b"%d|%b" % (self.lists.of(keys.tasklog(p, run)), turn.lines))
        if turn.expect == 0 and (spec.blob or parent_of(spec)[0]):
            self._add("left")
        if turn.drops is not None:
            self._renew(run, turn.drops)
        for added in turn.added:
            self._added(run, added)
        if turn.state is not None:
            self._add("state", spec=turn.state)
        if turn.told:
            self._add("tell", name=turn.told, spec=turn.value)
        # An id is free when its run has ended; starts that count as one do so for a while, unless the run failed.
        is_over = ends and (turn.kind != "completed" or spec.once_ms == ID_MS)
        unique = self.uniques.of(keys.unique(p, spec.unique)) if is_over and spec.unique else 0
        # A result that is a blob, and an input that is one, go with the run.
        belongings = self._belongings(run) if turn.blob else 0
        self.rows[at] = (
            "turn",
            self.flows[run],
            turn.id,
            self.tasks.of(keys.tasks(p, spec.queue, spec.priority)),
            len(self.rows) - at - 1,
            turn.value if ends else turn.awaits,
            token.ledger,
            self.gates.held(held),
            turn.expect,
            f"{turn.kind} {turn.take} {turn.ms} {turn.started_ms} {unique} {belongings}",
            self._blob(run, turn.blob),
        )

    def call_end(self, end: CallEnd) -> None:
        token, keys, p = end.token, self.ns.keys, self.p
        spec, run, at = token.spec, end.run, len(self.rows)
        queue, priority = home_of_call(spec)
        self.rows.append(())
        if end.lines is not None:
            self._add("lines", spec=b"%d|%b" % (self.lists.of(keys.tasklog(p, run)), end.lines))
        if end.blob:
            self._add("keep", queue=self._belongings(run))
        stream = self.tasks.of(keys.tasks(p, queue, priority))
        wake = self.wakes.of(keys.wake(p, queue))
        self.rows[at] = (
            "end",
            self.runs.of(keys.run(p, token.run)),
            end.step,
            self.tasks.of(keys.tasks(p, spec.queue, spec.priority)),
            len(self.rows) - at - 1,
            end.value,
            token.ledger,
            self.gates.held(token.gates),
            self.ledgers.of(keys.ledger(p, run)),
            f"{end.kind} {end.started_ms} {token.attempt} {self.flows[run]} {stream} {wake}",
            self._blob(run, end.blob),
        )

    def _added(self, run: str, added: Added) -> None:
        entry = added.entry
        place = self._belongings(run) if added.blob else 0
        self.rows.append(
            ("add", 0, entry.header, 0, place, entry.payload, "", "", 0, added.event, self._blob(run, added.blob))
        )
        if added.call is not None:
            self._add("ledger", run=self.ledgers.of(self.ns.keys.ledger(self.p, run)))
            self.effect(run, "", 0, Open(entry.key, added.call))
            self.rows[-1] = (*self.rows[-1][:10], 0)
        if added.answer:
            place = self.updates.of(self.ns.keys.updates(self.p, run))
            self._add("answer", name=entry.more, queue=place, spec=added.answer)
        if added.child:
            self._add("child", name=added.child, queue=self._belongings(run))

    def _renew(self, run: str, drops: Sequence[str]) -> None:
        self._add("renew", run=self.ledgers.of(self.ns.keys.ledger(self.p, run)), queue=STAGING_MS)
        for member in drops:
            what, _, digest = member.partition(" ")
            blob = self._blob(run, digest) if what == "blob" else 0
            self._add("drop", run=blob, name=member, queue=self._belongings(run))

    def _add(self, op: str, *, run: int = 0, name: str = "", queue: int = 0, spec: bytes = b"") -> None:
        self.rows.append((op, run, name, 0, queue, spec, "", "", 0, "", 0))

    def _belongings(self, run: str) -> int:
        return self.belongings.of(self.ns.keys.belongings(self.p, run))

    def _blob(self, run: str, digest: str) -> int:
        return self.blobs.of(self.ns.keys.blob(self.p, run, digest)) if digest else 0


def _without_rates(gates: str) -> list[str]:
    return [gate for gate in gates.split(" ") if counts_slots(gate)]


async def commit_flows(
    ns: Namespace, p: int, records: Sequence[FlowRecord], *, session: str, caller: Any = None
) -> list[list[bytes]]:
    """Commits turns of flows and ends of calls; returns a reply per record (see commit_flows.lua). Raises StaleControls.

    Those that may go the short way do, in a call of their own; both are under way at once. Of one flow there is one commit
    at a time, so the order of two calls does not matter.
    """
    about: dict[str, Any] = {"session": session, "caller": caller}
    short = [i for i, record in enumerate(records) if is_told(record)]
    if not short:
        return await _commit_wide(ns, p, records, **about)
    first = commit_told(ns, p, [records[i] for i in short], **about)  # type: ignore[misc]
    wide = sorted({*range(len(records))}.difference(short)) if len(short) < len(records) else []
    if wide:
        some = _commit_wide(ns, p, [records[i] for i in wide], **about)
        told, others = await asyncio.gather(first, some, return_exceptions=True)
        for failed in (told, others):
            if isinstance(failed, BaseException):
                raise failed  # the caller makes both again; what was committed answers `done`
    else:
        told, others = await first, []
    replies: list[Any] = [None] * len(records)
    for i, reply in zip([*short, *wide], [*told, *others], strict=True):  # type: ignore[misc]
        replies[i] = reply
    if left := [i for i, reply in enumerate(replies) if reply is None]:
        for i, reply in zip(left, await _commit_wide(ns, p, [records[i] for i in left], **about), strict=True):
            replies[i] = reply
    return replies


async def _commit_wide(
    ns: Namespace, p: int, records: Sequence[FlowRecord], *, session: str, caller: Any = None
) -> list[list[bytes]]:
    keys, rows = ns.keys, _Rows(ns, p, records)
    at = []
    for record in records:
        at.append(len(rows.rows))
        if isinstance(record, Turn):
            rows.turn(record)
        else:
            assert isinstance(record, CallEnd)
            rows.call_end(record)
    reply = await ns.call(
        "commit_flows",
        p,
        {
            **rows.keys(),
            "repair": keys.repair(p),
            "dlq": keys.dlq(p),
            "journal": [keys.journal(p, run) for run in rows.flows],
            "mail": [keys.mail(p, run) for run in rows.flows],
            "ledger": rows.ledgers,
            "belongings": rows.belongings,
            "blob": rows.blobs,
            "tasklog": rows.lists,
            "unique": rows.uniques,
            "updates": rows.updates,
        },
        {"controls": ns.controls[p].version, "by": session, "group": GROUP, "inbox": keys.inbox(0, "")},
        rows.rows,
        caller=caller,
    )
    return [reply[i] for i in at]


async def mail_run(
    ns: Namespace,
    p: int,
    run: str,
    spec: RunSpec,
    entry: Entry,
    *,
    event: str,
    facts: str = "",
    request: str = "",
    update: str = "",
    watch: str = "",
    grace_ms: int = 0,
    by: str,
) -> str:
    """Gives a workflow run a piece of mail; returns words (see mail_run.lua)."""
    keys = ns.keys
    reply = await ns.call(
        "mail_run",
        p,
        {
            "log": keys.log(p),
            "timers": keys.timers(p),
            "queues": keys.queues(p),
            "wake": keys.wake(p, spec.queue),
            "wf.tasks": keys.tasks(p, spec.queue, spec.priority),
            "run": keys.run(p, run),
            "mail": keys.mail(p, run),
            "signals": keys.signals(p, run),
            "updates": [keys.updates(p, run)] if update else [],
        },
        {
            "by": by,
            "group": GROUP,
            "inbox": keys.inbox(0, ""),
            "header": entry.header,
            "value": entry.payload,
            "event": event,
            "facts": facts,
            "request": request,
            "update": update,
            "watch": watch,
            "grace_ms": grace_ms,
            # A run with very many signals can be cancelled all the same.
            "most": 0 if entry.type == "cancel" else MAX_MAIL,
            "remembered": MAX_REMEMBERED,
        },
    )
    return str(reply.decode())


async def ask_to_end(ns: Namespace, p: int, row: RunRow, value: bytes, *, by: str) -> bool:
    """Has the code of a workflow run cancelled; returns whether the run was open, or is cancelled."""
    entry = Entry(0, "cancel", "-", "", value)
    return await mail_run(ns, p, row.id, row.spec, entry, event="cancelling", by=by) in ("given", "ended cancelled")


async def remind(ns: Namespace, p: int, row: RunRow, value: bytes, *, by: str) -> None:
    """Has the code of a workflow run cancelled whose deadline has passed; it ends for good when its time for that is over."""
    entry = Entry(0, "cancel", "-", "", value)
    await mail_run(ns, p, row.id, row.spec, entry, event="overdue", grace_ms=GRACE_MS, by=by)


async def read_answer(ns: Namespace, p: int, run: str, id: str) -> bytes | None:
    """Returns what an update was answered, `?` and more while it was not; None when there is no such update."""
    answer = await ns.read("HGET", ns.keys.updates(p, run), f"={id}", p=p)
    return None if answer is None else bytes(answer)


async def keep_value(ns: Namespace, p: int, run: str, digest: str) -> None:
    """Keeps a staged value as long as an open run: whoever puts that away finds it by its belongings."""
    keys = ns.keys
    commands = [("SADD", keys.belongings(p, run), f"blob {digest}"), ("PERSIST", keys.blob(p, run, digest))]
    *_, open_ = await ns.read_many([*commands, ("HGET", keys.run(p, run), "open")], p=p)
    if not isinstance(open_, bytes) or open_.startswith(b"="):
        # It ended meanwhile, and nobody looks at its belongings any more.
        gone = [keys.belongings(p, run), keys.blob(p, run, digest)]
        await ns.read_many([("PEXPIRE", key, STAGING_MS) for key in gone], p=p)


async def read_told(ns: Namespace, p: int, run: str) -> Told:
    """Returns all that a flow was told, and the name of its newest commit."""
    # Read before the journal: a commit in between can only make the journal longer than this says.
    newest = await ns.read("HGET", ns.keys.run(p, run), "turn", p=p)
    return Told(await read_journal(ns, p, run), bytes(newest or b"").decode())


async def read_journal(ns: Namespace, p: int, run: str) -> list[Entry]:
    """Returns all that a flow was told, in order."""
    return await _read_entries(ns, p, ns.keys.journal(p, run))


async def read_ended(ns: Namespace, p: int, run: str) -> set[str]:
    """Returns the calls and children of a flow whose end is in its mail: its code has not heard of it."""
    mail = await _read_entries(ns, p, ns.keys.mail(p, run))
    return {entry.key for entry in mail if entry.type == "ended"}


async def _read_entries(ns: Namespace, p: int, key: str) -> list[Entry]:
    entries: list[Entry] = []
    while True:
        page: list[Arg] = await ns.read("LRANGE", key, len(entries), len(entries) + PAGE - 1, p=p)
        entries += [parse_entry(data) for data in page]  # type: ignore[arg-type]
        if len(page) < PAGE:
            return entries
