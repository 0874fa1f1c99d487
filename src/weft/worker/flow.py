"""One workflow run in a worker: its code, what is under way for it, and its commits, one at a time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from weft.codec import encode_plain
from weft.core.flow import MAX_ENTRIES, TAKE, Added, Entry, Told, Turn, turn_id, version_in
from weft.core.model import INLINE_BYTES, Outcome
from weft.core.waits import WAITS
from weft.engine import flows as verbs
from weft.engine import steps
from weft.errors import ForeignAwait, NonDeterminism, OwnershipLost, WeftError
from weft.sdk.commands import Command
from weft.sdk.program import Program
from weft.telemetry import get_logger
from weft.worker import flowend
from weft.worker.flowend import MAX_ADDED, RENEWED, answered, end_of, make_room, renew, stalled
from weft.worker.inline import run_step

if TYPE_CHECKING:
    from weft.sdk.workflow import Workflow
    from weft.worker.execute import Execution
    from weft.worker.flows import Flows

log = get_logger("weft.worker")

#: Milliseconds before a flow that this worker could not go on with is offered again.
TROUBLE_MS = 5_000
#: Seconds that a stopping worker waits for a commit of a flow.
LAST_COMMIT = 1.0

_pack = msgspec.msgpack.Encoder().encode


class Flow:
    """One workflow run: its program, and what is under way for it."""

    def __init__(self, flows: Flows, workflow: Workflow[Any, Any], run: str) -> None:
        self._flows, self._workflow, self.run_id = flows, workflow, run
        self._loop = asyncio.get_running_loop()
        self.program: Program | None = None
        self.parked = False
        #: The epoch of its partition when it was last delivered.
        self.epoch = ""
        #: When it looks for children in other partitions.
        self._look_ms = 0
        #: Entries that the journals of all its lives have, and that those of earlier ones had.
        self._length = self._before = 0
        self._turns = 0
        #: When its first life began (0: that is not known), and what its code waited for when it was made anew.
        self._began_ms, self._waits = 0, ""
        self._outbox: list[Added] = []
        #: The commit that is under way. One at a time: the next one carries all that came up meanwhile.
        self._in_flight: Turn | None = None
        self._fetching = self._wants_mail = self._warned = False
        #: What is done for commands, by key.
        self._working: dict[str, asyncio.Task[None]] = {}
        #: Children that are being started, and turns of those that want the same id: the first that was asked for gets it.
        self._starting: set[str] = set()
        self._ids: dict[str, asyncio.Lock] = {}
        self._alarm: asyncio.TimerHandle | None = None
        #: It went on in a new life here: its journal is not the one that its first delivery finds.
        self._renewed = False

    # --- life -------------------------------------------------------------------------------------

    async def run(self, execution: Execution) -> Outcome | None:
        """Goes on until the code waits or ends; returns a token that is to be handed back, or nothing."""
        self.execution, self.token = execution, execution.token
        self.parked, self._turns, self._fetching, self._left = False, 0, False, False
        self._released: asyncio.Future[Outcome | None] = self._loop.create_future()
        if self.program is not None:
            self.program.keep_line = execution.keep
            self._wake(self.token.claimed_ms)
        else:
            await self._load()
        return await self._released

    async def _load(self) -> None:
        """Makes the code anew and tells it what it was told before."""
        flows, token, p = self._flows, self.token, self.token.partition
        told = Told()
        if token.delivery > 1 or self._renewed:
            told = await flows.insist_for(token, lambda: verbs.read_told(flows.ns, p, self.run_id))
        entries = told.entries
        data = await flows.insist_for(token, lambda: verbs.input_of_life(flows.ns, token, entries))
        await flows.insist_for(token, lambda: verbs.fetch(flows.ns, p, self.run_id, entries))
        self._before, self._waits, self._began_ms = told.before, told.waits, told.began_ms
        self._length, self._outbox, self._wants_mail = self._before + len(entries), [], False
        try:
            program = self.program = self._workflow.program(self.run_id, token.spec, data)
            program.keep_line, program.partitions = self.execution.keep, flows.ns.partitions
            program.replay(told)
        except NonDeterminism as error:
            if back := await flows.leave_to_others(self.execution, self._workflow, version_in(entries)):
                return self._release(back)
            return self._stall(self._workflow.misfit(self.run_id, token.spec, data, told) or error)
        except WeftError as error:
            return self._end("failed", _pack(steps.record_of(error)))
        if entries:
            version = self._workflow.version
            if version_in(entries) != version:
                self._outbox.append(Added(Entry(0, "version", version), f"version_changed|version={version}"))
            # With the next commit: it says that the code was here, and a replay behind it would take the old way.
            self._outbox += flowend.marks_of(program)
            if children := flowend.opened_children(program):
                await self._make_sure(children)
            # Behind the last entry: nobody has begun yet what it asked for and answered on its way out.
            if program.done:
                program.replaying = False
                return self._pump()
            return self._wake(token.claimed_ms)
        program.replaying = False
        self._wants_mail = token.delivery > 1  # it may have been cancelled before its first commit
        self._began_ms = token.claimed_ms
        # Committed together with the first thing the code asks for: until then nothing has happened.
        begin = Entry(0, "begin", "-", f"{token.claimed_ms} {self._workflow.version}")
        self._outbox.append(Added(begin, f"began|at={token.claimed_ms},version={self._workflow.version}"))
        self._apply([begin], fresh=True)

    def _wake(self, now_ms: int) -> None:
        """Takes what came while the flow waited: mail, and timers that are due."""
        self._wants_mail = True
        if self.program is not None and self.program.partitions > 1 and now_ms >= self._look_ms:
            for command in flowend.children_elsewhere(self.program, self.token):
                self._start_child(command)
        self._fire(now_ms)
        self._send()

    def _fire(self, now_ms: int) -> None:
        assert self.program is not None
        fired = {added.entry.key for added in self._outbox if added.entry.type == "fired"}
        for command in self.program.due(now_ms):
            if command.key not in fired:
                entry = Entry(0, "fired", command.key)
                self._outbox.append(Added(entry, f"timer_fired|step={command.key}"))

    def look_for_mail(self) -> None:
        self._wants_mail = True
        self._send()

    async def hand_back(self) -> Outcome | None:
        """Gives the token of a worker that stops back, once what is under way is committed."""
        until = self._loop.time() + LAST_COMMIT
        while self._in_flight is not None and self._loop.time() < until:  # noqa: ASYNC110 - the committer answers by a call
            await asyncio.sleep(0.005)
        if self._left or (self._released.done() and not self._released.cancelled()):
            return None
        self.parked = False
        return steps.returned(self.token, "worker stopped", self.execution.started_ms)

    def let_go(self) -> None:
        """Forgets the code; the journal has all that it was told."""
        for task in self._working.values():
            task.cancel()
        self._working.clear()
        self._starting.clear()
        if self._alarm is not None:
            self._alarm.cancel()
        if self.program is not None:
            self.program.close()
            self.program = None

    # --- commits ----------------------------------------------------------------------------------

    def _pump(self) -> None:
        """Begins what the code asks for, ends what it does not want any more, and commits."""
        program = self.program
        assert program is not None
        if not program.replaying and (error := program.rescue()) is not None:
            return self._end("failed", _pack(steps.record_of(error)))  # it would wait for ever
        self._outbox += flowend.marks_of(program)
        # First: what the code does because it was cancelled follows what the cancelled step does about it.
        while program.dropped:
            self._drop(program.dropped.pop())
        for command in program.take_fresh():
            self._begin(command)
        while program.updates.answers:
            self._outbox.append(answered(*program.updates.answers.pop(0)))
        self._send()

    def _send(self) -> None:
        program = self.program
        if self._in_flight is not None or self._fetching or self._released.done() or program is None:
            return
        if program.done:
            return self._finish(program) if self._children_started() else None
        n_told = self._length - self._before
        n_entries = n_told + len(self._outbox)
        most = MAX_ADDED if n_entries <= MAX_ENTRIES else make_room(program, self._outbox, self.run_id, n_told)
        if not most:
            return self._end("failed", _pack(steps.record_of(flowend.too_long(self.run_id, n_told))))
        state = encode_plain(program.state) if program.state_changed else None
        # The beginning alone is not worth a commit.
        news = self._outbox and n_entries > 1
        if news or self._wants_mail or (state is not None and self._working):
            added, self._outbox = self._outbox, []
            if len(added) > most:
                added, self._outbox = added[:most], added[most:]
            take, self._wants_mail = TAKE if self._wants_mail else 0, False
            return self._commit(Turn(self.token, kind="go", added=added, take=take, state=state))
        if self._working:
            return self._set_alarm(program)
        added, self._outbox = self._outbox, []
        self._look_ms = self._now_ms() + flowend.LOOK_MS
        due_ms = flowend.park_until(program, self.token, self._now_ms())
        self._commit(Turn(self.token, kind="park", added=added, ms=due_ms, awaits=program.awaits(), state=state))

    def _children_started(self) -> bool:
        """Begins children that the code asked for before it ended, and answers updates; False while that is under way."""
        if added := flowend.last_of(self._outbox):
            self._outbox = []
            self._commit(Turn(self.token, kind="go", added=added))
            return False
        return not self._starting

    def _commit(self, turn: Turn) -> None:
        self._turns += 1
        # The code is told of the beginning before the journal has it.
        heard = self._length + (turn.drops is None and bool(turn.added) and turn.added[0].entry.type == "begin")
        waits = flowend.waits_of(turn, self.program, self._waits)
        turn.id, turn.expect = turn_id(self.token.delivery, self._turns, heard, waits), self._length
        # A run of weeks took more than the milliseconds of its last turn.
        turn.started_ms = self._began_ms or self.execution.started_ms
        turn.done = self._answered
        if self.program is not None:
            self.program.state_changed = False
        lines = self.execution.lines
        if lines:
            turn.lines, self._last_line = lines.pack()
        self._in_flight = turn
        self._flows.submit(turn)

    def _answered(self, reply: Sequence[Any]) -> None:
        """Takes the store's answer to the commit that is under way; what follows runs with that of other flows."""
        self._flows.answered(self, reply)

    def replied(self, reply: Sequence[Any]) -> None:
        """Goes on with what the store said to a commit."""
        turn, self._in_flight = self._in_flight, None
        assert turn is not None
        word = reply[0]
        if word in (b"ok", b"done"):
            if turn.drops is not None:
                return self._begin_anew()
            if turn.kind != "go":
                self._length += len(turn.added)
                self.parked, self._left = turn.kind == "park", True
                return self._release(None)
            if self._released.done() or self.execution.verdict:
                return None
            if turn.lines is not None and self.execution.lines is not None:
                self.execution.lines.forget(self._last_line)
            entries, fetches = flowend.told_by(turn, reply)
            self._wants_mail = self._wants_mail or (word == b"ok" and reply[2] != b"0")
            self._length += len(entries)
            self.execution.clear(bool(entries))
            return self._go_on(entries) if fetches else self._apply(entries)
        if self._released.done() or self.execution.verdict:
            return None
        word = word.decode()
        if word in ("mail", "due"):
            self._outbox = turn.added + self._outbox
            self._wants_mail = word == "mail"
            if word == "due":
                self._fire(int(reply[1]))
            return self._send()
        return self._refused(word)

    def _refused(self, word: str) -> None:
        if word == "behind":
            log.debug("a workflow was continued elsewhere; its code is made anew", run=self.run_id)
            self.let_go()
            self._aside(" ", self._reload())
            return None
        if word == "blob_gone":
            self._release(steps.returned(self.token, "a value was lost", self.execution.started_ms))
        else:
            self._release(None)
            if word not in ("gone", "stale"):
                log.warning("a workflow cannot go on", run=self.run_id, why=word)
        return None

    def _release(self, outcome: Outcome | None) -> None:
        """Ends this stay in the worker."""
        if not self._released.done():
            self._released.set_result(outcome)

    def trouble(self, error: BaseException) -> None:
        """Hands a flow back that this worker cannot go on with; one that goes on elsewhere is let go."""
        if isinstance(error, OwnershipLost):
            return self._release(None)
        log.error("a workflow cannot go on here; it is handed back", run=self.run_id, error=repr(error))
        self.parked = False
        self._release(steps.returned(self.token, "it could not go on", self.execution.started_ms, delay_ms=TROUBLE_MS))

    def _aside(self, key: str, work: Coroutine[Any, Any, None]) -> None:
        """Does something for the flow on the worker's loop."""
        task = self._working[key] = self._loop.create_task(self._careful(key, work))
        task.add_done_callback(lambda _: work.close())  # what is let go before it begins would be complained about

    async def _careful(self, key: str, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except Exception as error:  # noqa: BLE001 - a flow that nobody goes on with would look like one that works
            self.trouble(error)

    def _go_on(self, entries: list[Entry]) -> None:
        """Goes on with entries that only name large values."""
        self._fetching = True
        self._aside(" ", self._fetch(entries))

    async def _fetch(self, entries: list[Entry]) -> None:
        token = self.token
        await self._flows.insist_for(token, lambda: verbs.fetch(self._flows.ns, token.partition, self.run_id, entries))
        self._working.pop(" ", None)
        self._fetching = False
        self._apply(entries)

    def _apply(self, entries: list[Entry], *, fresh: bool = False) -> None:
        program = self.program
        assert program is not None
        if self._flows.draining and not self._working and not fresh:
            # The journal has it: whoever comes next goes on from there.
            return self._release(steps.returned(self.token, "worker stopped", self.execution.started_ms))
        program.replaying = False
        opened = []
        try:
            for entry in entries:
                if fresh or entry.type != "begin":  # it was told before it was written
                    program.apply(entry)
                    if entry.type == "opened":
                        opened.append(entry.key)
        except NonDeterminism as error:
            return self._stall(error)
        except ForeignAwait as error:  # code that never waits: it would do the same again
            return self._end("failed", _pack(steps.record_of(error)))
        for command in program.dropped:  # by a cancellation that the same commit brought
            command.opened = command.opened or command.key in opened
        for key in opened:
            if (command := program.commands.get(key)) and command.kind == "child":  # type: ignore[assignment]
                self._start_child(command)
        if self._length - self._before > MAX_ENTRIES / 2 and not self._warned:
            self._warned = True
            flowend.warn_of_length(self.run_id, self._length - self._before)
        self._pump()

    def _set_alarm(self, program: Program) -> None:
        """Looks at timers while steps run here: the timer service knows only of flows that wait."""
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        if due_ms := program.next_due_ms():
            delay = max(0, due_ms - self._now_ms()) / 1000
            self._alarm = self._loop.call_later(delay, self._on_alarm)

    def _on_alarm(self) -> None:
        self._alarm = None
        if self.program is not None and not self._released.done():
            self._fire(self._now_ms())
            self._send()

    def _now_ms(self) -> int:
        """The store's time, or a little less: what passed since it told us."""
        return self.token.claimed_ms + int((time.monotonic() - self.execution.began) * 1000)

    # --- ends -------------------------------------------------------------------------------------

    def _finish(self, program: Program) -> None:
        """Ends the run as its code ended."""
        for task in self._working.values():
            task.cancel()
        self._working.clear()
        kind, value, large = end_of(self._workflow, program)
        if kind != RENEWED and not large:
            return self._end(kind, value)
        self._fetching = True
        self._aside(" ", self._renew(program, value) if kind == RENEWED else self._end_large(value))
        return None

    async def _renew(self, program: Program, data: bytes) -> None:
        """Ends what this life of the run left, and begins the next."""
        flows, token, version = self._flows, self.token, self._workflow.version
        facts: Any = {"version": version, "before": self._length, "began_ms": self._began_ms, "now_ms": self._now_ms()}
        ended = partial(renew, flows.ns, token, program, data, **facts, by=flows.executor.session)
        turn = await flows.insist_for(token, ended)
        self._fetching = False
        self._commit(turn)

    def _begin_anew(self) -> None:
        """Goes on with the new life of the run."""
        if self._released.done() or self.execution.verdict:
            return None
        self.let_go()
        self._renewed, self._warned = True, False
        if self._flows.draining:
            return self._release(steps.returned(self.token, "worker stopped", self.execution.started_ms))
        return self._aside(" ", self._reload())

    async def _reload(self) -> None:
        self._working.pop(" ", None)
        await self._load()

    async def _end_large(self, data: bytes) -> None:
        outcome = await self._flows.insist_for(self.token, lambda: steps.completed(self._flows.ns, self.token, data, 0))
        self._fetching = False
        self._end("completed", outcome.value, outcome.blob)

    def _end(self, kind: str, value: bytes, blob: str = "") -> None:
        spec, program = self.token.spec, self.program
        keep_ms = steps.keep_failed_ms(spec) if kind == "failed" else spec.keep_ms
        if kind == "failed":
            log.warning("a workflow failed", workflow=spec.name, run=self.run_id)
        state = encode_plain(program.state) if program is not None and program.state_changed else None
        self._commit(Turn(self.token, value, blob, kind=kind, ms=keep_ms, state=state))

    def _stall(self, error: NonDeterminism) -> None:
        self._commit(stalled(self.token, error, now_ms=self._now_ms()))

    # --- commands ---------------------------------------------------------------------------------

    def _begin(self, command: Command) -> None:
        if command.kind == "step":
            self._working[command.key] = self._loop.create_task(self._step(command))
        elif command.kind == "call":
            spec, data = command.work
            if len(data) > INLINE_BYTES and spec.name not in WAITS:
                self._aside(command.key, self._stage(command))
            else:
                self._open(command, msgspec.structs.replace(spec, input=data))
        else:
            self._outbox.append(flowend.child_opened(command))

    def _open(self, command: Command, spec: Any, blob: str = "") -> None:
        event = f"step_opened|step={command.key},task={spec.name}"
        self._outbox.append(Added(Entry(0, "opened", command.key), event, blob, call=spec))

    async def _stage(self, command: Command) -> None:
        """Uploads the large arguments of a call ahead of it."""
        spec, data = command.work
        outcome = await self._flows.insist_for(self.token, lambda: steps.completed(self._flows.ns, self.token, data, 0))
        self._working.pop(command.key, None)
        self._open(command, msgspec.structs.replace(spec, blob=outcome.blob), outcome.blob)
        self._send()

    async def _step(self, command: Command) -> None:
        """Runs one attempt of a step here."""
        try:
            added = await run_step(self._flows.executor, self.execution, command, self._now_ms)
        except Exception as error:  # noqa: BLE001 - none of the step's: those are its outcome
            return self.trouble(error)
        if self._working.pop(command.key, None) is not None:
            self._outbox.append(added)
            self._send()

    async def _make_sure(self, children: list[Command]) -> None:
        """Starts children that nobody may have started. One whose end is in the mail was, and may be gone from the store."""
        self._fetching = True
        ns, token = self._flows.ns, self.token
        told = await self._flows.insist_for(token, lambda: verbs.read_ended(ns, token.partition, self.run_id))
        self._fetching, self._look_ms = False, token.claimed_ms + flowend.LOOK_MS
        for command in [one for one in children if one.key not in told]:
            self._start_child(command)

    def _start_child(self, command: Command) -> None:
        if command.key not in self._working:
            self._starting.add(command.key)
            self._aside(command.key, self._child(command))

    async def _child(self, command: Command) -> None:
        (id, spec, data, _), flows = command.work, self._flows
        own, wanted = msgspec.structs.replace(spec, key=""), spec.key
        start = partial(verbs.start_child, flows.ns, id, own, data, id=wanted, by=flows.executor.session)
        async with self._ids.setdefault(wanted or id, asyncio.Lock()):
            other = await flows.insist_for(self.token, start)
        self._working.pop(command.key, None)
        self._starting.discard(command.key)
        if other:
            self._outbox.append(flowend.id_taken(command, wanted, other))
        self._send()

    def _drop(self, command: Command) -> None:
        """Ends what is done for a command that the code does not want any more."""
        task = self._working.pop(command.key, None)
        if task is not None and command.key not in self._starting:
            task.cancel()
        self._outbox = [a for a in self._outbox if not (a.entry.key == command.key and a.entry.type == "opened")]
        if command.kind == "child" and command.work[3] == "leave" and self.program and self.program.cancel_reason:
            return  # its parent was cancelled where it waited for it, and that is no reason
        if command.opened or (self._in_flight and any(a.entry.key == command.key for a in self._in_flight.added)):
            self._loop.create_task(
                flowend.end_command(self._flows.ns, self.token, command, by=self._flows.executor.session)
            )
