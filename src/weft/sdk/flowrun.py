"""Handles on workflow runs."""

from __future__ import annotations

from typing import Any, NoReturn, TypeVar

from weft.codec import TypeCodec
from weft.engine import flows as verbs
from weft.engine import signals, updates
from weft.errors import NotBuilt
from weft.sdk.run import Run, SyncRun

T = TypeVar("T")


class WorkflowRun(Run[T]):
    """A run of a workflow."""

    async def signal(self, name: str, value: Any = None, *, request_id: str | None = None) -> bool:
        """Gives the run a signal; `ctx.receive` gets it, in order, and one that comes early waits.

        A repeated call with the same request_id changes nothing. Raises Conflict when the run has ended.
        """
        engine = self._app.engine()
        return await signals.signal(engine, self.id, name, value, request_id=request_id, by=engine.id)

    async def state(self) -> dict[str, Any]:
        """What the run shows of itself by `ctx.set_state`."""
        return await verbs.state_of(self._app.engine(), self.id)

    async def update(
        self, name: str, value: Any = None, *, type: Any = None, id: str | None = None, timeout: float | None = None
    ) -> Any:
        """Asks the running code something and returns its answer, as a `type` if one is given; see `ctx.on_update`.

        One id is one update: asked again, also by another process, it is answered the same, and its handler runs once. One
        that comes before its handler waits. Raises StepFailed when the handler raised, InvalidArguments when the run has no
        such update or does not take the value, Conflict when the run has ended, and TimeoutError when the wait ends first.
        """
        engine = self._app.engine()
        codec = TypeCodec(type, what=f"the answer to update {name}")
        return codec.decode(await updates.update(engine, self.id, name, value, id=id, timeout=timeout, by=engine.id))

    async def resolve(self, action: str) -> NoReturn:
        raise NotBuilt("run.resolve is not built yet: bring back the code that the run began with, and it goes on")

    @property
    def sync(self) -> SyncWorkflowRun[T]:
        """The same verbs for code without a loop."""
        return SyncWorkflowRun(self)


class SyncWorkflowRun(SyncRun[T]):
    """`run.sync`: the verbs of a workflow run for code without a loop."""

    def __init__(self, run: WorkflowRun[T]) -> None:
        super().__init__(run)
        self._flow_run = run

    def signal(self, name: str, value: Any = None, *, request_id: str | None = None) -> bool:
        return self._wait(self._flow_run.signal(name, value, request_id=request_id))

    def update(
        self, name: str, value: Any = None, *, type: Any = None, id: str | None = None, timeout: float | None = None
    ) -> Any:
        return self._wait(self._flow_run.update(name, value, type=type, id=id, timeout=timeout))

    def state(self) -> dict[str, Any]:
        return self._wait(self._flow_run.state())
