"""A page costs what it shows: where the archive knows of every run, no list looks at all that the hot store holds."""

from __future__ import annotations

import asyncio

import pytest

from weft import Context
from weft.engine import listing
from weft.ids import partition_of

pytestmark = pytest.mark.leaves("history", "open runs")

FILTERS = [
    {},
    {"status": "queued"},
    {"status": "running"},
    {"status": "waiting"},
    {"status": "paused"},
    {"status": "waiting", "kind": "workflow"},
    {"status": "waiting", "name": "shaky"},
    {"status": "running", "name": "busy"},
    {"status": "completed"},
    {"status": "failed"},
    {"status": "cancelled"},
    {"name": "add"},
    {"name": "add", "status": "queued"},
    {"name": "add", "status": "completed"},
    {"name": "nobody"},
    {"kind": "workflow"},
    {"kind": "graph"},
    {"kind": "task", "status": "queued"},
    {"kind": "graph", "status": "completed"},
    {"tag": ("team", "a")},
    {"tag": ("team", "b"), "status": "queued"},
    {"error": "LookupError"},
    {"error": "ValueError"},
    {"text": "needle"},
    {"queue": "other"},
    {"since": "1h"},
    {"until": "1h"},
]


@pytest.fixture
def no_scan(monkeypatch):
    """Fails a list that looks at all that the hot store holds."""

    async def refused(*_):
        raise AssertionError("this list looks at all runs of the hot store")

    def forbid() -> None:
        monkeypatch.setattr(listing, "scan_runs", refused)

    return forbid


async def ids(app, **filters) -> list[str]:
    return [info.id for info in await app.runs.list(limit=1000, **filters)]


def declare(app):
    @app.task
    async def add(a: int, b: str = "") -> str:
        return f"{a} {b}"

    @app.task
    async def bad(why: str) -> None:
        raise LookupError(why)

    @app.workflow
    async def flow(ctx: Context) -> int:
        return await ctx.receive("go", type=int)

    graph = app.graph("g", output="${end}")
    graph.wait("go", signal="go")
    graph.task("end", call="add", with_={"a": 1}, after="go")
    return add, bad, flow, graph


def declare_slow(app):
    done = asyncio.Event()

    @app.task
    async def busy() -> None:
        await done.wait()

    @app.task(retries=3, retry_delay="5m", backoff="fixed")
    async def shaky() -> None:
        raise OSError("not now")

    return busy, shaky, done


async def test_the_archive_and_the_store_list_alike_whatever_stands_where(
    app, start_worker, archive, monkeypatch, no_scan
):
    add, bad, flow, graph = declare(app)
    busy, shaky, done = declare_slow(app)
    await start_worker()

    async def some() -> list:
        runs = [
            await add.options(tags={"team": "a"}).enqueue(1, "needle"),
            await bad.enqueue("with a needle"),
            await add.options(tags={"team": "b"}, delay="1h").enqueue(2),
            await add.options(queue="other").enqueue(3, "nobody serves it"),
            await add.options(delay="1h").enqueue(4),
            await flow.start(),
            await graph.start(),
            await graph.start(),
            await busy.enqueue(),
            await shaky.enqueue(),
        ]
        await asyncio.gather(runs[0].result(20), runs[1].result(20), return_exceptions=True)
        await runs[7].pause()
        for run, status in ((runs[8], "running"), (runs[9], "waiting"), (runs[5], "waiting"), (runs[6], "waiting")):
            while await run.status() != status:
                await asyncio.sleep(0.01)
        return runs

    old = await some()
    await archive()
    new = await some()
    # What the archive takes for open has ended since, and the other way round.
    await old[4].cancel()
    for run in (old[5], old[6]):
        await run.signal("go", 1)
        await run.result(20)
    assert await old[1].status() == "failed"

    quick = {str(filters): await ids(app, **filters) for filters in FILTERS}
    monkeypatch.setattr(listing, "MOST_RECENT", -1)
    assert quick == {str(filters): await ids(app, **filters) for filters in FILTERS}
    assert len(quick["{}"]) == 20 and len(quick[str({"status": "running"})]) == 2 == len(
        quick[str({"status": "paused"})]
    )
    assert len(quick[str({"status": "waiting"})]) == 4 and len(quick[str({"status": "waiting", "name": "shaky"})]) == 2
    assert quick[str({"status": "cancelled"})] == [old[4].id]

    monkeypatch.undo()
    no_scan()
    assert quick == {str(filters): await ids(app, **filters) for filters in FILTERS}
    for limit in (1, 3, 13):
        for filters in ({}, {"status": "queued"}, {"status": "waiting"}, {"name": "add"}):
            paged: list[str] = []
            while page := await app.runs.list(limit=limit, after=paged[-1] if paged else None, **filters):
                paged += [info.id for info in page]
            assert paged == quick[str(filters)], (limit, filters)
    done.set()
    await asyncio.gather(old[8].result(20), new[8].result(20))
    for run in (*old, *new):
        await run.cancel()


