"""Tasks: a function with a name, options and a queue to go to."""

from __future__ import annotations

import difflib
import functools
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar

import msgspec

from weft.clock import Duration, parse_duration_ms
from weft.core.model import RunSpec
from weft.core.retry import BACKOFFS
from weft.engine import runs as verbs
from weft.errors import DefinitionError, InvalidArguments, InvalidOption, NotBuilt
from weft.ids import check_key, check_name, check_tags
from weft.sdk.run import Run
from weft.sdk.signature import Signature

if TYPE_CHECKING:
    from weft.sdk.app import Weft

P = ParamSpec("P")
R = TypeVar("R")

#: Options of the public contract that are not built yet. Named, so that they are refused rather than misspelt.
NOT_BUILT = frozenset(
    [
        "concurrency",
        "concurrency_key",
        "concurrency_per_key",
        "rate_limit",
        "rate_key",
        "rate_cost",
        "unique_for",
        "unique",
        "debounce",
        "throttle",
        "batch",
        "batch_wait",
        "eta",
    ]
)
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
        spec: RunSpec,
    ) -> None:
        self.app, self.fn, self.name, self.aliases, self.pool = app, fn, name, tuple(aliases), pool
        self.retry_on, self.fatal_on = retry_on, fatal_on
        self.spec = spec
        self.signature = Signature(fn, name=name)
        functools.update_wrapper(self, fn)  # type: ignore[arg-type]

    async def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> Run[R]:
        """Starts a run; the arguments are checked against the signature now, not in a worker."""
        return await self._start(self.spec, args, kwargs)

    async def enqueue_many(self, items: Iterable[tuple[Any, ...] | Mapping[str, Any]]) -> list[Run[R]]:
        """Starts many runs, a few hundred per round trip. An item is a tuple of arguments or a mapping of them."""
        return await self._start_many(self.spec, items)

    def options(self, **options: Any) -> Bound[P, R]:
        """Returns the task with other options: queue priority delay deadline timeout retries … for these calls."""
        return Bound(self, call_spec(self.spec, options))

    def run(self, id: str) -> Run[R]:
        """Returns a typed handle on a run of this task."""
        return Run(self.app, id, self.signature.returns.decode)

    @property
    def sync(self) -> SyncTask[P, R]:
        """The same verbs for code without a loop."""
        return SyncTask(self, self.spec)

    def delay(self, *args: P.args, **kwargs: P.kwargs) -> Run[R]:
        """Alias of `.sync.enqueue`, for hands that know Celery."""
        return self.sync.enqueue(*args, **kwargs)

    async def _start(self, spec: RunSpec, args: Any, kwargs: Any) -> Run[R]:
        data = self.signature.encode(args, kwargs)
        started = await verbs.start(self.app.engine(), spec, data)
        return self._handle(started.id, started.deduplicated)

    async def _start_many(self, spec: RunSpec, items: Iterable[tuple[Any, ...] | Mapping[str, Any]]) -> list[Run[R]]:
        if spec.key:
            raise InvalidOption(
                "an idempotency_key names one run, and enqueue_many starts many: enqueue them one by one"
            )
        encode = self.signature.encode
        # Everything is checked before anything is started.
        inputs = [
            encode(item, {})
            if isinstance(item, (tuple, list))
            else encode((), dict(item))
            if isinstance(item, Mapping)
            else self._refuse_item(i, item)
            for i, item in enumerate(items)
        ]
        return [self._handle(id) for id in await verbs.start_many(self.app.engine(), spec, inputs)]

    def _refuse_item(self, index: int, item: object) -> bytes:
        raise InvalidArguments(
            f"item {index} of enqueue_many is {item!r}: each must be a tuple of arguments or a mapping of them, for"
            f" {self.signature.text}"
        )

    def _handle(self, id: str, deduplicated: bool = False) -> Run[R]:
        return Run(self.app, id, self.signature.returns.decode, deduplicated=deduplicated, accepted=True)


class AsyncTask(Task[P, R]):
    """A task made of an `async def`: runs on the worker's loop."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R]:
        return self.fn(*args, **kwargs)  # type: ignore[no-any-return]


class PlainTask(Task[P, R]):
    """A task made of a `def`: runs in a thread, or with pool="process" in a process."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.fn(*args, **kwargs)  # type: ignore[no-any-return]


