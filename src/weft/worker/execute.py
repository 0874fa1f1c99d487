"""Executes one token: find the task, decode its arguments, run it under its time limit, turn the end into an outcome."""

from __future__ import annotations

import asyncio
import inspect
import itertools
import os
import time
import traceback
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeVar

from weft.clock import backoff
from weft.core.effects import PAUSE, ROUTE, SUBGRAPH, NodeEnd, run_of, step_of
from weft.core.flow import FlowRecord
from weft.core.model import INLINE_BYTES, ErrorRecord, Outcome, RunSpec, Token
from weft.core.routing import HTTP
from weft.core.steering import Sequel
from weft.core.waits import WAITS
from weft.engine import steps
from weft.engine.gates import look_again
from weft.engine.graphs import Follower
from weft.engine.runs import failure_of
from weft.engine.subgraphs import tend_child
from weft.engine.waits import park
from weft.errors import Unavailable, WeftError
from weft.sdk.current import CURRENT, Current
from weft.sdk.task import AsyncTask, Task
from weft.sdk.tasklog import Lines
from weft.telemetry import get_logger
from weft.worker.batches import Batches
from weft.worker.flows import Flows
from weft.worker.hooks import call_before, call_behind
from weft.worker.others import Others
from weft.worker.processes import Processes, RemoteFailure
from weft.worker.resources import Resources
from weft.worker.threads import Threads, end_copy
from weft.worker.verdicts import DRAINED, LOST, PAUSED, TIMED_OUT

if TYPE_CHECKING:
    from weft.nodes.step import HttpStep
    from weft.sdk.app import Weft

T = TypeVar("T")

log = get_logger("weft.worker")

#: Task names of steps that only decide what follows.
_DECIDING = frozenset({ROUTE, PAUSE, *WAITS})

#: Seconds after its cancellation at which code that goes on is told of: by then it is not closing what it opened.
STUBBORN_SECONDS = 10.0


class Execution:
    """One attempt under way."""

    __slots__ = (
        *("_current", "_report", "began", "begun", "limit", "lines", "loop_task", "progress", "started_ms", "token"),
        *("cleared", "lent", "limited", "verdict"),
    )

    def __init__(self, token: Token, report: Callable[[Execution, str], None]) -> None:
        self.token = token
        self._report = report
        self._current: Current | None = None
        self.began = time.monotonic()
        self.started_ms = token.claimed_ms
        self.loop_task: asyncio.Task[None] | None = None
        #: Whether its time is limited, and what ends it then: set when its first turn of the loop was not enough.
        self.limited = False
        self.limit: asyncio.Handle | None = None
        #: Set by the task's first turn: a task cancelled before that would never reach its `finally`.
        self.begun = False
        #: Its slot was given back while it waits for others of its batch.
        self.lent = False
        #: Made by whoever wants to know; set when a commit took its crashes back and it goes on, as a workflow does.
        self.cleared: asyncio.Event | None = None
        self.verdict = ""
        self.progress = ""
        #: What it logged; None until the first line.
        self.lines: Lines | None = None

    def current(self) -> Current:
        """Returns what the step knows about itself."""
        if self._current is None:
            self._current = Current(self.token, lambda text: self._report(self, text), self.keep)
        return self._current

    def keep(self, line: bytes) -> None:
        """Takes a log line, from any thread; it leaves with the next report or the commit."""
        if self.lines is None:
            self.lines = Lines()
        self.lines.add(line)

    def clear(self, moved: bool) -> None:
        """Notes a commit behind which it goes on; one by which it came further took its crashes back."""
        if moved and self.cleared is not None:
            self.cleared.set()

    def lift_limit(self) -> None:
        """Lets what follows take its time: the work itself is done."""
        self.limited = False
        if self.limit is not None:
            self.limit.cancel()

    def stop(self, verdict: str) -> None:
        """Cancels the attempt; the first verdict stands."""
        if not self.verdict:
            self.verdict = verdict
            if self.loop_task is not None and self.begun:
                self.loop_task.cancel()
                if verdict != DRAINED:  # a drain does not wait for it, and says so itself
                    self.loop_task.get_loop().call_later(STUBBORN_SECONDS, self._tell_stubborn)

    def _tell_stubborn(self) -> None:
        if self.loop_task is not None:
            spec = self.token.spec
            log.warning(
                "a step goes on although it was cancelled: it keeps its slot until it lets the CancelledError through",
                task=spec.name,
                run=run_of(self.token.run),
                why=self.verdict,
                where=_awaiting(self.loop_task),
            )


