"""Workflows: durable functions. `@app.workflow` on an `async def` whose first parameter is the context."""

from __future__ import annotations

import asyncio
import functools
import inspect
import itertools
from collections.abc import Callable, Coroutine, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, TypedDict, TypeVar, Unpack

import msgspec

from weft.clock import Duration, backoff
from weft.core.flow import Told, flow_mark
from weft.core.model import RunSpec
from weft.engine import flows as verbs
from weft.engine import signals
from weft.errors import DefinitionError, InvalidOption, NonDeterminism, NotFound, Unavailable
from weft.ids import check_key, check_name
from weft.sdk.commands import is_continued
from weft.sdk.context import Context
from weft.sdk.flowrun import SyncWorkflowRun, WorkflowRun
from weft.sdk.gating import Gating
from weft.sdk.keying import fit_gating, fit_uniqueness
from weft.sdk.once import Uniqueness
from weft.sdk.options import call_spec
from weft.sdk.program import Program
from weft.sdk.signature import Signature
from weft.sdk.versions import PIN, check_version, version_of
from weft.telemetry import get_logger

if TYPE_CHECKING:
    from weft.sdk.app import Weft
    from weft.sdk.context import Shape

log = get_logger("weft.workflow")

P = ParamSpec("P")
R = TypeVar("R")

#: How often a child is looked for that gets a signal: a few seconds.
SEND_ATTEMPTS = 8

#: Options that mean one attempt of a task, which a workflow is not.
_OF_TASKS = ("retries", "backoff", "retry_delay", "max_delay", "jitter", "timeout", "retry_on", "fatal_on")
#: Options of tasks that workflows do not have, and why.
_NOT_OURS = {
    "debounce": "a later start would change the arguments of a run that has begun and sleeps; use throttle or unique_for",
    "batch": "a workflow is one run; let a task work in batches, and call it",
    "batch_wait": "a workflow is one run; let a task work in batches, and call it",
}


class WorkflowOptions(TypedDict, total=False):
    """What `@app.workflow(…)` takes."""

    name: str
    aliases: Sequence[str]
    queue: str
    priority: int
    deadline: Duration | None
    keep_result: Duration
    tags: Mapping[str, str | int | float | bool]
    version: str
    concurrency: int | None
    concurrency_key: Callable[..., str | int | None] | None
    concurrency_per_key: int | None
    rate_limit: str | None
    rate_key: Callable[..., str | int | None] | None
    rate_cost: int | Callable[..., int]
    unique_for: Duration | None
    unique: str
    unique_key: Callable[..., str | int] | None
    throttle: Duration | None


class StartOptions(TypedDict, total=False):
    """What `.options(…)` takes."""

    id: str
    version: str | None
    queue: str
    priority: int
    delay: Duration
    eta: datetime
    deadline: Duration | None
    keep_result: Duration
    tags: Mapping[str, str | int | float | bool]
    idempotency_key: str | None
    idempotency_window: Duration
    durability: str


