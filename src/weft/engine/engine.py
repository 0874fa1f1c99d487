"""The engine: an opened namespace and the parties that share it within one process and event loop."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import getpass
import itertools
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextvars import ContextVar
from typing import TYPE_CHECKING, TypeVar

from weft.archive.address import Address
from weft.clock import backoff
from weft.core.acts import AT
from weft.engine.batching import Batcher
from weft.engine.cold import Cold, database_address
from weft.engine.waiting import Waiting
from weft.errors import NotExecuted, OutcomeUnknown, PartitionLost, Unavailable
from weft.ids import home_of_key, new_id
from weft.store.connection import Address as StoreAddress
from weft.store.connection import Server
from weft.store.controls import informed
from weft.store.embedded import EmbeddedServer
from weft.store.keys import Keyspace
from weft.store.namespace import Namespace
from weft.store.runs import NewRun, start_runs
from weft.store.timers import read_now
from weft.telemetry import get_logger

if TYPE_CHECKING:
    from weft.engine.committed import Commits

T = TypeVar("T")

log = get_logger("weft.engine")

#: Runs started by one script call: some 3 ms of server time at most.
START_BATCH = 256
#: Seconds a start is repeated while the store does not answer; it is idempotent by run id.
START_PATIENCE = 15.0


class Engine:
    """Everything a process needs to start and follow runs."""

    def __init__(
        self,
        url: str,
        namespace: str,
        *,
        partitions: int | None = None,
        database: Address | None = None,
        revive: Callable[[], object] | None = None,
        rebuild: Callable[[Engine], Awaitable[bool]] | None = None,
    ) -> None:
        """`rebuild` brings back what the store lost; False while another process does."""
        self.id = new_id("c")
        self.ns = Namespace(Server(url, revive=revive), namespace, partitions=partitions)
        self.cold = Cold(database or database_address(None), namespace)
        self._rebuild = rebuild
        self.ns.ask_archive = self.cold.partitions
        self.waiting = Waiting(self.ns, self.id)
        self._starters: dict[int, Batcher[NewRun, str]] = {}
        #: Who waits until the store keeps runs at a level, by partition and level.
        self.keepers: dict[tuple[int, str], Batcher[None, bool]] = {}
        #: What starts that are committed to the database need; made at the first of them.
        self.commits: Commits | None = None
        #: Definitions of graphs that the store is known to have, by partition and digest.
        self.stored: set[tuple[int, str]] = set()
        self._turn = itertools.count(int.from_bytes(self.id.encode()[-2:], "big"))
        self._opened: asyncio.Future[None] | None = None

    @property
    def actor(self) -> str:
        """Who acts by this process, as the log and the audit have it: its user, and the process."""
        return f"{user_name()}{AT}{self.id}"

    async def open(self) -> None:
        """Opens the namespace once, however many callers ask at the same time."""
        if self._opened is None:
            self._opened = asyncio.ensure_future(self._open())
            try:
                await asyncio.shield(self._opened)
            except BaseException:
                self._opened = None
                raise
            for warning in self.ns.warnings:
                log.warning(warning)
            # `asyncio.run` closes async generators last: so connections are closed also without `async with app`.
            self._closer = _close_with_loop(self)
            await anext(self._closer)
        elif not self._opened.done():
            await asyncio.shield(self._opened)

    async def _open(self) -> None:
        """Opens the namespace; what was lost is rebuilt first, or a store without its keys would take a known one for new."""
        give_up = asyncio.get_running_loop().time() + START_PATIENCE
        for attempt in itertools.count():
            try:
                return await self.ns.open()
            except PartitionLost:
                if self._rebuild is None or asyncio.get_running_loop().time() > give_up:
                    raise
            with contextlib.suppress(Unavailable):  # the database is; or another process was quicker
                if await self._rebuild(self):
                    continue
            await asyncio.sleep(backoff(attempt))

    async def reach(self, seconds: float) -> None:
        """Opens the namespace and asks the store something. Raises Unavailable when it has not answered in time."""
        try:
            async with asyncio.timeout(seconds):
                await self.open()
                await read_now(self.ns, 0)
        except TimeoutError as error:
            raise Unavailable(f"the store has not answered within {seconds:g} s") from error

    @property
    def is_open(self) -> bool:
        """Whether the namespace has been opened: the store may be another one since."""
        return self._opened is not None and self._opened.done()

    async def close(self) -> None:
        await self.waiting.close()
        await self.cold.close()
        await self.ns.close()

    def home(self, key: str = "") -> int:
        """Returns the partition a new run lives in: that of its idempotency key, else any, by turns."""
        if self.ns.partitions == 1:
            return 0
        return home_of_key(key, self.ns.partitions) if key else next(self._turn) % self.ns.partitions

    async def submit(self, p: int, run: NewRun) -> str:
        """Starts a run together with whatever else is being started."""
        starter = self._starters.get(p)
        if starter is None:
            starter = self._starters[p] = Batcher(lambda runs: self.start_batch(p, runs), limit=START_BATCH)
        if not self.waiting.expect(run.id):
            return await starter.call(run)
        run.watched, word = True, ""
        try:
            word = await starter.call(run)
        finally:
            if not word.startswith(("started", "replaced")):
                self.waiting.expect_no_more(run.id)
        return word

    async def start_batch(self, p: int, runs: Sequence[NewRun]) -> list[str]:
        """Starts runs of one partition."""
        watch = self.waiting.channel if any(run.watched for run in runs) else ""
        return await self.insist(p, lambda: start_runs(self.ns, p, runs, by=self.id, watch=watch))

    async def insist(self, p: int, call: Callable[[], Awaitable[T]]) -> T:
        """Makes a call that starts runs, repeating it while its outcome is unknown: run ids make that safe."""
        give_up = asyncio.get_running_loop().time() + START_PATIENCE
        for attempt in itertools.count():
            try:
                return await informed(self.ns, p, call)
            except (OutcomeUnknown, NotExecuted) as error:
                lasting = isinstance(error, NotExecuted) and error.facts.get("redis") in ("OOM", "MISCONF")
                if lasting or asyncio.get_running_loop().time() > give_up:
                    raise
                await asyncio.sleep(backoff(attempt))
        raise AssertionError("unreachable")


#: What stands before the user's name where people act: `cli:` in commands of the command line.
acting_by: ContextVar[str] = ContextVar("acting_by", default="")


def user_name() -> str:
    """Returns who acts: the user of this process, without blanks, on the command line with `cli:` before."""
    return acting_by.get() + _user_name()


@functools.cache
def _user_name() -> str:
    try:
        return "-".join(getpass.getuser().split()) or "unknown"
    except (KeyError, OSError, ImportError):
        return "unknown"


def check_address(url: str | None, namespace: str | None) -> None:
    """Refuses a store URL or a namespace that cannot be used, without any I/O."""
    if url is not None:
        StoreAddress.parse(url)
    if namespace is not None:
        Keyspace(namespace)


async def _close_with_loop(engine: Engine) -> AsyncGenerator[None, None]:
    try:
        yield
    finally:
        await engine.close()


__all__ = ["EmbeddedServer", "Engine", "check_address"]