class Executor:
    """Runs steps of one app: async functions on the loop, plain ones in threads or processes."""

    def __init__(self, app: Weft, ns: Any) -> None:
        self._app, self._ns, self._hooks = app, ns, app.hooks
        self._loop = asyncio.get_running_loop()
        self._pid = os.getpid()
        self.threads = Threads()
        self.processes = Processes()
        self.resources = Resources(self.threads.run)
        self.batches = Batches(self)
        #: Repeats a call while the store is away.
        self.insist = insist
        self.others = Others(ns, insist)
        self.flows = Flows(self)
        self._followers: dict[int, Follower] = {}
        #: Attempts that began in this turn of the loop, and their seconds.
        self._fresh: list[tuple[Execution, float]] = []
        #: Who executes, for the log.
        self.session = ""
        self._http: HttpStep | None = None
        self._http_task: Task[Any, Any] | None = None

    async def execute(self, execution: Execution) -> Outcome | NodeEnd | FlowRecord | None:
        """Runs one attempt to its end; None when the outcome is no longer anybody's business here."""
        spec = execution.token.spec
        if spec.flow:
            return await self.flows.execute(execution)
        if not spec.definition:
            return await self._attempt(execution)
        follower = self._follower(execution.token.partition)
        if spec.name in _DECIDING:
            return await self._decide(execution, follower)
        outcome = await (self._child(execution) if spec.name == SUBGRAPH else self._attempt(execution))
        if outcome is None or outcome.kind not in ("completed", "failed", "cancelled"):
            return outcome
        return follower.at_once(outcome) or await self._after(follower, outcome)

    async def _after(self, follower: Follower, ended: Outcome) -> NodeEnd:
        return await _follow(follower, ended.token, lambda: follower.after(ended))

    async def _decide(self, execution: Execution, follower: Follower) -> Outcome | NodeEnd | None:
        """Executes a step that only decides what follows, once nothing is waited for any more."""
        token = execution.token
        execution.begun = True
        if execution.verdict:
            return await self._stopped(execution)
        if token.spec.name in WAITS and not await insist(lambda: park(self._ns, token, by=self.session)):
            return None
        return await _follow(follower, token, lambda: follower.route(token, execution.started_ms))

    async def _child(self, execution: Execution) -> Outcome | None:
        execution.begun = True
        if execution.verdict:
            return await self._stopped(execution)
        token = execution.token
        return await insist(lambda: tend_child(self._ns, token.partition, token, execution.started_ms))

    def _builtin(self, name: str) -> Task[Any, Any] | None:
        """Returns a task that every worker has: what nodes of graphs do that call none of the app's."""
        if name != HTTP:
            return None
        if self._http is None:
            from weft.nodes.step import HttpStep

            self._http = HttpStep()
            # Not registered with the app: nobody enqueues it.
            self._http_task = AsyncTask(
                self._app,
                self._http.__call__,
                name=HTTP,
                aliases=(),
                pool=None,
                retry_on=(Exception,),
                fatal_on=(),
                spec=RunSpec(HTTP),
            )
        return self._http_task

    def _follower(self, p: int) -> Follower:
        found = self._followers.get(p)
        if found is None:
            found = self._followers[p] = Follower(self._ns, p)
        return found

    async def _attempt(self, execution: Execution) -> Outcome | None:
        token = execution.token
        execution.begun = True
        if execution.verdict:
            return await self._stopped(execution)
        task = self._app.tasks.get(token.spec.name) or self._builtin(token.spec.name)
        if task is None:
            return await self.others.leave(execution, "unknown task", by=self.session)
        self.limit(execution)
        try:
            data = token.spec.input if not token.spec.blob else await insist(lambda: steps.input_bytes(self._ns, token))
            if self._hooks.before:
                CURRENT.set(execution.current)
                await call_before(self._hooks.before, execution.current())
            if isinstance(task, AsyncTask) and task.batching is None:
                # Not in a coroutine of its own: most steps are short, and a coroutine would cost as much as the step itself.
                CURRENT.set(execution.current)
                args, kwargs = task.signature.decode(data, formed=token.spec.formed)
                if task.needs:
                    kwargs |= await self.resources.of(task)
                result = task.signature.returns.encode(await task.fn(*args, **kwargs))
            else:
                result = await self._call(task, execution, data)
            end_copy(self._pid)
            if execution.verdict:  # it swallowed the cancellation
                return await self._stopped(execution)
            if self._hooks.after:
                execution.lift_limit()
                await call_behind(self._hooks.after, execution.current(), task.signature.returns.decode(result))
            if len(result) <= INLINE_BYTES:
                return steps.completed_inline(token, result, execution.started_ms)
            execution.lift_limit()
            return await insist(lambda: steps.completed(self._ns, token, result, execution.started_ms))
        except BaseException as error:  # noqa: BLE001 - whatever user code raises is the step's outcome
            # A CancelledError without a verdict is user code's own: nobody stopped the attempt.
            return await self._failed(task, execution, error)
        finally:
            execution.lift_limit()

    def limit(self, execution: Execution) -> None:
        """Gives an attempt its time, from now on."""
        ms = execution.token.spec.timeout_ms
        if not ms:
            return
        execution.limited = True
        if not self._fresh:
            self._loop.call_soon(self._set_limits)
        self._fresh.append((execution, ms / 1000))

    def _set_limits(self) -> None:
        """Sets timers for attempts that did not end in their first turn of the loop; for those that do they cost too much."""
        fresh, self._fresh = self._fresh, []
        for execution, seconds in fresh:
            if execution.limited:
                if execution.limit is not None:
                    execution.limit.cancel()
                execution.limit = self._loop.call_later(seconds, execution.stop, TIMED_OUT)

    async def look_again(self, p: int, tokens: list[Token]) -> tuple[list[Token], list[Token]]:
        """Returns which steps that waited here may begin, and which belong to a queue that was paused since."""
        return await insist(lambda: look_again(self._ns, p, tokens, session=self.session))

    async def _call(self, task: Task[Any, Any], execution: Execution, data: bytes) -> bytes:
        if task.batching is not None:
            return await self.batches.call(execution, task, data)
        CURRENT.set(execution.current)
        signature = task.signature
        if task.pool == "process":
            # Neither the wait for a free process nor its start is time that the function takes.
            execution.lift_limit()
            return await self.processes.run(
                task,
                execution.token,
                data,
                lambda text: execution._report(execution, text),
                execution.keep,
                lambda: self.limit(execution),
            )
        given = await self.resources.of(task) if task.needs else {}

        def work() -> tuple[bytes, Any]:
            args, kwargs = signature.decode(data, formed=execution.token.spec.formed)
            kwargs |= given
            result = task.fn(*args, **kwargs)
            return (b"", result) if inspect.isawaitable(result) else (signature.returns.encode(result), None)

        packed: bytes
        packed, awaitable = await self.threads.run(work)
        if awaitable is None:
            return packed
        # A plain function around an `async def`, such as a decorator leaves: what it began goes on here, on the loop.
        return signature.returns.encode(await awaitable)

    async def _stopped(self, execution: Execution) -> Outcome | None:
        execution.lift_limit()
        token = execution.token
        if execution.verdict == TIMED_OUT:
            limit = token.spec.timeout_ms / 1000
            record = ErrorRecord(
                "TimeoutError", f"the attempt took longer than its timeout of {limit:g} s", code="timeout"
            )
            if self._hooks.on_error:
                await self._tell_error(execution, TimeoutError(record.message))
            return self._conclude(execution, Sequel("retry", record))
        if execution.verdict == DRAINED:
            return steps.returned(token, "worker stopped", execution.started_ms)
        if execution.verdict == PAUSED:
            return steps.returned(token, "queue paused", execution.started_ms)
        assert execution.verdict == LOST
        return None

    async def _tell_error(self, execution: Execution, error: BaseException) -> None:
        """Calls the error hooks. An error from another process comes as whoever waits for the run would get it."""
        if isinstance(error, RemoteFailure):
            error = failure_of(error.sequel.record, execution.token.run)
        await call_behind(self._hooks.on_error, execution.current(), error)

    async def _failed(self, task: Task[Any, Any], execution: Execution, error: BaseException) -> Outcome | None:
        end_copy(self._pid)
        execution.lift_limit()
        if execution.verdict:
            return await self._stopped(execution)
        known = error.sequel if isinstance(error, RemoteFailure) else None
        sequel = known or steps.sequel_of(error, task.retry_on, task.fatal_on)
        # A task that snoozes or discards its run has not failed.
        if self._hooks.on_error and sequel.kind not in ("snooze", "discard"):
            await self._tell_error(execution, error)
        return self._conclude(execution, sequel)

    def _conclude(self, execution: Execution, sequel: Sequel) -> Outcome:
        token, record = execution.token, sequel.record
        outcome = steps.concluded(token, sequel, execution.started_ms)
        facts: dict[str, Any] = {"task": token.spec.name, "run": run_of(token.run)}
        if step := step_of(token.run):
            facts["step"] = step
        facts |= {"attempt": token.attempt, "error": f"{record.type}: {record.message}"}
        if outcome.kind == "failed":
            log.warning("a step failed" if step else "a run failed", **facts)
        elif outcome.kind in ("snoozed", "cancelled"):
            log.info("a task put itself off" if outcome.kind == "snoozed" else "a task discarded its run", **facts)
        else:
            log.info("an attempt failed; there will be another", **facts, after_ms=outcome.after_ms)
        return outcome

    async def close(self) -> None:
        self.flows.close()
        await self.processes.close()
        if self._http is not None:
            await self._http.close()
        await self.resources.close()
        self.threads.close()


