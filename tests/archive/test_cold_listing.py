"""Listing by every filter, page by page, from both stores at once: no run twice, none left out."""

from __future__ import annotations

import asyncio
import random
import string
from datetime import UTC, datetime, timedelta

import pytest

from weft import Context, InvalidOption, NotFound
from weft.engine.lag import read_lag
from weft.ids import partition_of


@pytest.fixture
async def made(app, start_worker, archive, raw):
    """Runs of all kinds: some only in the archive, some in both stores, some only in the hot one. Returns them by name."""

    @app.task
    async def add(a: int, b: str = "") -> str:
        return f"{a} {b}"

    @app.task
    async def bad(why: str) -> None:
        raise LookupError(why)

    @app.workflow
    async def child(ctx: Context) -> int:
        return 1

    @app.workflow
    async def flow(ctx: Context) -> int:
        return await ctx.child(child)

    graph = app.graph("g")

    @graph.node
    async def node(input: dict) -> str:
        return input["text"]

    await start_worker()
    found = {}
    for where in ("cold", "both", "hot"):
        found[f"{where} add"] = await add.options(tags={"team": "a", "owner": "ann"}).enqueue(1, f"needle {where}")
        found[f"{where} big"] = await add.enqueue(2, "needle" + "x" * 6_000)
        found[f"{where} bad"] = await bad.options(tags={"team": "b"}).enqueue("with a needle")
        found[f"{where} flow"] = await flow.start()
        found[f"{where} graph"] = await graph.start({"text": "plain"})
        await asyncio.gather(*(run.result(20) for run in found.values()), return_exceptions=True)
        if where != "hot":
            await archive()
        if where == "cold":
            ns = app.engine().ns
            for info in await app.runs.list(limit=1000):
                p = partition_of(info.id)
                for key in raw.scan_iter(f"{ns.keys.prefix(p)}*{info.id}*"):
                    raw.delete(key)
                raw.zrem(ns.keys.dlq(p), info.id)
    found["open"] = await add.options(delay="1h", tags={"team": "a"}).enqueue(9, "needle")
    yield found
    await found["open"].cancel()


async def names(app, made, **filters):
    by_id = {run.id: name for name, run in made.items()}
    return sorted(by_id.get(info.id, info.name) for info in await app.runs.list(**filters))


def each(*whats):
    return sorted(f"{where} {what}" for where in ("cold", "both", "hot") for what in whats)


async def test_every_filter_finds_its_runs_in_both_stores(app, made):
    for filters, wanted in [
        ({"kind": "graph"}, each("graph")),
        ({"kind": "workflow"}, each("flow") + ["child"] * 3),
        ({"status": "failed"}, each("bad")),
        ({"status": "completed", "kind": "task"}, each("add", "big")),
        ({"name": "bad"}, each("bad")),
        ({"name": "bad", "status": "completed"}, []),
        ({"tag": ("team", "a")}, [*each("add"), "open"]),
        ({"tag": ("team", "a"), "status": "completed"}, each("add")),
        ({"owner": "ann"}, each("add")),
        ({"owner": "ann", "tag": ("team", "b")}, []),
        ({"error": "LookupError"}, each("bad")),
        ({"error": "ValueError"}, []),
        ({"text": "needle"}, [*each("add", "big", "bad"), "open"]),
        ({"text": "needle", "status": "failed"}, each("bad")),
        ({"text": "LookupError", "name": "add"}, []),
        ({"text": "needle", "tag": ("team", "a")}, [*each("add"), "open"]),
        ({"text": "needle", "error": "LookupError"}, each("bad")),
        ({"queue": "default", "kind": "task", "status": "completed"}, each("add", "big")),
        ({"parent": made["cold flow"].id}, ["child"]),
        ({"parent": made["hot flow"].id}, ["child"]),
        ({"since": "1h", "name": "bad"}, each("bad")),
        ({"until": "1h"}, []),
        ({"since": datetime.now(UTC) - timedelta(hours=1), "until": datetime.now(UTC) + timedelta(hours=1)}, None),
    ]:
        found = await names(app, made, **filters)
        assert wanted is None or found == sorted(wanted), filters
        by_status = await app.runs.count(**filters)
        assert sum(by_status.values()) == len(found), filters


async def test_pages_follow_on_each_other_without_gap_or_repetition(app, made):
    whole = [info.id for info in await app.runs.list(limit=1000)]
    assert len(whole) == len(set(whole)) == 19
    for limit in (1, 4, 18):
        for filters in ({}, {"kind": "task"}, {"text": "needle"}, {"status": "completed"}):
            wanted = [info.id for info in await app.runs.list(limit=1000, **filters)]
            paged: list[str] = []
            while page := await app.runs.list(limit=limit, after=paged[-1] if paged else None, **filters):
                assert len(page) <= limit
                paged += [info.id for info in page]
            assert paged == wanted, (limit, filters)


