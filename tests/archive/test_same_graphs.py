"""Runs of graphs, however they went and ended, are told the same by both stores."""

from __future__ import annotations

import asyncio

import pytest
from views import told_apart, views_of

from weft import Weft, current

pytestmark = pytest.mark.leaves("history", "pending")


async def ends(*runs):
    await asyncio.gather(*(run.result(20) for run in runs), return_exceptions=True)


@pytest.fixture
def declared(app: Weft):
    tries: dict[str, int] = {}
    began = asyncio.Event()

    @app.task(retries=2, retry_delay="1ms", jitter=False)
    async def shaky(until: int = 2) -> str:
        current().log.info("try")
        tries[current().run_id] = tries.get(current().run_id, 0) + 1
        if tries[current().run_id] < until:
            raise ValueError("again")
        return "x" * 6_000

    @app.task
    async def half(item: int) -> float:
        return 10 / item

    @app.task
    async def bad(why: str = "never") -> None:
        raise LookupError(why)

    @app.task
    async def undo(what: str) -> str:
        current().log.info("undone")
        return what

    @app.task(timeout="60s")
    async def waits() -> int:
        began.set()
        await asyncio.sleep(60)
        return 1

    @app.task
    async def note(text: str) -> str:
        return text

    @app.task
    async def step(iteration: int = 0) -> int:
        return iteration

    inner = app.graph("inner", output="${size(made)}")
    inner.task("made", call="shaky")
    broken = app.graph("broken")
    broken.task("bad", call="bad")

    g = app.graph("all", output="${review.decision}")
    g.task("shaky", call="shaky")
    g.task("half", call="half", map="[1, 2, 0]", after="shaky", on_error="continue")
    g.branch("route", cases=[{"when": "size(half) > 5", "to": "many"}], default="few", after="half")
    g.transform("many", 1, after="route")
    g.transform("few", 2, after="route")
    g.task("body", call="step", after="few")
    g.loop("again", after="body", to="body", while_="body < 1", max_iterations=3)
    g.wait("pause", duration="10ms", after="again")
    g.wait("signal", signal="go", after="pause")
    g.subgraph("below", inner, after="signal")
    g.subgraph("each", inner, map="[1, 2]", after="below")
    g.task("cached", call="note", with_={"text": "same"}, cache="1h", after="each")
    g.task("skipped", call="note", with_={"text": "s"}, when="false", after="cached")
    g.approval("review", approvers=["ann", "bob"], quorum=2, show={"few": "${few}"}, title="Go?", after="cached")

    f = app.graph("fails")
    f.task("first", call="note", with_={"text": "a"})
    f.task("bad", call="bad", after="first")
    f.task("never", call="note", with_={"text": "b"}, after="bad")
    f.approval("left", show="it", after="first")

    m = app.graph("items")
    m.task("half", call="half", map="[1, 2, 0, 3]")
    m.task("never", call="note", with_={"text": "b"}, after="half")

    d = app.graph("letters")
    d.task("lost", call="bad", on_error="dead_letter")
    d.task("some", call="half", map="[1, 0, 2]", after="lost", on_error="dead_letter")
    d.transform("told", "${[errors.lost, errors.some]}", after="some")

    c = app.graph("undoes")
    c.task("one", call="note", with_={"text": "1"}, compensate={"call": "undo", "with": {"what": "${one}"}})
    c.task("two", call="half", map="[1, 2]", after="one", compensate={"call": "undo", "with": {"what": "i${item}"}})
    c.task("bad", call="bad", after="two")

    n = app.graph("nests")
    n.subgraph("below", broken, on_error="continue")
    n.subgraph("fails", broken, after="below")

    r = app.graph("rejected", output="${review}")
    r.approval("review", on_reject="skip", show="it")
    r.transform("after", 1, after="review")

    w = app.graph("waiting", output="${end}")
    w.task("held", call="waits")
    w.wait("long", duration="1h")
    w.task("end", call="note", with_={"text": "e"}, after=["held", "long"])

    p = app.graph("patched", output="${end}")
    p.wait("gate", signal="go")
    p.task("end", call="note", with_={"text": "e"}, after="gate")

    x = app.graph("expires")
    x.wait("long", duration="1h")
    x.transform("end", 1, after="long")

    t = app.graph("times")
    late = {"timeout": "90ms", "on_timeout": "approve", "reminders": ["20ms", "40ms"]}
    t.approval("asked", show="it", approvers=["ann"], escalate={"after": "60ms", "to": ["boss"]}, **late)

    v = app.graph("voted")
    v.approval("review", approvers=["ann", "bob"], quorum=2, show="it")

    any_ = app.graph("races", output="${first}")
    any_.task("quick", call="note", with_={"text": "q"})
    any_.wait("held", duration="50ms")
    any_.transform("first", "${quick}", after=["quick", "held"], join="any")
    any_.task("some", call="half", map="[1, 2, 5]", gather="first(1)", after="first")
    return began


