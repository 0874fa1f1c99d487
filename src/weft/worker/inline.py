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
from weft.core.model import INLINE_BYTES, ErrorRecord, Token, Value
from weft.core.retry import next_delay_ms
from weft.core.steering import Sequel
from weft.engine import steps
from weft.sdk.current import CURRENT, Current
from weft.worker.hooks import call_before, call_behind
from weft.worker.processes import RemoteFailure

if TYPE_CHECKING:
    from weft.sdk.context import Work
    from weft.sdk.program import Command
    from weft.worker.execute import Execution, Executor

_pack = msgspec.msgpack.Encoder().encode


async def run_step(executor: Executor, execution: Execution, command: Command, now_ms: Callable[[], int]) -> Added:
    """Runs one attempt; returns the entry that tells how it ended: completed, failed, or to be tried again later."""
    work: Work = command.work
    own, started_ms = execution.token, now_ms()
    token = Token(
        *(own.partition, own.epoch, step_id(own.run, command.key), own.entry, own.delivery, command.attempt),
        *(work.spec, started_ms),
    )
    here = Current(token, lambda text: execution._report(execution, text), execution.keep)
    CURRENT.set(lambda: here)
    facts = f"step={command.key},attempt={command.attempt},started={started_ms}"
    try:
        async with asyncio.timeout(work.spec.timeout_ms / 1000 if work.spec.timeout_ms else None) as limit:
            if executor._hooks.before:
                await call_before(executor._hooks.before, here)
            data = await _invoke(executor, execution, work, token)
        if executor._hooks.after:
            await call_behind(executor._hooks.after, here, work.codec.decode(data))
        if len(data) <= INLINE_BYTES:
            return Added(Entry(0, "completed", command.key, "", _pack(Value(data))), f"step_completed|{facts}")
        outcome = await executor.insist(lambda: steps.completed(executor._ns, own, data, 0))
        return Added(Entry(0, "completed", command.key, "", outcome.value), f"step_completed|{facts}", outcome.blob)
    except BaseException as error:
        task = asyncio.current_task()
        if isinstance(error, asyncio.CancelledError) and (
            execution.verdict or (task is not None and task.cancelling())
        ):
            raise  # nobody wants it any more
        sequel = _sequel(error, work, timed_out=isinstance(error, TimeoutError) and limit.expired())
        if executor._hooks.on_error and sequel.kind not in ("snooze", "discard"):
            await call_behind(executor._hooks.on_error, here, error)
        return _failed(command, work, sequel, facts, now_ms())


async def _invoke(executor: Executor, execution: Execution, work: Work, token: Token) -> bytes:
    task, kwargs = work.task, work.kwargs
    if task is not None and task.pool == "process":
        data = task.signature.encode(work.args, kwargs)
        report = lambda text: execution._report(execution, text)  # noqa: E731
        return await executor.processes.run(task, token, data, report, execution.keep)
    if task is not None and task.needs:
        kwargs = {**kwargs, **await executor.resources.of(task)}
    if inspect.iscoroutinefunction(work.fn):
        return work.codec.encode(await work.fn(*work.args, **kwargs))
    result = await executor.threads.run(lambda: work.fn(*work.args, **kwargs))
    if inspect.isawaitable(result):
        result = await result
    return work.codec.encode(result)


def _sequel(error: BaseException, work: Work, *, timed_out: bool) -> Sequel:
    if timed_out:
        limit = work.spec.timeout_ms / 1000
        text = f"the attempt took longer than its timeout of {limit:g} s"
        return Sequel("retry", ErrorRecord("TimeoutError", text, code="timeout"))
    if isinstance(error, RemoteFailure):
        return error.sequel
    return steps.sequel_of(error, work.retry_on, work.fatal_on)


def _failed(command: Command, work: Work, sequel: Sequel, facts: str, now_ms: int) -> Added:
    packed, attempt = _pack(sequel.record), command.attempt
    delay_ms: int | None = None
    if sequel.kind == "snooze":
        delay_ms = sequel.after_ms or 0
    elif sequel.kind == "retry":
        delay_ms = next_delay_ms(work.spec, attempt, random.random())
        if delay_ms is not None:
            attempt += 1
            delay_ms = delay_ms if sequel.after_ms is None else sequel.after_ms
    if delay_ms is None:
        return Added(Entry(0, "failed", command.key, "", packed), f"step_failed|{facts}")
    entry = Entry(0, "retrying", command.key, f"{max(1, now_ms + delay_ms)} {attempt}", packed)
    return Added(entry, f"step_retrying|{facts},after_ms={delay_ms}")


__all__: list[Any] = ["run_step"]
