"""Graph runs and approvals that the hot store no longer holds: node by node, with attempts and times, and who decided."""

from __future__ import annotations

import asyncio

import pytest

from weft import Conflict, NotFound, StepFailed, Weft

TIMES = ("opened_ms", "queued_ms", "running_ms", "waiting_ms")


def declare(app: Weft):
    tries = []

    @app.task(retries=2, retry_delay="50ms", jitter=False)
    async def shaky() -> str:
        tries.append(1)
        if len(tries) < 2:
            raise ValueError("once")
        await asyncio.sleep(0.02)
        return "x" * 10_000

    @app.task
    async def half(item: int) -> float:
        return 10 / item

    graph = app.graph("all", output="${review.decision}")
    graph.task("shaky", call="shaky")
    graph.task("half", call="half", map="[1, 2, 0]", after="shaky", on_error="continue")
    graph.branch("route", cases=[{"when": "size(half) > 5", "to": "many"}], default="few", after="half")
    graph.transform("many", 1, after="route")
    graph.transform("few", 2, after="route")
    graph.wait("pause", duration="60ms", after="few")
    graph.approval("review", approvers=["ann", "bob"], quorum=2, show={"few": "${few}"}, title="Go?", after="pause")
    return graph


async def asked(app, run):
    async with asyncio.timeout(20):
        while not (found := await app.approvals.list(run=run.id)):
            await asyncio.sleep(0.02)
    return found[0]


async def test_a_graph_run_reads_the_same_from_both_stores(app, start_worker, archive, forget, rows):
    await start_worker()
    run = await declare(app).start()
    ask = await asked(app, run)
    await app.approvals.delegate(ask.id, by="bob", to="carl")
    await app.approvals.approve(ask.id, by="ann", digest=ask.digest, comment="fine")
    await app.approvals.approve(ask.id, by="carl", digest=ask.digest, via="cli:carl")
    assert await run.result(20) == "approved"
    hot, decided = await run.graph(), await app.approvals.get(ask.id)
    await archive()
    forget(run)

    cold = await run.graph()

    nodes = cold["nodes"]
    times = {id: {name: node.pop(name) for name in TIMES if name in node} for id, node in nodes.items()}
    for node in (*nodes.values(), *hot["nodes"].values()):
        for name in ("opened_ms", "iteration"):
            node.pop(name, None)
    assert cold == hot
    assert nodes["shaky"]["attempt"] == 2 and nodes["shaky"]["output"] == "x" * 10_000
    assert times["shaky"]["waiting_ms"] >= 50 and times["shaky"]["running_ms"] >= 20
    assert times["pause"]["waiting_ms"] >= 60 and times["pause"]["running_ms"] == 0
    assert times["review"]["waiting_ms"] > 0 and times["many"] == {}
    steps = {row.step: row for row in await rows("steps")}
    assert steps["shaky"].attempt == 2 and steps["shaky"].status == "completed" and steps["half#2"].status == "failed"
    for row in steps.values():
        assert row.queued_ms + row.running_ms + row.waiting_ms <= row.ended_ms - row.created_ms + 5

    again = await app.approvals.get(ask.id)
    assert again.votes == decided.votes and again.decision == decided.decision and again.digest == ask.digest
    assert (again.status, again.show, again.title) == ("approved", {"few": 2}, "Go?")
    assert [note["what"] for note in again.history] == ["delegated"] and "carl" in again.approvers
    (row,) = await rows("approvals")
    assert (row.decided_by, row.via, row.digest, row.status) == ("carl", "cli:carl", ask.digest, "approved")
    acts = [(one.actor, one.via, one.action, one.before) for one in (await app.audit.list(object=ask.id)).entries][::-1]
    assert acts == [
        ("bob", "", "approval.delegate", ""),
        ("ann", "api", "approval.vote", ""),
        ("carl", "cli:carl", "approval.decide", ask.digest),
    ]
    with pytest.raises(Conflict, match="approved by carl"):
        await app.approvals.approve(ask.id, by="dan", digest=ask.digest)


async def test_a_step_waited_only_until_it_was_told_or_ended(app, start_worker, archive, forget, rows):
    inner = app.graph("inner", output="${one}")
    inner.transform("one", 1)
    outer = app.graph("outer")
    outer.subgraph("below", "inner")
    outer.wait("long", duration="1h", after="below")
    await start_worker()
    run = await outer.start()
    async with asyncio.timeout(20):
        while (await run.graph())["nodes"]["long"]["status"] != "waiting":
            await asyncio.sleep(0.02)
    await run.cancel()
    async with asyncio.timeout(20):
        while (await run.graph())["nodes"]["long"]["status"] != "cancelled":
            await asyncio.sleep(0.02)
    await archive()

    steps = {row.step: row for row in await rows("steps") if row.run == run.id}

    assert steps["below"].waiting_ms > 0 and steps["long"].ended_ms
    for row in steps.values():
        assert row.queued_ms + row.running_ms + row.waiting_ms <= row.ended_ms - row.created_ms + 5


async def test_what_was_left_open_is_told_as_cancelled(app, start_worker, archive, forget):
    await start_worker()

    @app.task
    async def bad() -> None:
        raise ValueError("never")

    graph = app.graph("bad")
    graph.approval("review", show="it")
    graph.task("bad", call="bad")
    graph.transform("never", 1, after="review")
    run = await graph.start()
    with pytest.raises(StepFailed):
        await run.result(20)
    async with asyncio.timeout(20):
        while (await run.graph())["nodes"]["review"]["status"] != "cancelled":
            await asyncio.sleep(0.02)
    hot, why = await run.graph(), await run.explain()
    await archive()
    forget(run)

    assert await run.explain() == why and why.step == "bad"
    nodes = (await run.graph())["nodes"]
    assert {id: node["status"] for id, node in nodes.items()} == {
        id: node["status"] for id, node in hot["nodes"].items()
    }
    assert nodes["bad"]["error"]["message"] == hot["nodes"]["bad"]["error"]["message"] == "never"


async def test_what_was_shown_must_be_what_the_archive_says(app, start_worker, archive, forget, database):
    await start_worker()
    graph = app.graph("ask")
    graph.approval("review", show="it")
    run = await graph.start()
    ask = await asked(app, run)
    await app.approvals.reject(ask.id, by="ann", digest=ask.digest)
    with pytest.raises(StepFailed):
        await run.result(20)
    await archive()
    forget(run)
    assert (await app.approvals.get(ask.id)).status == "rejected"

    async with database.writing() as connection:
        await connection.exec_driver_sql("UPDATE weft_approvals SET digest = 'another'")
    with pytest.raises(Conflict, match="is not what its archive says"):
        await app.approvals.get(ask.id)
    for unknown in ("nothing", f"{run.id}/other", f"{run.id}", "r0-x/review", "r9-06GY00W8H4YG6SCE898DEZ/review"):
        with pytest.raises(NotFound):
            await app.approvals.get(unknown)
