"""Starting graphs, and handles on their runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

from weft.clock import Duration
from weft.codec import decode_plain
from weft.core.graph.schema import check_input
from weft.core.model import RunSpec
from weft.engine import graphs as verbs
from weft.errors import InvalidArguments
from weft.sdk.options import call_spec
from weft.sdk.run import Run, SyncRun

if TYPE_CHECKING:
    from weft.sdk.graph import Graph


class StartOptions(TypedDict, total=False):
    """What `graph.options(…)` takes."""

    deadline: Duration | None
    keep_result: Duration
    tags: Mapping[str, str | int | float | bool]
    idempotency_key: str | None
    idempotency_window: Duration
    durability: str


class GraphRun(Run[Any]):
    """A run of a graph."""

    async def graph(self) -> dict[str, Any]:
        """How the run stands, node by node: `{revision, nodes: {id: {type, status, output, error, attempt, after, …}}}`."""
        return await verbs.graph_of(self._app.engine(), self.id)

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
        return BoundGraph(self._graph, call_spec(self._spec, options))

    @property
    def sync(self) -> SyncGraph:
        return SyncGraph(self)


class SyncGraph:
    """`graph.sync.start(…)`."""

    def __init__(self, bound: BoundGraph) -> None:
        self._bound = bound

    def start(self, input: Any = None) -> SyncGraphRun:
        return self._bound._graph.app.portal.call(self._bound.start(input)).sync