def _awaiting(task: asyncio.Task[Any]) -> str:
    """Names the line of the app's code at which a task waits."""
    found = "unknown"
    inner: Any = task.get_coro()
    while inner is not None and (frame := getattr(inner, "cr_frame", None)) is not None:
        if not frame.f_code.co_filename.startswith(steps.PACKAGE):
            found = f"{frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_name}"
            break
        inner = getattr(inner, "cr_await", None)
    return found


async def _follow(follower: Follower, token: Token, decide: Callable[[], Awaitable[T]]) -> T:
    """Decides what follows a step, and tries on where something unforeseen prevents it.

    Else the step would be in nobody's hands, and its run stand still until the worker ends.
    """
    for attempt in itertools.count():
        try:
            return await insist(decide)
        except WeftError:
            raise
        except Exception as error:  # noqa: BLE001 - nobody else would go on with the step
            place = traceback.extract_tb(error.__traceback__)[-1]
            log.error(
                "what follows a step cannot be decided; trying on",
                step=token.run,
                error=repr(error),
                at=f"{place.filename}:{place.lineno}",
            )
            follower.forget(run_of(token.run))
            await asyncio.sleep(backoff(attempt, base=0.2, cap=30.0))
    raise AssertionError("unreachable")


async def insist(call: Callable[[], Awaitable[T]]) -> T:
    """Repeats a call while the store is away: that is no fault of the step, so it must not cost it an attempt."""
    for attempt in itertools.count():
        try:
            return await call()
        except Unavailable as error:
            if attempt % 20 == 0:
                log.warning("a large value cannot be moved; trying on", error=error)
            await asyncio.sleep(backoff(attempt))
    raise AssertionError("unreachable")
