"""The event loop that a workflow's code runs on: deterministic, without a clock, sockets or threads of its own.

It lives inside the worker's loop and turns only when the flow is told something; then all that is ready runs, in order, until
nothing is. `asyncio.gather`, `TaskGroup` and `timeout` work on it. Whatever would wait for the world outside is refused, with
the place in the source: after a restart nobody would be there to wait for it.
"""

from __future__ import annotations

import asyncio
import contextvars
import os
import sys
import sysconfig
import types
from asyncio import events
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Generator
from pathlib import Path
from types import CodeType, FrameType
from typing import TYPE_CHECKING, Any, NoReturn

from weft.errors import ForeignAwait
from weft.sdk.goodbyes import let_go, refuse_task
from weft.telemetry import get_logger

if TYPE_CHECKING:
    from weft.core.flow import Entry
    from weft.sdk.commands import Command
    from weft.sdk.program import Program

log = get_logger("weft.workflows")

#: Callbacks of one turn after which the code must be spinning.
MAX_CALLBACKS = 1_000_000

_PATHS = [sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib")]
_LIBRARY = tuple({path + os.sep for one in _PATHS for path in (one, os.path.realpath(one))})
_OURS = str(Path(__file__).resolve().parents[1]) + os.sep

#: Where a time limit or task group has how many shields are around it.
_AROUND = "_weft_shields"
_TASK_GROUP = asyncio.TaskGroup.create_task.__code__

#: What asyncio's own time limits call back by.
_RELEASE = getattr(asyncio.tasks, "_release_waiter", None)


#: Where asyncio makes tasks of what it is given.
_ENSURE_FUTURE = getattr(asyncio.tasks, "_ensure_future", asyncio.tasks.ensure_future).__code__


class Handle:
    """A callback that is ready or will be; what asyncio calls a handle."""

    __slots__ = ("args", "callback", "context", "dropped")

    def __init__(self, callback: Callable[..., Any], args: tuple[Any, ...], context: contextvars.Context) -> None:
        self.callback, self.args, self.context, self.dropped = callback, args, context, False

    def cancel(self) -> None:
        self.dropped = True

    def cancelled(self) -> bool:
        return self.dropped


class FlowFuture(asyncio.Future[Any]):
    """What a command of a workflow gives. Its hash is its number: sets of them are in the same order in every replay."""

    def __init__(self, loop: FlowLoop, program: Program, command: Command) -> None:
        self._number, self._program = loop.number(), program
        #: What it stands for, until that is answered.
        self.command: Command | None = command
        #: The signal that it has given, with its place in the journal.
        self.received: tuple[int, Entry] | None = None
        super().__init__(loop=loop)

    def cancel(self, msg: Any = None) -> bool:
        if not super().cancel(msg):
            return False
        if self.command is not None:
            self._program.drop(self.command)
        return True

    def __hash__(self) -> int:
        return self._number

    def __eq__(self, other: object) -> bool:
        return self is other


class FlowTask(asyncio.Task[Any]):
    """A task of a workflow's code. Within `ctx.shield()` a cancellation waits, unless the block itself asks for it."""

    def __init__(self, coro: Any, *, loop: FlowLoop, name: str | None = None, context: Any = None) -> None:
        # Before the rest: the constructor puts the task in a set.
        self._number = loop.number()
        self.shields = 0
        #: What it gives on: whoever gives it up gives up these.
        self.stands_for: list[asyncio.Future[Any]] = []
        #: Cancellations that wait: how many shields are around whoever asked for it, and the message.
        self._delayed: list[tuple[int, Any]] = []
        self._within, self._alive = coro, loop.alive
        super().__init__(guarded(coro, loop, self._number), loop=loop, name=name, context=context)
        # Dropping a pending flow is intended: its journal has everything it was told.
        self._log_destroy_pending = False

    def cancel(self, msg: Any = None) -> bool:
        if self.shields and not self.done():
            # A time limit or task group within the block works by this, too: it would never come to its end.
            around = getattr(sys._getframe(1).f_locals.get("self"), _AROUND, 0)
            if around < self.shields:
                self._delayed.append((around, msg))
                return True
        if not super().cancel(msg):
            return False
        # A task that has not begun never will: close its coroutine here, because the guard around it hides it from asyncio.
        self.add_done_callback(self._forget)
        return True

    def _forget(self, _: Any) -> None:
        self._within.close()
        self._alive.pop(self._number, None)

    def unshield(self) -> bool:
        """Ends a shield; returns whether a cancellation is now to be raised."""
        self.shields -= 1
        due = [one for one in self._delayed if one[0] >= self.shields]
        for one in due:  # each is counted: whoever asked for it takes one back
            self._delayed.remove(one)
            super().cancel(one[1])
        return bool(due)

    def __hash__(self) -> int:
        return self._number

    def __eq__(self, other: object) -> bool:
        return self is other


class Shield:
    """A block that cancellation does not interrupt."""

    async def __aenter__(self) -> None:
        task = asyncio.current_task()
        if isinstance(task, FlowTask):
            task.shields += 1

    async def __aexit__(self, *exc: object) -> None:
        task = asyncio.current_task()
        if isinstance(task, FlowTask) and task.unshield() and exc[0] is None:
            await asyncio.sleep(0)  # it is raised here, where the block ends; what the block itself raised goes first


async def _give(awaitable: Awaitable[Any]) -> Any:
    return await awaitable


async def guarded(coro: Coroutine[Any, Any, Any], loop: FlowLoop, number: int) -> Any:
    """Runs a coroutine and refuses what it waits for unless it is of this loop."""
    try:
        return await _guard(coro, loop)
    finally:
        loop.alive.pop(number, None)


@types.coroutine
def _guard(coro: Any, loop: FlowLoop) -> Generator[Any, Any, Any]:
    step: Any = coro.send
    given: Any = None
    while True:
        try:
            awaited = step(given)
        except StopIteration as stop:
            return stop.value
        except RuntimeError as error:
            if "different event loop" not in str(error):
                raise
            # An event, lock or queue that others use, too.
            what = str(error).partition(" is bound")[0]
            raise loop.foreign_error(f"{what} of another event loop", _place_in(error)) from error
        if awaited is not None and getattr(awaited, "_loop", None) is not loop:
            # It would never be woken: whatever resolves the future lives on another loop.
            if hasattr(awaited, "_asyncio_future_blocking"):
                awaited._asyncio_future_blocking = False
            step, given = coro.throw, loop.foreign_error(f"{_spell(awaited)} of another event loop", place_of(coro))
            continue
        try:
            given = yield awaited
            step = coro.send
        except GeneratorExit:
            let_go(coro)
            raise
        except BaseException as error:  # noqa: BLE001 - whatever is thrown in goes to the code
            step, given = coro.throw, error


class FlowLoop(asyncio.AbstractEventLoop):
    """See above."""

    def __init__(self, program: Program, seed: int) -> None:
        self._program, self._seed, self._numbers = program, seed << 24, 0
        self._ready: deque[Handle] = deque()
        #: Tasks under way, by number. Held: one that the code itself does not hold, as one that waits for a queue of its own,
        #: would end when memory is tidied, and that is another moment in every replay.
        self.alive: dict[int, FlowTask] = {}
        #: The code runs right now.
        self.turning = False

    def number(self) -> int:
        """Returns the number of a new task or future: the same in every replay, another in every run."""
        self._numbers += 1
        return self._seed + self._numbers

    def seed(self, seed: int) -> None:
        """Has tasks and futures numbered like those of another run."""
        self._seed = seed << 24

    def turn(self, tell: Callable[[Any], None], what: Any) -> None:
        """Tells the code something and runs all that is ready then, until nothing is."""
        outer, hooks = events._get_running_loop(), sys.get_asyncgen_hooks()
        events._set_running_loop(self)
        sys.set_asyncgen_hooks(None, self._end_generator)
        self.turning = True
        left = MAX_CALLBACKS
        ready = self._ready
        try:
            tell(what)
            while ready:
                handle = ready.popleft()
                if not handle.dropped:
                    try:  # noqa: SIM105 - a context manager for each would cost more than the call
                        handle.context.run(handle.callback, *handle.args)
                    except (SystemExit, KeyboardInterrupt):
                        pass  # the code's own: the task has it, and the worker goes on
                left -= 1
                if not left:
                    ready.clear()
                    raise self.foreign_error("a loop that never waits for a command", place_of(self._program.main))
        finally:
            self.turning = False
            events._set_running_loop(outer)
            sys.set_asyncgen_hooks(*hooks)

    def _end_generator(self, generator: Any) -> None:
        """Has a generator that the code dropped tidy up here: the worker's loop would do it, out of turn."""
        if self.turning and not self._program.closed:
            self.create_task(generator.aclose())

    # --- what asyncio asks of a loop --------------------------------------------------------------

    def call_soon(self, callback: Any, *args: Any, context: contextvars.Context | None = None) -> Any:  # type: ignore[override]
        handle = Handle(callback, args, context if context is not None else contextvars.copy_context())
        owner = getattr(callback, "__self__", None)
        if self.turning:
            if isinstance(owner, asyncio.Timeout):
                _note_shields(owner, owner._task)  # type: ignore[attr-defined]
            self._ready.append(handle)
            return handle
        if self._program.closed:  # its code is let go; nothing of it runs any more, and its frames may be half gone
            return handle
        what = "something that is set from outside of it"
        if isinstance(owner, FlowTask):
            # It would wake a task, which gets the error instead when the code runs next.
            handle.args = (_Refused(self.foreign_error(what, place_of(owner))),)
            self._ready.append(handle)
        else:
            self._program.touched(self.foreign_error(what, place_of(self._program.main)))
        return handle

    def call_at(self, when: float, callback: Any, *args: Any, context: Any = None) -> Any:  # type: ignore[override]
        owner = getattr(callback, "__self__", None)
        if isinstance(owner, asyncio.Timeout):
            _note_shields(owner, owner._task)  # type: ignore[attr-defined]
        elif callback is not _RELEASE and not _limits_completion(callback):
            if getattr(callback, "__name__", "") == "_set_result_unless_cancelled":
                self.refuse("asyncio.sleep", "use ctx.sleep(…)")
            self.refuse("a timer of a library")
        handle = Handle(callback, args, context if context is not None else contextvars.copy_context())
        self._program.limit(int(-(-when * 1000 // 1)), handle)
        return handle

    def call_later(self, delay: float, callback: Any, *args: Any, context: Any = None) -> Any:  # type: ignore[override]
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def time(self) -> float:
        return self._program.now_ms / 1000

    def create_future(self) -> Any:
        return _PlainFuture(self)

    def create_task(self, coro: Any, *, name: str | None = None, context: Any = None) -> Any:
        caller = sys._getframe(1)
        if self._program.closed:
            refuse_task(coro, caller)
        if caller.f_code is _TASK_GROUP:
            group = caller.f_locals["self"]
            _note_shields(group, group._parent_task)
        elif caller.f_code is _ENSURE_FUTURE and coro.__name__ != "_wrap_awaitable" and _as_completed(caller):
            # as_completed puts them in a set, ordered by memory address: replays would come in another order.
            coro.close()
            what = "coroutines in no order of their own, by asyncio.as_completed,"
            self.refuse(what, "make tasks of them, one after the other, by asyncio.create_task")
        given = None
        if not asyncio.iscoroutine(coro):
            if not hasattr(coro, "__await__"):
                raise TypeError(f"a coroutine was expected, got {coro!r}")
            # What a context gives is no coroutine, and is put in tasks all the same: elsewhere such things are.
            given, coro = coro, _give(coro)
        task = FlowTask(coro, loop=self, name=name, context=context)
        self.alive[hash(task)] = task
        if isinstance(given, asyncio.Future):
            task.stands_for = [given]
            # Also one that is cancelled before it begins.
            task.add_done_callback(lambda done: given.cancel() if done.cancelled() else None)
        return task

    def others(self) -> list[FlowTask]:
        """Returns the tasks that are under way beside the one that asks, in the order they began."""
        current = asyncio.current_task()
        return [task for task in self.alive.values() if task is not current and not task.done()]

    def is_running(self) -> bool:
        return self.turning

    def is_closed(self) -> bool:
        return False

    def get_debug(self) -> bool:
        return False

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Tells of an error that nobody awaited: it changes nothing, and if no step failed no history has it."""
        program, error = self._program, context.get("exception")
        if error is not None and not program.closed and not program.replaying:
            log.warning(
                "a task of a workflow failed and nobody awaited it", workflow=program.name, run=program.run, error=error
            )

    def _timer_handle_cancelled(self, handle: Any) -> None:
        """Nothing to be done: a dropped handle does nothing."""

    # --- what is refused --------------------------------------------------------------------------

    def refuse(self, what: str, instead: str = "") -> NoReturn:
        if self._program.closed:
            raise GeneratorExit
        raise self.foreign_error(what, calling_place() or place_of(self._program.main), instead)

    def foreign_error(self, what: str, place: str, instead: str = "") -> ForeignAwait:
        name = self._program.name
        where = f" at {place}" if place else ""
        return ForeignAwait(
            f"workflow {name} awaits {what}{where}, which no restart survives:"
            f" {instead or 'put it into a step, as in `await ctx.step(fn)`'}",
            workflow=name,
            place=place,
        )


class _PlainFuture(asyncio.Future[Any]):
    """A future that asyncio itself makes, for events, locks and queues between tasks of one flow."""

    def __init__(self, loop: FlowLoop) -> None:
        self._number = loop.number()
        super().__init__(loop=loop)

    def __hash__(self) -> int:
        return self._number

    def __eq__(self, other: object) -> bool:
        return self is other


class _Refused:
    """Stands for a future in a wake-up: it has only an error."""

    def __init__(self, error: ForeignAwait) -> None:
        self._error = error

    def result(self) -> NoReturn:
        raise self._error


def _note_shields(scope: Any, task: Any) -> None:
    """Notes how many shields are around a time limit or task group of a task, the first time that it is seen."""
    if not hasattr(scope, _AROUND):
        setattr(scope, _AROUND, getattr(task, "shields", 0))


def _refusing(method: str, what: str) -> Callable[..., Any]:
    def refused(self: FlowLoop, *args: Any, **options: Any) -> Any:
        self.refuse(what)

    refused.__name__ = method
    return refused


#: Methods of a loop that reach the world outside, and what awaiting them is called.
_OUTSIDE = {
    **dict.fromkeys(["run_in_executor", "set_default_executor", "call_soon_threadsafe"], "a thread"),
    **dict.fromkeys(["getaddrinfo", "getnameinfo"], "a name server"),
    **dict.fromkeys(["subprocess_exec", "subprocess_shell"], "a process"),
    **dict.fromkeys(["connect_read_pipe", "connect_write_pipe"], "a pipe"),
    **dict.fromkeys(
        "create_connection create_server create_unix_connection create_unix_server create_datagram_endpoint start_tls sendfile"
        " connect_accepted_socket sock_recv sock_recv_into sock_recvfrom sock_recvfrom_into sock_sendall sock_sendto"
        " sock_connect sock_accept sock_sendfile add_reader remove_reader add_writer remove_writer".split(),
        "a socket",
    ),
    **dict.fromkeys(["get_task_factory", "set_task_factory"], "a library with tasks of its own"),
    **dict.fromkeys(["add_signal_handler", "remove_signal_handler", "run_forever", "run_until_complete"], "a signal"),
}
for _method, _what in _OUTSIDE.items():
    setattr(FlowLoop, _method, _refusing(_method, _what))
FlowLoop.__abstractmethods__ = frozenset()  # type: ignore[attr-defined]


def place_of(coro: Any) -> str:
    """Returns file and line at which a suspended coroutine waits: the innermost that is neither a library's nor ours."""
    place = ""
    if isinstance(coro, asyncio.Task):
        coro = coro.get_coro()
    for _ in range(100):
        frame = getattr(coro, "cr_frame", None) or getattr(coro, "gi_frame", None) or getattr(coro, "ag_frame", None)
        if frame is not None:
            if _is_guard(frame.f_code):
                coro = frame.f_locals.get("coro")
                continue
            if _is_users(frame.f_code.co_filename):
                place = f"{_short(frame.f_code.co_filename)}:{frame.f_lineno}"
        following = (
            getattr(coro, "cr_await", None) or getattr(coro, "gi_yieldfrom", None) or getattr(coro, "ag_await", None)
        )
        if following is None or isinstance(following, asyncio.Future):
            break
        coro = following
    return place


def calling_place() -> str:
    """Returns file and line of the code that calls, as `place_of` does."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code is not _turn_code:
        if _is_users(frame.f_code.co_filename):
            return f"{_short(frame.f_code.co_filename)}:{frame.f_lineno}"
        frame = frame.f_back
    return ""


def _place_in(error: BaseException) -> str:
    """Returns file and line at which an error came out of the user's code, as `place_of` does."""
    place, step = "", error.__traceback__
    while step is not None:
        if _is_users(step.tb_frame.f_code.co_filename):
            place = f"{_short(step.tb_frame.f_code.co_filename)}:{step.tb_lineno}"
        step = step.tb_next
    return place


def _as_completed(frame: FrameType | None) -> bool:
    """Tells whether asyncio.as_completed makes a task: a few frames up, in asyncio."""
    for _ in range(5):
        if frame is None or frame.f_code.co_filename != asyncio.tasks.__file__:
            return False
        if "completed" in frame.f_code.co_qualname.lower():
            return True
        frame = frame.f_back
    return False


def _limits_completion(callback: Any) -> bool:
    """Tells whether a callback is what ends asyncio.as_completed when its time is over."""
    code: CodeType | None = getattr(callback, "__code__", None)
    name = getattr(callback, "__qualname__", "").lower()
    return code is not None and code.co_filename == asyncio.tasks.__file__ and "completed" in name


def _is_guard(code: CodeType) -> bool:
    return code is guarded.__code__ or code is _guard_code


_guard_code: CodeType = _guard.__code__
_turn_code: CodeType = FlowLoop.turn.__code__


def _is_users(filename: str) -> bool:
    return not filename.startswith((*_LIBRARY, _OURS, "<frozen"))


def _short(filename: str) -> str:
    relative = os.path.relpath(filename)
    return filename if relative.startswith("..") else relative


def _spell(awaited: Any) -> str:
    return f"a {type(awaited).__name__}"