class Workflow(Generic[P, R]):
    """A durable function: its code may die anywhere and goes on where it was."""

    def __init__(self, app: Weft, fn: Callable[..., Coroutine[Any, Any, R]], options: dict[str, Any]) -> None:
        name = options.pop("name", None)
        self.name = check_name(getattr(fn, "__name__", "") if name is None else name, what="workflow name")
        if not inspect.iscoroutinefunction(fn):
            raise DefinitionError(
                f"workflow {self.name}: it must be an `async def` with the context as first parameter"
            )
        first = next(iter(inspect.signature(fn).parameters.values()), None)
        if first is None or first.kind not in (first.POSITIONAL_ONLY, first.POSITIONAL_OR_KEYWORD):
            raise DefinitionError(f"workflow {self.name}: its first parameter is the context, as in `{self.name}(ctx)`")
        self.app, self.fn = app, fn
        #: Names that it had before: runs that were started under one of them go on with this code.
        self.aliases = _read_aliases(options.pop("aliases", ()))
        given = options.pop("version", None)
        #: The version of this code: as its definition says, else made from the code.
        self.version = version_of(fn) if given is None else check_version(given)
        self.named_version = given is not None
        #: All versions of this workflow that the app has, the one that `app.workflows` names among them.
        self.versions: dict[str, Workflow[Any, Any]] = {self.version: self}
        _refuse(options)
        gating = Gating.read(self.name, options)
        if options.get("unique") == "replace":
            raise InvalidOption(
                f"workflow {self.name}: unique='replace' would end the earlier run without its clean-up: cancel it, or use"
                " join or drop",
                option="unique",
            )
        uniqueness = Uniqueness.read(self.name, options)
        self.spec = _with_options(RunSpec(self.name, timeout_ms=0, flow=flow_mark()), options)
        self.signature = Signature(fn, name=self.name, skip=frozenset({first.name}))
        #: What limits its runs: a slot belongs to a run from its begin to its end, also while it waits.
        self.gating = fit_gating(gating, self.signature)
        self.uniqueness = fit_uniqueness(uniqueness, self.signature)
        functools.update_wrapper(self, fn)

    def __repr__(self) -> str:
        return f"<workflow {self.name}>"

    def __call__(self, ctx: Context, /, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R]:
        return self.fn(ctx, *args, **kwargs)

    async def start(self, /, *args: P.args, **kwargs: P.kwargs) -> WorkflowRun[R]:
        """Starts a run; the arguments are checked against the signature now, not in a worker."""
        return await BoundWorkflow(self, self.spec)._start(args, kwargs)

    def options(self, **options: Unpack[StartOptions]) -> BoundWorkflow[P, R]:
        """Returns the workflow with the options of one start: id deadline delay queue priority tags …"""
        return BoundWorkflow(self, self.spec).options(**options)

    def run(self, id: str) -> WorkflowRun[R]:
        """Returns a typed handle on a run of this workflow."""
        return WorkflowRun(self.app, id, self.signature.returns.decode)

    async def find(self, id: str) -> WorkflowRun[R]:
        """Returns the run that is in progress and was started by `.options(id=…)`. Raises NotFound when there is none."""
        names = (self.name, *self.aliases)
        return self.run(await verbs.running(self.app.engine(), check_key(id, what="id"), names))

    @property
    def sync(self) -> SyncWorkflow[P, R]:
        """The same verbs for code without a loop."""
        return SyncWorkflow(BoundWorkflow(self, self.spec))

    def program(self, run: str, spec: RunSpec, data: bytes) -> Program:
        """Returns the code of a run, ready to be told what it was told before. Raises InvalidArguments."""
        args, kwargs = self.signature.decode(data)
        return Program(run, self.name, lambda program: self._main(Context(program, self, spec), args, kwargs))

    def retrace(self, run: str, spec: RunSpec, data: bytes, told: Told, *, partitions: int = 1) -> Program:
        """Returns the code of a run, told what it was told before, with the place of all it asks for. Raises NonDeterminism.

        `partitions`: how many there are, if it matters where its children live.
        """
        program = self.program(run, spec, data)
        program.trace, program.partitions = True, partitions
        try:
            program.replay(told, silent=True)
        except NonDeterminism:
            program.close()
            raise
        return program

    def misfit(self, run: str, spec: RunSpec, data: bytes, told: Told) -> NonDeterminism | None:
        """Returns what of a journal does not fit the code, and where in the source that asks for something else."""
        try:
            self.retrace(run, spec, data, told).close()
        except NonDeterminism as error:
            return error
        return None

    def _function(self, shape: Shape, fn: Any) -> Any:
        """Returns what runs as a step: the function, or what a test put in its place."""
        if shape.task is not None:
            return shape.task.fn
        harness = self.app._harness
        return fn if harness is None else harness.stand_in(shape.name, fn, is_async=shape.is_async)

    async def _main(self, ctx: Context, args: Any, kwargs: Any) -> R:
        try:
            result = await self.fn(ctx, *args, **kwargs)
            await ctx._program.end_others(failed=False)
            return result
        except GeneratorExit:  # nobody holds its code any more: there is nothing left to ask for
            raise
        except BaseException as error:
            if not ctx.is_closed:
                goes_on = is_continued(error)
                # First: what they still do may be there to be undone, too.
                await ctx._program.end_others(failed=not goes_on)
                if not goes_on:
                    await ctx.undo_all()
            raise

    async def send(self, run: str, name: str, value: Any, request: str, line: asyncio.Lock) -> bool:
        """Gives a run a signal, behind those in line before it; the same request is answered once.

        A run that is just being started is waited for. So is a store that is away: that is no fault of the code that asked.
        """
        engine, missed = self.app.engine(), 0
        async with line:
            for attempt in itertools.count():
                try:
                    return await signals.signal(engine, run, name, value, request_id=request, by=engine.actor)
                except NotFound:
                    if missed == SEND_ATTEMPTS:
                        raise
                    missed += 1
                except Unavailable as error:
                    if attempt % 20 == 0:
                        log.warning("a signal cannot be given; trying on", run=run, signal=name, error=error)
                await asyncio.sleep(backoff(attempt))
        raise AssertionError("unreachable")


class BoundWorkflow(Generic[P, R]):
    """A workflow with the options of one start."""

    def __init__(self, workflow: Workflow[P, R], spec: RunSpec, id: str = "") -> None:
        self._workflow, self._spec, self._id = workflow, spec, id

    async def start(self, /, *args: P.args, **kwargs: P.kwargs) -> WorkflowRun[R]:
        """Starts a run with these options. Raises AlreadyRunning when a run with this id is in progress."""
        return await self._start(args, kwargs)

    def options(self, **options: Unpack[StartOptions]) -> BoundWorkflow[P, R]:
        """Returns the workflow with these options and some more."""
        chosen: dict[str, Any] = dict(options)
        spec, workflow = self._spec, self._workflow
        if "version" in chosen:
            wanted = chosen.pop("version")
            version = (
                workflow.version if wanted == PIN else "" if wanted is None else check_name(wanted, what="version")
            )
            spec = msgspec.structs.replace(spec, version=version)
        id = check_key(chosen.pop("id"), what="id") if "id" in chosen else self._id
        return BoundWorkflow(workflow, _with_options(spec, chosen, of_call=True), id)

    @property
    def sync(self) -> SyncWorkflow[P, R]:
        return SyncWorkflow(self)

    async def _start(self, args: Any, kwargs: Any) -> WorkflowRun[R]:
        workflow = self._workflow
        data = workflow.signature.encode(args, kwargs)
        same = workflow.signature.without_defaults(data) if self._spec.key else b""
        spec, once = gated(workflow, self._spec, args, kwargs), None
        if workflow.uniqueness is not None:
            same = workflow.signature.without_defaults(data)
            once = workflow.uniqueness.once(same, args, kwargs)
        started = await verbs.start(workflow.app.engine(), spec, data, same, self._id, once)
        decode = workflow.signature.returns.decode
        return WorkflowRun(workflow.app, started.id, decode, deduplicated=started.deduplicated, accepted=True)


