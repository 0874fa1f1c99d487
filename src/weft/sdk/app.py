"""The app: a name, a store and the tasks that belong together. Importing it does no I/O."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import weakref
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Protocol, TypeVar, Unpack, overload

from weft.clock import Duration
from weft.core.schedule import ScheduleSpec, Times, check_policies
from weft.engine.cold import database_address
from weft.engine.engine import EmbeddedServer, Engine, check_address
from weft.errors import DefinitionError, InvalidOption, PartitionLost
from weft.ids import check_name
from weft.sdk.approvals import Approvals
from weft.sdk.audit import Audit
from weft.sdk.batching import Batching
from weft.sdk.controls import Controls
from weft.sdk.declared import Declared
from weft.sdk.depends import read_needs
from weft.sdk.flowloop import FlowLoop
from weft.sdk.gating import Gating
from weft.sdk.holding import Holding
from weft.sdk.hooks import AfterHook, BeforeHook, ErrorHook, Hooks, check_hook
from weft.sdk.letters import DeadLetters
from weft.sdk.once import Uniqueness
from weft.sdk.options import TaskOptions, exception_classes, task_spec
from weft.sdk.portal import Portal
from weft.sdk.queues import Queues, Workers
from weft.sdk.retention import Retention
from weft.sdk.runs import Runs
from weft.sdk.schedules import Schedules, declare
from weft.sdk.status import Status
from weft.sdk.task import POOLS, AsyncTask, PlainTask, Task
from weft.settings import read_setting

if TYPE_CHECKING:
    from weft.core.graph.arguments import TaskShape
    from weft.engine.cold import Address
    from weft.sdk.context import Context
    from weft.sdk.definitions import Definitions
    from weft.sdk.graph import Graph
    from weft.sdk.workflow import Workflow, WorkflowDecorator, WorkflowOptions
    from weft.testing.harness import Harness
    from weft.worker.worker import Worker

P = ParamSpec("P")
R = TypeVar("R")
I = TypeVar("I")  # noqa: E741 - an item
Hook = Callable[[], Awaitable[None] | None]
H = TypeVar("H", bound=Hook)
B = TypeVar("B", bound=BeforeHook)
A = TypeVar("A", bound=AfterHook)
E = TypeVar("E", bound=ErrorHook)


class _Importing:
    """What this process is about to import."""

    #: Whether it is the worker's main script, of which only the tasks are wanted.
    main = False


importing = _Importing()


class Weft:
    """An app. Import-safe: nothing is connected or started until first use or `async with app:`."""

    def __init__(
        self,
        name: str,
        *,
        redis_url: str | None = None,
        database_url: str | None = None,
        namespace: str | None = None,
    ) -> None:
        self.name = check_name(name, what="app name")
        self.tasks: dict[str, Task[Any, Any]] = Declared(name, "task")
        self.graphs: dict[str, Graph] = Declared(name, "graph")
        self.workflows: dict[str, Workflow[Any, Any]] = Declared(name, "workflow")
        self.crons: dict[str, ScheduleSpec] = {}
        self.startup: list[Hook] = []
        self.shutdown: list[Hook] = []
        self.hooks = Hooks()
        self.portal = Portal(self.close)
        self.runs = Runs(self)
        self.controls = Controls(self)
        self.queues = Queues(self)
        self.workers = Workers(self)
        self.dlq = DeadLetters(self)
        self.approvals = Approvals(self)
        self.schedules = Schedules(self)
        self.status = Status(self)
        self.audit = Audit(self)
        self.retention = Retention(self)
        check_address(redis_url, namespace)
        database_address(database_url)  # refused now, not when the first run is archived
        self._redis_url, self._database_url, self._namespace = redis_url, database_url, namespace
        self._holding = Holding()
        self._places: dict[str, Path] = {}
        #: The data directory while it is tested: none of what the project has.
        self._tested_in: Path | None = None
        self._databases: dict[tuple[str, Path], Address] = {}
        self._harness: Harness | None = None
        self._engines: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, Engine] = weakref.WeakKeyDictionary()
        #: Blocks of `async with app:` that each loop is in.
        self._entered: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, int] = weakref.WeakKeyDictionary()

    # --- declaring work ---------------------------------------------------------------------------

    @overload
    def task(self, fn: Callable[P, Coroutine[Any, Any, R]], /) -> AsyncTask[P, R]: ...  # type: ignore[overload-overlap]
    @overload
    def task(self, fn: Callable[P, R], /) -> PlainTask[P, R]: ...
    @overload
    def task(
        self, fn: None = None, /, *, batch: int, batch_wait: Duration = ..., **options: Unpack[TaskOptions]
    ) -> BatchDecorator: ...
    @overload
    def task(self, fn: None = None, /, **options: Unpack[TaskOptions]) -> TaskDecorator: ...
    def task(self, fn: Callable[..., Any] | None = None, /, **options: Any) -> Any:
        """Registers a function as a task; bare or called with options (name, queue, retries, timeout, …)."""
        decorator = TaskDecorator(self, options)
        return decorator if fn is None else decorator(fn)

    def cron(
        self,
        expr: str,
        *,
        tz: str = "UTC",
        overlap: str = "skip",
        catch_up: str = "latest",
        **options: Unpack[TaskOptions],
    ) -> TaskDecorator:
        """Registers a function as a task that a schedule of the same name starts; takes the options of a task too.

        On a task that is registered already it only adds the schedule, under `name` or the task's name.
        """
        Times(expr, tz)
        check_policies(overlap, catch_up)
        schedule = functools.partial(declare, expr=expr, tz=tz, overlap=overlap, catch_up=catch_up)
        return TaskDecorator(self, dict(options), schedule)

    @overload
    def workflow(self, fn: Callable[Concatenate[Context, P], Coroutine[Any, Any, R]], /) -> Workflow[P, R]: ...
    @overload
    def workflow(self, fn: None = None, /, **options: Unpack[WorkflowOptions]) -> WorkflowDecorator: ...
    def workflow(self, fn: Any = None, /, **options: Any) -> Any:
        """Registers a durable function, `async def f(ctx, …)`; bare or called with options (name, queue, deadline, …)."""
        from weft.sdk.workflow import WorkflowDecorator

        decorator = WorkflowDecorator(self, options)
        return decorator if fn is None else decorator(fn)

    def graph(
        self, name: str, *, version: str | None = None, input: Mapping[str, Any] | None = None, output: Any = None
    ) -> Graph:
        """Declares a graph; `app.graphs[name]` gets it. `input` is a JSON Schema, `output` a template of the result."""
        from weft.sdk.graph import Graph

        return self._keep(Graph(self, name, version=version, input=input, output=output))

    def load(self, path: str | PathLike[str]) -> list[Graph]:
        """Declares every graph of a YAML file. Raises InvalidGraph, with all problems of all of them, and declares none."""
        from weft.sdk.files import load_graphs

        loaded = load_graphs(self, path)
        for graph in loaded:
            self._keep(graph)
        return loaded

    def find_shape(self, name: str) -> TaskShape | None:
        """Returns what a graph has to know of a task; None when it is not a task of this app."""
        from weft.sdk.graph import shape_of

        task = self.find_task(name)
        return None if task is None else shape_of(task)

    def _keep(self, graph: Graph) -> Graph:
        if graph.name in self.graphs:
            raise DefinitionError(
                f"app {self.name!r} already has a graph {graph.name!r}: app.graphs[{graph.name!r}] is that one",
                name=graph.name,
            )
        self.graphs[graph.name] = graph
        return graph

    def on_startup(self, hook: H) -> H:
        """Runs a function once in every worker process before it claims anything."""
        check_hook(hook, "on_startup")
        self.startup.append(hook)
        return hook

    def on_shutdown(self, hook: H) -> H:
        """Runs a function once in every worker process after it has drained."""
        check_hook(hook, "on_shutdown")
        self.shutdown.append(hook)
        return hook

    def before_task(self, hook: B) -> B:
        """Calls `hook(current)` before every attempt; what it raises fails the attempt."""
        check_hook(hook, "before_task", "current")
        self.hooks.before.append(hook)
        return hook

    def after_task(self, hook: A) -> A:
        """Calls `hook(current, result)` after every attempt that returned; what it raises is only logged."""
        check_hook(hook, "after_task", "current", "result")
        self.hooks.after.append(hook)
        return hook

    def on_error(self, hook: E) -> E:
        """Calls `hook(current, error)` after every attempt that failed or timed out; what it raises is only logged."""
        check_hook(hook, "on_error", "current", "error")
        self.hooks.on_error.append(hook)
        return hook

    def worker(
        self,
        *,
        queues: Sequence[str] | None = None,
        concurrency: int | None = None,
        grace: Duration = 30.0,
        aging: Duration | None = None,
        archive: bool | None = None,
    ) -> Worker:
        """Returns a worker for `async with`: it serves the queues until the block ends."""
        from weft.worker.worker import Worker

        return Worker(self, queues=queues, concurrency=concurrency, grace=grace, aging=aging, archive=archive)

    def testing(self, *, redis_url: str | None = None, namespace: str | None = None) -> Harness:
        """Returns a harness for `with` or `async with`: the app on a store for tests, its clock and a worker to tell."""
        from weft.testing.harness import Harness

        check_address(redis_url, namespace)
        return Harness(self, redis_url=redis_url, namespace=namespace)

    def find_task(self, name: str) -> Task[Any, Any] | None:
        """Returns a task by its name or one of its aliases."""
        return self.tasks.get(name)

    # --- the store --------------------------------------------------------------------------------

    def engine(self) -> Engine:
        """Returns this loop's engine, made at first use."""
        loop = asyncio.get_running_loop()
        engine = self._engines.get(loop)
        if engine is None:
            if importing.main:
                raise DefinitionError(
                    "this script starts work as soon as it is imported, and a process for pool='process' imports it to find"
                    ' its task: put what starts work under `if __name__ == "__main__":`'
                )
            if isinstance(loop, FlowLoop):
                loop.refuse("the store", "use ctx.call(task), ctx.child(workflow), or do it in a step")
            for closed in [
                other for ref in self._engines.keyrefs() if (other := ref()) is not None and other.is_closed()
            ]:
                self._engines.pop(closed, None)  # an engine knows its loop, so the two would keep each other for ever
            engine = self._engines[loop] = Engine(
                self.url(),
                read_setting("WEFT_NAMESPACE", self._namespace),
                partitions=read_setting("WEFT_PARTITIONS"),
                database=self.database(),
                revive=None if self.embedded is None else self.revive,
                rebuild=_rebuild,
            )
        return engine

    def url(self) -> str:
        """Returns the store's URL; starts or joins the embedded server when none is set."""
        url = read_setting("WEFT_REDIS_URL", self._redis_url)
        if url:
            return str(url)
        return self._holding.attach(self._data()).url

    def database(self) -> Address:
        """Returns where the cold store is. Nothing is opened."""
        # As they were first meant: a task that changes the working directory of its process moves neither.
        named = read_setting("WEFT_DATABASE_URL", self._database_url) or ""
        if (found := self._databases.get((named, data := self._data()))) is None:
            found = self._databases[named, data] = database_address(self._database_url, data)
        return found

    def _data(self) -> Path:
        if self._tested_in is not None:
            return self._tested_in
        text = read_setting("WEFT_DATA")
        if text not in self._places:
            self._places[text] = Path(text).expanduser().absolute()
        return self._places[text]

    def revive(self) -> bool:
        """Starts the embedded server again if this process holds one that died; returns whether it had to."""
        return self._holding.revive()

    @functools.cached_property
    def definitions(self) -> Definitions:
        """Versions of graphs, their tags, and what differs between them."""
        from weft.sdk.definitions import Definitions

        return Definitions(self)

    @property
    def embedded(self) -> EmbeddedServer | None:
        """The embedded server this process holds, if it does."""
        return self._holding.server

    async def open(self) -> None:
        """Connects now rather than at first use. A store that is being rebuilt is told of at first use all the same."""
        with contextlib.suppress(PartitionLost):
            await self.engine().open()

    async def close(self) -> None:
        """Closes this loop's connections."""
        engine = self._engines.pop(asyncio.get_running_loop(), None)
        if engine is not None:
            await engine.close()

    async def __aenter__(self) -> Weft:
        await self.open()
        loop = asyncio.get_running_loop()
        self._entered[loop] = self._entered.get(loop, 0) + 1
        return self

    async def __aexit__(self, *exc: object) -> None:
        """Closes what the outermost block of this loop opened; the embedded server goes with the last loop on it."""
        loop = asyncio.get_running_loop()
        # A test fixture may be torn down on another loop than it was set up on.
        self._entered[loop] = inside = max(0, self._entered.get(loop, 0) - 1)
        if inside:
            return
        await self.close()
        # Another loop of this process, such as the one behind `.sync`, would find its server gone.
        if not any((other := ref()) is not None and not other.is_closed() for ref in self._engines.keyrefs()):
            self.release()

    def release(self, *, stop: bool = False) -> None:
        """Lets go of the embedded server; the last process to do so stops it."""
        self._holding.release(stop=stop)

    def __repr__(self) -> str:
        return f"Weft({self.name!r})"


