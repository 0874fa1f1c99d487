"""Handles on workflow runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from weft.clock import Duration, parse_wait
from weft.codec import TypeCodec
from weft.engine import flows as verbs
from weft.engine import signals, updates
from weft.sdk.run import Run, SyncRun

if TYPE_CHECKING:
    from weft.engine.flowview import RunTree, Span

T = TypeVar("T")


class WorkflowRun(Run[T]):
    """A run of a workflow."""

    async def signal(self, name: str, value: Any = None, *, request_id: str | None = None) -> bool:
        """Gives the run a signal; `ctx.receive` gets it, in order, and one that comes early waits.

        A repeated call with the same request_id changes nothing. Raises Conflict when the run has ended.
        """
        engine = self._app.engine()
        return await signals.signal(engine, self.id, name, value, request_id=request_id, by=engine.actor)

    async def state(self) -> dict[str, Any]:
        """What the run shows of itself by `ctx.set_state`."""
        return await verbs.state_of(self._app.engine(), self.id)

    async def update(
        self, name: str, value: Any = None, *, type: Any = None, id: str | None = None, timeout: Duration | None = None
    ) -> Any:
        """Asks the running code something and returns its answer, as a `type` if one is given; see `ctx.on_update`.

        One id is one update: asked again, also by another process, it is answered the same, and its handler runs once. One
        that comes before its handler waits. Raises StepFailed when the handler raised, InvalidArguments when the run has no
        such update or does not take the value, Conflict when the run has ended, and TimeoutError when the wait ends first.
        """
        engine = self._app.engine()
        codec = TypeCodec(type, what=f"the answer to update {name}")
        return codec.decode(
            await updates.update(engine, self.id, name, value, id=id, timeout=parse_wait(timeout), by=engine.actor)
        )

    async def resolve(self, action: str) -> WorkflowRun[T]:
        """Settles a run that waits because its code does not fit its journal; returns the run that goes on.

        `pin`: it goes on with the version of the code that went on last (any open run can be pinned). `accept`: it goes on with
        the code at hand, which gets what was done when it asks for it by the same name. `fork`: the same in a new run, and this
        one stays as it is. Raises Conflict when there is nothing to be settled.
        """
        from weft.sdk.resolving import resolve

        id = await resolve(self._app, self.id, action)
        return self if id == self.id else WorkflowRun(self._app, id, self._decode, accepted=True)

    async def retry(self, from_step: str | None = None, *, reason: str = "") -> WorkflowRun[T]:
        """Tries a failed or cancelled run again and returns the new run: it has done what this one did, but for what failed.

        The code at hand is told the journal, without the failure; then the step, call or child that failed is done again. With
        `from_step` also all that the run was told from that step on, but for signals and updates. Raises Conflict for a run
        that is open, has completed, was tried again before, or did something because it failed, as undoing.
        """
        from weft.sdk.retrying import retry

        id = await retry(self._app, self.id, from_step, reason=reason)
        return WorkflowRun(self._app, id, self._decode, accepted=True)

    async def timeline(self) -> list[Span]:
        """What the run did, in the order it began: steps, calls, children, timers, signals, each with its times."""
        from weft.engine.flowview import timeline

        return await timeline(self._app.engine(), self.id)

    async def tree(self) -> RunTree:
        """The run with all the runs that it, and they, have started and that are still kept."""
        from weft.engine.flowview import tree

        return await tree(self._app.engine(), self.id)

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
        self, name: str, value: Any = None, *, type: Any = None, id: str | None = None, timeout: Duration | None = None
    ) -> Any:
        return self._wait(self._flow_run.update(name, value, type=type, id=id, timeout=timeout))

    def state(self) -> dict[str, Any]:
        return self._wait(self._flow_run.state())

    def timeline(self) -> list[Span]:
        return self._wait(self._flow_run.timeline())

    def tree(self) -> RunTree:
        return self._wait(self._flow_run.tree())

    def retry(self, from_step: str | None = None, *, reason: str = "") -> SyncWorkflowRun[T]:
        return self._wait(self._flow_run.retry(from_step, reason=reason)).sync

    def resolve(self, action: str) -> SyncWorkflowRun[T]:
        return self._wait(self._flow_run.resolve(action)).sync
