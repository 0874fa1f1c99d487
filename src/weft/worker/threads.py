"""Threads for plain functions. A function over its time limit is abandoned: its thread goes on, nobody waits for it.

The standard executor would make the process wait for such threads at exit; these are daemons.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import os
import queue
import threading
from collections.abc import Callable
from typing import Any

from weft.telemetry import get_logger

log = get_logger("weft.worker")

Job = tuple[asyncio.AbstractEventLoop, "asyncio.Future[Any]", contextvars.Context, Callable[[], Any]]


class _Here:
    #: The number of this process. Kept, since every step asks, and asking the system costs a call into it.
    pid = os.getpid()


def _note_child() -> None:
    _Here.pid = os.getpid()


os.register_at_fork(after_in_child=_note_child)


def end_copy(owner: int) -> None:
    """Ends a process that is not the worker's own: a step forked, and came back in the child as well.

    The copy has the worker's connections and, on the loop, its steps: it would send results as if it were the worker.
    """
    if _Here.pid != owner:
        log.warning("a step forked, and its child came back as if it were the worker; it ends here", pid=_Here.pid)
        logging.shutdown()
        os._exit(0)


class Threads:
    """Grows by one thread whenever none is idle; the worker's slots bound how many run at once."""

    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._idle = 0
        self._alive = 0
        self._pid = os.getpid()

    async def run(self, work: Callable[[], Any]) -> Any:
        """Runs a function in a thread, in the caller's context; cancelling abandons it."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()
        with self._lock:
            if self._idle > 0:
                self._idle -= 1
            else:
                self._alive += 1
                threading.Thread(target=self._serve, name=f"weft thread {self._alive}", daemon=True).start()
        self._jobs.put((loop, future, contextvars.copy_context(), work))
        return await future

    def close(self) -> None:
        """Lets idle threads end."""
        for _ in range(self._alive):
            self._jobs.put(None)

    def _serve(self) -> None:
        while job := self._jobs.get():
            loop, future, context, work = job
            result, error = None, None
            try:
                result = context.run(work)
            except BaseException as raised:  # noqa: BLE001 - whatever user code raises is the step's outcome
                error = raised
            end_copy(self._pid)
            del job, work, context
            with self._lock:
                self._idle += 1
            try:
                loop.call_soon_threadsafe(_deliver, future, result, error)
            except RuntimeError:
                return  # the loop is closed: the worker is gone


def _deliver(future: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(carried(error))


def carried(error: BaseException) -> BaseException:
    """Returns what stands for an error on its way through a future: nearly always itself."""
    if isinstance(error, (StopIteration, GeneratorExit)):
        # Neither can travel through an await: the first cannot be set, the second would close the coroutine.
        return RuntimeError(f"the function raised {type(error).__name__}: {error}")
    return error
