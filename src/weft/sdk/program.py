"""A workflow's code under way: what it has asked for, what it was told, and how it ended.

A program is fed with entries, from the journal or just committed, one at a time; between two of them its code runs until it
waits. It does no I/O: whoever feeds it does what it asks for. So a replay is the same program fed with the same entries.
"""

from __future__ import annotations

import asyncio
import contextlib
import operator
import random
import zlib
from collections.abc import Callable, Coroutine, Iterator, Sequence
from typing import Any

from weft.codec import decode_plain
from weft.core.flow import FINAL, Entry, Told, as_kept, begun_of, key_of, life_of, renewal_of
from weft.core.model import ERROR_DECODER, VALUE_DECODER, ErrorRecord
from weft.engine.runs import failure_of
from weft.errors import AlreadyRunning, ForeignAwait, NonDeterminism, RunCancelled, UserError
from weft.sdk.commands import Command, is_continued
from weft.sdk.diverging import SHOWN, diverged, waited_otherwise
from weft.sdk.flowloop import FlowFuture, FlowLoop, FlowTask, Handle, Shield, calling_place, place_of
from weft.sdk.goodbyes import let_go_all
from weft.sdk.signalling import Signals
from weft.sdk.updates import Updates

#: How often code is told in a row that it waits for nothing, which handles the error and waits on.
MAX_RESCUES = 10


