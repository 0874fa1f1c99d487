"""The context of a workflow: everything its code may wait for. What a context gives survives a restart; nothing else does."""

from __future__ import annotations

import asyncio
import functools
import inspect
import typing
import uuid
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NoReturn, ParamSpec, TypedDict, TypeVar, Unpack, overload

import msgspec

from weft.clock import Duration, format_duration, parse_duration_ms
from weft.codec import TypeCodec, decode_plain, encode_plain
from weft.core.flow import call_mark
from weft.core.model import RunSpec
from weft.engine.flows import id_digest
from weft.engine.signals import pack
from weft.errors import InvalidArguments, InvalidOption, PayloadTooLarge, UserError
from weft.ids import check_name, child_run_id, home_of_key, moved_to, partition_of
from weft.sdk.asking import Decision, approval_spec, read_decision
from weft.sdk.childhandle import Child
from weft.sdk.commands import ContinuedAsNew
from weft.sdk.flowloop import Shield
from weft.sdk.options import call_spec, exception_classes
from weft.sdk.program import Program
from weft.sdk.racing import call_all, give_up, race
from weft.sdk.remembering import Remembered
from weft.sdk.task import AsyncTask, Task
from weft.sdk.tasklog import TaskLog

if TYPE_CHECKING:
    from weft.sdk.workflow import Workflow

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

#: Bytes that the state of a run may take.
MAX_STATE = 64 * 1024

_STEP = frozenset("name retries backoff retry_delay max_delay jitter timeout retry_on fatal_on".split())
_CALL = frozenset("name retries backoff retry_delay max_delay jitter timeout queue priority".split())
_CHILD = frozenset("name id on_parent_close queue priority deadline keep_result tags".split())
_APPROVAL, _NONE = frozenset({"name"}), frozenset[str]()
_OWN_TIMEOUT = {("receive", "timeout"), ("approve", "timeout")}


class ContextOptions(TypedDict, total=False):
    """What `ctx.options(…)` takes: for steps, calls and children."""

    name: str
    retries: int
    backoff: str
    retry_delay: Duration
    max_delay: Duration
    jitter: bool
    timeout: Duration | None
    retry_on: type[BaseException] | tuple[type[BaseException], ...]
    fatal_on: type[BaseException] | tuple[type[BaseException], ...]
    queue: str
    priority: int
    id: str
    on_parent_close: str
    deadline: Duration | None
    keep_result: Duration
    tags: dict[str, str | int | float | bool]


class Shape:
    """How a function or task runs as a step: the same for all calls with the same options."""

    __slots__ = ("codec", "fatal_on", "is_async", "name", "retry_on", "spec", "task")

    def __init__(self, fn: Any, name: str, spec: RunSpec) -> None:
        task = self.task = fn if isinstance(fn, Task) else None
        self.name, self.spec = name, spec
        self.retry_on: tuple[type[BaseException], ...] = task.retry_on if task else (Exception,)
        self.fatal_on: tuple[type[BaseException], ...] = task.fatal_on if task else ()
        if task is not None:
            self.codec, self.is_async = task.signature.returns, isinstance(task, AsyncTask)
        else:
            self.codec, self.is_async = _codec_of(fn), inspect.iscoroutinefunction(fn)


class Work:
    """A function that runs here, as a step, with its arguments."""

    __slots__ = ("args", "fn", "kwargs", "shape")

    def __init__(self, fn: Any, shape: Shape, args: Any, kwargs: Any) -> None:
        self.fn, self.shape, self.args, self.kwargs = fn, shape, args, kwargs


