"""A graph definition as plain data. Pure: what it means is decided elsewhere.

The JSON form is the definition: it is stored as a content-addressed blob, and patches (RFC 6902) change it under
`/nodes/<id>`. Values stay as people wrote them ("5s", "100/m", "${fetch.body}"); the plan has them as the engine
counts them. What a definition does not say is None, and left out of its JSON.
"""

from __future__ import annotations

import hashlib
from typing import Any

import msgspec

#: Node types, and what each is for.
TYPES = {
    "task": "calls a task",
    "http": "makes one HTTP request",
    "agent": "gives a prompt to an agent",
    "approval": "waits for people to decide",
    "branch": "chooses one of several targets",
    "loop": "goes back to an earlier node while a condition holds",
    "gather": "puts the items of its predecessors together, or into groups",
    "subgraph": "runs another graph",
    "wait": "waits for a signal or a length of time",
    "transform": "computes a value from others",
}
#: Other words for a type.
TYPE_ALIASES = {"function": "task"}

#: Names in expressions and arguments that are not nodes.
RESERVED_NAMES = ("input", "item", "index", "iteration", "status", "errors")
#: Those of them that only exist for the items of a map.
ITEM_NAMES = frozenset({"item", "index"})

#: The largest definition: nodes, edges, and bytes of its JSON (or of a file).
MAX_NODES, MAX_EDGES, MAX_BYTES = 10_000, 50_000, 4 * 1024 * 1024
#: Loops of one definition, and how many of them may be inside each other.
MAX_LOOPS, MAX_LOOP_DEPTH = 500, 16
#: Levels that values inside a definition may be nested.
MAX_DEPTH = 40

#: What a duration is in JSON: a text with a unit, or seconds.
JsonDuration = str | int | float


class NodeSpec(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    omit_defaults=True,
    forbid_unknown_fields=True,
    rename={"with_": "with", "while_": "while"},
):
    """One node, as it is written. Which fields go with which type is told by `fields.py`."""

    type: str
    # --- every node
    after: list[str] | None = None
    join: str | int | None = None
    when: str | None = None
    on_error: str | None = None
    # --- over many items
    map: str | None = None
    filter: str | None = None
    max_parallel: int | None = None
    gather: str | None = None
    batch_items: int | None = None
    # --- how a step is executed
    with_: dict[str, Any] | None = None
    queue: str | None = None
    priority: int | None = None
    retries: int | None = None
    retry_delay: JsonDuration | None = None
    max_delay: JsonDuration | None = None
    backoff: str | None = None
    jitter: bool | None = None
    timeout: JsonDuration | None = None
    hedge: JsonDuration | None = None
    cache: dict[str, Any] | None = None
    concurrency: int | None = None
    concurrency_key: str | None = None
    concurrency_per_key: int | None = None
    rate_limit: str | None = None
    rate_key: str | None = None
    rate_cost: int | str | None = None
    compensate: dict[str, Any] | None = None
    # --- task, agent, subgraph
    call: str | None = None
    agent: str | None = None
    prompt: Any = None
    session: str | None = None
    graph: str | None = None
    version: str | None = None
    # --- http
    url: str | None = None
    method: str | None = None
    headers: dict[str, Any] | None = None
    query: dict[str, Any] | None = None
    json: Any = None
    form: dict[str, Any] | None = None  # of an approval too: what people fill in
    body: str | dict[str, str] | None = None
    expect: list[int | str] | None = None
    retry_on: list[int | str] | None = None
    max_bytes: int | None = None
    redirects: int | None = None
    idempotency_key: str | bool | None = None
    # --- approval
    title: str | None = None
    approvers: list[str] | None = None
    quorum: int | None = None
    on_timeout: str | None = None
    on_reject: str | None = None
    show: Any = None
    reminders: list[JsonDuration] | None = None
    escalate: dict[str, Any] | None = None
    # --- branch, loop
    cases: list[dict[str, str]] | None = None
    default: str | None = None
    while_: str | None = None
    to: str | None = None
    max_iterations: int | None = None
    on_exhausted: str | None = None
    # --- gather, wait, transform
    group_by: str | None = None
    signal: str | None = None
    duration: JsonDuration | None = None
    value: Any = None


class GraphSpec(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """A whole definition, as it is written."""

    name: str
    nodes: dict[str, NodeSpec]
    version: str | None = None
    #: JSON Schema of what a run is started with.
    input: dict[str, Any] | None = None
    #: A template of what a run returns.
    output: Any = None


_encoder = msgspec.json.Encoder(order="sorted")
_decoder = msgspec.json.Decoder(GraphSpec)


def to_json(spec: GraphSpec) -> bytes:
    """Returns the one JSON form of a definition: sorted keys, no blanks, nothing that says nothing."""
    return _encoder.encode(spec)


def from_json(data: bytes) -> GraphSpec:
    """Returns the definition that `to_json` wrote; it was checked before it was written, and is not checked again."""
    return _decoder.decode(data)


def to_document(spec: GraphSpec) -> dict[str, Any]:
    """Returns a definition as plain dicts and lists: what patches change and `read_document` reads again."""
    document: dict[str, Any] = msgspec.json.decode(to_json(spec))
    return document


def address_of(spec: GraphSpec) -> str:
    """Returns the content address of a definition: the hex sha256 of its JSON."""
    return hashlib.sha256(to_json(spec)).hexdigest()
