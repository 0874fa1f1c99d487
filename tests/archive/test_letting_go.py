"""Finished runs of every kind leave Redis soon after they are archived, and everything is told by the archive from then on."""

from __future__ import annotations

import pytest

from weft import Conflict, Context, StepFailed, Weft, current

HOT_MS = 300

# The log is trimmed as soon as it is archived.
pytestmark = pytest.mark.leaves("history")


@pytest.fixture
async def archiving(archivers):
    """Archivers that let go of what is archived at once."""
    made = await archivers(HOT_MS)
    for each in made:
        each.start()
    return made


@pytest.fixture
def gone(app, raw, eventually):
    """Waits until the store has no key of some runs any more, those in `kept` apart."""

    async def wait(*runs, kept=()):
        ns = app.engine().ns

        async def left():
            found = {
                bytes(key).decode()
                for run in runs
                for p in range(ns.partitions)
                for key in raw.scan_iter(f"{ns.keys.prefix(p)}*{run.id}*")
            }
            # Steps go by themselves, a minute after they ended.
            names = {key.split(":", 2)[2] for key in found}
            return {name for name in names if not (name.startswith("run:") and "/" in name)} <= set(kept)

        await eventually(left, within=30)

    return wait


async def test_a_graph_run_is_told_by_the_archive(app: Weft, start_worker, archiving, gone):
    @app.task
    async def big(n: int) -> str:
        current().log.info("made", n=n)
        return "x" * 10_000

    inner = app.graph("inner", output="${size(made)}")
    inner.task("made", call="big", with_={"n": 1})
    graph = app.graph("outer", output="${below}")
    graph.task("all", call="big", map="[1, 2, 3]", with_={"n": "${item}"})
    graph.subgraph("below", inner, after="all")
    graph.approval("review", show="${below}", after="below")
    graph.wait("wait", signal="go", after="review")
    await start_worker()
    run = await graph.start({"text": "y" * 10_000})
    await run.signal("go", 1)
    ask = None
    while ask is None:
        ask = next(iter(await app.approvals.list(run=run.id)), None)
    await app.approvals.approve(ask.id, by="ann", digest=ask.digest)
    assert await run.result(30) == 10_000
    hot, lines = await run.graph(), await run.logs()
    child = app.runs.get(hot["nodes"]["below"]["child"])

    await gone(run, child)

    assert await run.result(5) == 10_000 and (await run.info()).status == "completed"
    cold = await run.graph()
    assert {id: node["status"] for id, node in cold["nodes"].items()} == dict.fromkeys(hot["nodes"], "completed")
    assert cold["nodes"]["below"]["child"] == child.id and (await child.info()).status == "completed"
    assert [event.seq for event in await run.history()] == list(range(1, len(await run.history()) + 1))
    assert [line.fields for line in await run.logs()] == [line.fields for line in lines] and len(lines) == 3
    assert (await app.approvals.get(ask.id)).status == "approved"
    for refused in (run.signal("go", 2), run.retry()):
        with pytest.raises(Conflict, match=r"has (ended|completed)"):
            await refused
    assert await run.cancel() is False and await run.pause() is False


async def test_a_workflow_run_is_told_by_the_archive(app: Weft, start_worker, archiving, gone):
    @app.task
    async def call() -> str:
        current().log.info("called")
        return "z" * 10_000

    @app.workflow
    async def below(ctx: Context) -> str:
        return await ctx.call(call)

    @app.workflow
    async def flow(ctx: Context) -> int:
        ctx.set_state(phase="child")
        text = await ctx.child(below)
        await ctx.receive("go")
        ctx.set_state(phase="done")
        return len(text)

    await start_worker()
    run = await flow.start()
    await run.signal("go")
    assert await run.result(30) == 10_000
    tree, spans = await run.tree(), await run.timeline()
    child = app.runs.get(tree.children[0].id)

    await gone(run, child)

    assert await run.result(5) == 10_000
    assert (await run.info()).state == {"phase": "done"} == await run.state()
    assert await run.tree() == tree and await run.timeline() == spans
    assert [line.message for line in await child.logs()] == ["called"]
    for refused in (run.signal("go"), run.update("any"), run.resolve("pin"), run.reschedule(delay=0)):
        with pytest.raises(Conflict, match="has ended"):
            await refused