class SyncWorkflow(Generic[P, R]):
    """`order.sync.start(…)`."""

    def __init__(self, bound: BoundWorkflow[P, R]) -> None:
        self._bound = bound

    def start(self, /, *args: P.args, **kwargs: P.kwargs) -> SyncWorkflowRun[R]:
        return self._bound._workflow.app.portal.call(self._bound._start(args, kwargs)).sync

    def find(self, id: str) -> SyncWorkflowRun[R]:
        workflow = self._bound._workflow
        return workflow.app.portal.call(workflow.find(id)).sync


class WorkflowDecorator:
    """What `@app.workflow(…)` returns."""

    def __init__(self, app: Weft, options: dict[str, Any]) -> None:
        self._app, self._options = app, options

    def __call__(self, fn: Callable[Concatenate[Context, P], Coroutine[Any, Any, R]]) -> Workflow[P, R]:
        workflow: Workflow[P, R] = Workflow(self._app, fn, dict(self._options))
        before = self._app.workflows.get(workflow.name)
        if before is not None and workflow.named_version and before.named_version:
            if workflow.version in before.versions:
                raise DefinitionError(
                    f"app {self._app.name!r} already has version {workflow.version!r} of workflow {workflow.name!r}",
                    name=workflow.name,
                )
            # The one declared last is started; runs that are pinned to another still find it here.
            self._refuse_taken(workflow, before)
            before.versions[workflow.version] = workflow
            workflow.versions = before.versions
            workflow.aliases = tuple(dict.fromkeys([*before.aliases, *workflow.aliases]))
        else:
            self._refuse_taken(workflow, None)
        for word in (workflow.name, *workflow.aliases):
            self._app.workflows[word] = workflow
        return workflow

    def _refuse_taken(self, workflow: Workflow[Any, Any], before: Workflow[Any, Any] | None) -> None:
        """Refuses names that something else has. `before`: another version of the same workflow."""
        for word in (workflow.name, *workflow.aliases):
            for kind, known in (("workflow", self._app.workflows), ("task", self._app.tasks)):
                if (taken := known.get(word)) is not None and taken is not before:
                    raise DefinitionError(
                        f"app {self._app.name!r} already has a {kind} {word!r}: give this one another name", name=word
                    )


def gated(workflow: Workflow[Any, Any], spec: RunSpec, args: Any, kwargs: Any) -> RunSpec:
    """Returns a spec with the limits that one run has to pass."""
    if workflow.gating is None:
        return spec
    limits, fair = workflow.gating.limits(args, kwargs)
    return msgspec.structs.replace(spec, limits=limits, fair=fair)


def _refuse(options: Mapping[str, Any]) -> None:
    for option in options.keys() & _NOT_OURS.keys():
        raise InvalidOption(f"{option} is not for workflows: {_NOT_OURS[option]}", option=option)


def _read_aliases(given: Any) -> tuple[str, ...]:
    if isinstance(given, str):
        raise InvalidOption(f"aliases takes a list of names, not the text {given!r}", option="aliases")
    return tuple(check_name(alias, what="alias") for alias in given)


def child_spec(workflow: Workflow[Any, Any], options: dict[str, Any], *, parent: str, key: str) -> RunSpec:
    """Returns what a child is asked."""
    id = options.pop("id", "")
    spec = msgspec.structs.replace(_with_options(workflow.spec, options, of_call=True), flow=flow_mark(parent, key))
    return msgspec.structs.replace(spec, key=check_key(id, what="id")) if id else spec


def _with_options(spec: RunSpec, options: Mapping[str, Any], *, of_call: bool = False) -> RunSpec:
    for option in options:
        if option in _OF_TASKS:
            raise InvalidOption(
                f"{option} is about attempts of a step, and a workflow is no step: give it to a task, or to"
                f" ctx.options({option}=…)",
                option=option,
            )
        known = (StartOptions if of_call else WorkflowOptions).__annotations__
        if option not in known:
            belongs = of_call and option in WorkflowOptions.__annotations__
            where = f": it belongs to the definition, @app.workflow({option}=…)" if belongs else ""
            raise InvalidOption(
                f"there is no option {option!r} of a {'start' if of_call else 'workflow'}{where}; known are"
                f" {', '.join(sorted(known))}",
                option=option,
            )
    return call_spec(spec, options) if options else spec