class TaskDecorator:
    """What `@app.task(…)` and `@app.cron(…)` return: registers the function it is put on, and schedules it."""

    def __init__(
        self, app: Weft, options: dict[str, Any], schedule: Callable[[Task[Any, Any], str], None] | None = None
    ) -> None:
        self._app, self._options, self._schedule = app, options, schedule

    @overload
    def __call__(self, fn: Callable[P, Coroutine[Any, Any, R]]) -> AsyncTask[P, R]: ...  # type: ignore[overload-overlap]
    @overload
    def __call__(self, fn: Callable[P, R]) -> PlainTask[P, R]: ...
    def __call__(self, fn: Callable[..., Any]) -> Any:
        if not callable(fn) and not any(fn is workflow for workflow in self._app.workflows.values()):
            raise DefinitionError(f"a task is made of a function, not of {fn!r}: @app.task, or @app.task(name=…)")
        options = dict(self._options)
        name = options.pop("name", None)
        if self._schedule and isinstance(fn, Task):
            if options:
                raise DefinitionError(f"task {fn.name} is registered already: give {', '.join(options)} to @app.task")
            self._schedule(fn, fn.name if name is None else name)
            return fn
        name = self._name(fn, name)
        aliases = options.pop("aliases", ())
        if not isinstance(aliases, (list, tuple)):
            raise InvalidOption(f"aliases takes a list of names, not {aliases!r}", option="aliases")
        aliases = [check_name(alias, what="alias") for alias in aliases]
        pool = options.pop("pool", None)
        retry_on = exception_classes(options.pop("retry_on", (Exception,)), "retry_on")
        fatal_on = exception_classes(options.pop("fatal_on", ()), "fatal_on")
        gating = Gating.read(name, options)
        uniqueness = Uniqueness.read(name, options)
        asynchronous = any(map(inspect.iscoroutinefunction, (fn, type(fn).__call__)))
        if inspect.isasyncgenfunction(fn) or inspect.isgeneratorfunction(fn):
            raise DefinitionError(f"task {name}: a generator cannot be a task; return a list instead")
        if pool is not None and pool not in POOLS:
            raise DefinitionError(f"task {name}: there is no pool {pool!r}; there is 'process', or none for threads")
        if pool is not None and asynchronous:
            raise DefinitionError(f"task {name}: pool={pool!r} takes a plain `def`; an `async def` runs on the loop")
        batching = Batching.read(name, fn, options, given=read_needs(fn, of=name), pool=pool)
        if batching and gating:
            batching.check_room(name, gating.concurrency)
        make = AsyncTask if asynchronous else PlainTask
        task: Task[Any, Any] = make(
            self._app,
            fn,
            name=name,
            aliases=aliases,
            pool=pool,
            retry_on=retry_on,
            fatal_on=fatal_on,
            gating=gating,
            uniqueness=uniqueness,
            batching=batching,
            spec=task_spec(name, options),
        )
        for word in (name, *aliases):
            taken = self._app.tasks.get(word)
            if taken is not None:
                raise DefinitionError(
                    f"app {self._app.name!r} already has a task {word!r} ({taken.fn.__module__}.{taken.fn.__qualname__}):"
                    " give this one another name",
                    name=word,
                )
        if self._schedule:
            self._schedule(task, name)
        for word in (name, *aliases):
            self._app.tasks[word] = task
        return task

    def _name(self, fn: Any, name: Any) -> str:
        """Returns the name a task is to have; refuses what no task can be made of."""
        if isinstance(fn, Task):
            raise DefinitionError(f"{fn.name} is a task already: a second one is made of its function, {fn.name}.fn")
        if any(fn is workflow for workflow in self._app.workflows.values()):
            what = (
                "a schedule starts a task, whose function can start it" if self._schedule else "it needs no @app.task"
            )
            raise DefinitionError(f"{fn.name} is a workflow: {what} ({fn.name}.start(…))")
        if name is None and not getattr(fn, "__name__", ""):
            raise DefinitionError(f"{fn!r} has no name of its own: give it one, name=…")
        checked = check_name(fn.__name__ if name is None else name, what="task name")
        if isinstance(fn, type):
            raise DefinitionError(f"task {checked}: a task is made of a function, not of the class {fn.__qualname__}")
        return checked


async def _rebuild(engine: Engine) -> bool:
    """Brings back what the store of an engine lost; False while another process does. Needed seldom, so loaded late."""
    from weft.engine.housekeeping.reopening import rebuild

    return await rebuild(engine, hot_ms=int(read_setting("WEFT_KEEP_HOT")))


class BatchDecorator(Protocol):
    """What `@app.task(batch=…)` returns: registers a function of a list, whose task takes one item."""

    @overload
    def __call__(self, fn: Callable[[list[I]], Coroutine[Any, Any, list[R]]]) -> AsyncTask[[I], R]: ...
    @overload
    def __call__(self, fn: Callable[[list[I]], Coroutine[Any, Any, None]]) -> AsyncTask[[I], None]: ...
    @overload
    def __call__(self, fn: Callable[[list[I]], list[R]]) -> PlainTask[[I], R]: ...
    @overload
    def __call__(self, fn: Callable[[list[I]], None]) -> PlainTask[[I], None]: ...
