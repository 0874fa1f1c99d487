"""Which fields a node of which type has, and how each is read: the one table behind every form of a definition."""

from __future__ import annotations

from weft.codec import MAX_PAYLOAD
from weft.core.graph import kinds
from weft.core.graph.kinds import Read
from weft.core.retry import BACKOFFS

#: The most iterations of a loop, items at once of a map, and items in one step of it.
MAX_ITERATIONS, MAX_PARALLEL, MAX_BATCH_ITEMS = 1_000_000, 100_000, 10_000
#: The most redirects that a request follows.
MAX_REDIRECTS = 20
#: The most steps a limit may let run at once.
MAX_CONCURRENCY = 1_000_000

_ANY: dict[str, Read] = {
    "after": kinds.several(kinds.node_name, empty=True),
    "join": kinds.join,
    "when": kinds.condition,
}
_ON_ERROR: dict[str, Read] = {"on_error": kinds.choice("fail", "continue", "dead_letter", "compensate")}
_MAP: dict[str, Read] = {
    "map": kinds.condition,
    "filter": kinds.condition,
    "max_parallel": kinds.whole(1, MAX_PARALLEL),
    "gather": kinds.gather,
    "batch_items": kinds.whole(1, MAX_BATCH_ITEMS),
}
_STEP: dict[str, Read] = {
    **_ON_ERROR,
    **_MAP,
    "queue": kinds.name,
    "priority": kinds.whole(1, 10),
    "retries": kinds.whole(0, 10_000),
    "retry_delay": kinds.delay,
    "max_delay": kinds.delay,
    "backoff": kinds.choice(*BACKOFFS),
    "jitter": kinds.flag,
    "timeout": kinds.duration,
    "hedge": kinds.duration,
    "cache": kinds.parts(("ttl",), {"ttl": kinds.duration, "key": kinds.template}, short="ttl"),
    "concurrency": kinds.whole(1, MAX_CONCURRENCY),
    "concurrency_key": kinds.text,
    "concurrency_per_key": kinds.whole(1, MAX_CONCURRENCY),
    "rate_limit": kinds.rate,
    "rate_key": kinds.text,
    "rate_cost": kinds.whole_or_template(1, MAX_CONCURRENCY),
    "compensate": kinds.parts(("call",), {"call": kinds.name, "with": kinds.mapping}, short="call"),
}

#: Type -> field -> how it is read. A field that is not here does not go with the type.
FIELDS: dict[str, dict[str, Read]] = {
    "task": {**_ANY, **_STEP, "call": kinds.name, "with": kinds.mapping},
    "http": {
        **_ANY,
        **_STEP,
        "url": kinds.url,
        "method": kinds.choice("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"),
        "headers": kinds.mapping,
        "query": kinds.mapping,
        "json": kinds.template,
        "form": kinds.mapping,
        "body": kinds.body,
        "expect": kinds.several(kinds.statuses),
        "retry_on": kinds.several(kinds.statuses),
        "max_bytes": kinds.whole(1, MAX_PAYLOAD),
        "redirects": kinds.whole(0, MAX_REDIRECTS),
        "idempotency_key": kinds.flag_or_text,
    },
    "agent": {
        **_ANY,
        **_STEP,
        "agent": kinds.name,
        "prompt": kinds.template,
        "session": kinds.text,
        "with": kinds.mapping,
    },
    "subgraph": {**_ANY, **_STEP, "graph": kinds.name, "version": kinds.text, "with": kinds.mapping},
    "approval": {
        **_ANY,
        **_ON_ERROR,
        "title": kinds.text,
        "approvers": kinds.several(kinds.text),
        "quorum": kinds.whole(1, 100),
        "timeout": kinds.duration,
        "on_timeout": kinds.choice("reject", "approve", "fail", "continue"),
        "on_reject": kinds.choice("fail", "skip", "continue"),
        "show": kinds.template,
        "form": kinds.mapping,
        "reminders": kinds.several(kinds.duration),
        "escalate": kinds.parts(("after", "to"), {"after": kinds.duration, "to": kinds.several(kinds.text)}),
    },
    "branch": {**_ANY, "cases": kinds.stated_cases, "default": kinds.node_name},
    "loop": {
        **_ANY,
        "while": kinds.condition,
        "to": kinds.node_name,
        "max_iterations": kinds.whole(1, MAX_ITERATIONS),
        "on_exhausted": kinds.choice("continue", "fail"),
    },
    "gather": {**_ANY, **_ON_ERROR, "group_by": kinds.condition},
    "wait": {
        **_ANY,
        **_ON_ERROR,
        "signal": kinds.name,
        "duration": kinds.duration_or_template,
        "timeout": kinds.duration,
        "on_timeout": kinds.choice("fail", "continue"),
    },
    "transform": {**_ANY, **_ON_ERROR, "value": kinds.template},
}

#: Type -> fields it cannot be without.
REQUIRED: dict[str, tuple[str, ...]] = {
    "task": ("call",),
    "http": ("url",),
    "agent": ("agent", "prompt"),
    "subgraph": ("graph",),
    "branch": ("cases", "default"),
    "loop": ("while", "to", "max_iterations"),
    "transform": ("value",),
}

#: Field -> the field without which it would do nothing.
NEEDS: dict[str, str] = {
    "filter": "map",
    "max_parallel": "map",
    "gather": "map",
    "batch_items": "map",
    "hedge": "map",
    "concurrency_per_key": "concurrency_key",
    "rate_key": "rate_limit",
    "rate_cost": "rate_limit",
    "on_timeout": "timeout",
    "escalate": "approvers",
}

#: Types whose retries are those of the node alone (the others have those of their task when the node says nothing), and what
#: does nothing without any.
OWN_RETRIES = ("http", "subgraph")
OF_RETRIES = ("retry_on", "retry_delay", "max_delay", "backoff", "jitter")

#: Field -> (type, instead of which): what people often write for it.
OTHER_WORDS = {
    "depends_on": "after",
    "needs": "after",
    "if": "when",
    "condition": "when",
    "foreach": "map",
    "args": "with",
    "arguments": "with",
    "params": "with",
    "inputs": "with",
    "task": "call",
    "function": "call",
    "concurrency_limit": "concurrency",
    "rate": "rate_limit",
    "ttl": "cache",
    "retry": "retries",
    "max_retries": "retries",
    "on_failure": "on_error",
    "else": "default",
    "until": "while",
}
