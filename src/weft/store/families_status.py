"""The families of keys that the status of work elsewhere has. Names are digests: ids from elsewhere may hold anything."""

from __future__ import annotations

from weft.store.family import Lifetime, declare

declare(
    "status",
    "task",
    type="hash",
    holds="A task that runs elsewhere, by the digest of its id: what all its observations have in common.",
    lifetime=Lifetime.WINDOW,
    owner="store/status",
    inspect="HGETALL",
    fields={
        "task": "its id",
        "parent": "id of the task it belongs to (absent: nobody has said)",
        "n": "how many observations were made of it",
        "born": "when it was first observed, in ms",
    },
    replaces="the status record of document 001",
)
declare(
    "status_history",
    "task",
    type="list",
    holds="What was observed of such a task, the newest first: `<log entry> <ms> <digest of the content>`, then the observation"
    " (msgpack). The first is how it stands; there are `WEFT_STATUS_HISTORY` at most.",
    lifetime=Lifetime.WINDOW,
    owner="store/status",
    inspect="LRANGE 0 9",
    replaces="the status history of document 001",
)
declare(
    "status_event",
    "digest",
    type="string",
    holds="`<log entry> <ms> <digest of the content>` of the observation that an event id of a task came with.",
    lifetime=Lifetime.WINDOW,
    owner="store/status",
    inspect="GET",
)
declare(
    "status_children",
    "task",
    type="zset",
    holds="Ids of the tasks elsewhere that belong to one task, by when they were first observed (ms).",
    lifetime=Lifetime.WINDOW,
    owner="store/status",
    inspect="ZRANGE 0 9 WITHSCORES",
)
declare(
    "status_feed",
    type="stream",
    holds="The newest observations of all tasks elsewhere, field `o` as in `status_history`; `WEFT_STATUS_FEED` at least.",
    lifetime=Lifetime.FOREVER,
    owner="store/status",
    inspect="XREVRANGE + - COUNT 5",
    replaces="the service event feed of document 001",
)