async def test_runs_are_counted_once_whichever_store_has_them(app, made):
    assert await app.runs.count() == {"completed": 15, "failed": 3, "queued": 1}
    assert await app.runs.count(by="kind") == {"graph": 3, "task": 10, "workflow": 6}
    assert await app.runs.count(by="name", tag=("team", "b")) == {"bad": 3}
    assert (await asyncio.to_thread(app.runs.sync.count, by="queue", name="bad")) == {"default": 3}


async def test_a_limit_may_be_more_than_a_database_counts(app, made, monkeypatch):
    whole = await app.runs.list(limit=1000)
    monkeypatch.setattr("weft.engine.listing.PAGE", 4)

    assert await app.runs.list(limit=10**20) == whole
    assert await app.approvals.list(limit=10**20) == [] == (await app.audit.list(limit=10**20)).entries
    assert len(await app.dlq.list(limit=10**20)) == 2


async def test_a_parent_is_told_by_both_stores(app, made):
    (cold,) = await app.runs.list(parent=made["cold flow"].id)
    (hot,) = await app.runs.list(parent=made["hot flow"].id)

    assert cold.parent.startswith(made["cold flow"].id + "/") and hot.parent.startswith(made["hot flow"].id + "/")


@pytest.mark.parametrize(
    ("filters", "told"),
    [
        ({"kind": "agents"}, "there is no kind"),
        ({"status": "done"}, "there is no status"),
        ({"text": ""}, "takes a text"),
        ({"owner": 7}, "takes a text"),
        ({"text": "a\ud800"}, "not valid text"),
        ({"name": "a\0b"}, "not valid text"),
        ({"tag": ("team", "a\0b")}, "not valid text"),
        ({"since": "soon"}, "since"),
        ({"until": datetime(2020, 1, 1)}, "time zone"),
        ({"tag": "team"}, "tag takes"),
    ],
)
async def test_a_filter_that_cannot_be_meant_is_refused(app, filters, told):
    with pytest.raises(InvalidOption, match=told):
        await app.runs.list(**filters)
    with pytest.raises(InvalidOption, match=told):
        await app.runs.count(**filters)


async def test_what_cannot_be_a_run_is_not_found(app):
    with pytest.raises(NotFound):
        await app.runs.list(parent="nobody")
    with pytest.raises(InvalidOption, match="counted by"):
        await app.runs.count(by="colour")


async def test_runs_are_archived_whatever_their_errors_say_of_themselves(app, start_worker, archive, raw):
    long = "".join(random.Random(7).choices(string.ascii_letters + "éüß", k=6_000))

    class Coded(Exception):
        code = "a\0b"

    @app.task
    async def odd(which: str) -> None:
        raise Coded("x") if which == "code" else type(long, (Exception,), {})("x")

    await start_worker()
    runs = {which: await odd.enqueue(which) for which in ("code", "name")}
    for run in runs.values():
        await asyncio.wait([asyncio.ensure_future(run.result(10))])
    await archive()
    raw.delete(*(app.engine().ns.keys.run(0, run.id) for run in runs.values()))

    assert [info.gap for info in await app.runs.list()] == [False, False]
    assert [info.id for info in await app.runs.list(error=long)] == [runs["name"].id]
    # Runs are found by the beginning of such a name, and it is not the name.
    assert await app.runs.list(error=long[:500]) == [] and await app.runs.count(error=long[:500]) == {}
    assert await app.runs.count(error=long) == {"failed": 1}


async def test_a_row_beyond_a_limit_of_the_database_costs_only_its_run(app, start_worker, archive, monkeypatch):
    long = "".join(random.Random(7).choices(string.ascii_letters, k=6_000))
    monkeypatch.setattr("weft.core.fold.MAX_LABEL_CHARS", 10_000)  # what an index of PostgreSQL does not take

    @app.task
    async def fails(name: str) -> None:
        raise type(name, (Exception,), {})("x")

    await start_worker()
    for name in (long, "Short"):
        await asyncio.wait([asyncio.ensure_future((await fails.enqueue(name)).result(10))])

    await archive()

    engine = app.engine()
    assert (await read_lag(engine)).entries == 0 and len(await app.runs.list(error="Short")) == 1
    assert await engine.cold.reader.count_gaps() == (0 if engine.cold.database.is_sqlite else 1)
