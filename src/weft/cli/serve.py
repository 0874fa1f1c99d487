"""Runs one worker in this process until it is told to stop.

The first SIGTERM or SIGINT drains: nothing more is claimed, steps finish within the grace. The second hands back at
once what still runs. The end of the parent process, seen as the end of a pipe, counts as a signal too.
"""

from __future__ import annotations

import asyncio
import functools
import gc
import logging
import os
import signal
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from weft.telemetry import get_logger

if TYPE_CHECKING:
    from weft.sdk.app import Weft
    from weft.worker.worker import Worker

T = TypeVar("T")

log = get_logger("weft.cli")

#: Seconds a start that was told to stop may still take; a second signal ends it at once.
START_PATIENCE = 3.0
#: New objects after which the collector of cycles looks at them; what Python sets by itself, at most, and what a worker sets.
PYTHONS_YOUNG, YOUNG = 2_000, 20_000


#: What a parent writes to a child's lifeline to ask it to stop.
ASKED = b"s"


#: The signals that mean "stop" to this process.
_ours: set[int] = set()


def _leave_signals_to_child() -> None:
    """Gives a forked child the usual signals back.

    The loop hears of a signal by a socket that a child shares: when `multiprocessing` ends one with SIGTERM, the worker
    would stop.
    """
    if not _ours:
        return
    signal.set_wakeup_fd(-1)
    for number in _ours:
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    _ours.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_leave_signals_to_child)


class Stopped(KeyboardInterrupt):
    """Raised where the app is being loaded when a signal asks this process to stop."""


class Heard:
    """Hears of signals before there is a loop to hear them: by default they would end the process as if it had crashed.

    Within `with` a signal ends what is done there, quietly; from then on it is counted, for the loop to ask.
    """

    def __init__(self) -> None:
        self.asked = 0
        self._loading = True

    def __enter__(self) -> Heard:
        for number in stop_signals():
            _ours.add(number)
            signal.signal(number, self._hear)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> bool:
        self._loading = False
        if self.asked:
            log.info("stopped before it began", pid=os.getpid())
        return kind is Stopped

    def _hear(self, number: int, frame: object) -> None:
        self.asked += 1
        if self._loading:
            self._loading = False  # another one must not cut short what the first has set off
            raise Stopped


class Stop:
    """Counts how often this process was asked to stop."""

    def __init__(self, lifeline: int | None = None, *, heard: Heard) -> None:
        self.asked = 0
        #: How often each asked. Whoever stops a service may tell parent and child alike: that is one request, not two.
        self._by: Counter[str] = Counter()
        self._first, self._second = asyncio.Event(), asyncio.Event()
        self._worker: Worker | None = None
        loop = asyncio.get_running_loop()
        for number in stop_signals():
            _ours.add(number)
            loop.add_signal_handler(number, self._ask, signal.Signals(number).name)
        if lifeline is not None:
            gone = functools.partial(self._ask, "the parent process is gone", by="parent")
            watch_lifeline(loop, lifeline, gone, asked=lambda: self._ask("the parent process", by="parent"))
        for _ in range(heard.asked):
            self._ask("a signal before it began")

    async def started(self, start: Coroutine[Any, Any, Worker]) -> Worker | None:
        """Returns the worker once it has started; None when it was to stop first and did not come up soon.

        A start that is nearly done is let finish, so that the worker leaves the store in good order.
        """
        starting = asyncio.ensure_future(start)
        if not await _first_of(starting, self._first.wait()):
            await _first_of(starting, self._second.wait(), within=START_PATIENCE)
        if not starting.done():
            starting.cancel()
            await asyncio.wait([starting], timeout=START_PATIENCE)
            return None
        return starting.result()

    async def wait(self, worker: Worker) -> None:
        """Returns when the worker is to drain; from then on another request hastens it."""
        self._worker = worker
        await self._first.wait()

    def _ask(self, why: str, by: str = "signal") -> None:
        self._by[by] += 1
        if self._by[by] <= self.asked:
            return
        self.asked += 1
        if self.asked == 1:
            log.info("stopping: nothing more is claimed, running steps may finish", why=why, pid=os.getpid())
            self._first.set()
            return
        self._second.set()
        if self._worker is not None:
            log.info("hastening: running steps are handed back now", why=why, pid=os.getpid())
            self._worker.hasten()