class Bound(Generic[P, R]):
    """A task with the options of one call."""

    def __init__(self, task: Task[P, R], spec: RunSpec) -> None:
        self._task, self._spec = task, spec

    async def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> Run[R]:
        """Starts a run with these options."""
        return await self._task._start(self._spec, args, kwargs)

    async def enqueue_many(self, items: Iterable[tuple[Any, ...] | Mapping[str, Any]]) -> list[Run[R]]:
        """Starts many runs with these options."""
        return await self._task._start_many(self._spec, items)

    def options(self, **options: Any) -> Bound[P, R]:
        """Returns the task with these options and some more."""
        return Bound(self._task, call_spec(self._spec, options))

    @property
    def sync(self) -> SyncTask[P, R]:
        return SyncTask(self._task, self._spec)


class SyncTask(Generic[P, R]):
    """`add.sync.enqueue(2, 3)`."""

    def __init__(self, task: Task[P, R], spec: RunSpec) -> None:
        self._task, self._spec = task, spec

    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> Run[R]:
        return self._task.app.portal.call(self._task._start(self._spec, args, kwargs))

    def enqueue_many(self, items: Iterable[tuple[Any, ...] | Mapping[str, Any]]) -> list[Run[R]]:
        return self._task.app.portal.call(self._task._start_many(self._spec, items))


#: Option name -> how it is checked and where it goes in the spec. One table for definitions and calls.
_FIELDS: dict[str, Callable[[Any], tuple[str, Any]]] = {
    "queue": lambda v: ("queue", check_name(v, what="queue")),
    "priority": lambda v: ("priority", _whole(v, "priority", 1, 10)),
    "retries": lambda v: ("retries", _whole(v, "retries", 0, 10_000)),
    "backoff": lambda v: ("backoff", _one_of(v, "backoff", BACKOFFS)),
    "retry_delay": lambda v: ("retry_delay_ms", parse_duration_ms(v, what="retry_delay")),
    "max_delay": lambda v: ("max_delay_ms", parse_duration_ms(v, what="max_delay")),
    "jitter": lambda v: ("jitter", _flag(v, "jitter")),
    "timeout": lambda v: ("timeout_ms", _limit(v, "timeout")),
    "deadline": lambda v: ("deadline_ms", _limit(v, "deadline")),
    "keep_result": lambda v: ("keep_ms", parse_duration_ms(v, what="keep_result", allow_zero=False)),
    "delay": lambda v: ("delay_ms", parse_duration_ms(v, what="delay")),
    "idempotency_key": lambda v: ("key", "" if v is None else check_key(v, what="idempotency_key")),
    "tags": lambda v: ("tags", check_tags(v)),
}
#: Options that only make sense for one call.
_CALL_ONLY = frozenset({"delay", "idempotency_key"})


def call_spec(base: RunSpec, options: Mapping[str, Any]) -> RunSpec:
    """Returns a spec with the options of one call; refuses what is unknown, senseless or not built."""
    durability = options.get("durability", "redis")
    if durability != "redis":
        _one_of(durability, "durability", ("redis", "replicated", "fsync", "committed"))
        raise NotBuilt(f"durability={durability!r} is not built yet: only 'redis' is")
    changes = dict(_read(name, value) for name, value in options.items() if name != "durability")
    if "tags" in changes:
        changes["tags"] = {**base.tags, **changes["tags"]}
    return msgspec.structs.replace(base, **changes)


def task_spec(name: str, options: Mapping[str, Any]) -> RunSpec:
    """Returns the spec a definition gives to every run of it."""
    for option in _CALL_ONLY & options.keys():
        raise DefinitionError(f"{option} belongs to one call: use .options({option}=…).enqueue(…)", option=option)
    return RunSpec(name, **dict(_read(option, value) for option, value in options.items()))


def _read(name: str, value: Any) -> tuple[str, Any]:
    if name in NOT_BUILT:
        raise NotBuilt(f"the option {name} is not built yet; it is refused rather than ignored", option=name)
    if name not in _FIELDS:
        close = difflib.get_close_matches(name, _FIELDS, n=1)
        hint = f": did you mean {close[0]}?" if close else f"; known are {', '.join(sorted(_FIELDS))}"
        raise InvalidOption(f"there is no option {name!r}{hint}", option=name)
    return _FIELDS[name](value)


def _whole(value: Any, what: str, low: int, high: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise InvalidOption(f"{what} must be a whole number from {low} to {high}, not {value!r}", option=what)
    return value


def _flag(value: Any, what: str) -> bool:
    if not isinstance(value, bool):
        raise InvalidOption(f"{what} must be True or False, not {value!r}", option=what)
    return value


def _one_of(value: Any, what: str, choices: Sequence[str]) -> str:
    if value not in choices:
        raise InvalidOption(f"{what} must be one of {', '.join(choices)}, not {value!r}", option=what)
    return str(value)


def _limit(value: Duration | None, what: str) -> int:
    """None means no limit."""
    return 0 if value is None else parse_duration_ms(value, what=what, allow_zero=False)
