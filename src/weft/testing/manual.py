"""A worker that works only when it is told to: `run_until_idle()` runs what is there and tells what it ran."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from weft.clock import Duration, parse_duration_ms
from weft.core.effects import NodeEnd
from weft.core.flow import CallEnd, FlowRecord
from weft.core.model import ERROR_DECODER, ROUTES, Outcome
from weft.engine.gates import admit
from weft.errors import UserError
from weft.store.controls import read_controls
from weft.store.keys import PRIORITIES
from weft.worker.execute import Execution, Executor
from weft.worker.worker import Worker

if TYPE_CHECKING:
    from weft.sdk.app import Weft
    from weft.testing.clock import VirtualClock

#: Jumps of the clock after which something must be scheduling itself for ever.
MAX_JUMPS = 1_000

_SAY_HOW_FAR = 'say how far to go, as in run_until_idle(advance="1h")'
#: Seconds between two looks at whether there is anything left.
LOOK = 0.002


@dataclass(frozen=True, slots=True)
class Attempt:
    """One attempt that ran, and how it ended."""

    run_id: str
    name: str
    attempt: int
    #: completed, failed, retrying, snoozed, cancelled (by `Discard`) or returned.
    outcome: str
    #: What it failed with: `LookupError: no such user`; empty when it did not.
    error: str = ""


class ManualWorker:
    """Serves every queue of an app, in this process, while `run_until_idle` or `async with` lasts.

    A test without a loop takes `.sync.run_until_idle()` and a plain `with`: then it works on Weft's own loop.
    """

    def __init__(self, app: Weft, clock: VirtualClock) -> None:
        self._app, self._clock = app, clock
        self._live: _NotingWorker | None = None
        #: How often the clock jumped in this call of `run_until_idle`.
        self._jumps = 0
        #: The worker of a call of `run_until_idle`.
        self._own: _NotingWorker | None = None

    @property
    def sync(self) -> SyncManualWorker:
        """The same verbs for tests without a loop."""
        return SyncManualWorker(self)

    async def run_until_idle(self, *, advance: bool | Duration = False, timeout: float = 30.0) -> list[Attempt]:
        """Runs everything that is due now, and whatever that starts; returns the attempts in the order they ended.

        With `advance=True` the clock then jumps to the next delay, retry or deadline, again and again until there is none
        left; schedules tick on the way, but do not keep it going: they never end. With a duration it moves forward by that
        much in all. Raises TimeoutError when steps still run after `timeout` seconds of real time.
        """
        left_ms = _allowance(advance)
        if self._live is not None:
            raise UserError("this worker runs already: run_until_idle starts one of its own")
        await self._app.open()
        ran: list[Attempt] = []
        try:
            async with asyncio.timeout(timeout):
                left_ms = await self._jump(ran, left_ms)
        except TimeoutError:
            told = f"not idle after {timeout:g} s; until then these ran: {ran}"
            if self._jumps and advance is True:
                told += (
                    f"; the clock jumped {self._jumps} times, and a run that sleeps in a loop never is: {_SAY_HOW_FAR}"
                )
            raise TimeoutError(told) from None
        finally:
            await self._dismiss()
        if left_ms:
            await self._clock._move(left_ms)
        return ran

    async def _jump(self, ran: list[Attempt], left_ms: int | None) -> int | None:
        """Runs what is due, and moves the clock to what comes next, again and again; returns how far it may still go."""
        self._jumps = 0
        while True:
            await self._work(ran)
            wait_ms = await self._clock._next(ticks=left_ms is not None)
            if wait_ms is None or (left_ms is not None and wait_ms > left_ms):
                return left_ms
            self._jumps += 1
            if left_ms is not None:
                left_ms -= wait_ms
            elif self._jumps == MAX_JUMPS:
                raise UserError(
                    f"after {MAX_JUMPS} jumps of the clock there is still a timer: something schedules itself for"
                    f" ever; {_SAY_HOW_FAR}"
                )
            await self._clock._move(wait_ms)

    async def _work(self, ran: list[Attempt]) -> None:
        """Runs what is due now, with a worker for all the queues there are; with another one when steps use new ones."""
        while True:
            queues = await self._queues()
            if self._own is None or not queues <= set(self._own.queues):
                await self._dismiss()
                worker = _NotingWorker(self._app, queues=sorted(queues), archive=False)
                worker.ran = ran
                await worker.start()
                self._own = worker
            await self._settled(self._own)
            if await self._queues() <= set(self._own.queues):
                return

    async def _dismiss(self) -> None:
        """Has the worker of a call go."""
        if self._own is not None:
            worker, self._own = self._own, None
            await worker.stop(grace=0)

    async def _settled(self, worker: _NotingWorker) -> None:
        """Waits until the worker has nothing in hand and the store has nothing for it.

        The store's queues cannot be read all in one moment; but they only change by this worker's commits, so a look
        during which it committed nothing and held nothing saw them as they are. Where all that is left are items of batches,
        nobody else will come for them, and they are called at once: a test need not wait for `batch_wait`.
        """
        batches = worker.executor.batches
        while True:
            if worker.unknown:
                raise UserError(
                    f"app {self._app.name!r} has no task or workflow {', '.join(sorted(worker.unknown))}, and runs of it are"
                    " queued"
                )
            before = _commits(worker)
            left = await self._count_left(worker.queues)
            if _commits(worker) == before and left == len(worker.running):
                if not left:
                    return
                if left == batches.gathered:
                    batches.close_all()
            await asyncio.sleep(LOOK)

    async def _count_left(self, queues: list[str]) -> int:
        """Returns how many steps the store has for a worker, those in its hands too; -1 when there will be more at once."""
        if await self._clock._next(ticks=True) == 0:
            return -1
        ns, left = self._app.engine().ns, 0
        for p in range(ns.partitions):
            controls = await read_controls(ns, p)
            served = [ROUTES, *(queue for queue in queues if controls.paused_queue(queue) is None)]
            lengths = [("XLEN", ns.keys.tasks(p, queue, priority)) for queue in served for priority in PRIORITIES]
            marked, *depths = await ns.read_many([("SCARD", ns.keys.admit(p)), *lengths], p=p)
            if marked:
                # A gate to be looked at may let somebody through: the worker looks within a second, a test need not wait.
                await admit(ns, p)
                return -1
            left += sum(depths)
        return left

    async def _queues(self) -> set[str]:
        ns = self._app.engine().ns
        used = [await ns.read("SMEMBERS", ns.keys.queues(p), p=p) for p in range(ns.partitions)]
        return (
            {task.spec.queue for task in self._app.tasks.values()}
            | {workflow.spec.queue for workflow in self._app.workflows.values()}
            | {q.decode() for some in used for q in some if q.decode() != ROUTES}
            | {"default"}
        )

    # --- live -------------------------------------------------------------------------------------

    async def __aenter__(self) -> ManualWorker:
        """Works in the background until the block ends."""
        if self._live is not None:
            raise UserError("this worker runs already")
        await self._app.open()
        self._live = _NotingWorker(self._app, queues=sorted(await self._queues()), archive=False)
        await self._live.start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        if self._live is not None:
            worker, self._live = self._live, None
            await worker.stop(grace=0)

    def __enter__(self) -> ManualWorker:
        return self._app.portal.call(self.__aenter__())

    def __exit__(self, *exc: object) -> None:
        self._app.portal.call(self.__aexit__())


class SyncManualWorker:
    """`weft_worker.sync.run_until_idle()`."""

    def __init__(self, worker: ManualWorker) -> None:
        self._worker = worker

    def run_until_idle(self, *, advance: bool | Duration = False, timeout: float = 30.0) -> list[Attempt]:
        return self._worker._app.portal.call(self._worker.run_until_idle(advance=advance, timeout=timeout))


def _allowance(advance: bool | Duration) -> int | None:
    """Returns how far the clock may go in ms; None: as far as there are timers."""
    if isinstance(advance, bool):
        return None if advance else 0
    return parse_duration_ms(advance, what="advance")


def _commits(worker: Worker) -> int:
    return sum(lane.committer.committed + lane.committer.refused for lane in worker.lanes)


class _NotingExecutor(Executor):
    """Notes what it ran."""

    worker: _NotingWorker

    async def execute(self, execution: Execution) -> Outcome | NodeEnd | FlowRecord | None:
        token = execution.token
        # What a graph run decides and waits for is every worker's to do.
        known = token.spec.name in self._app.tasks or token.spec.name in self._app.workflows
        if not known and not token.spec.name.startswith("$"):
            self.worker.unknown.add(token.spec.name)
        outcome = await super().execute(execution)
        if isinstance(outcome, (Outcome, NodeEnd, CallEnd)) and token.spec.name in self._app.tasks:
            self.worker.ran.append(Attempt(token.run, token.spec.name, token.attempt, outcome.kind, _error_of(outcome)))
        return outcome


class _NotingWorker(Worker):
    """A worker whose executor takes notes."""

    def __init__(self, app: Weft, **options: Any) -> None:
        super().__init__(app, **options)
        self.ran: list[Attempt] = []
        self.unknown: set[str] = set()

    def make_executor(self) -> Executor:
        executor = _NotingExecutor(self.app, self.ns)
        executor.worker = self
        return executor


def _error_of(outcome: Outcome | NodeEnd | CallEnd) -> str:
    if outcome.kind not in ("failed", "retrying"):
        return ""
    record = ERROR_DECODER.decode(outcome.value)
    return f"{record.type}: {record.message}"
