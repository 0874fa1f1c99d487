"""Renders `docs/benchmarks.md`: what was measured, on what, how, and how to measure it again."""

import datetime

from bench.cases import SCALE_BASE, SCALE_PARTS, Plan, Results
from bench.driver import BULK_SIZE, IN_FLIGHT
from bench.measurement import LATENCY_WARM_UP
from bench.peers import version
from bench.report import peer_table, problems, scale_table, target_table, tree_table

TEMPLATE = """\
# Benchmarks

Weft beside other queues that keep their work in Redis, measured by [`bench/`](../bench/README.md) in one run on {date}.
Read the ratios, not the absolute figures: those belong to this machine. To measure again, here or elsewhere:

```text
{command}
```

## No-op tasks

Medians of the interleaved rounds ({rounds}), least and greatest in brackets.

{queues}

## Chains and maps

A chain is a graph in Weft, a flow in BullMQ, a workflow of ten steps in DBOS and in Temporal.

{graphs}

{problems}\
## What Weft promises

{targets}

{scale}\
{tree}\
## What it was measured on

{facts}

| | version | setting | tasks a round |
|---|---|---|---:|
{settings}

## How

- **Same server for all.** Every measurement starts its own {server} on a loopback port with `appendonly yes` and
  `appendfsync everysec`, no snapshots, and throws it away afterwards. It persists and is started as Weft's embedded server,
  for every peer alike: the append-only file is rewritten from 256 MB on, uncompressed (`PERSISTENCE`), and libc's allocator
  keeps more of what it frees (`server_environment`). Everything else is as shipped.
- **Same task, same count.** The body appends one byte to a file in shared memory and returns 1. Completions are the
  file's size, so no store and no peer's own bookkeeping is trusted; after each round it must equal the number of tasks
  exactly, or the row fails (a peer that ran up to one task in a hundred twice keeps its row, with a note).
- **Interleaved.** A round measures each peer in turn, every other round in reverse order, one thing at a time.
- **drained/s**: all tasks are enqueued first, the producer ends, workers start; the clock runs from the first tenth of
  the completions to the last. Results are kept by every peer.
- **enqueued/s**: one producer process; one by one awaits each call. Bulk is the fastest public way: calls of
  {bulk_size:,} tasks (Weft, BullMQ, Celery `group`), or {in_flight} enqueues in flight where a peer has no such call.
- **bytes queued**: growth of `used_memory` from a short queue to a long one, producers gone both times, divided by the
  tasks between: all keys and tables are in it, connection buffers and what a server needs once are not.
- **latency**: enqueue to awaited result, one worker process, nothing else to do, a pause of 3 ms before each;
  {samples} samples a round after {warm_up} for warming up and a wait until the worker, with all that it starts, is at rest.
- **ratios**: the median of the rounds' ratios, least and greatest in brackets: what is compared was measured within a
  minute, while the machine's own pace changes from round to round (see evenness).
- **scale**: a queue of {n_scale:,}, filled in bulk in {scale_parts} parts and drained by one process in as many; behind each
  part as many tasks in queues of {scale_base:,}, filled and drained one behind the other on a server of their own. One
  such queue alone would be a burst of a fifth of a second, over before the append-only file is synced once. Neither worker
  archives.
- **archived**: {n_archived:,} tasks drained by a worker with its defaults, which archives to SQLite on the same machine, and
  with `--no-archive`.
- **behind, page, loss**: {n_scale:,} tasks of six names, one in a hundred failing, drained by a worker with its defaults, and
  how long after the last the archive has all; then pages of 100 by ten filters, the newest and from the middle, each the
  median of seven, through `app.runs.list`: the slowest. A hundredth as many unfinished runs (delayed tasks, graphs and
  workflows that wait for signals), `FLUSHALL`, and the seconds until a worker has done new work; then every run is signalled
  and ends.
- **limits, timers, schedules**: Weft alone, against itself: {n_features:,} tasks over 1,000 keys without a limit, with one that
  never closes and with one of each key at a time (enqueue and drain together); as many runs that are due within one second; a
  tenth as many schedules that tick every minute.
- **workflows**: a tenth as many of ten steps each, 500 in flight, beside those of DBOS and of Temporal, whose chains are
  workflows of ten steps (Temporal's with local activities, on its development server, which keeps nothing on disk); trees:
  each workflow has two activities, which go through the queue, then three children, two levels deep.
- Peers run with their best known concurrency and public options, Weft with its defaults: log, results, fencing, all on.
"""


def render(plan: Plan, results: Results, facts: dict[str, str], command: str) -> str:
    """The whole document."""
    return TEMPLATE.format(
        date=datetime.date.today().isoformat(),
        command=command,
        rounds=plan.rounds,
        queues=peer_table(plan, results, "queues", ranges=True),
        graphs=peer_table(plan, results, "graphs", ranges=True),
        problems=_block("\n".join(f"- {line}" for line in problems(plan, results))),
        targets=target_table(results),
        scale=_block(scale_table(plan, results)),
        tree=_block(tree_table(results)),
        facts="\n".join(f"- {name}: {fact}" for name, fact in facts.items()),
        settings="\n".join(
            f"| {peer.label} | {version(peer)} | {peer.setting} | {peer.tasks(plan.n_tasks):,} |" for peer in plan.peers
        ),
        server=facts["server"],
        bulk_size=BULK_SIZE,
        in_flight=IN_FLIGHT,
        samples=plan.n_samples,
        warm_up=LATENCY_WARM_UP,
        scale_base=SCALE_BASE,
        scale_parts=SCALE_PARTS,
        n_scale=plan.n_scale,
        n_features=plan.n_scale // 10,
        n_archived=plan.n_scale // 4,
    )


def _block(text: str) -> str:
    return f"{text}\n\n" if text else ""
