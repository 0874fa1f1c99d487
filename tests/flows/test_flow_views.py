"""What people see of a workflow run: its history, the runs it started, what it did when, and where it waits."""

from __future__ import annotations

import asyncio

import pytest

from weft import Context, RunCancelled, Weft


async def test_the_timeline_has_every_step_call_child_timer_and_signal(app: Weft):
    tries: list[int] = []

    async def shaky() -> str:
        tries.append(1)
        if len(tries) == 1:
            raise ValueError("no")
        return "ok"

    @app.task
    async def pack() -> str:
        await asyncio.sleep(0.05)
        return "packed"

    @app.workflow
    async def below(ctx: Context) -> str:
        return "child"

    @app.workflow
    async def flow(ctx: Context) -> None:
        await ctx.options(retries=1, retry_delay="1ms", jitter=False).step(shaky)
        await ctx.call(pack)
        await ctx.child(below)
        await ctx.sleep("5ms")
        await ctx.receive("go")

    async with app.worker():
        run = await flow.start()
        await run.signal("go")
        await run.result(timeout=10)
    spans = await run.timeline()
    told = [(span.kind, span.step, span.status) for span in spans if span.kind != "timer"]
    assert sorted(told) == [
        ("call", "pack", "completed"),
        ("child", "below", "completed"),
        ("signal", "go", "given"),
        ("step", "shaky", "completed"),
        ("step", "shaky", "retrying"),
    ]
    assert [span.step for span in spans if span.kind == "timer"] == ["$sleep"]
    (call,) = [span for span in spans if span.kind == "call"]
    assert call.seconds is not None and call.seconds >= 0.04
    assert call.asked_at <= call.started_at
    assert [span.attempt for span in spans if span.step == "shaky"] == [1, 2]


async def test_the_tree_has_all_runs_and_where_each_waits(app: Weft, eventually):
    @app.workflow
    async def leaf(ctx: Context) -> None:
        await ctx.receive("go")

    @app.workflow
    async def middle(ctx: Context) -> None:
        await ctx.options(name="down").child(leaf)

    @app.workflow
    async def root(ctx: Context) -> None:
        await ctx.gather(ctx.child(middle), ctx.options(on_parent_close="leave").child(middle))

    async with app.worker():
        run = await root.start()

        async def grown() -> bool:
            tree = await run.tree()
            return len(tree.children) == 2 and all(c.children and c.children[0].awaits for c in tree.children)

        await eventually(grown)
        tree = await run.tree()
        assert (tree.id, tree.name) == (run.id, "root")
        assert [child.step for child in tree.children] == ["middle", "middle~1"]
        leaves = [child.children[0] for child in tree.children]
        assert [one.step for one in leaves] == ["down", "down"]
        line = leaf.fn.__code__.co_firstlineno + 2
        assert all(one.awaits.startswith("receive signal:go at ") for one in leaves)
        assert all(one.awaits.endswith(f"test_flow_views.py:{line}") for one in leaves)
        for one in leaves:
            await leaf.run(one.id).signal("go")
        await run.result(timeout=10)
    assert {child.status for child in (await run.tree()).children} == {"completed"}


async def test_a_large_tree_is_cut_and_says_so(app: Weft, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("weft.engine.flowview.MAX_RUNS", 3)

    @app.workflow
    async def below(ctx: Context) -> None: ...

    @app.workflow
    async def above(ctx: Context) -> None:
        await ctx.gather(*[ctx.child(below) for _ in range(4)])

    async with app.worker():
        run = await above.start()
        await run.result(timeout=10)
    tree = await run.tree()
    assert (len(tree.children), tree.left_out) == (2, 2)


async def test_explain_tells_why_a_call_does_not_go_on(app: Weft, eventually):
    @app.task(queue="gpu")
    async def train() -> str:
        return "trained"

    @app.task
    async def slow() -> None:
        await asyncio.sleep(60)

    @app.workflow
    async def flow(ctx: Context) -> list[object]:
        return await ctx.gather(ctx.call(slow), ctx.call(train), ctx.approve("Go?", approvers=["ops"]))

    async def explained(text: str) -> bool:
        return text in (await run.explain()).text

    async with app.worker(queues=["default"]):
        run = await flow.start()
        await eventually(lambda: explained("; train: no live worker serves queue gpu"))
        why = await run.explain()
        assert (why.reason, why.step, why.open_steps) == ("awaiting", "train", 3)
        reasons = {one.step: one.reason for one in why.steps}
        assert reasons == {"slow": "running", "train": "no_worker", "approve": "approval"}
        await app.controls.pause(queue="gpu", reason="driver update")
        await eventually(lambda: explained("; train: queue gpu is paused"))
        await app.controls.resume(queue="gpu")
        await run.cancel()
        with pytest.raises(RunCancelled):
            await run.result(timeout=10)
