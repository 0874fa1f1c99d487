"""Tasks: a function with a name, options and a queue to go to."""

from __future__ import annotations

import functools
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar, Unpack

import msgspec

from weft.core.model import RunSpec
from weft.engine import runs as verbs
from weft.errors import InvalidArguments, InvalidOption, UserError
from weft.sdk.batching import Batching
from weft.sdk.depends import read_needs
from weft.sdk.gating import Gating
from weft.sdk.keying import fit_gating, fit_uniqueness
from weft.sdk.once import Uniqueness
from weft.sdk.options import CallOptions, call_spec
from weft.sdk.run import Run
from weft.sdk.signature import Signature

if TYPE_CHECKING:
    from weft.sdk.app import Weft

P = ParamSpec("P")
R = TypeVar("R")

POOLS = ("process",)


class Task(Generic[P, R]):
    """A registered function. Calling it just calls it; `enqueue` makes a run of it."""

    def __init__(
        self,
        app: Weft,
        fn: Callable[..., Any],
        *,
        name: str,
        aliases: Sequence[str],
        pool: str | None,
        retry_on: tuple[type[BaseException], ...],
        fatal_on: tuple[type[BaseException], ...],
        gating: Gating | None = None,
        uniqueness: Uniqueness | None = None,
        batching: Batching | None = None,
        spec: RunSpec,
    ) -> None:
        self.app, self.fn, self.name, self.aliases, self.pool = app, fn, name, tuple(aliases), pool
        self.retry_on, self.fatal_on = retry_on, fatal_on
        self.spec = spec
        self.needs = read_needs(fn, of=name)
        self.batching = batching
        self.signature = batching.signature if batching else Signature(fn, name=name, skip=frozenset(self.needs))
        self.gating, self.uniqueness = fit_gating(gating, self.signature), fit_uniqueness(uniqueness, self.signature)
        functools.update_wrapper(self, fn)  # type: ignore[arg-type]

    def __repr__(self) -> str:
        return f"<task {self.name}>"

    async def enqueue(self, /, *args: P.args, **kwargs: P.kwargs) -> Run[R]:
        """Starts a run; the arguments are checked against the signature now, not in a worker."""
        return await self._start(self.spec, args, kwargs)

    async def enqueue_many(self, items: Iterable[tuple[Any, ...] | Mapping[str, Any]]) -> list[Run[R]]:
        """Starts many runs, a few hundred per round trip. An item is a tuple of arguments or a mapping of them."""
        return await self._start_many(self.spec, items)

    def options(self, **options: Unpack[CallOptions]) -> Bound[P, R]:
        """Returns the task with other options: queue priority delay deadline timeout retries … for these calls."""
        return Bound(self, call_spec(self.spec, options))

    def run(self, id: str) -> Run[R]:
        """Returns a typed handle on a run of this task."""
        return Run(self.app, id, self.signature.returns.decode)

    @property
    def sync(self) -> SyncTask[P, R]:
        """The same verbs for code without a loop."""
        return SyncTask(self, self.spec)

    def delay(self, /, *args: P.args, **kwargs: P.kwargs) -> Run[R]:
        """Alias of `.sync.enqueue`, for hands that know Celery."""
        return self.sync.enqueue(*args, **kwargs)

    async def _start(self, spec: RunSpec, args: Any, kwargs: Any) -> Run[R]:
        data = self.signature.encode(args, kwargs)
        if self.gating is not None:
            spec = self._gated(self.gating, spec, args, kwargs)
        if spec.key or self.uniqueness is not None:
            same = self.signature.without_defaults(data)
            once = None if self.uniqueness is None else self.uniqueness.once(same, args, kwargs)
            started = await verbs.start(self.app.engine(), spec, data, once, same)
        else:
            started = await verbs.start(self.app.engine(), spec, data)
        return self._handle(started.id, started.deduplicated)

    async def _start_many(self, spec: RunSpec, items: Iterable[tuple[Any, ...] | Mapping[str, Any]]) -> list[Run[R]]:
        if spec.key:
            raise InvalidOption(
                "an idempotency_key names one run, and enqueue_many starts many: enqueue them one by one"
            )
        if not isinstance(items, Iterable):
            raise InvalidArguments(f"enqueue_many takes the calls as a list, not a {type(items).__name__}")
        # Everything is checked before anything is started.
        calls = [
            (tuple(item), {})
            if isinstance(item, (tuple, list))
            else ((), dict(item))
            if isinstance(item, Mapping)
            else self._refuse_item(i, item)
            for i, item in enumerate(items)
        ]
        inputs: list[bytes] = []
        specs: list[RunSpec] = []
        onces: list[Any] = []
        encode, gating, rule, told = (
            self.signature.encode,
            self.gating,
            self.uniqueness,
            self.signature.without_defaults,
        )
        try:
            for args, kwargs in calls:
                data = encode(args, kwargs)
                if gating is not None:
                    specs.append(self._gated(gating, spec, args, kwargs))
                if rule is not None:
                    onces.append(rule.once(told(data), args, kwargs))
                inputs.append(data)
        except UserError as error:
            raise type(error)(f"item {len(inputs)} of enqueue_many: {error.message}", **error.facts) from error
        started = await verbs.start_many(self.app.engine(), specs or [spec] * len(calls), inputs, onces or None)
        return [self._handle(one.id, one.deduplicated) for one in started]

    @staticmethod
    def _gated(gating: Gating, spec: RunSpec, args: Any, kwargs: Any) -> RunSpec:
        limits, fair = gating.limits(args, kwargs)
        return msgspec.structs.replace(spec, limits=limits, fair=fair)

    def _refuse_item(self, index: int, item: object) -> tuple[tuple[Any, ...], dict[str, Any]]:
        raise InvalidArguments(
            f"item {index} of enqueue_many is {item!r}: each must be a tuple of arguments or a mapping of them, for"
            f" {self.signature.text}"
        )

    def _handle(self, id: str, deduplicated: bool = False) -> Run[R]:
        return Run(self.app, id, self.signature.returns.decode, deduplicated=deduplicated, accepted=True)