async def asked(app, run):
    async with asyncio.timeout(20):
        while not (found := await app.approvals.list(run=run.id)):
            await asyncio.sleep(0.01)
    return found[0]


async def reaches(run, node, *statuses):
    async with asyncio.timeout(20):
        while (await run.graph())["nodes"][node]["status"] not in statuses:
            await asyncio.sleep(0.01)


async def make(app: Weft, began: asyncio.Event):
    g = app.graphs
    plain = ["fails", "items", "letters", "undoes", "nests", "times"]
    made = {name: await g[name].start() for name in plain}
    made["options"] = (
        await g["inner"]
        .options(tags={"team": "a"}, idempotency_key="k", deadline="1h", durability="committed")
        .start({"n": "z" * 6_000})
    )
    made["expires"] = await g["expires"].options(deadline="100ms").start()
    made["all"] = run = await g["all"].start({"text": "y" * 6_000})
    await run.signal("go", {"n": 1})
    question = await asked(app, run)
    await app.approvals.delegate(question.id, by="bob", to="carl")
    await app.approvals.approve(question.id, by="ann", digest=question.digest, comment="fine")
    await app.approvals.approve(question.id, by="carl", digest=question.digest, via="cli:carl")
    made["rejected"] = await g["rejected"].start()
    question = await asked(app, made["rejected"])
    await app.approvals.reject(question.id, by="ann", digest=question.digest, comment="no")
    made["voted"] = await g["voted"].start()
    question = await asked(app, made["voted"])
    await app.approvals.approve(question.id, by="ann", digest=question.digest, comment="one of two")
    await made["voted"].cancel()
    made["patched"] = await g["patched"].start()
    await reaches(made["patched"], "gate", "waiting")
    await made["patched"].patch(
        [{"op": "add", "path": "/nodes/extra", "value": {"type": "task", "call": "note", "with": {"text": "x"}}}],
        author="ann",
        reason="because",
    )
    await made["patched"].pause("a moment")
    await made["patched"].resume()
    await made["patched"].signal("go")
    await ends(*made.values())
    made["cancelled"] = await g["waiting"].start()
    await began.wait()
    await made["cancelled"].cancel("stop")
    began.clear()
    made["races"] = await g["races"].start()
    await ends(*made.values())
    made["retried"] = await g["fails"].start()
    await ends(made["retried"])
    await asyncio.sleep(0.3)
    await made["retried"].retry(reason="once more")
    await ends(made["retried"])
    nodes = (await made["all"].graph())["nodes"]
    made["child"] = g["inner"].run(nodes["below"]["child"])
    return made


async def test_graphs_of_every_end_are_told_the_same(app, declared, start_worker, archive, forget, quiet):
    await start_worker()
    await archive()  # else nothing could be committed
    made = await make(app, declared)
    await quiet()
    hot = await views_of(app, made)
    await archive(1)
    forget(*[app.runs.get(info.id) for info in await app.runs.list(limit=1000)])

    assert told_apart(hot, await views_of(app, made)) == ([], {"times of steps"})
