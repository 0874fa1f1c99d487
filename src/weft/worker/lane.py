"""A lane: one partition's claim loop and committer within a worker."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

from weft.clock import backoff
from weft.core.flow import is_flow
from weft.core.model import Token
from weft.ending import end_tasks
from weft.engine.gates import admit, hold_back
from weft.engine.steps import Pebbles, await_steps, claim_steps, returned
from weft.errors import SessionLost, WeftError
from weft.telemetry import get_logger
from weft.worker.commit import Committer
from weft.worker.slots import Slots
from weft.worker.suspects import Suspects

log = get_logger("weft.worker")

#: Tokens taken by one claim.
CLAIM_BATCH = 128
#: Seconds between two looks whether a lease that has run out is renewed.
OVERDUE_LOOK = 0.05
#: Seconds an idle lane blocks before it looks by itself, in case a pebble was lost with a worker.
IDLE_LOOK = 2.0


class Lane:
    """Claims tokens of one partition while there is room, and commits what comes out of them."""

    def __init__(
        self,
        ns: Any,
        p: int,
        *,
        session: str,
        queues: list[str],
        slots: Slots,
        suspects: Suspects,
        alone: bool,
        aging_ms: int = 0,
        begin: Callable[[Token], object],
        drop: Callable[[Token], None],
        on_lost: Callable[[WeftError], None],
        overdue: Callable[[], bool],
    ) -> None:
        self.p = p
        self._ns, self._session, self._queues, self._slots = ns, session, queues, slots
        self._begin, self._drop, self._on_lost, self._suspects = begin, drop, on_lost, suspects
        #: Tells that the lease may have run out: nothing is begun then.
        self._overdue = overdue
        #: The epoch of the newest tokens.
        self._epoch = 0
        #: With one lane nobody else wants the slots, so a claim may wait in the server.
        self._alone, self._aging_ms = alone, aging_ms
        self._caller = ns.server.caller()
        self._pebbles = Pebbles(ns, p, queues, seconds=IDLE_LOOK)
        self._adopting = False
        self.held: dict[tuple[str, str], Token] = {}
        self.committer = Committer(ns, p, session, ns.server.caller())
        self._claiming: asyncio.Task[None] | None = None
        self._committing: asyncio.Task[None] | None = None
        self._admitting: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._claiming = asyncio.create_task(self._claim(), name=f"weft claim {self.p}")
        self._committing = asyncio.create_task(self.committer.run(), name=f"weft commit {self.p}")
        self._admitting = asyncio.create_task(self._admit(), name=f"weft admit {self.p}")

    async def stop_claiming(self) -> None:
        """Stops taking tokens at once; what a cancelled claim took unseen is found by `hand_back_unseen`."""
        await end_tasks(self._claiming)

    async def hand_back_unseen(self) -> None:
        """Returns tokens that this session holds but never began, and drops a pebble for whoever is idle."""
        with contextlib.suppress(WeftError):
            for token in await self._own_pending():
                self.committer.put(returned(token, "worker stopped", token.claimed_ms))
            # The pebble this lane may have taken while it stopped could be the one that another worker waits for.
            await claim_steps(self._ns, self.p, session=self._session, queues=self._queues, room=0)

    async def close(self) -> None:
        await end_tasks(self._committing, self._admitting)
        await self._pebbles.close()
        for caller in (self._caller, self.committer.caller):
            await caller.aclose()

    async def _claim(self) -> None:
        failures, idle = 0, False
        while True:
            await self.committer.room()
            if idle and not self._alone:
                await self._wait_for_work()
            room = await self._slots.take(min(CLAIM_BATCH, (self._slots.size + 1) // 2))
            claimed: list[Token] = []
            tokens: list[Token] = []
            suspects: list[Token] = []
            pause = 0.0
            try:
                claimed = await (self._await(room) if idle and self._alone else self._take(room))
                if claimed and self._overdue():
                    # A worker that stood still finds tokens that the server gave it meanwhile; others have them by now. If not,
                    # they are found among its own once the lease is renewed.
                    claimed, self._adopting, pause = [], True, OVERDUE_LOOK
                ordinary = [token for token in claimed if not (token.crashes and token.is_suspect)]
                tokens = await hold_back(self._ns, self.p, ordinary, session=self._session)
                if len(ordinary) < len(claimed):
                    suspects = [token for token in claimed if token.is_suspect]
                failures = 0
            except SessionLost as error:
                return self._on_lost(error)
            except Exception as error:  # noqa: BLE001 - a lane that ends silently would look like an idle one
                if failures % 20 == 0:
                    log.warning("cannot claim; trying on", partition=self.p, error=error)
                # The server may have handed out tokens whose reply was lost: list our own before claiming more.
                self._adopting = True
                pause = backoff(failures)
                failures += 1
            finally:
                self._slots.give(room - len(tokens))
            for token in suspects:
                self._suspects.take(self, token)
            self._begin_all(tokens)
            # Fewer than there was room for: the queues are empty, and the next token comes with a pebble.
            idle = len(claimed) < room and not pause
            if idle:
                # What was just begun, and its commit, go out before the call that waits.
                for _ in range(3):
                    await asyncio.sleep(0)
            if pause:
                await asyncio.sleep(pause)

    def _begin_all(self, tokens: list[Token]) -> None:
        if tokens and tokens[0].epoch != self._epoch:
            self._drop_stale(tokens[0].epoch)
        for token in tokens:
            self.held[token.key] = token
            self._begin(token)

    def _drop_stale(self, epoch: int) -> None:
        """Stops steps that were claimed from a store which was lost: what they give is refused, and they begin anew beside
        themselves. Workflows see it by themselves."""
        self._epoch = epoch
        for token in [token for token in self.held.values() if token.epoch != epoch and not is_flow(token.spec)]:
            self._drop(token)

    async def _await(self, room: int) -> list[Token]:
        """Blocks until there may be work and takes it in the same round trip."""
        # Nobody else takes slots, so those that the blocked call waits for need not be reserved in the meantime.
        self._slots.give(room)
        try:
            if self._adopting or not self._pebbles.can_call:
                await self._pebbles.wait()
                return await self._take(room)
            return await await_steps(
                self._ns,
                self.p,
                session=self._session,
                queues=self._queues,
                room=room,
                pebbles=self._pebbles,
                aging_ms=self._aging_ms,
            )
        finally:
            self._slots.free -= room

    async def _take(self, room: int) -> list[Token]:
        adopted: list[Token] = []
        if self._adopting:
            adopted = await self._own_pending()
            self._adopting = False
            if adopted:
                log.info("adopted tokens whose delivery was lost", n=len(adopted), partition=self.p)
        if len(adopted) >= room:
            return adopted
        return adopted + await claim_steps(
            self._ns,
            self.p,
            session=self._session,
            queues=self._queues,
            room=room - len(adopted),
            aging_ms=self._aging_ms,
            caller=self._caller,
        )

    async def _admit(self) -> None:
        """Gives slots that became free to those who wait for them, in groups: whatever is freed meanwhile goes next."""
        while True:
            await self.committer.freed.wait()
            self.committer.freed.clear()
            try:
                await admit(self._ns, self.p)
            except WeftError as error:
                # The gates stay marked: the timer service looks at them too.
                log.debug("waiting steps could not be let through", error=error)

    async def _own_pending(self) -> list[Token]:
        # Noted before the call: what is committed while it is under way may still stand in its reply.
        known = {*self.held, *self.committer.waiting}
        room = len(known) + 1_000
        own = await claim_steps(self._ns, self.p, session=self._session, queues=self._queues, room=room, after="0")
        return [token for token in own if token.key not in known]

    async def _wait_for_work(self) -> None:
        """Blocks until a pebble falls. Only a lane with room listens, or it would take a pebble from an idle worker."""
        try:
            pebble = await self._pebbles.wait()
            if pebble and self._slots.free <= 0:
                # Another lane took the last slot meanwhile: pass the pebble on.
                await claim_steps(self._ns, self.p, session=self._session, queues=self._queues, room=0)
        except WeftError:
            self._adopting = True
            await asyncio.sleep(backoff(0))