async def test_a_list_says_of_a_run_what_the_run_itself_says(app, start_worker, archive, no_scan):
    add, _, flow, graph = declare(app)
    await start_worker()
    runs = [await add.enqueue(1), await add.options(delay="1h").enqueue(2), await flow.start(), await graph.start()]
    await runs[0].result(20)
    while [await run.status() for run in runs[2:]] != ["waiting", "waiting"]:
        await asyncio.sleep(0.01)
    await archive()
    no_scan()

    told = {info.id: info for info in await app.runs.list()}
    assert told == {run.id: await run.info() for run in runs}
    assert [told[run.id].status for run in runs] == ["completed", "queued", "waiting", "waiting"]
    for run in runs[1:]:
        await run.cancel()


async def test_what_is_noted_behind_the_end_of_a_run_costs_it_no_place(app, start_worker, archive, no_scan):
    _, bad, *_ = declare(app)
    await start_worker()
    run = await bad.enqueue("why")
    await asyncio.wait([asyncio.ensure_future(run.result(20))])
    await archive()
    await app.dlq.investigate(run.id, note="seen")
    no_scan()

    assert await ids(app, status="failed") == [run.id] == await ids(app, error="LookupError") == await ids(app)


async def test_runs_of_before_their_archive_are_listed(app, archive, raw):
    add, *_ = declare(app)
    ns = app.engine().ns
    runs = [await add.options(delay="1h").enqueue(n) for n in range(3)]
    for run in runs:
        raw.xtrim(ns.keys.log(partition_of(run.id)), maxlen=0, approximate=False)
    runs += [await add.options(delay="1h").enqueue(n) for n in range(3)]
    await archive()

    assert sorted(await ids(app)) == sorted(run.id for run in runs)
    for run in runs:
        await run.cancel()


async def test_runs_of_a_torn_log_are_listed(app, archive, raw):
    add, *_ = declare(app)
    ns = app.engine().ns
    runs = [await add.options(delay="1h").enqueue(1)]
    await archive()
    runs.append(await add.options(delay="1h").enqueue(2))
    for p in range(ns.partitions):
        raw.xtrim(ns.keys.log(p), maxlen=0, approximate=False)
    await archive()

    assert sorted(await ids(app, name="add")) == sorted(run.id for run in runs)
    for run in runs:
        await run.cancel()


async def test_a_rebuilt_store_lists_by_its_archive(app, start_worker, archive, archivers, raw, no_scan):
    add, *_ = declare(app)
    _, shaky, _ = declare_slow(app)
    worker = await start_worker()
    late = await shaky.enqueue()
    while await late.status() != "waiting":
        await asyncio.sleep(0.01)
    await worker.stop()
    runs = [late, *[await add.options(delay="1h").enqueue(n) for n in range(3)]]
    await archive()
    raw.delete(*raw.scan_iter(match=f"{app.engine().ns.keys.namespace}:*"))
    for each in await archivers():
        assert await each._recover()
    runs.append(await add.options(delay="1h").enqueue(3))
    no_scan()

    assert sorted(await ids(app, status="queued")) == sorted(run.id for run in runs[1:])
    assert await late.status() == "waiting" and await ids(app, status="waiting") == [late.id] == await ids(
        app, name="shaky"
    )
    await archive()
    assert await ids(app, status="waiting") == [late.id]
    for run in runs:
        await run.cancel()


async def test_a_log_that_tells_of_more_runs_than_are_looked_at_costs_no_run_its_place(app, archive, monkeypatch):
    add, *_ = declare(app)
    runs = [await add.options(delay="1h").enqueue(1)]
    await archive()
    runs += await add.options(delay="1h").enqueue_many([(n,) for n in range(50)])
    monkeypatch.setattr(listing, "MOST_RECENT", 20)

    assert sorted(await ids(app)) == sorted(run.id for run in runs)
    await asyncio.gather(*(run.cancel() for run in runs))