class Program:
    """One execution of a workflow's code."""

    def __init__(self, run: str, name: str, begin: Callable[[Program], Coroutine[Any, Any, Any]]) -> None:
        self.run, self.name, self._begin = run, name, begin
        self.loop = FlowLoop(self, zlib.crc32(run.encode()))  # type: ignore[abstract]
        # Seeded with the whole id: with 32 bits, a hundred of a million runs would share their uuids with another run.
        self.random, self.partitions = random.Random(run), 1
        #: How often `ctx.continue_as_new` began anew before this.
        self.life = 0
        #: Arguments, packed, for the next life, once the code asked for it.
        self.renewal: bytes | None = None
        self.updates = Updates(self)
        self.now_ms = 0
        #: What the code does now it has done before, and that was committed: nothing is logged or shown again.
        self.replaying = True
        #: What runs now has run before, and was committed: `ctx.changed` came by here then.
        self._ahead = False
        #: The store was lost since: nearly every run waits behind what its journal tells, so it is taken to have come by.
        self._passed = False
        self.entries = 0
        self.closed = False
        #: The code has returned or failed; what it left running tidies up.
        self.ending = False
        self.main: FlowTask | None = None
        #: What is asked for and not answered, in order.
        self.commands: dict[str, Command] = {}
        #: Of those, what nobody has begun to do.
        self.fresh: list[Command] = []
        #: What is not wanted any more, for whoever does it.
        self.dropped: list[Command] = []
        #: Of those, what has a time.
        self._timed: dict[str, Command] = {}
        self._known: set[str] = set()
        self._counts: dict[str, int] = {}
        self._signals = Signals()
        #: Who gives signals to another run, one after the other, by its id.
        self.lines: dict[str, asyncio.Lock] = {}
        #: Answers to `ctx.changed`, and those that are new and belong in the journal.
        self._markers: dict[str, bool] = {}
        self.marked: list[str] = []
        self.cancel_reason: bytes | None = None
        #: What the run shows of itself, and whether that changed.
        self.state: dict[str, Any] = {}
        self.state_changed = False
        #: Takes log lines; whoever feeds the program sets it.
        self.keep_line: Callable[[bytes], None] = lambda line: None
        #: An error that came from outside of the code's own turns.
        self._touch: ForeignAwait | None = None
        #: Notes where in the source everything is asked for: slow, and for reports only.
        self.trace = False
        #: What was done under other code, until this code asks for it.
        self._kept: dict[str, list[Entry]] = {}
        self._tell = {
            "begin": self._on_begin,
            "completed": self._on_step,
            "failed": self._on_step,
            "retrying": self._on_retrying,
            "opened": self._on_opened,
            "fired": self._on_fired,
            "signal": self._on_signal,
            "ended": self._on_ended,
            "cancel": self._on_cancel,
            "update": lambda entry: self.updates.receive(self.entries, entry),
            "answered": lambda entry: None,  # known since the replay began
            "marker": lambda entry: None,  # known since the replay began
            "version": lambda entry: None,
            "kept": self._on_kept,
        }

    def replay(self, told: Told, *, silent: bool = False) -> None:
        """Tells the code what it was told before. Raises NonDeterminism where it does not fit.

        What it does behind the entries it had heard (all but the last, where that is not known) was done before.
        `silent`: nothing is logged or shown behind the others either.
        """
        self._passed = told.rebuilt
        for _, entry in self._in_order(told.entries, told.heard):
            self.replaying = silent or self._ahead
            self.apply(entry)
        self._ahead = self._passed = False
        if told.waits and told.waits not in self.commands:
            raise waited_otherwise(self, told.waits)

    def reconcile(self, entries: Sequence[Entry]) -> dict[int, Entry]:
        """Like a replay; what does not fit is kept for when the code asks for it. Returns those entries, as they are then."""
        changed: dict[int, Entry] = {}
        for i, entry in self._in_order(entries):
            try:
                self.apply(entry)
            except NonDeterminism:
                changed[i] = as_kept(entry)
                self.apply(changed[i])
        return changed

    def _in_order(self, entries: Sequence[Entry], heard: int | None = None) -> Iterator[tuple[int, Entry]]:
        self._markers = {entry.key: True for entry in entries if entry.type == "marker"}
        self.updates.answered = {entry.more for entry in entries if entry.type == "answered"}
        if heard is None:  # what runs behind the last one may never have run before
            heard = max((i for i, entry in enumerate(entries) if entry.type != "version"), default=0)
        for i, entry in enumerate(entries):
            self._ahead = i < heard
            yield i, entry

    # --- being told -------------------------------------------------------------------------------

    def apply(self, entry: Entry) -> None:
        """Tells the code one thing and lets it run until it waits. Raises NonDeterminism when it never asked for that."""
        self.entries += 1
        self.now_ms = max(self.now_ms, entry.at_ms)
        if self._touch is not None:  # before the code goes on with what it should not have
            self.loop.turn(self._throw, None)
        self.loop.turn(self._tell[entry.type], entry)
        if self._touch is not None:
            self.loop.turn(self._throw, None)
        if self.updates.waiting:
            self.updates.refuse_unknown()

    @property
    def done(self) -> bool:
        """Whether the code has ended. Code that ended well waits for the updates that it has begun to work on."""
        if self.main is None or not self.main.done():
            return False
        if not self.updates.running or self.main.cancelled():
            return True
        error = self.main.exception()
        return error is not None and not is_continued(error)

    async def end_others(self, *, failed: bool) -> None:
        """Cancels what the code left running, as asyncio.run does, and waits until it has tidied up.

        Code that ended well waits for the updates that it has begun to work on, and does not cancel what may be theirs.
        """
        self.ending = True
        if not failed and self.updates.running:
            return
        async with Shield():
            while others := self.loop.others():
                for task in others:
                    task.cancel()
                await asyncio.wait(others)

    def carried(self) -> list[tuple[int, Entry]]:
        """Returns what came and nobody took, in order, each with its place in the journal: the next life gets it."""
        unread = self._signals.unread() + self.updates.waiting
        unread.sort(key=operator.itemgetter(0))
        return [(at, Entry(0, one.type, one.key, one.more, one.payload)) for at, one in unread]

    def touched(self, error: ForeignAwait) -> None:
        """Notes that something outside of the workflow has resolved what its code awaits."""
        if self._touch is None:
            self._touch = error

    def rescue(self) -> ForeignAwait | None:
        """Raises in the code what went wrong outside of its turns, or that nothing will ever wake it, until all is well.

        Returns the error that the code does not give in to.
        """
        for _ in range(MAX_RESCUES):
            if (self.commands and not self._timed and self._touch is None) or self.done or not self._is_stuck():
                return None
            error = self._touch
            self.loop.turn(self._throw, None)
        return error

    def _is_stuck(self) -> bool:
        """Tells whether the code waits for nothing that could come; what is to be raised is noted."""
        if self._touch is not None:
            return True
        if self._timed:
            self._sweep()
        if self.commands or self.updates.may_come:
            return False
        if self.main is not None and self.main.done():
            # Updates are under way, and nothing is left that could wake them.
            self.updates.running.clear()
            return False
        # Code that has ended waits for what it left running.
        places = (place for task in self.loop.alive.values() if (place := place_of(task)))
        self._touch = self.loop.foreign_error("something that nobody will ever set", next(places, ""))
        return True

    def _throw(self, _: None) -> None:
        error, self._touch = self._touch, None
        if error is None or self.main is None or self.main.done():
            return
        waiter: Any = self.main
        while isinstance(waiter, FlowTask):
            waiter = getattr(waiter, "_fut_waiter", None)
        if waiter is not None and not waiter.done():
            waiter.set_exception(error)

    def _on_begin(self, entry: Entry) -> None:
        self.now_ms, _, origin = begun_of(entry)
        if renewal := renewal_of(entry):
            self.life = renewal.life
            self.state = dict(decode_plain(renewal.state)) if renewal.state else {}
        if origin or self.life:  # a fork has the chance of the run it comes from, a later life one of its own
            origin = origin or self.run
            chance = f"{origin} {self.life}" if self.life else origin
            self.random = random.Random(chance)
            self.loop.seed(zlib.crc32(chance.encode()))
        self.main = self.loop.create_task(self._begin(self))

    def _on_step(self, entry: Entry) -> None:
        command = self._answered(entry, "step", "child")
        if command is not None:
            # A child whose id is taken never began: it fails like a step.
            self._settle(command, "taken" if command.kind == "child" else entry.type, entry.payload)

    def _on_retrying(self, entry: Entry) -> None:
        command = self._answered(entry, "step", keep=True)
        if command is not None:
            due, attempt = entry.more.split(" ")
            command.due_ms, command.attempt = int(due), int(attempt)
            self._timed[command.key] = command

    def _on_opened(self, entry: Entry) -> None:
        command = self._answered(entry, "call", "child", keep=True)
        if command is not None:
            command.opened = True

    def _on_fired(self, entry: Entry) -> None:
        command = self._answered(entry, "timer", "limit", "step", keep=True)
        if command is None:
            return
        command.due_ms = 0
        if command.kind == "step":
            self.fresh.append(command)  # its next attempt
            return
        del self.commands[command.key]
        if command.handle is not None:
            if not command.handle.dropped:
                command.handle.context.run(command.handle.callback, *command.handle.args)
        elif command.future is not None and not command.future.done():
            command.future.set_result(None)

    def _on_signal(self, entry: Entry, place: int = 0) -> None:
        command = self._signals.arrive(place or self.entries, entry)
        if command is not None:
            self.commands.pop(command.key, None)
            self._give(command, entry.payload)

    def give_back(self, future: FlowFuture) -> None:
        """Takes a signal back that was received and that the code does not wait for any more: the next receiver gets it."""
        if future.received is not None:
            (place, entry), future.received = future.received, None
            self._on_signal(entry, place)

    def _on_ended(self, entry: Entry) -> None:
        if entry.key not in self._known and entry.key not in self._kept:
            return  # of a child that was begun before a loss of the store, which has sent this code back to before that
        command = self._answered(entry, "call", "child")
        if command is not None:
            self._settle(command, entry.more, entry.payload)

    def _on_cancel(self, entry: Entry) -> None:
        record = ERROR_DECODER.decode(entry.payload)
        if self.cancel_reason is not None and record.code == "deadline_exceeded":
            return  # its clean-up is under way already, and has until the timer service ends the run
        if self.cancel_reason is None or ERROR_DECODER.decode(self.cancel_reason).code not in FINAL:
            self.cancel_reason = entry.payload
        if self.main is not None and not self.main.done():
            self.main.cancel(record.message or None)
            if self.ending:
                for left in self.loop.others():
                    left.cancel(record.message or None)
        else:
            for task in list(self.updates.running.values()):  # only they keep the run from its end
                task.cancel(record.message or None)

    def _answered(self, entry: Entry, *kinds: str, keep: bool = False) -> Command | None:
        """Returns the command that an entry answers; None when it is not wanted any more."""
        command = self.commands.get(entry.key)
        if command is None and (entry.key in self._known or life_of(entry.key) != self.life):
            return None
        if command is None and entry.key in self._kept:
            self._kept[entry.key].append(entry)
            return None
        if command is None or command.kind not in kinds:
            raise diverged(self, entry)
        if not keep:
            del self.commands[entry.key]
        return command

    def _on_kept(self, entry: Entry) -> None:
        kind, _, more = entry.more.partition(" ")
        kept = self._kept.setdefault(entry.key, [])
        if kind in ("completed", "failed", "opened", "ended"):  # time passes anew
            kept.append(Entry(entry.at_ms, kind, entry.key, more, entry.payload))

    def _recall(self, command: Command) -> None:
        """Answers what the code asks for with what was done for it before, under other code."""
        for entry in self._kept.pop(command.key):
            with contextlib.suppress(NonDeterminism):  # it was of another kind then: it is done anew
                self._tell[entry.type](entry)

    def _settle(self, command: Command, kind: str, payload: bytes) -> None:
        future = command.future
        if future is None or future.done():
            return
        if kind == "completed":
            self._give(command, VALUE_DECODER.decode(payload).inline)  # one that stands elsewhere was fetched before
            return
        record = ERROR_DECODER.decode(payload)
        error: Exception
        if kind == "cancelled" and command.kind == "child":
            error = RunCancelled(f"child {command.key} was cancelled: {record.message}", run=self.run)
        elif kind == "taken":
            error = AlreadyRunning(record.message, run=self.run)
        else:
            error = failed_step(record, self.run)
        error.facts["step"] = command.key  # type: ignore[attr-defined]
        future.set_exception(error)

    def _give(self, command: Command, data: bytes) -> None:
        future = command.future
        assert future is not None
        if not future.done():
            try:
                future.set_result(command.decode(data))
            except StopIteration as error:  # no future takes it
                future.set_exception(RuntimeError(f"what came raised StopIteration: {error}"))
            except Exception as error:  # noqa: BLE001 - also what a class of the user's own says when it is made
                future.set_exception(error)
            # Break the cycle between the two: otherwise they are left to the garbage collector.
            future.command = None

    # --- asking -----------------------------------------------------------------------------------

    def ask(
        self,
        kind: str,
        name: str,
        work: Any = None,
        decode: Callable[[bytes], Any] = decode_plain,
        due_ms: int = 0,
        handle: Handle | None = None,
    ) -> Command:
        """Notes that the code asks for something; commands are numbered by name, in the order they are asked for."""
        if self.closed:
            raise GeneratorExit  # its code is let go
        loop = self.loop
        if not loop.turning:
            raise UserError(f"the context of workflow {self.name} was used outside of its code: a step has no context")
        n = self._counts.get(name, 0)
        self._counts[name] = n + 1
        key = key_of(name, n, self.life) if n or self.life else name
        command = Command(key, kind, None, decode, work, due_ms, handle=handle)
        if kind != "limit":
            command.future = FlowFuture(loop, self, command)
        if self.trace:
            command.place = calling_place()
        self._known.add(key)
        if kind == "receive":
            return self._receive(command, name)
        self.commands[key] = command
        if due_ms:
            self._timed[key] = command
        elif kind in ("step", "call", "child"):
            self.fresh.append(command)
        if self._kept and key in self._kept:
            self._recall(command)
        return command

    def _receive(self, command: Command, name: str) -> Command:
        early = self._signals.receive(command, name.partition(":")[2])
        if early is not None:
            self._give(command, early.payload)
        else:
            self.commands[command.key] = command
        return command

    def changed(self, marker: str) -> bool:
        """Tells whether the code is to go the new way: False for a run that was here before there was one."""
        if marker not in self._markers:
            passed = self._ahead or self._passed
            self._markers[marker] = not passed
            if not passed:
                self.marked.append(marker)
        return self._markers[marker]

    def limit(self, due_ms: int, handle: Handle) -> None:
        """Notes a time limit that asyncio sets, as in `asyncio.timeout`."""
        self.ask("limit", "$timeout", due_ms=due_ms, handle=handle)

    def drop(self, command: Command) -> None:
        """Takes back what the code does not want any more."""
        self.commands.pop(command.key, None)
        if command.kind == "receive":
            self._signals.drop(command)
        elif command.kind in ("step", "call", "child"):
            self.dropped.append(command)

    # --- for whoever feeds it ---------------------------------------------------------------------

    def due(self, now_ms: int) -> list[Command]:
        """Returns the timers that are due, the earliest first."""
        if not self._timed:
            return []
        self._sweep()
        timers = [command for command in self._timed.values() if command.due_ms <= now_ms]
        return sorted(timers, key=lambda command: command.due_ms)

    def next_due_ms(self) -> int:
        """Returns when the next timer is due; 0: there is none."""
        return self._timed[key].due_ms if (key := self.next_timer()) else 0

    def next_timer(self) -> str:
        """Returns what the next timer is for; empty: there is none."""
        if not self._timed:
            return ""
        self._sweep()
        return min(self._timed, key=lambda key: self._timed[key].due_ms, default="")

    def _sweep(self) -> None:
        """Forgets timers that are not wanted any more."""
        for key, one in list(self._timed.items()):
            if one.handle is not None and one.handle.dropped:
                self.commands.pop(key, None)
            if not one.due_ms or key not in self.commands:
                del self._timed[key]

    def take_fresh(self) -> list[Command]:
        """Returns what is to be begun: asked for, still wanted, and not on its way."""
        if not self.fresh:
            return []
        fresh, self.fresh = list(dict.fromkeys(self.fresh)), []
        return [one for one in fresh if one.key in self.commands and not one.opened and not one.due_ms]

    def awaits(self) -> str:
        """Says where the code waits and for what."""
        self._sweep()
        told = [command.spelled for command in self.commands.values() if command.kind != "limit"]
        told = told or [f"update {name}" for name in self.updates.names]
        more = f" and {len(told) - SHOWN} more" if len(told) > SHOWN else ""
        place = place_of(self.main) if self.main is not None and not self.done else ""
        return ", ".join(told[:SHOWN]) + more + (f" at {place}" if place else "")

    def close(self) -> None:
        """Lets the code go, as when a process ends: what it does on the way out reaches nothing."""
        self.closed = True
        self.commands.clear()
        # End everything now: what is left to the garbage collector would end in the middle of something else.
        let_go_all(self.loop, list(self.loop.alive.values()))
        self.loop.alive.clear()


def failed_step(record: ErrorRecord, run: str) -> Exception:
    """Returns what the failure of a step is raised as in the workflow's code; it keeps the record that it was made of."""
    error = failure_of(record, run)
    error.facts["record"] = record
    return error