def watch_lifeline(
    loop: asyncio.AbstractEventLoop,
    lifeline: int,
    gone: Callable[[], None],
    asked: Callable[[], None] = lambda: None,
) -> None:
    """Calls back when the other end of a pipe is gone, and for each time that it asks to stop."""

    def look() -> None:
        words = os.read(lifeline, 64)
        for _ in words:
            asked()
        if not words:
            loop.remove_reader(lifeline)
            gone()

    os.set_blocking(lifeline, False)
    loop.add_reader(lifeline, look)


async def _first_of(task: asyncio.Future[Any], other: Coroutine[Any, Any, Any], *, within: float | None = None) -> bool:
    """Waits for one of two; returns whether the first is done."""
    waiter = asyncio.ensure_future(other)
    await asyncio.wait([task, waiter], timeout=within, return_when=asyncio.FIRST_COMPLETED)
    waiter.cancel()
    return task.done()


async def unless(stop: asyncio.Event, work: Coroutine[Any, Any, T]) -> T | None:
    """Returns what some work gives; None when it is to stop first: then the work is cancelled."""
    working = asyncio.ensure_future(work)
    if await _first_of(working, stop.wait()):
        return working.result()
    working.cancel()
    await asyncio.wait([working], timeout=START_PATIENCE)
    if working.done() and not working.cancelled():
        working.exception()  # nobody asks any more
    return None


def stop_signals() -> list[int]:
    """Returns the signals that mean: stop. A hang-up only where nobody asked to ignore it (nohup)."""
    numbers: list[int] = [signal.SIGTERM, signal.SIGINT]
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:
        numbers.append(signal.SIGHUP)
    return numbers


def serve(
    app: Weft,
    *,
    queues: Sequence[str] | None,
    concurrency: int | None,
    grace: float,
    greet: Callable[[Worker], Awaitable[None]],
    heard: Heard,
    lifeline: int | None = None,
) -> None:
    """Runs a worker until it has drained. `greet` is awaited between opening the store and the first claim."""

    async def start() -> Worker:
        worker = app.worker(queues=queues, concurrency=concurrency, grace=grace)
        worker.archive_apart = True
        await worker.open()
        await greet(worker)
        await worker.start()
        return worker

    async def body() -> None:
        stop = Stop(lifeline, heard=heard)
        if stop.asked:
            return
        worker = await stop.started(start())
        if worker is None:
            log.warning("stopped before it was ready: the store does not let it begin", pid=os.getpid())
            return
        log.info("ready", session=worker.session, pid=os.getpid())
        collect_seldom()
        await stop.wait(worker)
        await worker.stop()
        await app.close()
        log.info("stopped", pid=os.getpid())

    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(body())
        stuck = runner.run(_left_behind())
        if stuck:
            # The runner would wait for them for ever. Their steps were handed back: nothing is lost with them.
            log.warning("code that does not stop when it is cancelled is left behind", tasks=len(stuck))
            app.release()
            logging.shutdown()
            os._exit(0)


def collect_seldom() -> None:
    """Lets the collector of cycles look seldom, and never at what start-up made, unless the app has set it already.

    By default it looks at the imported modules again and again.
    """
    if gc.isenabled() and 0 < gc.get_threshold()[0] <= PYTHONS_YOUNG:
        gc.collect()
        gc.freeze()
        gc.set_threshold(YOUNG, 20, 20)


async def _left_behind() -> set[asyncio.Task[Any]]:
    """Cancels what still runs on the loop; returns what does not end within a second."""
    rest = asyncio.all_tasks() - {asyncio.current_task()}
    for task in rest:
        task.cancel()
    return (await asyncio.wait(rest, timeout=1.0))[1] if rest else set()


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Returns what makes the event loop of a worker: uvloop, where there is one."""
    try:
        import uvloop
    except ImportError:  # Windows has none; asyncio's own loop does
        return None
    return uvloop.new_event_loop
