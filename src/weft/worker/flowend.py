"""How the code of a workflow run ended, and how the next life of a run begins."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from weft.core.effects import step_id
from weft.core.flow import FINAL, MAX_ENTRIES, ROOM, STALL_MS, Added, Entry, Renewal, Turn, parse_entry
from weft.core.fold import write_fact
from weft.core.model import ERROR_DECODER, INLINE_BYTES, ErrorRecord, Token, Value
from weft.engine import flows as verbs
from weft.engine import steps
from weft.engine.closing import end_steps
from weft.errors import ForeignAwait, HistoryLimit, NonDeterminism, WeftError
from weft.ids import partition_of
from weft.sdk.commands import Command, is_continued
from weft.sdk.program import Program
from weft.sdk.updates import record_of
from weft.telemetry import get_logger

if TYPE_CHECKING:
    from weft.sdk.workflow import Workflow
    from weft.store.namespace import Namespace

#: The end of a life that another one follows.
RENEWED = "renewed"

#: Milliseconds after which a flow looks for children that live in other partitions.
LOOK_MS = 300_000

#: Entries that one commit adds.
MAX_ADDED = 500

log = get_logger("weft.worker")
_pack = msgspec.msgpack.Encoder().encode


def end_of(workflow: Workflow[Any, Any], program: Program) -> tuple[str, bytes, bool]:
    """Returns how the code ended (completed, failed, cancelled or renewed), with what, and whether that is large and bare."""
    main, reason = program.main, program.cancel_reason
    assert main is not None
    error = None if main.cancelled() else main.exception()
    if reason is not None and ERROR_DECODER.decode(reason).code in FINAL:
        return "failed", _final(reason, error), False
    if main.cancelled() or (reason is not None and is_continued(error)):
        if reason is not None:
            return "cancelled", reason, False
        return "failed", _pack(ErrorRecord("CancelledError", "the code of the workflow cancelled itself")), False
    if is_continued(error):
        assert program.renewal is not None
        return RENEWED, program.renewal, False
    if error is not None:
        return "failed", _pack(record_of(_foreign_in(error) or error)), False
    try:
        data = workflow.signature.returns.encode(main.result())
    except Exception as refused:  # noqa: BLE001 - also what a class of the user's own says when it is read back
        return "failed", _pack(steps.record_of(refused)), False
    return ("completed", _pack(Value(data)), False) if len(data) <= INLINE_BYTES else ("completed", data, True)


def _foreign_in(error: BaseException | None, depth: int = 20) -> ForeignAwait | None:
    """Returns what the code must not await, if that made it fail: task groups and libraries wrap it in errors of their own."""
    if error is None or isinstance(error, ForeignAwait) or not depth:
        return error if isinstance(error, ForeignAwait) else None
    within = error.exceptions if isinstance(error, BaseExceptionGroup) else ()
    behind = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return next((found for one in (*within, behind) if (found := _foreign_in(one, depth - 1))), None)


def _final(reason: bytes, error: BaseException | None) -> bytes:
    """Returns the error of a run whose time or journal was used up: also when its code made something else of it."""
    if error is None:
        return reason
    record, other = ERROR_DECODER.decode(reason), record_of(error)
    record.causes = [{"type": other.type, "message": other.message}, *other.causes]
    return _pack(record)


def answered(asked: Entry, answer: bytes) -> Added:
    """Returns what a commit adds that answers an update."""
    word = "completed" if answer[:1] == b"+" else "failed"
    event = f"update_{word}|name={asked.key},id={write_fact(asked.more)}"
    if answer[:1] == b"!":
        event += ",refused=1"
    return Added(Entry(0, "answered", asked.key, asked.more, answer[1:]), event, answer=answer)


def told_by(turn: Turn, reply: Sequence[Any]) -> tuple[list[Entry], bool]:
    """Returns the entries that a commit brought, and whether one of them only names a large value."""
    entries = [parse_entry(data) for data in reply[3:]]
    fetches = any(b"\xa1b" in entry.payload[:8] for entry in entries)
    if reply[0] == b"ok":
        entries += [added.told(int(reply[1])) for added in turn.added]
        fetches = fetches or any(added.blob and not added.data for added in turn.added)
    return entries, fetches


async def renew(
    ns: Namespace,
    token: Token,
    program: Program,
    data: bytes,
    *,
    version: str,
    before: int,
    began_ms: int,
    now_ms: int,
    by: str,
) -> Turn:
    """Ends what a life of a run left open; returns the commit that begins the next one.

    Whoever dies in between has changed nothing: the code comes to the same place again.
    """
    drops = await verbs.leave_life(ns, token, by=by)
    outcome = await steps.completed(ns, token, data, 0)
    value = Value(data) if not outcome.blob else Value(blob=outcome.blob, size=len(data))
    life = program.life + 1
    state = verbs.pack_state(program.state)
    begin = Entry(0, "begin", "-", f"{now_ms} {version or '-'}", _pack(Renewal(life, before, value, state, began_ms)))
    carried = program.carried()
    facts = f"life={life},at={now_ms},version={version or '-'}"
    if carried:
        facts += f",carried={' '.join(str(place) for place, _ in carried)}"
    added = [Added(begin, f"continued|{facts}", outcome.blob)]
    added += [Added(entry) for _, entry in carried]
    kept = {f"blob {outcome.blob}", f"blob {token.spec.blob}"}
    return Turn(token, added=added, state=state or None, drops=[one for one in drops if one not in kept])


def marks_of(program: Program) -> list[Added]:
    """Returns what a commit adds about the changes of the code that it came by for the first time."""
    marked, program.marked = program.marked, []
    return [Added(Entry(0, "marker", marker), f"changed|marker={marker}") for marker in marked]


def child_opened(command: Command) -> Added:
    """Returns what a commit adds about a child that is to be started."""
    child, _, _, policy = command.work
    event = f"child_opened|step={command.key},run={child},policy={policy}"
    return Added(Entry(0, "opened", command.key), event, child=child if policy == "cancel" else "")


def last_of(outbox: list[Added]) -> list[Added]:
    """Returns what of all that is to be written matters to others when the code has ended: children and answers.

    What the code has heard before it is written goes with it: a replay that comes by here must hear it too.
    """
    last = [added for added in outbox if added.event.startswith("child_opened|") or added.answer]
    heard = [added for added in outbox if added.entry.type in ("begin", "version", "marker")]
    return heard + last if last else []


def id_taken(command: Command, id: str, other: str) -> Added:
    """Returns what a commit adds about a child that never began, because another run has its id."""
    text = f"a workflow with id {id!r} is running: run {other}"
    payload = _pack(ErrorRecord("AlreadyRunning", text, code="already_running"))
    return Added(Entry(0, "failed", command.key, "", payload), f"step_failed|step={command.key}")


async def end_command(ns: Namespace, token: Token, command: Command, *, by: str) -> None:
    """Ends the call or child of a command that the code does not want any more."""
    try:
        if command.kind == "child":
            await verbs.end_child(ns, command.work[0], by=by)
        else:
            await end_steps(ns, token.partition, [step_id(token.run, command.key)], by=by)
    except WeftError as error:
        text = "what a workflow does not want any more goes on until its run ends"
        log.debug(text, step=command.key, error=error)


def opened_children(program: Program) -> list[Command]:
    """Returns the children under way, as far as the code was told."""
    return [one for one in program.commands.values() if one.kind == "child" and one.opened]


def children_elsewhere(program: Program, token: Token) -> list[Command]:
    """Returns the children under way that live in other partitions, because of their ids."""
    return [one for one in opened_children(program) if partition_of(one.work[0]) != token.partition]


def park_until(program: Program, token: Token, now_ms: int) -> int:
    """Returns when a flow that waits goes on by itself; 0: never.

    Children elsewhere are looked for now and then: a partition that lost its last second may not know that it had one.
    """
    due_ms = program.next_due_ms()
    if program.partitions == 1 or not children_elsewhere(program, token):
        return due_ms
    return min(due_ms or now_ms + LOOK_MS, now_ms + LOOK_MS)


def waits_of(turn: Turn, program: Program | None, before: str) -> str:
    """Returns the timer or signal that a commit says its code waits for, if it parks: a replay must come to that again.

    `before`: what it said that goes on now. Code that does not fit leaves that as it was.
    """
    if turn.kind == "park" and program is not None:
        receives = (command.key for command in program.commands.values() if command.kind == "receive")
        return program.next_timer() or next(receives, "")
    return before if turn.kind == "stall" else ""


def stalled(token: Token, error: NonDeterminism, *, now_ms: int) -> Turn:
    """Returns the commit that lets a run wait whose code does not fit its journal; nothing is guessed."""
    text = error.message
    log.error("the code of a workflow does not fit its journal; the run waits", run=token.run, error=text)
    return Turn(token, text.encode(), kind="stall", ms=now_ms + STALL_MS, awaits=text, told="diverged")


def too_long(run: str, entries: int) -> HistoryLimit:
    """Says that a journal is full, and what to do."""
    return HistoryLimit(
        f"the journal of run {run} has {entries} entries, its limit: end what is done so far by ctx.continue_as_new(…), which"
        " begins a new journal, or split the workflow into children"
    )


def make_room(program: Program, outbox: list[Added], run: str, entries: int) -> int:
    """Has the code of a run whose journal is full cancelled; returns how many entries the next commit may add, 0 for none.

    That is an entry too: a replay comes to the same place. It goes with what is done, which the code may have to undo, and
    before what is only asked for.
    """
    if entries > MAX_ENTRIES + ROOM:
        return 0
    if program.cancel_reason is None and not any(added.entry.type == "cancel" for added in outbox):
        record = _pack(steps.record_of(too_long(run, entries)))
        asked = [added for added in outbox if added.entry.type == "opened"]
        done = [added for added in outbox if added.entry.type != "opened"]
        outbox[:] = [*done, Added(Entry(0, "cancel", "-", "", record), f"history_full|entries={entries}"), *asked]
    at = next((i for i, added in enumerate(outbox) if added.entry.type == "cancel"), MAX_ADDED)
    return min(at + 1, MAX_ADDED)


def warn_of_length(run: str, entries: int) -> None:
    """Warns of a journal that is half full."""
    text = "the journal of a workflow is half full: ctx.continue_as_new begins a new one"
    log.warning(text, run=run, entries=entries, limit=MAX_ENTRIES)
