"""Keys of what a run waits for from outside: signals and approvals."""

from __future__ import annotations

from weft.store.family import Lifetime, declare

declare(
    "signals",
    "run",
    type="hash",
    holds="Signals of a graph run: who waits for which, those that arrived before anybody waited, and which calls were"
    " answered.",
    lifetime=Lifetime.WITH_RUN,
    owner="store/waits",
    inspect="HGETALL",
    fields={
        "?<name>": "steps that wait for it, in order",
        "#<name>": "`<first> <next>`: numbers of those that wait to be taken",
        "+<name> <n>": "the value of one of them (msgpack)",
        "=<request>": "how a call was answered; the newest thousand",
        "@<n>": "which call that was, in a ring",
        "n": "how many calls were answered",
    },
)
declare(
    "approval",
    "id",
    type="hash",
    holds="One approval: what people are shown, who may decide, who did. Its id is that of its step, `<run>/<step>`.",
    lifetime=Lifetime.WITH_RUN,
    owner="store/approvals",
    inspect="HGETALL",
    fields={
        "about": "what it asks for: title, approvers, quorum, form, times (JSON, never changed)",
        "show": "what people are shown (msgpack, never changed)",
        "digest": "sha256 of all of that: a decision must name it",
        "state": "approvers now, votes, and what happened (JSON)",
        "rev": "rises with every change",
        "status": "pending, approved, rejected, timed_out or cancelled",
        "opened": "when it opened, in ms",
        "decided": "when it was decided, in ms",
    },
    replaces="`approval` of document 000",
)
declare(
    "pending_approvals",
    type="zset",
    holds="Ids of approvals nobody has decided yet, by when they opened (ms).",
    lifetime=Lifetime.FOREVER,
    owner="store/approvals",
    inspect="ZRANGE 0 -1 WITHSCORES",
    replaces="`pending_approvals` of document 000",
)
declare(
    "secret",
    type="string",
    holds="The key that signs links to approvals, made at first use where WEFT_SECRET_KEY is not set.",
    lifetime=Lifetime.FOREVER,
    owner="store/approvals",
    inspect="STRLEN",
)
