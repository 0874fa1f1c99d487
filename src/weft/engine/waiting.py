"""Waiting for runs to end: subscribe to the inbox, register and check in one script, wait.

A client that has waited before will most likely wait again: the runs it starts carry its channel from the start, and
waiting for one of them needs no call at all. Pub/sub may lose a message, so a slow re-check stands behind every wait.
It may also tell late: a run that failed or was cancelled may have been retried since, so such news is only a reason to ask.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Sequence

from weft.clock import backoff
from weft.engine.batching import Batcher
from weft.errors import NotFound, PartitionLost, Unavailable
from weft.ids import partition_of
from weft.store.inbox import Inbox, parse_news
from weft.store.namespace import Namespace
from weft.store.runs import watch_runs
from weft.telemetry import get_logger

log = get_logger("weft.engine")

#: Seconds after which a waiter looks by itself, in case its message was lost.
RECHECK = 5.0
#: Runs registered by one script call.
WATCH_BATCH = 256
#: Runs that a client is told of without having asked, at most; a result that nobody came for is forgotten.
EXPECTED = 64

Ended = tuple[str, bytes]


class _Doubt:
    """How a run ended by news that a retry may have overtaken: it counts while the store has not said that the run is open."""

    def __init__(self, told: Ended | None) -> None:
        self.told = told


class Waiting:
    """All waits of one client."""

    def __init__(self, ns: Namespace, owner: str) -> None:
        self._ns = ns
        self._inbox = Inbox(ns, owner, self._receive, self._wake_all)
        self._ends: defaultdict[str, set[asyncio.Future[Ended | None]]] = defaultdict(set)
        self._news: defaultdict[str, set[asyncio.Event]] = defaultdict(set)
        self._registrars: dict[tuple[int, str], Batcher[str, Ended]] = {}
        #: Runs started with our channel, and how they ended, if they have.
        self._expected: dict[str, Ended | None] = {}
        #: How many of the next runs are likely to be waited for: one more by each wait, one less by each start.
        self._likely = 0

    @property
    def channel(self) -> str:
        return self._inbox.channel

    def expect(self, run: str) -> bool:
        """Says whether the start of a run should carry our channel: its end is then told without asking."""
        self._expected.pop(run, None)  # how an earlier run of this id ended
        if not self._likely or not self._inbox.listening:
            return False
        self._likely -= 1
        if len(self._expected) >= EXPECTED:
            del self._expected[next(iter(self._expected))]
        self._expected[run] = None
        return True

    def expect_no_more(self, run: str) -> None:
        self._expected.pop(run, None)

    async def close(self) -> None:
        await self._inbox.close()

    async def end_of(self, run: str, timeout: float | None) -> Ended:
        """Returns status and value of a run once it has ended. Raises TimeoutError, or NotFound for an unknown run."""
        self._likely = min(self._likely + 1, EXPECTED)
        told: Ended | None = None
        if run in self._expected:
            # Registered when it was started: nothing to ask.
            now = asyncio.get_running_loop().time
            began = now()
            # Its registration may be lost with the store: time is left to ask.
            wait = RECHECK if timeout is None else min(RECHECK, timeout / 2)
            told = self._expected.pop(run) or await self._await(run, wait)
            if told and told[0] == "completed":
                return told
            timeout = None if timeout is None else max(0.0, timeout - (now() - began))
        doubt = _Doubt(told)
        try:
            async with asyncio.timeout(timeout):
                while True:
                    if ended := await self._await(run, RECHECK, register=True, doubt=doubt):
                        return ended
        except (TimeoutError, NotFound):
            if doubt.told:
                return doubt.told
            raise

    def news_of(self, run: str) -> NewsWatch:
        """Returns something that wakes at every event of a run."""
        return NewsWatch(self, run)

    async def _await(
        self, run: str, seconds: float, *, register: bool = False, doubt: _Doubt | None = None
    ) -> Ended | None:
        """Returns how a run ended, or None when it is time to look again. Listens before it asks, so that nothing is missed.

        With `register` an end that a retry may have taken back counts only as the answer to a question.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Ended | None] = loop.create_future()
        self._ends[run].add(future)
        look = None
        try:
            if register and (ended := await self._register(run, "", doubt)):
                return ended
            look = loop.call_later(seconds, _give_up, future)
            told = await future
            return told if told and (not register or told[0] == "completed") else None
        finally:
            if look is not None:
                look.cancel()
            self._forget(self._ends, run, future)

    async def _register(self, run: str, prefix: str, doubt: _Doubt | None = None) -> Ended | None:
        p = partition_of(run)
        if p >= self._ns.partitions:
            raise NotFound(f"there is no run {run}", run=run)
        registrar = self._registrars.get((p, prefix))
        if registrar is None:
            channel = prefix + self._inbox.channel

            async def send(runs: Sequence[str]) -> Sequence[Ended]:
                return await watch_runs(self._ns, p, runs, channel)

            registrar = self._registrars[p, prefix] = Batcher(send, limit=WATCH_BATCH)
        failures = 0
        while True:
            try:
                await self._inbox.open()
                status, value = await registrar.call(run)
                break
            except Unavailable as error:
                log.debug("the store does not answer a waiter; it looks again", run=run, error=error)
                await asyncio.sleep(max(0.2, backoff(failures)))
                failures += 1
                if isinstance(error, PartitionLost):
                    return None  # it may take long, and its waiter knows what to do meanwhile
                # Not asked is not the same as open: the run may have ended, and the news of that have been heard.
        if status == "gone":
            raise NotFound(f"there is no run {run}: it never was, or it is no longer kept", run=run)
        if status:
            return status, value
        if doubt is not None:
            doubt.told = None
        return None

    def _receive(self, message: bytes) -> None:
        for run, word, payload in parse_news(message):
            for event in self._news.get(run, ()):
                event.set()
            if word in ("completed", "failed", "cancelled"):
                if run in self._expected:
                    self._expected[run] = (word, payload)
                    asyncio.get_running_loop().call_later(RECHECK, self._expected.pop, run, None)
                for future in self._ends.get(run, ()):
                    if not future.done():
                        future.set_result((word, payload))

    def _wake_all(self) -> None:
        self._expected.clear()
        for futures in self._ends.values():
            for future in futures:
                if not future.done():
                    future.set_result(None)
        for events in self._news.values():
            for event in events:
                event.set()

    @staticmethod
    def _forget(table: defaultdict[str, set], run: str, member: object) -> None:  # type: ignore[type-arg]
        table[run].discard(member)
        if not table[run]:
            del table[run]


def _give_up(future: asyncio.Future[Ended | None]) -> None:
    if not future.done():
        future.set_result(None)


class NewsWatch:
    """Wakes a reader at every event of one run; used as an async context manager."""

    def __init__(self, waiting: Waiting, run: str) -> None:
        self._waiting, self._run, self._event = waiting, run, asyncio.Event()

    async def __aenter__(self) -> NewsWatch:
        self._waiting._news[self._run].add(self._event)
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._waiting._forget(self._waiting._news, self._run, self._event)

    async def register(self, *, every: bool = True) -> bool:
        """Asks the run to tell of every event, or only of its end, and returns whether it has ended.

        Called again at each look, because a wipe forgets.
        """
        return await self._waiting._register(self._run, "~" if every else "") is not None

    async def wait(self) -> None:
        """Returns at the next event, or after the slow re-check."""
        try:
            async with asyncio.timeout(RECHECK):
                await self._event.wait()
        except TimeoutError:
            return
        self._event.clear()