class AsyncTask(Task[P, R]):
    """A task made of an `async def`: runs on the worker's loop."""

    def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R]:
        return self.fn(*args, **kwargs)  # type: ignore[no-any-return]


class PlainTask(Task[P, R]):
    """A task made of a `def`: runs in a thread, or with pool="process" in a process."""

    def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.fn(*args, **kwargs)  # type: ignore[no-any-return]


class Bound(Generic[P, R]):
    """A task with the options of one call."""

    def __init__(self, task: Task[P, R], spec: RunSpec) -> None:
        self._task, self._spec = task, spec

    async def enqueue(self, /, *args: P.args, **kwargs: P.kwargs) -> Run[R]:
        """Starts a run with these options."""
        return await self._task._start(self._spec, args, kwargs)

    async def enqueue_many(self, items: Iterable[tuple[Any, ...] | Mapping[str, Any]]) -> list[Run[R]]:
        """Starts many runs with these options."""
        return await self._task._start_many(self._spec, items)

    def options(self, **options: Unpack[CallOptions]) -> Bound[P, R]:
        """Returns the task with these options and some more."""
        return Bound(self._task, call_spec(self._spec, options))

    @property
    def sync(self) -> SyncTask[P, R]:
        return SyncTask(self._task, self._spec)


class SyncTask(Generic[P, R]):
    """`add.sync.enqueue(2, 3)`."""

    def __init__(self, task: Task[P, R], spec: RunSpec) -> None:
        self._task, self._spec = task, spec

    def enqueue(self, /, *args: P.args, **kwargs: P.kwargs) -> Run[R]:
        return self._task.app.portal.call(self._task._start(self._spec, args, kwargs))

    def enqueue_many(self, items: Iterable[tuple[Any, ...] | Mapping[str, Any]]) -> list[Run[R]]:
        return self._task.app.portal.call(self._task._start_many(self._spec, items))
