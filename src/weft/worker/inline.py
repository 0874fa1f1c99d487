"""One attempt of a step that runs where its workflow does."""

from __future__ import annotations

import asyncio
import inspect
import random
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from weft.core.effects import step_id
from weft.core.flow import Added, Entry
from weft.core.model import INLINE_BYTES, ErrorRecord, RunSpec, Token, Value
from weft.core.retry import next_delay_ms
from weft.core.steering import Sequel
from weft.engine import steps
from weft.sdk.current import CURRENT, Current
from weft.worker.hooks import call_before, call_behind
from weft.worker.processes import RemoteFailure

if TYPE_CHECKING:
    from weft.sdk.commands import Command
    from weft.sdk.context import Shape, Work
    from weft.worker.execute import Execution, Executor

#: Milliseconds from which a time limit is looked at now and then, not to the millisecond; seconds between two looks.
COARSE_MS, LOOK = 5_000, 0.1

_pack = msgspec.msgpack.Encoder().encode


async def run_step(executor: Executor, execution: Execution, command: Command, now_ms: Callable[[], int]) -> Added:
    """Runs one attempt; returns the entry that tells how it ended: completed, failed, or to be tried again later."""
    work: Work = command.work
    shape, started_ms, hooks, limits = work.shape, now_ms(), executor._hooks, executor.flows.limits
    here = Here(execution, command, started_ms)
    CURRENT.set(here)
    facts = f"step={command.key},attempt={command.attempt},started={started_ms}"
    task: Any = asyncio.current_task()
    timed_out = False
    if shape.spec.timeout_ms:
        limits.set(task, shape.spec.timeout_ms)
    try:
        if hooks.before:
            await call_before(hooks.before, here())
        data = await _invoke(executor, execution, work, here)
        timed_out = limits.lift(task)
        if hooks.after:
            await call_behind(hooks.after, here(), shape.codec.decode(data))
        if len(data) <= INLINE_BYTES:
            return Added(Entry(0, "completed", command.key, "", _pack(Value(data))), f"step_completed|{facts}")
        outcome = await executor.insist(lambda: steps.completed(executor._ns, execution.token, data, 0))
        entry = Entry(0, "completed", command.key, "", outcome.value)
        return Added(entry, f"step_completed|{facts}", outcome.blob, data=data)
    except BaseException as error:
        timed_out = limits.lift(task) or timed_out
        if isinstance(error, asyncio.CancelledError) and task.cancelling() > timed_out:
            raise  # nobody wants it any more
        sequel = _sequel(error, shape, timed_out=timed_out)
        if hooks.on_error and sequel.kind not in ("snooze", "discard"):
            await call_behind(hooks.on_error, here(), error)
        return _failed(command, shape.spec, sequel, facts, now_ms())


class Here:
    """Makes what the step knows about itself, when it asks: most never do."""

    __slots__ = ("_command", "_execution", "_made", "_started_ms")

    def __init__(self, execution: Execution, command: Command, started_ms: int) -> None:
        self._execution, self._command, self._started_ms = execution, command, started_ms
        self._made: Current | None = None

    def __call__(self) -> Current:
        if self._made is None:
            self._made = Current(self.token(), self.report, self._execution.keep)
        return self._made

    def token(self) -> Token:
        own, command = self._execution.token, self._command
        step, spec = step_id(own.run, command.key), command.work.shape.spec
        return Token(own.partition, own.epoch, step, own.entry, own.delivery, command.attempt, spec, self._started_ms)

    def report(self, text: str) -> None:
        self._execution._report(self._execution, text)


class Limits:
    """Time limits of running steps. Most are long and lifted soon: those share one timer that looks now and then."""

    def __init__(self) -> None:
        #: When the time of a task is over.
        self._long: dict[asyncio.Task[Any], float] = {}
        self._short: dict[asyncio.Task[Any], asyncio.TimerHandle] = {}
        self._over: set[asyncio.Task[Any]] = set()
        self._looking: asyncio.TimerHandle | None = None

    def set(self, task: asyncio.Task[Any], ms: int) -> None:
        """Has a task cancelled when its time is over, unless the limit is lifted before. A cheap `asyncio.timeout`."""
        loop = task.get_loop()
        if ms < COARSE_MS:
            self._short[task] = loop.call_later(ms / 1000, self._end, task)
            return
        self._long[task] = loop.time() + ms / 1000
        if self._looking is None:
            self._looking = loop.call_later(LOOK, self._look, loop)

    def put_off(self, task: asyncio.Task[Any]) -> None:
        """Takes the limit of a task away until it is set again."""
        if self._long.pop(task, None) is None and (timer := self._short.pop(task, None)) is not None:
            timer.cancel()

    def lift(self, task: asyncio.Task[Any]) -> bool:
        """Lifts the limit of a task; returns whether its time was over."""
        self.put_off(task)
        if not self._over or task not in self._over:
            return False
        self._over.discard(task)
        return True

    def _end(self, task: asyncio.Task[Any]) -> None:
        self._short.pop(task, None)
        self._over.add(task)
        task.cancel()

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        now = loop.time()
        for task in [task for task, due in self._long.items() if due <= now]:
            del self._long[task]
            self._end(task)
        self._looking = loop.call_later(LOOK, self._look, loop) if self._long else None


async def _invoke(executor: Executor, execution: Execution, work: Work, here: Here) -> bytes:
    shape, kwargs = work.shape, work.kwargs
    if (task := shape.task) is not None:
        if task.pool == "process":
            data = task.signature.encode(work.args, kwargs)
            current: Any = asyncio.current_task()
            limits, ms = executor.flows.limits, shape.spec.timeout_ms
            limits.put_off(current)
            return await executor.processes.run(
                task,
                here.token(),
                data,
                here.report,
                execution.keep,
                lambda: limits.set(current, ms) if ms else None,
            )
        if task.needs:
            kwargs = {**kwargs, **await executor.resources.of(task)}
    if shape.is_async:
        return shape.codec.encode(await work.fn(*work.args, **kwargs))
    result = await executor.threads.run(lambda: work.fn(*work.args, **kwargs))
    if inspect.isawaitable(result):
        result = await result
    return shape.codec.encode(result)


def _sequel(error: BaseException, shape: Shape, *, timed_out: bool) -> Sequel:
    if timed_out:
        text = f"the attempt took longer than its timeout of {shape.spec.timeout_ms / 1000:g} s"
        return Sequel("retry", ErrorRecord("TimeoutError", text, code="timeout"))
    if isinstance(error, RemoteFailure):
        return error.sequel
    return steps.sequel_of(error, shape.retry_on, shape.fatal_on)


def _failed(command: Command, spec: RunSpec, sequel: Sequel, facts: str, now_ms: int) -> Added:
    packed, attempt = _pack(sequel.record), command.attempt
    delay_ms: int | None = None
    if sequel.kind == "snooze":
        delay_ms = sequel.after_ms or 0
    elif sequel.kind == "retry":
        delay_ms = next_delay_ms(spec, attempt, random.random())
        if delay_ms is not None:
            attempt += 1
            delay_ms = delay_ms if sequel.after_ms is None else sequel.after_ms
    if delay_ms is None:
        return Added(Entry(0, "failed", command.key, "", packed), f"step_failed|{facts}")
    entry = Entry(0, "retrying", command.key, f"{max(1, now_ms + delay_ms)} {attempt}", packed)
    due, following = entry.more.split(" ")
    return Added(entry, f"step_retrying|{facts},after_ms={delay_ms},due={due},next={following}")