async def test_of_a_failed_workflow_only_its_dead_letter_stays(app: Weft, start_worker, archiving, gone):
    @app.workflow
    async def flow(ctx: Context, text: str) -> None:
        await ctx.receive("go")
        if len(text) != 1:
            raise ValueError(text[:1])

    await start_worker()
    run = await flow.start("n" * 10_000)
    await run.signal("go")
    with pytest.raises(StepFailed):
        await run.result(30)

    ns, p = app.engine().ns, int(run.id[1 : run.id.index("-")])
    blobs = [key async for key in _blobs(ns, p, run.id)]
    await gone(run, kept={f"run:{run.id}", *blobs})

    assert blobs and (await app.dlq.get(run.id)).error["message"] == "n"
    again = await app.dlq.replay(run.id)
    await (await app.runs.get(again.id)).signal("go")
    with pytest.raises(StepFailed):
        await again.result(30)


async def _blobs(ns, p, run):
    _, found = await ns.read("SCAN", 0, "MATCH", f"{ns.keys.prefix(p)}blob:{run}:*", "COUNT", 100_000, p=p)
    for key in found:
        yield key.decode().split(":", 2)[2]


async def test_a_dead_letter_of_a_step_is_replayed_when_its_graph_run_is_gone(app: Weft, start_worker, archiving, gone):
    given: list[int] = []

    @app.task
    async def bad(text: str) -> int:
        given.append(len(text))
        if len(given) < 2:
            raise ValueError("once")
        return len(text)

    graph = app.graph("outer")
    graph.task("step", call="bad", with_={"text": "${input.text}"}, on_error="dead_letter")
    await start_worker()
    run = await graph.start({"text": "t" * 10_000})
    await run.result(30)
    await gone(run)

    (letter,) = (await app.dlq.list()).letters
    assert letter.id == f"{run.id}/step"
    again = await app.dlq.replay(letter.id)
    assert await again.result(30) == 10_000


async def test_who_takes_over_lets_go_of_what_the_one_before_did_not(
    app: Weft, start_worker, archive, archivers, gone, quiet
):
    @app.task
    async def big() -> str:
        return "x" * 10_000

    graph = app.graph("outer")
    graph.task("made", call="big")
    await start_worker()
    runs = [await graph.start({"text": "y" * 10_000}), await big.enqueue()]
    for run in runs:
        await run.result(30)
    await quiet()
    await archive()  # five minutes

    for each in await archivers(HOT_MS):
        each.start()

    await gone(*runs)
    assert await runs[1].result(5) == "x" * 10_000


async def test_a_workflow_run_that_only_the_archive_can_tell_of_is_tried_again(
    app: Weft, start_worker, archiving, gone
):
    ran: list[str] = []
    broken = True

    async def much(what: str) -> str:
        ran.append(what)
        if what == "last" and broken:
            raise ValueError("no")
        return what * 5_000

    @app.workflow
    async def flow(ctx: Context, life: int, text: str) -> list[int]:
        ctx.set_state(life=life)
        if not life:
            await ctx.continue_as_new(1, text)
        first = await ctx.step(much, "first")
        told = await ctx.receive("go")
        if told == 2:
            await ctx.receive("never")
        return [len(text), len(first), len(await ctx.step(much, "last"))]

    await start_worker()
    run, other = await flow.start(0, "t" * 10_000), await flow.start(0, "t" * 10_000)
    await run.signal("go", 1)
    await other.signal("go", 2)
    with pytest.raises(StepFailed):
        await run.result(30)
    while (await other.status()) != "waiting" or len(ran) < 3:
        pass
    await other.cancel()
    ns, p = app.engine().ns, int(run.id[1 : run.id.index("-")])
    kept = {f"run:{run.id}", *[key async for key in _blobs(ns, p, run.id)]}
    await gone(run, other, kept=kept)

    broken = False
    again = await run.retry()
    assert await again.result(30) == [10_000, 25_000, 20_000]
    assert (await again.info()).state == {"life": 1}
    assert sorted(ran) == ["first", "first", "last", "last"]
    third = await other.retry()
    await third.signal("never")
    assert await third.result(30) == [10_000, 25_000, 20_000]
    assert (await third.state()) == {"life": 1}
