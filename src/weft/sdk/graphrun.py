"""Starting graphs, and handles on their runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

from weft.clock import Duration
from weft.codec import decode_plain
from weft.core.graph.problems import similar
from weft.core.graph.schema import check_input
from weft.core.model import RunSpec
from weft.core.versions import Patched
from weft.engine import graphs as verbs
from weft.engine import pauses, retries
from weft.engine.flowview import RunTree, tree
from weft.engine.graphview import graph_of
from weft.engine.pauses import checked_reason
from weft.engine.signals import signal
from weft.engine.versions import patches_of
from weft.errors import InvalidArguments, InvalidOption
from weft.sdk.options import CallOptions, call_spec
from weft.sdk.patching import patch_run, undo_patch
from weft.sdk.run import Run, SyncRun

if TYPE_CHECKING:
    from weft.sdk.graph import Graph


#: Stands for an input that is not given: None is one.
_SAME: Any = object()


class StartOptions(TypedDict, total=False):
    """What `graph.options(…)` takes."""

    deadline: Duration | None
    keep_result: Duration
    tags: Mapping[str, str | int | float | bool]
    idempotency_key: str | None
    idempotency_window: Duration
    durability: str


def start_spec(spec: RunSpec, options: Mapping[str, Any]) -> RunSpec:
    """Returns what a graph run is asked with the options of one start; refuses those that only its steps could have."""
    for option in options.keys() - StartOptions.__annotations__.keys():
        if option in ("delay", "eta"):
            text = (
                "a run of a graph begins at once; let the graph begin with a wait, as graph.wait('later', duration=…)"
            )
            raise InvalidOption(f"{option}: {text}", option=option)
        if option in CallOptions.__annotations__:
            text = f"{option} belongs to the nodes of a graph: give it to them, or to their tasks"
            raise InvalidOption(text, option=option)
        known = sorted(StartOptions.__annotations__)
        hint = similar(option, known) or f"; known are {', '.join(known)}"
        raise InvalidOption(f"the start of a graph has no option {option!r}{hint}", option=option)
    return call_spec(spec, options)


class GraphRun(Run[Any]):
    """A run of a graph."""

    async def graph(self) -> dict[str, Any]:
        """How the run stands, node by node: `{revision, nodes: {id: {type, status, output, error, attempt, after, …}}}`."""
        return await graph_of(self._app.engine(), self.id)

    async def tree(self) -> RunTree:
        """The run with all the runs that it, and they, have started and that are still kept."""
        return await tree(self._app.engine(), self.id)

    async def signal(self, name: str, value: Any = None, *, request_id: str | None = None) -> bool:
        """Gives the run a signal; its value is the output of the node that waits for it.

        Returns whether a step was waiting (False: it is kept until one does, in order). A repeated call with the same
        request_id answers the same. Raises Conflict when the run has ended, NotFound when there is none.
        """
        engine = self._app.engine()
        return await signal(engine, self.id, name, value, request_id=request_id, by=engine.actor)

    async def pause(self, reason: str = "") -> bool:
        """Holds the run: running steps finish, nothing else begins. Returns whether it is paused now (False: it had ended)."""
        engine = self._app.engine()
        return await pauses.pause(engine, self.id, reason=reason, by=engine.actor)

    async def resume(self) -> bool:
        """Lets the run go on; returns whether it does now (False: it had ended)."""
        engine = self._app.engine()
        return await pauses.resume(engine, self.id, by=engine.actor)

    async def patch(
        self,
        operations: Sequence[Mapping[str, Any]],
        *,
        author: str = "",
        reason: str = "",
        dry_run: bool = False,
        revision: int | None = None,
    ) -> dict[str, Any]:
        """Changes the definition of this run by RFC 6902 operations under `/nodes`; it counts from the next step on.

        Returns `{revision, diff, added, removed, changed, rerouted, reached}`; with `dry_run` nothing is changed. With
        `revision` only if that is still the newest. Raises Conflict for what has begun, and when another patch came first,
        with the new revision in its facts; InvalidGraph with all problems of the new definition.
        """
        return await patch_run(
            self._app, self.id, operations, author=author, reason=reason, dry_run=dry_run, revision=revision
        )

    async def undo_patch(self, *, author: str = "", reason: str = "", dry_run: bool = False) -> dict[str, Any]:
        """Goes back to the definition before the last patch, by a patch. Raises Conflict when there was none."""
        return await undo_patch(self._app, self.id, author=author, reason=reason, dry_run=dry_run)

    async def patches(self) -> list[Patched]:
        """The patches of this run, the first one first, from whichever store has its history."""
        return await patches_of(self._app.engine(), self.id)

    async def retry(self, from_step: str | None = None, *, reason: str = "") -> list[str]:
        """Opens a failed or cancelled run again; returns the nodes that run anew.

        These are `from_step` and all behind it, what failed, and what was cut off or not reached. Other results are kept.
        Raises Conflict for a run that is open or has completed, and for a step that never began.
        """
        engine = self._app.engine()
        text = checked_reason(reason)
        return await retries.retry(engine, self.id, from_step=from_step, reason=text, by=engine.actor)

    async def fork(self, from_step: str, input: Any = _SAME) -> GraphRun:
        """Starts a new run that shares what this one finished before a step, and runs that step and all behind it.

        With `input` it has another input; what is shared stays as it was made from the old one.
        """
        engine = self._app.engine()
        started = await retries.fork(
            engine,
            self.id,
            from_step=from_step,
            input=None if input is _SAME else input,
            new_input=input is not _SAME,
            by=engine.actor,
        )
        return GraphRun(self._app, started.id, decode_plain, accepted=True)

    @property
    def sync(self) -> SyncGraphRun:
        """The same verbs for code without a loop."""
        return SyncGraphRun(self)


class SyncGraphRun(SyncRun[Any]):
    """`run.sync`: the verbs of a graph run for code without a loop."""

    def __init__(self, run: GraphRun) -> None:
        super().__init__(run)
        self._graph_run = run

    def graph(self) -> dict[str, Any]:
        return self._wait(self._graph_run.graph())

    def tree(self) -> RunTree:
        return self._wait(self._graph_run.tree())

    def signal(self, name: str, value: Any = None, *, request_id: str | None = None) -> bool:
        return self._wait(self._graph_run.signal(name, value, request_id=request_id))

    def pause(self, reason: str = "") -> bool:
        return self._wait(self._graph_run.pause(reason))

    def resume(self) -> bool:
        return self._wait(self._graph_run.resume())

    def patch(self, operations: Sequence[Mapping[str, Any]], **options: Any) -> dict[str, Any]:
        return self._wait(self._graph_run.patch(operations, **options))

    def undo_patch(self, **options: Any) -> dict[str, Any]:
        return self._wait(self._graph_run.undo_patch(**options))

    def patches(self) -> list[Patched]:
        return self._wait(self._graph_run.patches())

    def retry(self, from_step: str | None = None, *, reason: str = "") -> list[str]:
        return self._wait(self._graph_run.retry(from_step, reason=reason))

    def fork(self, from_step: str, input: Any = _SAME) -> SyncGraphRun:
        return self._wait(self._graph_run.fork(from_step, input)).sync


class BoundGraph:
    """A graph with the options of one start."""

    def __init__(self, graph: Graph, spec: RunSpec) -> None:
        self._graph, self._spec = graph, spec

    async def start(self, input: Any = None) -> GraphRun:
        """Starts a run. The input is checked against the graph's schema now, not in a worker."""
        graph = self._graph
        if wrong := check_input(graph.spec.input, input):
            raise InvalidArguments(f"the input does not fit graph {graph.name}: {'; '.join(wrong)}", problems=wrong)
        data, children = graph.publish()
        started = await verbs.start(graph.app.engine(), data, self._spec, input, children)
        return GraphRun(graph.app, started.id, decode_plain, deduplicated=started.deduplicated, accepted=True)

    def options(self, **options: Unpack[StartOptions]) -> BoundGraph:
        """Returns the graph with these options and some more."""
        return BoundGraph(self._graph, start_spec(self._spec, options))

    @property
    def sync(self) -> SyncGraph:
        return SyncGraph(self)


class SyncGraph:
    """`graph.sync.start(…)`."""

    def __init__(self, bound: BoundGraph) -> None:
        self._bound = bound

    def start(self, input: Any = None) -> SyncGraphRun:
        return self._bound._graph.app.portal.call(self._bound.start(input)).sync
