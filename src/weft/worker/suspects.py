"""Suspects: steps that one more death of a worker would make poison. One at a time runs in a worker, beside ordinary steps.

So that death tells which of them it was. Those that wait hold no slot; they wait here only a moment and are then
handed back, so that a worker with time gets them.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from weft.clock import backoff
from weft.core.model import Token
from weft.ending import end_tasks
from weft.engine.gates import hold_back
from weft.engine.steps import begin_suspect, returned
from weft.errors import SessionLost, WeftError
from weft.telemetry import get_logger
from weft.worker.slots import Slots

if TYPE_CHECKING:
    from weft.worker.execute import Execution
    from weft.worker.lane import Lane

log = get_logger("weft.worker")

#: Seconds a suspect waits behind another one before it is handed back.
PATIENCE = 2.0
#: Seconds, at first and at most, after which a suspect that was handed back is offered again.
AWAY, AWAY_MOST = 0.25, 30.0

#: Runs whose hand-backs are counted.
MOST_COUNTED = 10_000


class Suspects:
    """The suspects in the hands of one worker session."""

    def __init__(
        self,
        ns: Any,
        *,
        session: str,
        slots: Slots,
        begin: Callable[[Token], Execution],
        on_lost: Callable[[WeftError], None],
    ) -> None:
        self._ns, self._session, self._slots = ns, session, slots
        self._begin, self._on_lost = begin, on_lost
        self._waiting: deque[tuple[Lane, Token, float]] = deque()
        self._arrived = asyncio.Event()
        self._running: Token | None = None
        #: How often each was handed back because another one ran.
        self._returns: dict[str, int] = {}
        #: Whether one slot is theirs: from the first that arrives until none is left.
        self._has_slot = False
        self._working: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._working = asyncio.create_task(self._work(), name="weft suspects")

    async def stop(self) -> None:
        """Begins no more and hands back those that wait; the one that runs is its execution's."""
        await end_tasks(self._working)
        while self._waiting:
            self._return("worker stopped", 0.0)
        if self._running is None:
            self._leave_slot()

    def take(self, lane: Lane, token: Token) -> None:
        """Takes a claimed suspect. There is a slot free for it: the one it was claimed for."""
        lane.held[token.key] = token
        self._waiting.append((lane, token, time.monotonic()))
        self._arrived.set()
        if not self._has_slot:
            self._slots.free -= 1
            self._has_slot = True

    def inherit(self, token: Token) -> bool:
        """Tells whether the slot of a step that ended goes to the next suspect."""
        if token is not self._running:
            return False
        self._has_slot = bool(self._waiting)
        return self._has_slot

    async def _work(self) -> None:
        while True:
            while self._waiting:
                lane, token, _ = self._waiting.popleft()
                if await self._may_begin(lane, token):
                    await self._watch(self._begin(token))
                    # Until then it still looks as if it ran, and would be charged with a death that the next suspect causes.
                    await lane.committer.landed(token)
                else:
                    lane.held.pop(token.key, None)
            self._leave_slot()
            self._arrived.clear()
            await self._arrived.wait()

    async def _may_begin(self, lane: Lane, token: Token) -> bool:
        """Takes a suspect through its gates and marks it as begun, however long the store is away."""
        try:
            if not self._has_slot:  # the one before left it with its batch
                await self._slots.take(1)
                self._has_slot = True
            passed = False
            for failures in itertools.count():
                try:
                    # Only once: a rate limit counts starts.
                    passed = passed or bool(await hold_back(self._ns, lane.p, [token], session=self._session))
                    if not passed:
                        return False
                    if await begin_suspect(self._ns, lane.p, token, session=self._session):
                        self._returns.pop(token.run, None)
                        return True
                    # Ended from outside, or gone: the commit tells which, and takes the token of a run that is gone.
                    lane.committer.put(returned(token, "not begun", token.claimed_ms))
                    return False
                except SessionLost as error:
                    self._on_lost(error)
                    return False
                except Exception as error:  # noqa: BLE001 - suspects that are never begun would look like ones that wait
                    if failures % 20 == 0:
                        log.warning("a suspect cannot be begun; trying on", run=token.run, error=error)
                    await asyncio.sleep(backoff(failures))
        except asyncio.CancelledError:
            self._waiting.appendleft((lane, token, time.monotonic()))  # to be handed back with the others
            raise
        raise AssertionError("unreachable")

    async def _watch(self, execution: Execution) -> None:
        """Waits until the suspect that runs has ended or is none any more; others wait no longer than their patience."""
        self._running, execution.cleared = execution.token, asyncio.Event()
        task, cleared = execution.loop_task, asyncio.create_task(execution.cleared.wait())
        assert task is not None, "it has just begun"
        try:
            while not task.done() and not cleared.done():
                await asyncio.wait([task, cleared], timeout=PATIENCE, return_when=asyncio.FIRST_COMPLETED)
                self._hand_back()
        finally:
            goes_on = cleared.done() and not task.done()
            cleared.cancel()
            if execution.lent or goes_on:
                self._has_slot = False
            if task.done() or goes_on:
                self._running = None

    def _hand_back(self) -> None:
        before = time.monotonic() - PATIENCE
        while self._waiting and self._waiting[0][2] <= before:
            run = self._waiting[0][1].run
            # Later each time: while every worker is busy with a long suspect, it would only go back and forth. Counted here:
            # deliveries of a workflow run tell how often it waited.
            times = self._returns.get(run, 0)
            if len(self._returns) >= MOST_COUNTED:
                self._returns.clear()
            self._returns[run] = times + 1
            self._return("another suspect runs", backoff(times, base=AWAY, cap=AWAY_MOST))

    def _return(self, reason: str, seconds: float) -> None:
        lane, token, _ = self._waiting.popleft()
        lane.held.pop(token.key, None)
        lane.committer.put(returned(token, reason, token.claimed_ms, delay_ms=int(seconds * 1000)))

    def _leave_slot(self) -> None:
        if self._has_slot:
            self._has_slot = False
            self._slots.give()
