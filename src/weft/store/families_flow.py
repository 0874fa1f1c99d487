"""The families of keys that code workflows have besides their runs, and of runs that no worker can do."""

from __future__ import annotations

from weft.store.family import Lifetime, declare

declare(
    "journal",
    "run",
    type="list",
    holds="What the code of a workflow run was told, in order: `<ms> <type> <key> <more>`, then a value (msgpack). Its code,"
    " run again and told the same, comes to the same place. Gone with the run.",
    lifetime=Lifetime.WITH_RUN,
    owner="store/flows",
    inspect="LRANGE 0 -1",
    replaces="`history` of document 002",
)
declare(
    "updates",
    "run",
    type="hash",
    holds="Updates of a workflow run, by id: `=<id>` is `?` and the channels of who waits, then the answer: `+` and a"
    " value, `-` and the error of its handler, `!` and why it was refused (msgpack). Of answers the newest thousand stay:"
    " `n` counts them, `@<n>` says which.",
    lifetime=Lifetime.WITH_RUN,
    owner="store/flows",
    inspect="HGETALL",
)
declare(
    "mail",
    "run",
    type="list",
    holds="What came for a workflow run and is not in its journal yet: signals, updates, ends of calls and children,"
    " a cancellation; entries like those of the journal.",
    lifetime=Lifetime.WITH_RUN,
    owner="store/flows",
    inspect="LRANGE 0 -1",
    replaces="`pending-events` of document 002",
)
declare(
    "unserved",
    type="zset",
    holds="Runs that rest because no live worker can do them: `<queue> <name> <version> <delivery> <run>`, version `-` for any;"
    " all scores are 0. The sweeper lets them go on when somebody registers who can.",
    lifetime=Lifetime.FOREVER,
    owner="store/unserved",
    inspect="ZRANGE 0 9",
)
