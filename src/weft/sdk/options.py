"""Options of tasks and of single calls: one table says how each is checked and where it goes.

An option that is accepted works. One that is not built yet is refused by name, never ignored.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from datetime import UTC, datetime
from typing import Any, TypedDict

import msgspec

from weft.clock import Duration, parse_duration_ms, parse_moment_ms
from weft.core.model import RunSpec
from weft.core.retry import BACKOFFS, delay_problem
from weft.errors import DefinitionError, InvalidOption
from weft.ids import check_key, check_name, check_tags


class SharedOptions(TypedDict, total=False):
    """Options of a definition that a call may override."""

    queue: str
    priority: int
    retries: int
    backoff: str
    retry_delay: Duration
    max_delay: Duration
    jitter: bool
    timeout: Duration | None
    deadline: Duration | None
    keep_result: Duration
    tags: Mapping[str, str | int | float | bool]


class CallOptions(SharedOptions, total=False):
    """What `.options(…)` takes."""

    delay: Duration
    eta: datetime
    idempotency_key: str | None
    idempotency_window: Duration
    durability: str


class TaskOptions(SharedOptions, total=False):
    """What `@app.task(…)` takes."""

    name: str | None
    aliases: Sequence[str]
    pool: str | None
    retry_on: type[BaseException] | tuple[type[BaseException], ...]
    fatal_on: type[BaseException] | tuple[type[BaseException], ...]
    concurrency: int | None
    concurrency_key: Callable[..., str | int | None] | None
    concurrency_per_key: int | None
    rate_limit: str | None
    rate_key: Callable[..., str | int | None] | None
    rate_cost: int | Callable[..., int]
    unique_for: Duration | None
    unique: str
    unique_key: Callable[..., str | int] | None
    debounce: Duration | None
    throttle: Duration | None


#: What others call an option -> what it is called here: for whoever comes from there.
_ELSEWHERE = {
    "countdown": "delay",
    "run_at": "eta",
    "scheduled_at": "eta",
    "expires": "deadline",
    "max_retries": "retries",
    "max_attempts": "retries",
    "attempts": "retries",
    "default_retry_delay": "retry_delay",
    "retry_backoff": "backoff",
    "retry_backoff_max": "max_delay",
    "retry_jitter": "jitter",
    "autoretry_for": "retry_on",
    "dont_autoretry_for": "fatal_on",
    "time_limit": "timeout",
    "soft_time_limit": "timeout",
    "result_expires": "keep_result",
    "routing_key": "queue",
    "task_id": "idempotency_key",
    "job_id": "idempotency_key",
}

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
    "eta": lambda v: ("due_ms", parse_moment_ms(v, what="eta", now=datetime.now(UTC))),
    "idempotency_key": lambda v: ("key", "" if v is None else check_key(v, what="idempotency_key")),
    "idempotency_window": lambda v: ("key_ms", parse_duration_ms(v, what="idempotency_window", allow_zero=False)),
    "tags": lambda v: ("tags", check_tags(v)),
    "durability": lambda v: ("durability", _durability(v)),
}
#: Options that only make sense for one call.
_CALL_ONLY = frozenset({"delay", "eta", "idempotency_key", "idempotency_window", "durability"})


def call_spec(base: RunSpec, options: Mapping[str, Any]) -> RunSpec:
    """Returns a spec with the options of one call; refuses what is unknown, senseless or not built."""
    own = (TaskOptions.__annotations__.keys() | {"batch", "batch_wait"}) - SharedOptions.__annotations__.keys()
    for option in options.keys() & own:
        raise InvalidOption(f"{option} belongs to the definition: use @app.task({option}=…)", option=option)
    known = CallOptions.__annotations__.keys() | SharedOptions.__annotations__.keys()
    changes = dict(_read(name, value, known) for name, value in options.items())
    if "delay" in options and "eta" in options:
        raise InvalidOption("delay and eta both say when it begins: give one of them", option="eta")
    if "delay" in options or "eta" in options:
        changes = {"delay_ms": 0, "due_ms": 0, **changes}  # the newer word counts
    if "idempotency_window" in options and not changes.get("key", base.key):
        raise InvalidOption("idempotency_window needs idempotency_key", option="idempotency_window")
    if "tags" in changes:
        changes["tags"] = {**base.tags, **changes["tags"]}
    spec = msgspec.structs.replace(base, **changes)
    if "retry_delay" in options or "max_delay" in options:
        _check_delays(spec, "retry_delay" in options or base.retry_delay_ms != RunSpec("").retry_delay_ms)
    return spec


def task_spec(name: str, options: Mapping[str, Any]) -> RunSpec:
    """Returns the spec a definition gives to every run of it."""
    for option in _CALL_ONLY & options.keys():
        raise DefinitionError(f"{option} belongs to one call: use .options({option}=…).enqueue(…)", option=option)
    known = TaskOptions.__annotations__.keys() | SharedOptions.__annotations__.keys() | {"batch", "batch_wait"}
    spec = RunSpec(name, **dict(_read(option, value, known) for option, value in options.items()))
    _check_delays(spec, "retry_delay" in options)
    return spec


def _check_delays(spec: RunSpec, given: bool) -> None:
    """Refuses a `retry_delay` that was given and is longer than `max_delay`: it could never be waited for."""
    message = delay_problem(spec.retry_delay_ms, spec.max_delay_ms) if given else ""
    if message:
        raise InvalidOption(message, option="retry_delay")


def due_text(delay: Duration | None, eta: datetime | None) -> str:
    """Returns when a run is to go on, as scripts read it: `<ms>` from now, or `@<ms>` for a moment."""
    if (delay is None) == (eta is None):
        raise InvalidOption("say when: delay='5m' (0 for now), or eta= an aware datetime", option="delay")
    if delay is not None:
        return str(parse_duration_ms(delay, what="delay"))
    assert eta is not None
    return f"@{parse_moment_ms(eta, what='eta', now=datetime.now(UTC))}"


def _read(name: str, value: Any, known: AbstractSet[str]) -> tuple[str, Any]:
    if name not in _FIELDS:
        close = [_ELSEWHERE[name]] if name in _ELSEWHERE else difflib.get_close_matches(name, known, n=1)
        hint = f": did you mean {close[0]}?" if close else f"; known are {', '.join(sorted(known))}"
        raise InvalidOption(f"there is no option {name!r}{hint}", option=name)
    return _FIELDS[name](value)


def _whole(value: Any, what: str, low: int, high: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise InvalidOption(f"{what} must be a whole number from {low} to {high}, not {value!r}", option=what)
    return value


def _durability(value: Any) -> str:
    level = _one_of(value, "durability", ("redis", "replicated", "fsync", "committed"))
    return "" if level == "redis" else level


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


def exception_classes(value: Any, what: str) -> tuple[type[BaseException], ...]:
    """Returns what `retry_on` or `fatal_on` names; anything else would only be found out when something fails."""
    classes = value if isinstance(value, tuple) else (value,)
    if not all(isinstance(cls, type) and issubclass(cls, BaseException) for cls in classes):
        hint = ": several go in a tuple" if isinstance(value, (list, set, frozenset)) else ""
        raise InvalidOption(f"{what} takes exception classes, not {value!r}{hint}", option=what)
    return classes