class Context:
    """What a workflow's code works with."""

    #: Told from the types of arguments by this: nobody gives it as one.
    _weft_context = True

    def __init__(self, program: Program, workflow: Workflow[Any, Any], spec: RunSpec, options: Any = None) -> None:
        self._program, self._workflow, self._spec, self._options = program, workflow, spec, options or {}
        self._undo: list[tuple[Context, Any, tuple[Any, ...], dict[str, Any]]] = []

    @property
    def run_id(self) -> str:
        """The id of this run."""
        return self._program.run

    @property
    def is_closed(self) -> bool:
        """Whether this code is let go: it goes on elsewhere, from the journal."""
        return self._program.closed

    @property
    def tags(self) -> dict[str, str]:
        """The tags of this run."""
        return self._spec.tags

    def options(self, **options: Unpack[ContextOptions]) -> Context:
        """Returns the context with options for what is asked by it: `ctx.options(retries=3, name="charge").step(…)`."""
        known = ContextOptions.__annotations__
        for option in options:
            if option not in known:
                raise InvalidOption(
                    f"there is no option {option!r}; known are {', '.join(sorted(known))}", option=option
                )
        if options.get("name") == "":  # as if none was given, it would be named after its function
            check_name("", what="name")
        bound = Context(self._program, self._workflow, self._spec, {**self._options, **options})
        bound._undo = self._undo
        return bound

    # --- work -------------------------------------------------------------------------------------

    @overload
    def step(
        self, fn: Callable[P, Coroutine[Any, Any, R]], /, *args: P.args, **kwargs: P.kwargs
    ) -> asyncio.Future[R]: ...
    @overload
    def step(self, fn: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> asyncio.Future[R]: ...
    def step(self, fn: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Runs a function or task here; its result is in the journal before the next line runs. Then it never runs again."""
        shape = None if self._options else _shapes.get(fn)
        if shape is None:
            shape = self._shape(fn, "step")
        work = Work(self._workflow._function(shape, fn), shape, args, kwargs)
        return self._program.ask("step", shape.name, work, shape.codec.decode).future

    def _shape(self, fn: Any, verb: str) -> Shape:
        """Finds out how a function or task runs as a step, with the options of this context."""
        chosen = self._chosen(verb, _STEP)
        task = fn if isinstance(fn, Task) else None
        if task is not None and task.batching is not None:
            raise InvalidArguments(
                f"task {task.name} works in batches: a step is one call; use ctx.call, or its function"
            )
        if not callable(fn) or _is_workflow(fn):
            instead = ": it runs by ctx.child" if _is_workflow(fn) else ""
            raise InvalidArguments(f"ctx.{verb} takes a function or a task, not {fn!r}{instead}")
        name = self._name(chosen.pop("name", None) or (task.name if task else getattr(fn, "__name__", "")), verb)
        retry_on, fatal_on = chosen.pop("retry_on", None), chosen.pop("fatal_on", None)
        base = task.spec if task else RunSpec(name)
        shape = Shape(fn, name, call_spec(base, chosen) if chosen else base)
        if retry_on is not None:
            shape.retry_on = exception_classes(retry_on, "retry_on")
        if fatal_on is not None:
            shape.fatal_on = exception_classes(fatal_on, "fatal_on")
        if not self._options:
            _shapes.keep(fn, shape)
        return shape

    def call(self, task: Task[P, R], /, *args: P.args, **kwargs: P.kwargs) -> asyncio.Future[R]:
        """Runs a task on any worker, as a step of this run. The arguments are checked against its signature now."""
        chosen = self._chosen("call", _CALL)
        if not isinstance(task, Task):
            instead = "it runs by ctx.child" if _is_workflow(task) else "a plain function runs here, by ctx.step"
            raise InvalidArguments(f"ctx.call takes a task, not {task!r}: {instead}")
        if task.uniqueness is not None or task.batching is not None:
            raise InvalidArguments(
                f"task {task.name} has unique_for, throttle, debounce or batch, which count calls of its own; a call of a"
                " workflow is one: use a task without them"
            )
        name = self._name(chosen.pop("name", None) or task.name, "call")
        data = task.signature.encode(args, kwargs)
        spec = call_spec(task.spec, chosen) if chosen else task.spec
        if task.gating is not None:
            spec = task._gated(task.gating, spec, args, kwargs)
        mark = call_mark(self._spec.queue, self._spec.priority)
        spec = msgspec.structs.replace(spec, key="", delay_ms=0, due_ms=0, deadline_ms=0, flow=mark, tags=self.tags)
        return self._program.ask("call", name, work=(spec, data), decode=task.signature.returns.decode).future  # type: ignore[return-value]

    def child(self, workflow: Workflow[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Child[R]:
        """Starts a workflow as a run of its own; await what this returns for its result."""
        from weft.sdk.workflow import Workflow, child_spec, gated

        chosen = self._chosen("child", _CHILD)
        if not isinstance(workflow, Workflow):
            raise InvalidArguments(f"ctx.child takes a workflow, not {workflow!r}: a task runs by ctx.call")
        named, partitions = chosen.get("id"), self._program.partitions
        policy = chosen.pop("on_parent_close", "cancel")
        if policy not in ("cancel", "leave"):
            raise InvalidOption(f"on_parent_close must be cancel or leave, not {policy!r}", option="on_parent_close")
        name = self._name(chosen.pop("name", None) or workflow.name, "child")
        if workflow.uniqueness is not None:
            raise InvalidArguments(
                f"workflow {workflow.name} has unique_for or throttle, which count starts of its own; a child is one: use"
                " ctx.options(id=…), or a workflow without them"
            )
        data = workflow.signature.encode(args, kwargs)
        command = self._program.ask("child", name, decode=workflow.signature.returns.decode)
        id = child_run_id(self.run_id, command.key, 1)
        if (
            named and partitions > 1
        ):  # where everybody looks for a run with this id; else a child lives beside its parent
            id = moved_to(id, home_of_key(id_digest(named), partitions))
        spec = gated(workflow, child_spec(workflow, chosen, parent=self.run_id, key=command.key), args, kwargs)
        command.work = (id, spec, data, policy)
        return Child(self, command, id)

    def map(self, task: Task[Any, R], items: Iterable[Any], *, max_parallel: int = 50) -> asyncio.Future[list[R]]:
        """Calls a task for every item, so many at a time; gives the results in order. The first failure ends the others."""
        if not isinstance(max_parallel, int) or max_parallel < 1:
            raise InvalidOption(f"max_parallel must be a whole number from 1 on, not {max_parallel!r}")
        work = call_all(functools.partial(self.call, task), list(items), max_parallel)
        return self._program.loop.create_task(work)  # type: ignore[no-any-return]

    def gather(self, *awaitables: Awaitable[Any]) -> asyncio.Future[list[Any]]:
        """Waits for all; gives their results in order."""
        self._chosen("gather", _NONE)
        return asyncio.gather(*awaitables)

    def race(self, *awaitables: Awaitable[Any]) -> asyncio.Future[tuple[int, Any]]:
        """Waits for the first; gives its place and its result. The others are cancelled; signals that came for them stay."""
        if not awaitables:
            raise InvalidArguments("ctx.race needs somebody to race")
        self._chosen("race", _NONE)
        return race(self._program, awaitables)

    # --- waiting ----------------------------------------------------------------------------------

    def sleep(self, duration: Duration) -> asyncio.Future[None]:
        """Waits, without a worker; a restart changes nothing about when it ends."""
        self._chosen("sleep", _NONE)
        due_ms = self._program.now_ms + parse_duration_ms(duration, what="ctx.sleep(…)")
        return self._program.ask("timer", "$sleep", due_ms=max(1, due_ms)).future  # type: ignore[return-value]

    def receive(self, name: str, *, type: Any = None, timeout: Duration | None = None) -> asyncio.Future[Any]:
        """Waits for a signal. One that came early is there; several come in order. Raises TimeoutError."""
        self._chosen("receive", _NONE)
        check_name(name, what="signal")
        codec = TypeCodec(type, what=f"signal {name}")
        future = self._program.ask("receive", f"$signal:{name}", decode=codec.decode).future
        assert future is not None
        if timeout is None:
            return future
        limit_ms = parse_duration_ms(timeout, what="timeout")
        first = self.race(future, self.sleep(limit_ms / 1000))
        task = self._program.loop.create_task(_within(first, limit_ms, name))
        task.stands_for = [first]
        # Also one that is cancelled before it begins.
        task.add_done_callback(lambda done: give_up(self._program, first) if done.cancelled() else None)
        return task  # type: ignore[no-any-return]

    def approve(
        self,
        title: str,
        *,
        show: Any = None,
        approvers: Sequence[str] = (),
        quorum: int = 1,
        form: Mapping[str, Any] | None = None,
        timeout: Duration | None = None,
        reminders: Sequence[Duration] = (),
    ) -> asyncio.Future[Decision]:
        """Waits for people: gives `{decision, by, at, comment, form}`, which is true when they approved. Raises TimeoutError.

        They decide by `weft approvals` or `app.approvals`; the approval's id is `<run>/<name>`.
        """
        name = self._name(self._chosen("approve", _APPROVAL).get("name") or "approve", "approve")
        spec = approval_spec(
            self._spec,
            title,
            show=show,
            approvers=approvers,
            quorum=quorum,
            form=form,
            timeout=timeout,
            reminders=reminders,
        )
        decode = functools.partial(read_decision, timeout=timeout)
        return self._program.ask("call", name, work=(spec, spec.input), decode=decode).future  # type: ignore[return-value]

    def signal(self, run: str, name: str, value: Any = None) -> asyncio.Future[bool]:
        """Gives any run a signal, by its id: once, whatever dies meanwhile, and behind those it was given before."""
        self._chosen("signal", _NONE)
        return self._give(run, name, value)

    def _give(self, run: str, name: str, value: Any) -> asyncio.Future[bool]:
        partition_of(run)  # what cannot be an id is refused here
        check_name(name, what="signal")
        pack(value, what=f"the value of signal {name}")  # what cannot be sent is refused here, too
        command, send = self._program.ask("step", "$send"), self._workflow.send
        line = self._program.lines.setdefault(run, asyncio.Lock())
        args = (run, name, value, f"{self.run_id}/{command.key}", line)
        command.work = Work(send, Shape(send, "$send", RunSpec("$send")), args, {})
        return command.future  # type: ignore[return-value]

    # --- what would differ in a replay ------------------------------------------------------------

    def now(self) -> datetime:
        """The time of the last thing that this code was told."""
        return datetime.fromtimestamp(self._program.now_ms / 1000, UTC)

    def uuid(self) -> uuid.UUID:
        """A random id: the same in every replay of this run."""
        return uuid.UUID(int=self._program.random.getrandbits(128), version=4)

    def random(self) -> float:
        """A random number from 0 to 1: the same in every replay of this run."""
        return self._program.random.random()

    def changed(self, marker: str) -> bool:
        """Marks a change of the code: False for runs that were here before it, for good; True for all others."""
        return self._program.changed(check_name(marker, what="marker"))

    # --- what others see --------------------------------------------------------------------------

    def set_state(self, **state: Any) -> None:
        """Changes what `run.state()` gives, from the next commit on."""
        program = self._program
        changed = {**program.state, **state}
        data = encode_plain(changed, what="the state of the run")
        if len(data) > MAX_STATE:
            raise PayloadTooLarge(f"the state of a run takes at most {MAX_STATE} bytes, this one {len(data)}")
        # As it is now: the code may go on with its lists and dicts, and what it makes of them is shown when it says so.
        program.state, program.state_changed = decode_plain(data), not program.replaying or program.state_changed

    @property
    def log(self) -> TaskLog:
        """A logger whose lines stay with the run; silent while the code only repeats what it did, and once it is let go."""
        return (
            _SILENT
            if self._program.replaying or self._program.closed
            else TaskLog(self._workflow.name, self.run_id, 1, self._program.keep_line)
        )

    # --- ends -------------------------------------------------------------------------------------

    def shield(self) -> Shield:
        """`async with ctx.shield():` a cancellation waits until the block is over."""
        return Shield()

    def on_failure(self, undo: Any, /, *args: Any, **kwargs: Any) -> None:
        """Has a function or task called, as a step, should this run fail or be cancelled; the last one first.

        With the options of the context that it is asked by, as a step has them.
        """
        # What could not be called is refused here: later nobody would be left to hear of it.
        if self._options or _shapes.get(undo) is None:
            self._shape(undo, "on_failure")
        self._undo.append((self, undo, args, kwargs))

    async def undo_all(self) -> None:
        """Calls what `on_failure` was given. One that fails does not keep the others from being called."""
        if not self._undo:
            return
        async with self.shield():
            while self._undo:
                context, undo, args, kwargs = self._undo.pop()
                try:
                    await context.step(undo, *args, **kwargs)
                except Exception as error:  # noqa: BLE001 - the others are undone all the same
                    self.log.error("could not undo: %s", error)

    def continue_as_new(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Ends this execution and begins another of the same run, with these arguments and an empty journal.

        It does not return: the code is left as by an exception, so `finally` does its work. Id, state, deadline and signals
        that nobody received stay; calls and children that are under way end as they do with the run.
        """
        program = self._program
        self._chosen("continue_as_new", _NONE)
        if asyncio.current_task() is not program.main:
            raise UserError("ctx.continue_as_new must be called by the workflow itself, not by a task or handler of it")
        if busy := len(program.updates.running):
            raise UserError(
                f"ctx.continue_as_new: {busy} updates are at work, and what they change would be lost:"
                " `await ctx.updates_done()` first"
            )
        program.renewal = self._workflow.signature.encode(args, kwargs)
        raise ContinuedAsNew

    @property
    def history_length(self) -> int:
        """How many entries the journal has: `ctx.continue_as_new` begins a new one, and 50,000 are the limit."""
        return self._program.entries

    def updates_done(self) -> asyncio.Future[None]:
        """Waits until no update is at work."""
        return self._program.updates.done()

    def on_update(
        self, name: str, handler: Callable[..., Any], *, validate: Callable[[Any], Any] | None = None
    ) -> None:
        """Has a function answer `run.update(name, value)`: its value and answer are what the function's annotations say.

        Updates that came before wait for this. `validate` gets the value first, and refuses it by raising.
        """
        self._chosen("on_update", _NONE)
        self._program.updates.add(check_name(name, what="update"), handler, validate)

    # --- helpers ----------------------------------------------------------------------------------

    def _chosen(self, verb: str, allowed: frozenset[str]) -> dict[str, Any]:
        for option in self._options:
            if option not in allowed:
                own = f"; give it there: ctx.{verb}(…, timeout=…)" if (verb, option) in _OWN_TIMEOUT else ""
                raise InvalidOption(f"ctx.options({option}=…) means nothing for ctx.{verb}{own}", option=option)
        return dict(self._options)

    def _name(self, name: str, verb: str) -> str:
        if name in _names:
            return name
        if name in ("", "<lambda>"):
            kind = "a lambda" if name else "this object"
            raise InvalidArguments(f"{kind} has no name to be remembered by: ctx.options(name='…').{verb}(…)")
        check_name(name, what="name of the " + {"approve": "approval", "on_failure": "step"}.get(verb, verb))
        if len(_names) < MAX_NAMES:
            _names.add(name)
        return name


def _is_workflow(thing: Any) -> bool:
    from weft.sdk.workflow import Workflow

    return isinstance(thing, Workflow)


class _SilentLog(TaskLog):
    """Logs nothing: what the code repeats was logged before."""

    def _write(self, level: int, msg: object, args: tuple[object, ...], fields: dict[str, Any]) -> None:
        return None


_SILENT = _SilentLog("", "", 1, lambda line: None)


async def _within(first: asyncio.Future[tuple[int, Any]], limit_ms: int, name: str) -> Any:
    i, value = await first
    if i == 1:
        raise TimeoutError(f"signal {name} did not come within {format_duration(limit_ms)}")
    return value


#: Names that are remembered.
MAX_NAMES = 10_000

#: Names of steps that are well formed.
_names: set[str] = set()
#: How functions and tasks run as steps without options.
_shapes: Remembered[Shape] = Remembered()
_PLAIN = TypeCodec(what="what the step returned")


def _codec_of(fn: Any) -> TypeCodec:
    """Returns how what a plain function returns is kept."""
    try:
        hint = typing.get_type_hints(fn).get("return") if getattr(fn, "__annotations__", None) else None
    except NameError:
        hint = None
    return TypeCodec(hint, what=f"what {getattr(fn, '__name__', 'the step')} returned") if hint else _PLAIN
