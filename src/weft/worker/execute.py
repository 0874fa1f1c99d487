"""Executes one token: find the task, decode its arguments, run it under its time limit, turn the end into an outcome."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from weft.core.model import ErrorRecord, Outcome, Token
from weft.engine import steps
from weft.sdk.current import CURRENT, Current
from weft.sdk.task import AsyncTask, Task
from weft.worker.processes import Processes, RemoteFailure
from weft.worker.threads import Threads

if TYPE_CHECKING:
    from weft.sdk.app import Weft

#: Seconds a token of a task this worker does not know waits before it is offered again.
UNKNOWN_TASK_DELAY_MS = 1_000

#: Why an execution was stopped from outside.
TIMED_OUT, LOST, DRAINED = "timed out", "lost", "drained"


class Execution:
    """One attempt under way."""

    __slots__ = ("began", "loop_task", "progress", "reported", "started_ms", "token", "verdict")

    def __init__(self, token: Token) -> None:
        self.token = token
        self.began = time.monotonic()
        self.started_ms = token.claimed_ms
        self.loop_task: asyncio.Task[None] | None = None
        self.verdict = ""
        self.progress = ""
        self.reported = False

    def stop(self, verdict: str) -> None:
        """Cancels the attempt; the first verdict stands."""
        if not self.verdict:
            self.verdict = verdict
            if self.loop_task is not None:
                self.loop_task.cancel()


class Executor:
    """Runs steps of one app: async functions on the loop, plain ones in threads or processes."""

    def __init__(self, app: Weft, ns: Any, report: Callable[[Execution, str], None]) -> None:
        self._app, self._ns, self._report = app, ns, report
        self._loop = asyncio.get_running_loop()
        self.threads = Threads()
        self.processes = Processes()

    async def execute(self, execution: Execution) -> Outcome | None:
        """Runs one attempt to its end; None when the outcome is no longer anybody's business here."""
        token = execution.token
        task = self._app.tasks.get(token.spec.name)
        if task is None:
            return steps.returned(token, "unknown task", execution.started_ms, delay_ms=UNKNOWN_TASK_DELAY_MS)
        timer = None
        if token.spec.timeout_ms:
            timer = self._loop.call_later(token.spec.timeout_ms / 1000, execution.stop, TIMED_OUT)
        try:
            data = token.spec.input if not token.spec.blob else await steps.input_bytes(self._ns, token)
            result = await self._call(task, execution, data)
            if execution.verdict:  # it swallowed the cancellation
                return self._stopped(execution)
            if len(result) <= steps.INLINE_BYTES:
                return steps.completed_inline(token, result, execution.started_ms)
            return await steps.completed(self._ns, token, result, execution.started_ms)
        except asyncio.CancelledError as error:
            return self._stopped(execution, error)
        except BaseException as error:  # noqa: BLE001 - whatever user code raises is the step's outcome
            if execution.verdict:
                return self._stopped(execution)
            return self._failed(task, execution, error)
        finally:
            if timer is not None:
                timer.cancel()

    async def _call(self, task: Task[Any, Any], execution: Execution, data: bytes) -> bytes:
        CURRENT.set(Current(execution.token, lambda text: self._from_anywhere(execution, text)))
        signature = task.signature
        if isinstance(task, AsyncTask):
            args, kwargs = signature.decode(data)
            return signature.returns.encode(await task.fn(*args, **kwargs))
        if task.pool == "process":
            return await self.processes.run(task, execution.token, data, lambda text: self._report(execution, text))

        def work() -> bytes:
            args, kwargs = signature.decode(data)
            return signature.returns.encode(task.fn(*args, **kwargs))

        return await self.threads.run(work)  # type: ignore[no-any-return]

    def _from_anywhere(self, execution: Execution, text: str) -> None:
        self._loop.call_soon_threadsafe(self._report, execution, text)

    def _stopped(self, execution: Execution, error: BaseException | None = None) -> Outcome | None:
        token = execution.token
        if execution.verdict == TIMED_OUT:
            limit = token.spec.timeout_ms / 1000
            record = ErrorRecord("TimeoutError", f"the attempt took longer than its timeout of {limit:g} s", code="timeout")
            return steps.failed(token, record, execution.started_ms, retryable=True)
        if execution.verdict == DRAINED:
            return steps.returned(token, "worker stopped", execution.started_ms)
        if execution.verdict == LOST:
            return None
        # Nobody stopped it: user code raised CancelledError itself.
        record = steps.record_of(error or asyncio.CancelledError("cancelled from within"))
        return steps.failed(token, record, execution.started_ms, retryable=True)

    def _failed(self, task: Task[Any, Any], execution: Execution, error: BaseException) -> Outcome:
        if isinstance(error, RemoteFailure):
            record, retryable = error.record, error.retryable
        else:
            record, retryable = steps.record_of(error), steps.is_retryable(error, task.retry_on, task.fatal_on)
        return steps.failed(execution.token, record, execution.started_ms, retryable=retryable)

    def close(self) -> None:
        self.threads.close()
        self.processes.close()
