"""The committer of one lane: everything that finished while the last commit was under way goes in the next.

It never gives up on an outcome while the store is away, and never fights over one that is no longer its own.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, TypeVar

from weft.clock import backoff
from weft.core.effects import NodeEnd
from weft.core.flow import CallEnd, FlowRecord, Turn
from weft.core.model import Outcome, Token
from weft.ending import end_tasks
from weft.engine.flows import commit_flows
from weft.engine.gates import next_heads
from weft.engine.graphs import commit_nodes
from weft.engine.steps import Head, commit_steps, returned
from weft.errors import OwnershipLost, Unavailable, WeftError
from weft.telemetry import get_logger

E = TypeVar("E", Outcome, NodeEnd, FlowRecord)
T = TypeVar("T")

log = get_logger("weft.worker")

#: Outcomes per commit: about 1 ms of server time.
COMMIT_BATCH = 64
#: Bytes of results per commit.
COMMIT_BYTES = 1 << 20
#: Records of one commit of steps of graph runs: each opens, marks or tells something.
COMMIT_RECORDS = 1_024
#: Outcomes that may wait before the lane stops claiming.
COMMIT_BACKLOG = 4 * COMMIT_BATCH
#: Commits of steps of graph runs that may be under way at once: the server works on one while the next is packed.
NODE_FLIGHTS = 2


def _script_of(outcome: Outcome | NodeEnd | FlowRecord) -> type[object]:
    """Tells outcomes apart that different scripts commit."""
    return FlowRecord if isinstance(outcome, FlowRecord) else type(outcome)


class Committer:
    """Commits outcomes of one partition, in groups, in order."""

    def __init__(self, ns: Any, p: int, session: str, caller: Any) -> None:
        self._ns, self._p, self._session, self.caller = ns, p, session, caller
        self._line: deque[Outcome | NodeEnd | FlowRecord] = deque()
        #: Tokens whose outcome is in line or under way: still pending in the store, but not to be run again.
        self.waiting: set[tuple[str, str]] = set()
        self._woken = asyncio.Event()
        self._room = asyncio.Event()
        self._room.set()
        self._idle = asyncio.Event()
        self._idle.set()
        self._landed = asyncio.Event()
        #: Set when a slot became free for which somebody waits.
        self.freed = asyncio.Event()
        #: Somebody waited at a gate when the last slot became free: it is worth knowing who is next before the commit.
        self._crowded = False
        #: Commits under way beside us.
        self._flights: set[asyncio.Task[None]] = set()
        self.committed = 0
        self.refused = 0
        #: Steps to be handed back because their result was lost on the way, and ends that were decided anew.
        self._lost: list[Outcome | NodeEnd] = []

    def put(self, outcome: Outcome | NodeEnd | FlowRecord) -> None:
        """Puts an outcome in line."""
        self._line.append(outcome)
        if type(outcome) is not Turn:  # while a flow takes turns, its lane knows that it holds the token
            self.waiting.add(outcome.token.key)
        if len(self._line) == 1:  # who found others in line need not say so again
            self._idle.clear()
            self._woken.set()
        elif len(self._line) >= COMMIT_BACKLOG:
            self._room.clear()

    async def room(self) -> None:
        """Waits while too many outcomes are in line."""
        await self._room.wait()

    async def idle(self) -> None:
        """Waits until every outcome is committed or refused."""
        await self._idle.wait()

    async def landed(self, token: Token) -> None:
        """Waits until the outcome of one token, if it has any, is committed or refused."""
        while token.key in self.waiting:
            self._landed.clear()
            await self._landed.wait()

    async def run(self) -> None:
        """Commits until cancelled."""
        try:
            while True:
                await self._go_on()
        finally:
            await end_tasks(*self._flights)

    async def _go_on(self) -> None:
        if not self._line:
            self._woken.clear()
            if not self._flights:
                self._idle.set()
            await self._woken.wait()
        if not self._line:
            return  # what was under way has landed
        group = self._next_group()
        if isinstance(group[0], FlowRecord):
            await self._land()
            await self._commit_flows(group)
            self._settled([record for record in group if type(record) is not Turn])
        elif isinstance(group[0], NodeEnd):
            # Each end has a fence of its own, so the order of two such calls does not matter.
            while len(self._flights) >= NODE_FLIGHTS:
                await asyncio.wait(self._flights, return_when=asyncio.FIRST_COMPLETED)
            self._fly(self._settle_nodes(group))
        elif self._crowded and any(outcome.token.gates and not outcome.token.heirs for outcome in group):
            # Who is next is read while the last commit is under way.
            heads = await self._heads(group)
            await self._land()
            self._fly(self._settle(group, heads))
        else:
            await self._land()
            await self._settle(group, [])

    def _fly(self, commit: Coroutine[Any, Any, None]) -> None:
        """Commits a group beside us; what comes up meanwhile is put in line."""
        flight = asyncio.create_task(commit, name=f"weft commit {self._p}")
        self._flights.add(flight)
        flight.add_done_callback(self._has_landed)

    def _has_landed(self, flight: asyncio.Task[None]) -> None:
        self._flights.discard(flight)
        self._woken.set()
        if not flight.cancelled() and (error := flight.exception()) is not None:
            log.error(
                "a commit failed by a fault of its own; its steps stay as they are", partition=self._p, error=error
            )

    async def _land(self) -> None:
        """Waits for the commits that are under way beside us."""
        if self._flights:
            await asyncio.wait(self._flights)

    async def _heads(self, group: list[Outcome]) -> list[Head]:
        try:
            return await next_heads(self._ns, self._p, group)
        except WeftError:
            return []  # the commit frees the slots all the same, and those who wait are found in the ordinary way

    async def _settle(self, group: list[Outcome], heads: list[Head]) -> None:
        await self._commit(group, heads)
        self._settled(group)

    async def _settle_nodes(self, group: list[NodeEnd]) -> None:
        await self._commit_nodes(group)
        self._settled(group)

    def _settled(self, group: Sequence[Outcome | NodeEnd | FlowRecord]) -> None:
        self.waiting.difference_update([outcome.token.key for outcome in group])
        while self._lost:
            self.put(self._lost.pop())
        self._landed.set()
        if len(self._line) < COMMIT_BACKLOG:
            self._room.set()

    def _next_group(self) -> list[Any]:
        """Takes what goes in one call: ends of plain steps, or ends of steps of graph runs with all that follows."""
        group: list[Outcome | NodeEnd | FlowRecord] = []
        script: type[object] | None = None
        size = records = 0
        while self._line and len(group) < COMMIT_BATCH and size < COMMIT_BYTES and records < COMMIT_RECORDS:
            if group and _script_of(self._line[0]) is not script:
                break
            if not group:
                script = _script_of(self._line[0])
            outcome = self._line.popleft()
            size += len(outcome.value) + len(outcome.lines or b"")
            if isinstance(outcome, NodeEnd):
                records += len(outcome.effects)
            elif isinstance(outcome, Turn):
                records += len(outcome.added)
            group.append(outcome)
        return group

    async def _commit_nodes(self, group: list[NodeEnd]) -> None:
        words = await self._insist(
            group,
            lambda: commit_nodes(self._ns, self._p, group, session=self._session, caller=self.caller),
            lambda end: self._commit_nodes([end]),
        )
        for end, word in zip(group, words or (), strict=False):
            if word in ("ok", "done"):
                self.committed += 1
                if end.token.gates:
                    self.freed.set()
                continue
            self.refused += 1
            if word == "again" and end.again is not None:
                await self._decide_again(end)
            elif word in ("again", "blob_gone"):
                self._lost.append(returned(end.token, "its result could not be used", end.started_ms))
            elif word != "gone":
                log.warning("a result was refused", run=end.token.run, why=word, delivery=end.token.delivery)

    async def _commit_flows(self, group: list[FlowRecord]) -> None:
        replies = await self._insist(
            group,
            lambda: commit_flows(self._ns, self._p, group, session=self._session, caller=self.caller),
            lambda record: self._commit_flows([record]),
        )
        if replies is None:  # refused, or committed one by one
            for record in group:
                if not record.answered:
                    record.answered = True
                    record.done([b"stale"])
            return
        for record, reply in zip(group, replies, strict=True):
            word = reply[0].decode()
            if word in ("ok", "done"):
                self.committed += 1
                if record.token.gates:
                    self.freed.set()
            elif isinstance(record, CallEnd):
                self.refused += 1
                if word == "blob_gone":
                    self._lost.append(returned(record.token, "its result was lost", record.started_ms))
                elif word != "gone":
                    log.warning("a result was refused", run=record.token.run, why=word, delivery=record.token.delivery)
            record.answered = True
            record.done(reply)

    async def _decide_again(self, end: NodeEnd) -> None:
        """Has a step whose run was patched meanwhile decide anew what follows; it is not executed again."""
        assert end.again is not None
        for attempt in itertools.count():
            try:
                return self._lost.append(await end.again())
            except Unavailable:
                await asyncio.sleep(backoff(attempt))
            except WeftError as error:
                log.warning("what follows a step cannot be decided; it is handed back", run=end.token.run, error=error)
                return self._lost.append(returned(end.token, "its run was changed", end.started_ms))

    async def _commit(self, group: list[Outcome], heads: Sequence[Head] = ()) -> None:
        reply = await self._insist(
            group,
            lambda: commit_steps(self._ns, self._p, group, session=self._session, heads=heads, caller=self.caller),
            lambda outcome: self._commit([outcome]),
        )
        if reply is not None:
            words, awaited = reply
            self._crowded = awaited or bool(heads)
            if awaited:
                self.freed.set()
            self._note(group, words)

    async def _insist(
        self, group: Sequence[E], send: Callable[[], Awaitable[T]], alone: Callable[[E], Awaitable[None]]
    ) -> T | None:
        """Sends a group until the store has taken or refused it; None when it was refused, or sent one by one.

        A group that fails as a whole is committed one by one, so that a bad item costs only itself.
        """
        for attempt in itertools.count():
            try:
                return await send()
            except Unavailable as error:
                if attempt % 20 == 0:
                    log.warning(
                        "the store does not take results; they are kept and sent again", error=error, n=len(group)
                    )
                await asyncio.sleep(backoff(attempt))
            except OwnershipLost as error:
                self.refused += len(group)
                log.warning("results were refused: this worker no longer owns the steps", error=error, n=len(group))
                return None
            except Exception as error:  # noqa: BLE001 - a committer that ends silently would keep every later result too
                if len(group) == 1:
                    run = group[0].token.run
                    log.error("a result cannot be committed; the run is left for repair", run=run, error=error)
                    return None
                for one in group:
                    await alone(one)
                return None
        raise AssertionError("unreachable")

    def _note(self, group: Sequence[Outcome], words: Sequence[str]) -> None:
        for outcome, word in zip(group, words, strict=True):
            if word in ("ok", "done"):
                self.committed += 1
            else:
                self.refused += 1
                log.warning("a result was refused", run=outcome.token.run, why=word, delivery=outcome.token.delivery)
            if word == "blob_gone":
                # Uploaded, then lost by the store before the commit. The token is still ours: let the step run again.
                self._lost.append(returned(outcome.token, "its result was lost", outcome.started_ms))
