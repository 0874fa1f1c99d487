"""What the methods of a graph take, for type checkers and readers. `core/graph/fields.py` tells how each option is checked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias, TypedDict

from weft.clock import Duration

if TYPE_CHECKING:
    from weft.sdk.graph import Node
    from weft.sdk.task import Task

#: How one node names another: what its declaration returned, or its id.
Ref: TypeAlias = "Node | Task[Any, Any] | str"


class AnyOptions(TypedDict, total=False):
    """Options of every node."""

    after: Ref | Sequence[Ref]
    join: str | int
    when: str


class StepOptions(AnyOptions, total=False):
    """Options of every node that may fail."""

    on_error: str


class MapOptions(StepOptions, total=False):
    """Options of every node that a worker executes."""

    map: str
    filter: str
    max_parallel: int
    gather: str
    batch_items: int
    queue: str
    priority: int
    retries: int
    retry_delay: Duration
    max_delay: Duration
    backoff: str
    jitter: bool
    timeout: Duration
    hedge: Duration
    cache: Duration | Mapping[str, Any]
    concurrency: int
    concurrency_key: str
    concurrency_per_key: int
    rate_limit: str
    rate_key: str
    rate_cost: int | str
    compensate: Task[Any, Any] | str | Mapping[str, Any]


class RunOptions(MapOptions, total=False):
    """Options of nodes that take arguments."""

    with_: Mapping[str, Any]


class NodeOptions(RunOptions, total=False):
    """What `@graph.node(…)` takes."""

    id: str
    pool: str | None
    retry_on: type[BaseException] | tuple[type[BaseException], ...]
    fatal_on: type[BaseException] | tuple[type[BaseException], ...]


class HttpOptions(MapOptions, total=False):
    """What `graph.http(…)` takes."""

    method: str
    headers: Mapping[str, Any]
    query: Mapping[str, Any]
    json: Any
    form: Mapping[str, Any]
    body: str | Mapping[str, str]
    expect: int | str | Sequence[int | str]
    retry_on: int | str | Sequence[int | str]
    max_bytes: int
    redirects: int
    idempotency_key: str | bool


class ApprovalOptions(StepOptions, total=False):
    """What `graph.approval(…)` takes."""

    title: str
    approvers: str | Sequence[str]
    quorum: int
    timeout: Duration
    on_timeout: str
    on_reject: str
    show: Any
    form: Mapping[str, Any]
    reminders: Duration | Sequence[Duration]
    escalate: Mapping[str, Any]


class WaitOptions(StepOptions, total=False):
    """What `graph.wait(…)` takes."""

    timeout: Duration
    on_timeout: str
