"""Graphs in Python: nodes made of functions, and one method per other node type. Declaring does no I/O.

What is written here becomes the same plain definition that a YAML file gives. A single node is checked where it is declared,
the graph as a whole at its first use.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, Unpack, overload

from weft.clock import Duration, parse_duration_ms
from weft.codec import decode_plain
from weft.core.graph.arguments import TaskShape
from weft.core.graph.compile import Plan, compile
from weft.core.graph.drawing import draw
from weft.core.graph.mermaid import to_mermaid
from weft.core.graph.model import GraphSpec, to_document
from weft.core.graph.parse import check_id, read_node
from weft.core.graph.problems import Problem, Problems
from weft.core.graph.validate import check_document, invalid
from weft.core.model import RunSpec
from weft.errors import DefinitionError, InvalidOption
from weft.ids import check_name
from weft.sdk.fitting import check_fit
from weft.sdk.graphrun import BoundGraph, GraphRun, StartOptions, SyncGraph
from weft.sdk.nodes import (
    AnyOptions,
    ApprovalOptions,
    HttpOptions,
    NodeOptions,
    Ref,
    RunOptions,
    StepOptions,
    WaitOptions,
)
from weft.sdk.publishing import publish_all
from weft.sdk.task import AsyncTask, PlainTask, Task

if TYPE_CHECKING:
    from weft.sdk.app import Weft

P = ParamSpec("P")
R = TypeVar("R")

#: Options of `@graph.node` that belong to the task it registers; all others are the node's.
_TASK_OPTIONS = ("pool", "retry_on", "fatal_on")
#: Fields that name nodes, and fields that name tasks. Elsewhere a node stands for its output.
_REFS, _CALLS = frozenset({"after", "to", "default"}), frozenset({"call", "compensate"})
#: Fields whose keys are fields too: what a branch chooses among, how a node is undone. Elsewhere keys are the user's data.
_STRUCTURED = frozenset({"cases", "compensate"})


class Node:
    """A node of a graph, to be named by those that follow it."""

    def __init__(self, graph: Graph, id: str) -> None:
        self.graph, self.id = graph, id

    def __repr__(self) -> str:
        return f"Node({self.graph.name!r}, {self.id!r})"


class Graph:
    """A graph: declared by an app, filled with nodes, checked as a whole when it is first used."""

    def __init__(
        self,
        app: Weft,
        name: str,
        *,
        version: str | None = None,
        input: Mapping[str, Any] | None = None,
        output: Any = None,
    ) -> None:
        self.app, self.name = app, check_name(name, what="graph name")
        self._ids: dict[Task[Any, Any], str] = {}
        self._document: dict[str, Any] = {"name": name, "nodes": {}}
        for field, value in (("version", version), ("input", input), ("output", output)):
            if value is not None:
                self._document[field] = self._plain(field, value)
        self._spec: GraphSpec | None = None
        self._published: tuple[GraphSpec, bytes, dict[str, bytes]] | None = None

    # --- nodes made of functions ------------------------------------------------------------------

    @overload
    def node(self, fn: Callable[P, Coroutine[Any, Any, R]], /) -> AsyncTask[P, R]: ...  # type: ignore[overload-overlap]
    @overload
    def node(self, fn: Callable[P, R], /) -> PlainTask[P, R]: ...
    @overload
    def node(self, fn: None = None, /, **options: Unpack[NodeOptions]) -> NodeDecorator: ...
    def node(self, fn: Callable[..., Any] | None = None, /, **options: Any) -> Any:
        """Makes a node of a function; bare or called with options. Registers the task `<graph>.<node>` that workers run.

        Its id is the function's name, or `id`. A function that is a task already is called under the name it has.
        """
        decorator = NodeDecorator(self, options)
        return decorator if fn is None else decorator(fn)

    # --- one method per node type -----------------------------------------------------------------

    def task(self, id: str, call: Task[Any, Any] | str, **options: Unpack[RunOptions]) -> Node:
        """Adds a node that calls a task."""
        return self._add(id, "task", {"call": call, **options})

    def http(self, id: str, url: str, **options: Unpack[HttpOptions]) -> Node:
        """Adds a node that makes a request; its output is `{status, headers, body}`."""
        return self._add(id, "http", {"url": url, **options})

    def agent(
        self, id: str, agent: str, prompt: Any, *, session: str | None = None, **options: Unpack[RunOptions]
    ) -> Node:
        """Adds a node that gives a prompt to an agent."""
        return self._add(id, "agent", {"agent": agent, "prompt": prompt, "session": session, **options})

    def subgraph(
        self, id: str, graph: Graph | str, *, version: str | None = None, **options: Unpack[RunOptions]
    ) -> Node:
        """Adds a node that runs another graph; `with_` is its input."""
        return self._add(id, "subgraph", {"graph": graph, "version": version, **options})

    def approval(self, id: str, **options: Unpack[ApprovalOptions]) -> Node:
        """Adds a node that waits for people; its output is `{decision, by, at, comment, form}`."""
        return self._add(id, "approval", dict(options))

    def branch(
        self,
        id: str,
        cases: Sequence[tuple[str, Ref] | Mapping[str, Any]],
        default: Ref,
        **options: Unpack[AnyOptions],
    ) -> Node:
        """Adds a node that chooses: the target of the first case that is true, else `default`. A case is (when, target)."""
        stated = [{"when": case[0], "to": case[1]} if isinstance(case, tuple) else case for case in cases]
        return self._add(id, "branch", {"cases": stated, "default": default, **options})

    def loop(
        self,
        id: str,
        *,
        to: Ref,
        while_: str,
        max_iterations: int,
        on_exhausted: str | None = None,
        **options: Unpack[AnyOptions],
    ) -> Node:
        """Adds a node that goes back to an earlier one while a condition holds."""
        own = {"to": to, "while_": while_, "max_iterations": max_iterations, "on_exhausted": on_exhausted}
        return self._add(id, "loop", {**own, **options})

    def gather(self, id: str, *, group_by: str | None = None, **options: Unpack[StepOptions]) -> Node:
        """Adds a node that puts the items of its predecessors together, or into groups."""
        return self._add(id, "gather", {"group_by": group_by, **options})

    def wait(
        self, id: str, *, signal: str | None = None, duration: Duration | None = None, **options: Unpack[WaitOptions]
    ) -> Node:
        """Adds a node that waits for a signal or for a length of time."""
        return self._add(id, "wait", {"signal": signal, "duration": duration, **options})

    def transform(self, id: str, value: Any, **options: Unpack[StepOptions]) -> Node:
        """Adds a node that computes a value, by `${expression}` in it."""
        return self._add(id, "transform", {"value": value, **options})

    # --- runs -------------------------------------------------------------------------------------

    async def start(self, input: Any = None) -> GraphRun:
        """Starts a run of the graph."""
        return await self._bound().start(input)

    def options(self, **options: Unpack[StartOptions]) -> BoundGraph:
        """Returns the graph with options for one start: idempotency_key deadline keep_result tags durability."""
        return self._bound().options(**options)

    def run(self, id: str) -> GraphRun:
        """Returns a handle on a run of this graph."""
        return GraphRun(self.app, id, decode_plain)

    @property
    def sync(self) -> SyncGraph:
        """The same verbs for code without a loop."""
        return self._bound().sync

    def _bound(self) -> BoundGraph:
        return BoundGraph(self, RunSpec(self.name))

    # --- the definition ---------------------------------------------------------------------------

    @property
    def version(self) -> str | None:
        version: str | None = self._document.get("version")
        return version

    @property
    def spec(self) -> GraphSpec:
        """The definition, checked as a whole. Raises InvalidGraph, with all its problems."""
        if self._spec is None:
            checked = check_document(self._document, self.app.find_shape)
            if checked.spec is None:  # it has no nodes
                raise invalid(self.name, checked.problems)
            self._spec = checked.valid()
        return self._spec

    @property
    def plan(self) -> Plan:
        """What the engine looks up. Raises InvalidGraph."""
        return compile(self.spec)

    @property
    def published(self) -> bytes:
        """What is stored with its runs. Raises InvalidGraph, and NotBuilt for what cannot be executed yet."""
        return self.publish()[0]

    def publish(self) -> tuple[bytes, dict[str, bytes]]:
        """Returns what is stored with its runs, and by digest what its subgraphs follow."""
        spec = self.spec
        # With subgraphs it is made anew: those may have changed since.
        if self._published is None or self._published[0] is not spec or self._published[2]:
            self._published = (spec, *publish_all(self))
        return self._published[1:]

    @property
    def document(self) -> dict[str, Any]:
        """The definition as plain dicts and lists. Raises InvalidGraph."""
        return to_document(self.spec)

    @property
    def n_nodes(self) -> int:
        """How many nodes it has so far, valid or not."""
        return len(self._document["nodes"])

    @property
    def queues(self) -> dict[str, str]:
        """The queues that nodes name themselves, by node; the others go where their tasks do."""
        nodes = self._document["nodes"].items()
        return {id: node["queue"] for id, node in nodes if isinstance(node, dict) and node.get("queue")}

    @property
    def subgraphs(self) -> list[str]:
        """The graphs that its nodes run, by name, valid or not."""
        nodes = self._document["nodes"].values()
        return [node["graph"] for node in nodes if isinstance(node, dict) and isinstance(node.get("graph"), str)]

    def problems(self) -> list[Problem]:
        """Returns everything that is wrong with the definition, and what the app lacks to run it."""
        return check_document(self._document, self.app.find_shape, check_fit(self.app)).problems

    def text(self) -> str:
        """Returns a drawing for terminals."""
        return draw(self.plan)

    def mermaid(self) -> str:
        """Returns a drawing for GitHub, editors and wikis."""
        return to_mermaid(self.plan)

    def __repr__(self) -> str:
        return f"Graph({self.name!r}, {len(self._document['nodes'])} nodes)"

    @classmethod
    def of(cls, app: Weft, spec: GraphSpec) -> Graph:
        """Returns a graph of a definition that was checked."""
        graph = cls(app, spec.name)
        graph._document, graph._spec = to_document(spec), spec
        return graph

    def _add(self, id: str, type: str, options: Mapping[str, Any]) -> Node:
        """Adds a node whose own values are in order; raises for an id that is taken, and with all that is wrong with it."""
        if id in self._document["nodes"]:
            raise DefinitionError(f"graph {self.name} already has a node {id!r}: give this one another id", id=id)
        for option in ("with", "while"):
            if option in options:
                raise InvalidOption(f"{option} is a word of Python: write {option}_", option=option)
        given = {name.removesuffix("_"): value for name, value in options.items() if value is not None}
        node = {name: self._plain(name, value) for name, value in given.items()}
        problems = Problems()
        check_id(id, problems)
        read_node(id, {"type": type, **node}, problems)
        if problems.found:
            raise invalid(self.name, problems.found)
        self._document["nodes"][id] = {"type": type, **node}
        self._spec = None
        return Node(self, id)

    def _plain(self, field: str, value: Any) -> Any:
        """Returns a value as JSON has it: tasks and graphs by name where they are called, nodes by id, or by their output."""
        if isinstance(value, (Node, Task)):
            if field in _CALLS and isinstance(value, Task):
                return value.name
            return self._id_of(value) if field in _REFS else f"${{{self._id_of(value)}}}"
        if isinstance(value, Graph):
            return value.name
        if isinstance(value, timedelta):
            return f"{parse_duration_ms(value, what=field)}ms"
        if isinstance(value, Mapping):
            return {key: self._plain(key if field in _STRUCTURED else field, part) for key, part in value.items()}
        return [self._plain(field, part) for part in value] if isinstance(value, (list, tuple)) else value

    def _id_of(self, ref: Any) -> str:
        """Returns the id of what a reference means."""
        if isinstance(ref, Node):
            if ref.graph is not self:
                raise DefinitionError(f"node {ref.id} belongs to graph {ref.graph.name}, not to {self.name}")
            return ref.id
        id = self._ids.get(ref)
        if id is None:
            raise DefinitionError(
                f"task {ref.name} is no node of graph {self.name}: decorate it with @{self.name}.node"
            )
        return id


class NodeDecorator:
    """What `@graph.node(…)` returns: makes a node of the function it is put on."""

    def __init__(self, graph: Graph, options: dict[str, Any]) -> None:
        self._graph, self._options = graph, options

    @overload
    def __call__(self, fn: Callable[P, Coroutine[Any, Any, R]]) -> AsyncTask[P, R]: ...  # type: ignore[overload-overlap]
    @overload
    def __call__(self, fn: Callable[P, R]) -> PlainTask[P, R]: ...
    def __call__(self, fn: Callable[..., Any]) -> Any:
        graph = self._graph
        if not callable(fn):
            raise DefinitionError(f"a node is made of a function, not of {fn!r}: @graph.node, or @graph.node(after=…)")
        options = dict(self._options)
        of_task = {name: options.pop(name) for name in _TASK_OPTIONS if name in options}
        if isinstance(fn, Task):
            if of_task:
                raise DefinitionError(f"task {fn.name} is registered already: give {', '.join(of_task)} to @app.task")
            id = options.pop("id", None) or fn.name.rpartition(".")[2]
            call = fn.name
        else:
            id = options.pop("id", None) or getattr(fn, "__name__", "")
            if not id or id == "<lambda>":
                raise DefinitionError(f"{fn!r} has no name that could be the node's: say graph.node(id=…)")
            call = f"{graph.name}.{id}"
        # The node first: when it is refused, no task is left behind.
        graph._add(id, "task", {"call": call, **options})
        try:
            task = fn if isinstance(fn, Task) else graph.app.task(name=call, **of_task)(fn)
        except BaseException:
            del graph._document["nodes"][id]
            raise
        graph._ids[task] = id
        return task


def shape_of(task: Task[Any, Any]) -> TaskShape:
    """Returns what a graph has to know of a task's signature."""
    signature = task.signature
    return TaskShape(signature.text, signature.by_name, signature.required, signature.names is None)
