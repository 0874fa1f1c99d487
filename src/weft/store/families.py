"""The families of keys, declared once: type, meaning, lifetime, owner. `keys.py` builds the keys themselves."""

from __future__ import annotations

from weft.store.family import FAMILIES, Family, Lifetime
from weft.store.family import declare as _family

__all__ = ["FAMILIES", "Family", "Lifetime", "families_archive", "families_flow", "families_status", "families_waits"]

_family(
    "namespace",
    type="hash",
    holds="How many partitions the namespace has (fixed at creation) and which layout its keys follow.",
    lifetime=Lifetime.FOREVER,
    owner="store/namespace",
    inspect="HGETALL",
    fields={"partitions": "fixed number of virtual partitions", "layout": "version of the key layout"},
)
_family(
    "epoch",
    type="hash",
    holds="The partition's epoch. Every script that writes refuses when it is missing or another one.",
    lifetime=Lifetime.FOREVER,
    owner="store/namespace",
    inspect="HGETALL",
    fields={
        "number": "the epoch: rises with every loss of the store, also across wipes (absent: nothing that writes is served)",
        "recovering": "the epoch it gets when it has been rebuilt from the archive (absent: it is not being rebuilt)",
        "incarnation": "run_id of the server process that was last verified",
        "clock_ms": "offset added to Redis TIME; only tests set it",
        "controls": "version of what operators have set (absent: nothing ever was)",
        "levels": "priorities that tokens ever had, from high to low: a claim looks at no others (absent: it looks at all)",
        "line": "number of the newest arrival in any line",
        "fresh": "how many streams have, or had, several tokens of one key, so that other keys may overtake (absent: none)",
        "fresh:…": "by queue and priority, the mark of such a stream (lib/overtake); with a number, a token that may overtake",
        "retired": "`1`: the archive was given up on purpose, so that its absence is no loss",
        "behind": "why no new runs are taken: the archive is too far behind (absent: they are)",
        "flushes": "how often somebody waited until everything was on disk",
    },
)
_family(
    "run",
    "run",
    type="hash",
    holds="One run. A one-step task keeps all of its state here, ledger included.",
    lifetime=Lifetime.WITH_RUN,
    owner="store/runs",
    inspect="HGETALL",
    fields={
        "spec": "what was asked for: name, input, options (msgpack, never changed)",
        "open": "ledger: `<delivery>:<entry id>` while a token is out, `<delivery>:@<due ms>` while a timer is,"
        " `<delivery>:#<gate>` while it waits at a gate (behind a blank `<queue>|<priority>`, if who is"
        " like it may hand it the slot of their key), `<delivery>:?signal:<name>`, `:?approval` or, of a workflow, `:?flow`"
        " while it waits for something from outside, `=<last ledger>` once closed",
        "lone": "of a graph run whose only open step goes as usual: `<step> <ledger> <born> <spec>`, all there is of that step",
        "born": "ms at which the log tells of the first event: the creation time",
        "seq": "number of the newest event (absent: 1)",
        "more": "ms at which the log tells of the events between the first and the last",
        "status": "absent while queued or running; else waiting, completed, failed or cancelled",
        "attempt": "failures + 1 (absent: 1)",
        "crashes": "worker deaths charged to this run (absent: 0; one short of poison it is a suspect)",
        "promised": "`1`: the moment at which its timer is due was asked for, and no worker chose it that handed it back",
        "begun": "the newest delivery that began as a suspect",
        "deadline": "when the run as a whole fails, in ms",
        "overdue": "when a workflow run ends whose deadline has passed, should its code not come to an end, in ms",
        "started": "when the newest attempt began, in ms",
        "progress": "`<fraction> <message>` as last reported",
        "result": "msgpack, inline or a reference to a blob",
        "error": "msgpack: type, message, traceback, causes",
        "by": "session that held the last attempt of a run that failed or was ended from outside",
        "replaying": "run id that a replay under way has taken for the new run",
        "replayed": "run id of the newest replay of this dead letter",
        "investigated": "`<ms> <who> <note>`: somebody looked into this dead letter",
        "closed": "`<seq> <ended> <started> <result>` of a task that has completed, in place of these fields and its status; a"
        " result above 32 bytes has a field of its own",
        "ended": "ms at which the log tells of the last event: the finishing time",
        "logged": "how many log lines its steps wrote; the list keeps the last of them",
        "noted": "`<delivery>:<n>`: the newest log line that is counted",
        "gates": "names of the gates it passed, while it holds their slots",
        "parent": "`<run>/<step>` that this run is a subgraph of",
        "lives": "how often a graph run was retried (absent: 0)",
        "away": "ms until which all that an ended run left stands here: the archive has it",
        "failing": "msgpack: the error with which a graph run ends once what it did is undone",
        "letter": "`1`: this was a step of a graph run, and is a dead letter now",
        "def": "digest of the definition a graph run follows",
        "given": "what a step that waited was given: `+` and the value, or `-` when its time was over",
        "due": "when a step that waits for something from outside is looked at again, in ms",
        "parked": "how many steps of a graph run wait for something from outside",
        "approvals": "steps of a graph run that were approvals",
        "paused": "`<ms> <who>`: a graph run that an operator paused",
        "revision": "how often its definition was changed, from 1 (absent: 1)",
        "before": "digest of the definition it followed before the last patch",
        "by_steps": "how many of its patches were made by steps (absent: none)",
        "turn": "the newest commit of a workflow run (absent: its code has not begun)",
        "lived": "entries that the journals of earlier lives of a workflow run had (absent: 0)",
        "state": "msgpack: what a workflow run shows of itself",
        "awaits": "where the code of a workflow run waits",
        "left": "`1`: a workflow run has calls, children, large values or signals, which are put away when it has ended",
        "kept": "`fsync` or `replicated`: how safely its start is known to be kept (absent: in the store's memory)",
        "watch": "channels to tell when the run ends (`~` in front: at every event)",
    },
    replaces="`counter` and `applied` of document 000: the ledger field is both, and cannot drift",
)
_family(
    "wf.tasks",
    "queue",
    "priority",
    type="stream",
    holds="Tokens of one queue at one priority, field `r` = run id, `s` = its spec when small, `n` = `<delivery>:<attempt>` and"
    " the gates it passed, after `>` who stood in line behind it. Delivered but uncommitted ones are its pending list.",
    lifetime=Lifetime.QUEUE,
    owner="store/steps",
    inspect="XINFO STREAM",
)
_family(
    "queues",
    type="set",
    holds="Names of all queues that ever held a token in this partition.",
    lifetime=Lifetime.FOREVER,
    owner="store/runs",
    inspect="SMEMBERS",
)
_family(
    "wake",
    "queue",
    type="list",
    holds="At most a few pebbles: a worker without work blocks here; `@timers` wakes the timer service.",
    lifetime=Lifetime.QUEUE,
    owner="store/steps",
    inspect="LLEN",
)
_family(
    "timers",
    type="zset",
    holds="Everything that is due later, by due time in ms: `open:<run>` emits a token, `deadline:<run>` fails a run,"
    " `gate:<gate>` looks at a rate again, `end:<run>` cancels a run that was replaced, `cron:<schedule>` ticks,"
    " `close:<run>` puts away what a graph run left, `route:<run>/<step>` goes on behind a step that others ended,"
    " `shut:<run>/<step>` ends items of a map that is over, `hedge:<run>/<step>` looks for items of a map that take long,"
    " `stop:<run>/<step>` ends who was slower with one, `hold:<run>` pauses or resumes children with their run.",
    lifetime=Lifetime.FOREVER,
    owner="store/timers",
    inspect="ZRANGE 0 -1 WITHSCORES",
)
_family(
    "log",
    type="stream",
    holds="All events of the partition. An entry packs one script call: `at` (ms; empty: as the entry's id tells),"
    " `by` (who), then per event run id = `<seq>|<type>|<facts>|<payload>`.",
    lifetime=Lifetime.FOREVER,
    owner="store/log",
    inspect="XREVRANGE + - COUNT 5",
    replaces="status history, observations and feeds of documents 001 and 002",
)
_family(
    "blob",
    "run",
    "digest",
    type="string",
    holds="A value too large to keep inline, by its sha256. It belongs to one run and goes with it.",
    lifetime=Lifetime.WITH_RUN,
    owner="store/blobs",
    inspect="STRLEN",
)
_family(
    "tasklog",
    "run",
    type="list",
    holds="What a run's steps logged by `current().log` (msgpack): the last 100 lines, 16 KB at most.",
    lifetime=Lifetime.WITH_RUN,
    owner="store/steps",
    inspect="LRANGE 0 -1",
)
_family(
    "idempotency",
    "digest",
    type="string",
    holds="`<run id> <payload digest>` of the run that an idempotency key started.",
    lifetime=Lifetime.WINDOW,
    owner="store/runs",
    inspect="GET",
    replaces="`applied` of document 000",
)
_family(
    "unique",
    "digest",
    type="string",
    holds="Run id of the call that others like it count as: for `unique_for`, `throttle` and `debounce`.",
    lifetime=Lifetime.WINDOW,
    owner="store/runs",
    inspect="GET",
)
_family(
    "schedule",
    "schedule",
    type="hash",
    holds="One schedule: what it starts and when, and how far it has come.",
    lifetime=Lifetime.FOREVER,
    owner="store/schedules",
    inspect="HGETALL",
    fields={
        "rev": "revision: rises with every change, and a change is refused unless it was decided on the newest",
        "spec": "what was asked for: expression, timezone, policies, the run it starts (msgpack)",
        "born": "when it was created, in ms",
        "next": "the first tick that is not decided yet, in ms (absent: there will be none)",
        "paused": "`1`: it does not tick",
        "paused_at": "since when, in ms",
        "paused_by": "who paused it",
        "last": "the newest tick that started a run, in ms",
        "run": "the run that was started last, by a tick or by hand",
        "skipped": "the newest tick that was decided against, in ms",
        "waits": "since when a tick that is due waits for that run to end, in ms",
    },
)
_family(
    "schedules",
    type="set",
    holds="Names of all schedules of this partition.",
    lifetime=Lifetime.FOREVER,
    owner="store/schedules",
    inspect="SMEMBERS",
)
_family(
    "session",
    "session",
    type="string",
    holds="`alive` while a worker session renews it; `dead` is the tombstone of a session whose steps were taken.",
    lifetime=Lifetime.LEASE,
    owner="store/sessions",
    inspect="GET",
)
_family(
    "sessions",
    type="hash",
    holds="What each worker session serves (msgpack), until it ends or is swept.",
    lifetime=Lifetime.FOREVER,
    owner="store/sessions",
    inspect="HKEYS",
)
_family(
    "lock",
    "service",
    type="string",
    holds="Which session runs a housekeeping service of this partition.",
    lifetime=Lifetime.LEASE,
    owner="store/leases",
    inspect="GET",
)
_family(
    "repair",
    type="zset",
    holds="Runs whose state made a script fail, by when it was seen. Nothing is guessed about them.",
    lifetime=Lifetime.FOREVER,
    owner="store/steps",
    inspect="ZRANGE 0 -1 WITHSCORES",
)
_family(
    "gate",
    "gate",
    type="zset",
    holds="Runs that were let through a limit and still count, by when; `>`: see `heirs`. Its size is the limit's count.",
    lifetime=Lifetime.QUEUE,
    owner="store/gates",
    inspect="ZRANGE 0 -1 WITHSCORES",
)
_family(
    "line",
    "gate",
    type="zset",
    holds="Runs that wait at a gate: higher priority first, then by turns between keys, then older first.",
    lifetime=Lifetime.QUEUE,
    owner="store/gates",
    inspect="ZRANGE 0 9 WITHSCORES",
)
_family(
    "turns",
    "gate",
    type="hash",
    holds="Whose turn it is in a line with several keys: the last turn of each key, and `@`, the turn that is served.",
    lifetime=Lifetime.QUEUE,
    owner="store/gates",
    inspect="HGETALL",
)
_family(
    "ratelimit",
    "gate",
    type="hash",
    holds="Units spent per grain of time, for as long as they count, and `@<run>`: units of runs that were let"
    " through and have not begun.",
    lifetime=Lifetime.WINDOW,
    owner="store/gates",
    inspect="HGETALL",
    replaces="`tokenbucket` of document 002",
)
_family(
    "lines",
    type="set",
    holds="Names of the gates that have somebody waiting.",
    lifetime=Lifetime.FOREVER,
    owner="store/gates",
    inspect="SMEMBERS",
)
_family(
    "admit",
    type="set",
    holds="Names of the gates whose line is to be looked at: a slot became free, or a limit changed.",
    lifetime=Lifetime.FOREVER,
    owner="store/gates",
    inspect="SMEMBERS",
)
_family(
    "heirs",
    type="hash",
    holds="Who has a slot that is handed from run to run, by the name of its gate: there the gate has `>` in place of a run.",
    lifetime=Lifetime.FOREVER,
    owner="store/heirs",
    inspect="HGETALL",
)
_family(
    "controls",
    type="hash",
    holds="What operators have set: `pause:…`, `limit:…`, `strike:…`, `run:…` (a paused"
    " run), each with who and when (JSON).",
    lifetime=Lifetime.FOREVER,
    owner="store/controls",
    inspect="HGETALL",
)
_family(
    "dlq",
    type="zset",
    holds="Dead letters: ids of runs that failed for good, by when they did (ms). The letter itself is the run, which is kept"
    " for `WEFT_DLQ_RETENTION`; the sweeper drops ids whose run is gone.",
    lifetime=Lifetime.FOREVER,
    owner="store/letters",
    inspect="ZRANGE 0 -1 WITHSCORES",
)
_family(
    "ir",
    "digest",
    type="string",
    holds="A graph definition (JSON) by its sha256, shared by all its runs. Stays while a run that is kept needs it.",
    lifetime=Lifetime.FOREVER,
    owner="store/graphs",
    inspect="GET",
    replaces="`ir` of document 000, which every run had a copy of",
)
_family(
    "definitions",
    type="hash",
    holds="The stored definitions of graphs: by digest `0`, or since when (ms) the sweeper has seen no run that needs it.",
    lifetime=Lifetime.FOREVER,
    owner="store/definitions",
    inspect="HGETALL",
)
_family(
    "ledger",
    "run",
    type="hash",
    holds="Steps of a graph run that are open, by when they opened (ms). The run is over when it is empty. The step itself is"
    " a `run` of its own, named `<run>/<step>`, until it ends. While a run goes straight it has no ledger: its only"
    " open step stands in its own hash, as `lone`.",
    lifetime=Lifetime.WITH_RUN,
    owner="store/graphs",
    inspect="HGETALL",
    replaces="`counter`, `pending` and `ledger` of document 000",
)
_family(
    "arrivals",
    "run",
    type="hash",
    holds="Who has come to each join of a graph run: `<node>+`, skipped `<node>-` or failed `<node>!`;"
    " `=` in front: it has opened.",
    lifetime=Lifetime.WITH_RUN,
    owner="store/graphs",
    inspect="HGETALL",
)
_family(
    "context",
    "run",
    type="hash",
    holds="What each node of a graph run gave: `<status> <step> <attempt> <started> <ended> <ledger>`, then its"
    " value (msgpack). `<node>*`: the errors of a map's items; `<step>!`: what undid a step.",
    lifetime=Lifetime.WITH_RUN,
    owner="store/graphs",
    inspect="HKEYS",
    replaces="`context` of document 000",
)
_family(
    "undo",
    "run",
    type="list",
    holds="Steps of a graph run that can be undone, the newest last: the step, then what it gave (msgpack). A run that fails"
    " takes them off its end, one by one.",
    lifetime=Lifetime.WITH_RUN,
    owner="store/graphs",
    inspect="LRANGE 0 -1",
)
_family(
    "cache",
    "node",
    "digest",
    type="string",
    holds="What a step of a node with `cache` gave (msgpack), for steps like it: `<graph>.<node>`, and a digest of what it was"
    " asked.",
    lifetime=Lifetime.WINDOW,
    owner="store/memos",
    inspect="GET",
)
_family(
    "map",
    "run",
    "step",
    type="hash",
    holds="How far a map has come: items, how many may be open, how many are needed, and the cursor.",
    lifetime=Lifetime.WITH_RUN,
    owner="store/graphs",
    inspect="HGETALL",
)
_family(
    "items",
    "run",
    "step",
    type="hash",
    holds="Items of a map, 256 to a field (msgpack).",
    lifetime=Lifetime.WITH_RUN,
    owner="store/graphs",
    inspect="HLEN",
)
_family(
    "results",
    "run",
    "step",
    "chunk",
    type="hash",
    holds="What the items of a map gave, by index: 256 of them.",
    lifetime=Lifetime.WITH_RUN,
    owner="store/graphs",
    inspect="HLEN",
)
_family(
    "belongings",
    "run",
    type="set",
    holds="What a graph run has besides its own keys, and what goes with it: `blob <digest>`, `map <step> <items>`.",
    lifetime=Lifetime.WITH_RUN,
    owner="store/graphs",
    inspect="SMEMBERS",
)
_family(
    "inbox",
    "owner",
    type="channel",
    holds="News for one client (its runs ended) or one worker session (a step was cancelled).",
    lifetime=Lifetime.MESSAGE,
    owner="store/inbox",
    inspect="PUBSUB NUMSUB",
)

from weft.store import families_archive, families_flow, families_status, families_waits  # noqa: E402 - these come last
