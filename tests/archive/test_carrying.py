"""A run as one file: exported from one store, imported into another, shown and replayed there."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from weft import Conflict, Context, NotFound, StepFailed, Weft
from weft.errors import FileRefused, InvalidOption
from weft.sdk.checking import check_run

SECRET = "hunter2-very-secret"


def declare(app: Weft):
    class Work:
        @app.task
        async def login(user: str, password: str, note: str) -> dict:
            return {"user": user, "api_key": "k-123", "note": note, "filler": "x" * 5_000}

        @app.task
        async def bad() -> None:
            raise ValueError(f"no way with {SECRET}")

        @app.workflow
        async def order(ctx: Context, n: int) -> int:
            a = await ctx.step(one, n)
            b = await ctx.call(one, a)
            msg = await ctx.receive("go", type=str)
            return a + b + len(msg)

        graph = app.graph("report")

    @app.task
    async def one(n: int) -> int:
        return n + 1

    @Work.graph.node(map="input.items")
    async def each(item: int) -> int:
        return item * 2

    @Work.graph.node(after=each)
    async def total(each: list) -> dict:
        return {"sum": sum(each)}

    return Work


@pytest.fixture
def work(app):
    return declare(app)


@pytest.fixture
async def elsewhere(server, namespace, tmp_path):
    """Another store: another namespace and another database."""
    other = Weft(
        "other",
        redis_url=server.url,
        namespace=f"{namespace}x",
        database_url=f"sqlite:///{tmp_path / 'other.sqlite'}",
    )
    declare(other)
    async with other:
        yield other
    import redis

    client = redis.Redis.from_url(server.url)
    for key in client.scan_iter(f"{namespace}x:*"):
        client.delete(key)
    client.close()


async def test_a_task_is_shown_elsewhere_and_its_secrets_are_not(
    app, work, start_worker, archive, elsewhere, monkeypatch
):
    monkeypatch.setenv("WEFT_SECRET_DB", SECRET)
    await start_worker()
    good = await work.login.options(tags={"team": "a"}).enqueue("me", "pa55word!", f"say {SECRET}")
    bad = await work.bad.enqueue()
    await good.result(10)
    with pytest.raises(StepFailed):
        await bad.result(10)
    await archive()

    files = [await app.runs.export(run.id) for run in (good, bad)]
    there = [await elsewhere.runs.import_(file) for file in files]

    for file in files:
        assert SECRET.encode() not in file and b"pa55word!" not in file and b"k-123" not in file
        # Nor within what is packed.
        assert all(SECRET.encode() not in event.payload for event in _events(file))
    assert [run.id for run in there] == [good.id, bad.id]
    result = await there[0].result()
    assert result["api_key"] == "[redacted]" and result["note"] == "say [redacted]" and len(result["filler"]) == 5_000
    with pytest.raises(StepFailed, match="no way with"):
        await there[1].result()
    assert [event.type for event in await there[0].history()] == [event.type for event in await good.history()]
    assert [info.id for info in await elsewhere.runs.list(tag=("team", "a"))] == [good.id]
    assert [info.id for info in await elsewhere.runs.list(error="ValueError")] == [bad.id]
    with pytest.raises(Conflict, match="already"):
        await elsewhere.runs.import_(files[0])
    with pytest.raises(Conflict, match="already"):
        await app.runs.import_(files[0])


def _events(file):
    from weft.core.carrying import read_file

    return read_file(file)[0].events


async def test_a_run_of_another_namespace_of_the_same_database_is_refused(
    app, work, start_worker, archive, server, namespace, raw
):
    await start_worker()
    run = await work.login.enqueue("u", "p", "n")
    await run.result(20)
    await archive()
    async with Weft("beside", redis_url=server.url, namespace=f"{namespace}x") as beside:
        with pytest.raises(Conflict, match=f"already, in namespace '{namespace}'"):
            await beside.runs.import_(await app.runs.export(run.id))
        assert await beside.runs.list() == []
    raw.delete(*raw.scan_iter(f"{namespace}x:*"))


async def test_a_workflow_replays_elsewhere_against_the_code_there(
    app, work, start_worker, archive, elsewhere, eventually
):
    await start_worker()
    run = await work.order.start(4)
    await run.signal("go", "abc")
    assert await run.result(10) == 5 + 6 + 3
    await archive()

    await elsewhere.runs.import_(await app.runs.export(run.id))
    fits = await check_run(elsewhere, run.id)
    name = "order"
    del elsewhere.workflows[name]

    @elsewhere.workflow(name=name)
    async def changed(ctx: Context, n: int) -> int:
        await ctx.sleep("1h")
        return n

    breaks = await check_run(elsewhere, run.id)

    assert (fits.verdict, fits.status, fits.text) == ("compatible", "completed", "")
    assert breaks.verdict == "breaks" and breaks.text


async def test_a_graph_run_is_shown_elsewhere_node_by_node(app, work, start_worker, archive, elsewhere):
    await start_worker()
    run = await work.graph.start({"items": [1, 2, 3]})
    assert await run.result(10) == {"sum": 12}
    await archive()
    here = await run.graph()

    there = await (await elsewhere.runs.import_(await app.runs.export(run.id)))
    shown = await there.graph()

    assert {id: (node["status"], node.get("output")) for id, node in shown["nodes"].items()} == {
        id: (node["status"], node.get("output")) for id, node in here["nodes"].items()
    }
    assert (await there.info()).kind == "graph" and await there.result() == {"sum": 12}


async def test_what_cannot_be_exported_is_refused(app, work, start_worker, archive):
    waits = await work.login.options(delay="1h").enqueue("a", "b", "c")
    with pytest.raises(Conflict, match="has not ended"):
        await app.runs.export(waits.id)
    await waits.cancel()
    with pytest.raises(Conflict, match="not archived yet"):
        await app.runs.export(waits.id)
    with pytest.raises(NotFound):
        await app.runs.export("r0-01J9ZC5T0FQ8M2X7K4VNBW")
    await archive()
    assert b"weft run" in await app.runs.export(waits.id)


async def test_a_bad_file_is_refused_and_writes_nothing(app, work, start_worker, archive, elsewhere):
    await start_worker()
    run = await work.login.enqueue("me", "x", "y")
    await asyncio.wait_for(run.result(), 10)
    await archive()
    good = msgspec.json.decode(await app.runs.export(run.id))
    (digest,) = good["values"]

    bad = {
        "no exported run": [b"", b"{}", b"[]", b"\xff\xfe", b'{"mark": "other"}'],
        "form 9": [good | {"form": 9}],
        "damaged": [
            good | {"events": good["events"][:1]},
            good | {"events": good["events"][1:]},
            good | {"id": "r0-01J9ZC5T0FQ8M2X7K4VNBW"},
            good | {"id": "../../x"},
            good | {"status": "failed"},
            good | {"values": {digest: "AAAA"}},
            good | {"events": "nonsense"},
            {name: value for name, value in good.items() if name != "events"},
        ],
    }
    for told, files in bad.items():
        for file in files:
            with pytest.raises(FileRefused, match=told):
                await elsewhere.runs.import_(file if isinstance(file, bytes) else msgspec.json.encode(file))
    with pytest.raises(InvalidOption, match="read files as bytes"):
        await elsewhere.runs.import_("text")
    assert await elsewhere.runs.list() == []


async def test_patches_and_approvals_come_with_their_run(app, start_worker, archive, elsewhere, eventually):
    asking = app.graph("asking")
    asking.approval("review", approvers=["ops"], show={"amount": "${input.amount}", "password": "${input.word}"})
    asking.transform("done", after="review", value="${review.decision}")
    await start_worker()
    run = await asking.start({"amount": 7, "word": SECRET})
    await run.patch(
        [{"op": "add", "path": "/nodes/more", "value": {"type": "transform", "after": ["done"], "value": "1"}}],
        author="planner",
        reason="more",
    )
    (asked,) = await eventually(lambda: app.approvals.list(run=run.id))
    await app.approvals.approve(asked.id, by="anna", roles=["ops"], digest=asked.digest, comment="fair")
    await run.result(10)
    await archive()

    there = await elsewhere.runs.import_(await app.runs.export(run.id))
    shown = await elsewhere.approvals.get(asked.id)
    patches = await elsewhere.definitions.patches(author="planner")

    assert there.id == run.id
    assert (shown.status, shown.digest, shown.decision["by"], shown.votes[0]["comment"]) == (
        "approved",
        asked.digest,
        "anna",
        "fair",
    )
    assert shown.show == {"amount": 7, "password": "[redacted]"}
    assert [(patch.run_id, patch.reason, patch.revision) for patch in patches] == [(run.id, "more", 2)]
    assert (await elsewhere.audit.list()).entries == []
