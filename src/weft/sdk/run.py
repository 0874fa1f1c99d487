"""A handle on a run: what `enqueue` returns and `app.runs.get` finds."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Iterator
from datetime import datetime
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from weft.clock import Duration, parse_wait
from weft.codec import decode_plain
from weft.core.flow import is_flow
from weft.core.model import Event, LogLine, RunInfo, RunStatus
from weft.engine import histories
from weft.engine import runs as verbs
from weft.engine.lines import log_lines
from weft.errors import InvalidOption, NotFound, ResultExpired
from weft.ids import partition_of
from weft.sdk.options import due_text
from weft.sdk.tasklog import unpack_line

if TYPE_CHECKING:
    from weft.engine.explain import Explanation
    from weft.sdk.app import Weft

T = TypeVar("T")
W = TypeVar("W")


class Run(Generic[T]):
    """One run. Cheap: it holds an id and asks the store when asked."""

    def __init__(
        self, app: Weft, id: str, decode: Callable[[bytes], T], *, deduplicated: bool = False, accepted: bool = False
    ) -> None:
        partition_of(id)  # refuses what cannot be an id before it reaches a key
        self.id = id
        self.deduplicated = deduplicated
        self._app, self._decode, self._accepted = app, decode, accepted

    async def status(self) -> RunStatus:
        """How the run stands now."""
        return (await self.info()).status

    async def info(self) -> RunInfo:
        """Everything about how the run stands, in one read."""
        return await verbs.info(self._app.engine(), self.id)

    async def result(self, timeout: Duration | None = None) -> T:
        """Waits for the run and returns its result.

        Raises StepFailed, RunCancelled, TimeoutError when the wait ends first, ResultExpired when the run is no longer
        kept, NotFound for an id that never was.
        """
        seconds = parse_wait(timeout)
        try:
            return self._decode(await verbs.end_of(self._app.engine(), self.id, seconds))
        except TimeoutError:
            raise TimeoutError(f"run {self.id} has not finished within {seconds:g} s; it goes on") from None
        except NotFound:
            if self._accepted:
                raise ResultExpired(
                    f"run {self.id} is gone: it finished and its result is no longer kept (keep_result), or the store was"
                    " lost before the run was archived",
                    run=self.id,
                ) from None
            raise

    async def cancel(self, reason: str = "") -> bool:
        """Cancels the run; returns whether it is cancelled now (False: it had already finished otherwise)."""
        return await verbs.cancel(self._app.engine(), self.id, reason=reason, by=self._app.engine().actor)

    async def explain(self) -> Explanation:
        """Why the run does not go on: the one constraint that binds it, as a sentence and as data.

        Of a graph run, `steps` tells it for every open step, and the rest is about the one that goes on first.
        """
        from weft.engine.explain_graph import explain_run  # what it needs of graphs takes a while to import

        return await explain_run(self._app.engine(), self.id)

    async def logs(self) -> list[LogLine]:
        """What its steps logged by `current().log`, oldest first: the last 100 lines, 16 KB at most.

        `dropped` of the first one tells how many older ones are gone.
        """
        return await log_lines(self._app.engine(), self.id, unpack_line)

    async def reschedule(self, *, delay: Duration | None = None, eta: datetime | None = None) -> datetime:
        """Changes when a run that waits for its delay, snooze or back-off goes on (`delay=0`: now); returns the moment.

        Raises Conflict when it waits for none: it is queued, running or finished.
        """
        engine = self._app.engine()
        return await verbs.reschedule(engine, self.id, when=due_text(delay, eta), by=engine.actor)

    async def history(self) -> list[Event]:
        """All events so far, seq 1 to n."""
        return await histories.history(self._app.engine(), self.id)

    async def events(self, after: int | None = None) -> AsyncGenerator[Event, None]:
        """Events as they happen, from `after` + 1 on; ends after the terminal one."""
        if after is not None and (not isinstance(after, int) or isinstance(after, bool) or after < 0):
            raise InvalidOption(f"after is the seq of the last event seen, 0 for none, not {after!r}", option="after")
        async for event in histories.events(self._app.engine(), self.id, after=after or 0):
            yield event

    @property
    def sync(self) -> SyncRun[T]:
        """The same verbs for code without a loop."""
        return SyncRun(self)

    def __repr__(self) -> str:
        return f"Run({self.id!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Run) and other.id == self.id

    def __hash__(self) -> int:
        return hash(self.id)


class FoundRun(Run[T]):
    """A run looked up by id. Awaiting it checks that it exists and gives the plain handle."""

    def __await__(self) -> Generator[Any, None, Run[T]]:
        return self._found().__await__()

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            raise AttributeError(
                f"a run that is only looked up has no {name!r}; what it is, is known once it is awaited:"
                f" (await app.runs.get(id)).{name}",
                name=name,
                obj=self,
            )

    async def _found(self) -> Run[T]:
        row = await verbs.find(self._app.engine(), self.id)
        if row.spec.definition:
            from weft.sdk.graphrun import GraphRun

            return cast("Run[T]", GraphRun(self._app, self.id, decode_plain))
        if is_flow(row.spec):
            from weft.sdk.flowrun import WorkflowRun

            return WorkflowRun(self._app, self.id, self._decode)
        return Run(self._app, self.id, self._decode)


class SyncRun(Generic[T]):
    """`run.sync.result(timeout=5)` and friends."""

    def __init__(self, run: Run[T]) -> None:
        self._run = run
        self.id = run.id
        self.deduplicated = run.deduplicated

    @property
    def sync(self) -> SyncRun[T]:
        """Itself: what code without a loop gets from a sync verb works like what `enqueue` returns."""
        return self

    def status(self) -> RunStatus:
        return self._wait(self._run.status())

    def info(self) -> RunInfo:
        return self._wait(self._run.info())

    def result(self, timeout: Duration | None = None) -> T:
        return self._wait(self._run.result(timeout))

    def cancel(self, reason: str = "") -> bool:
        return self._wait(self._run.cancel(reason))

    def explain(self) -> Explanation:
        return self._wait(self._run.explain())

    def logs(self) -> list[LogLine]:
        return self._wait(self._run.logs())

    def reschedule(self, *, delay: Duration | None = None, eta: datetime | None = None) -> datetime:
        return self._wait(self._run.reschedule(delay=delay, eta=eta))

    def history(self) -> list[Event]:
        return self._wait(self._run.history())

    def events(self, after: int | None = None) -> Iterator[Event]:
        events = self._run.events(after)

        async def advance() -> Event | None:
            return await anext(events, None)

        try:
            while (event := self._wait(advance())) is not None:
                yield event
        finally:
            self._wait(events.aclose())

    def _wait(self, work: Coroutine[Any, Any, W]) -> W:
        return self._run._app.portal.call(work)
