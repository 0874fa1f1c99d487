"""A failed or cancelled workflow run is tried again: what it did is kept, what failed is done again."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from weft import AlreadyRunning, Conflict, Context, Fatal, NotFound, RunCancelled, RunStatus, StepFailed, Weft, current

pytestmark = pytest.mark.usefixtures("memory")

did: list[str] = []
broken: set[str] = set()


@pytest.fixture(autouse=True)
def all_is_well() -> None:
    did.clear()
    broken.clear()


async def act(what: str) -> str:
    did.append(what)
    if what in broken:
        raise Fatal(f"no {what}")
    return what * 5_000 if what == "x" else what


async def failed(run: Any, match: str = ".") -> None:
    with pytest.raises(StepFailed, match=match):
        await run.result(timeout=10)


async def test_what_was_done_is_kept_and_what_failed_is_done_again(app: Weft):
    call = app.task(name="call")(act)

    @app.workflow
    async def below(ctx: Context) -> str:
        return await ctx.options(name="child").step(act, "child")

    @app.workflow
    async def flow(ctx: Context, large: str) -> list[object]:
        chance = [str(ctx.uuid())]
        ctx.set_state(phase="begun")
        text = await ctx.step(act, "x")
        await ctx.sleep("10ms")
        told = await ctx.receive("told")
        steps = [await ctx.call(call, "a"), await ctx.options(name="b", retries=1, retry_delay="1ms").step(act, "b")]
        steps.append(await ctx.child(below))
        return [len(text), told, steps, chance, len(large), current_run(ctx)]

    def current_run(ctx: Context) -> str:
        return ctx.run_id

    async with app.worker():
        run = await flow.options(tags={"team": "a"}).start("l" * 9_000)
        await run.signal("told", 7)
        chance = None
        for what in ("a", "b", "child"):
            broken.clear()
            broken.add(what)
            if what == "a":
                await failed(run, "no a")
            else:
                run = await run.retry(reason="mended, I hope")
                await failed(run, f"no {what}")
        broken.clear()
        last = await run.retry()
        length, told, steps, chance, large, id = await last.result(timeout=10)

    assert [length, told, steps, large, id] == [5_000, 7, ["a", "b", "child"], 9_000, last.id]
    assert did == ["x", "a", "a", "b", "b", "child", "child"]
    info = await last.info()
    assert (info.replay_of, info.state, info.tags) == (run.id, {"phase": "begun"}, {"team": "a"})
    assert len(chance) == 1
    assert next(e for e in await run.history() if e.type == "forked").data["reason"] == "mended, I hope"


async def test_it_is_tried_again_once_by_whoever_asks(app: Weft):
    @app.workflow
    async def flow(ctx: Context) -> str:
        return await ctx.step(act, "a")

    broken.add("a")
    async with app.worker():
        run = await flow.start()
        await failed(run)
        with pytest.raises(Conflict, match="was tried again"):
            await asyncio.gather(*(run.retry() for _ in range(5)))
        again = (await app.dlq.get(run.id)).replayed_as
        assert again
        with pytest.raises(Conflict, match=f"was tried again before, as {again}"):
            await run.retry()
        await failed(flow.run(again))
        broken.clear()
        third = await flow.run(again).retry()
        assert await third.result(timeout=10) == "a"
        with pytest.raises(Conflict, match="has completed"):
            await third.retry()
    assert did == ["a"] * 3


async def test_a_cancelled_run_goes_on(app: Weft, eventually):
    @app.workflow
    async def flow(ctx: Context) -> list[object]:
        return [await ctx.step(act, "a"), await ctx.receive("go")]

    async with app.worker():
        run = await flow.start()

        async def waits() -> bool:
            return await run.status() == RunStatus.WAITING

        await eventually(waits)
        with pytest.raises(Conflict, match="has not ended"):
            await run.retry()
        await run.cancel()
        with pytest.raises(RunCancelled):
            await run.result(timeout=10)
        first, second = await run.retry(), await run.retry()
        assert first.id == second.id
        await first.signal("go", 1)
        assert await first.result(timeout=10) == ["a", 1]
    assert did == ["a"]


async def test_an_id_is_taken_again(app: Weft):
    @app.workflow
    async def flow(ctx: Context) -> object:
        await ctx.step(act, "a")
        return await ctx.receive("go")

    broken.add("a")
    async with app.worker():
        run = await flow.options(id="one").start()
        await failed(run)
        broken.clear()
        other = await flow.options(id="one").start()
        with pytest.raises(Conflict, match=f"run {other.id} has its id"):
            await run.retry()
        await other.signal("go", 1)
        await other.result(timeout=10)
        again = await run.retry()
        with pytest.raises(AlreadyRunning):
            await flow.options(id="one").start()
        await again.signal("go", 2)
        assert await again.result(timeout=10) == 2
        free = await flow.options(id="one").start()
        await free.signal("go", 3)
        await free.result(timeout=10)


async def test_what_was_done_because_it_failed_is_in_the_way_but_not_from_a_step_on(app: Weft):
    @app.workflow
    async def flow(ctx: Context) -> str:
        await ctx.options(name="book").step(act, "book")
        ctx.on_failure(act, "undo")
        try:
            return await ctx.options(name="pay").step(act, "pay")
        finally:
            await ctx.options(name="tidy").step(act, "tidy")

    broken.add("pay")
    async with app.worker():
        run = await flow.start()
        await failed(run)
        broken.clear()
        with pytest.raises(Conflict, match="did tidy, act because it failed") as caught:
            await run.retry()
        assert caught.value.facts["did"] == ["tidy", "act"]
        with pytest.raises(Conflict, match="never began step nobody; it began book, pay, tidy, act"):
            await run.retry("nobody")
        again = await run.retry("book")
        assert await again.result(timeout=10) == "pay"
    assert did == ["book", "pay", "tidy", "undo", "book", "pay", "tidy"]


async def test_all_failures_that_made_it_fail_are_tried_again(app: Weft):
    @app.workflow
    async def flow(ctx: Context) -> list[str]:
        names = ("a", "b", "c")
        done = await asyncio.gather(*(ctx.options(name=name).step(act, name) for name in names), return_exceptions=True)
        if wrong := [one for one in done if isinstance(one, Exception)]:
            raise ExceptionGroup("some failed", wrong)
        return done  # type: ignore[return-value]

    broken.update("ac")
    async with app.worker():
        run = await flow.start()
        await failed(run)
        broken.clear()
        assert await (await run.retry()).result(timeout=10) == ["a", "b", "c"]
    assert sorted(did) == ["a", "a", "b", "c", "c"]


async def test_code_that_fails_by_itself_must_be_mended_first(app: Weft):
    async def old(ctx: Context) -> str:
        done = await ctx.step(act, "a")
        raise ValueError(f"a slip of the pen after {done}")

    async def mended(ctx: Context) -> str:
        return await ctx.step(act, "a")

    run = await app.workflow(name="flow")(old).start()
    async with app.worker():
        await failed(run)
        with pytest.raises(Conflict, match="would end as it did, with ValueError: a slip of the pen after a"):
            await run.retry()
    other = Weft("other", redis_url=app._redis_url, namespace=app._namespace)
    with pytest.raises(NotFound, match="no workflow 'flow'"):
        await other.workflow(name="x")(mended).run(run.id).retry()
    workflow = other.workflow(name="flow")(mended)
    async with other.worker():
        assert await (await workflow.run(run.id).retry()).result(timeout=10) == "a"
    await other.close()
    assert did == ["a"]


async def test_a_later_life_is_tried_again_as_it_was(app: Weft):
    @app.workflow
    async def flow(ctx: Context, life: int, text: str) -> list[object]:
        if life < 2:
            await ctx.step(act, f"life{life}")
            await ctx.continue_as_new(life + 1, "t" * 9_000)
        await ctx.step(act, "a")
        return [life, len(text), current_attempts()]

    def current_attempts() -> int:
        return did.count("a")

    broken.add("a")
    async with app.worker():
        run = await flow.start(0, "")
        await failed(run)
        broken.clear()
        assert await (await run.retry()).result(timeout=10) == [2, 9_000, 2]
    assert did == ["life0", "life1", "a", "a"]


@pytest.mark.parametrize("partitions", [1, 4])
async def test_children_that_failed_go_on_too(app: Weft):
    @app.workflow
    async def deepest(ctx: Context) -> str:
        await ctx.options(name="d1").step(act, "d1")
        return await ctx.options(name="d2").step(act, "d2")

    @app.workflow
    async def below(ctx: Context) -> str:
        await ctx.options(name="b1").step(act, "b1")
        return await ctx.child(deepest)

    @app.workflow
    async def undoes(ctx: Context) -> str:
        ctx.on_failure(act, "undo")
        return await ctx.options(name="u1").step(act, "u1")

    @app.workflow
    async def above(ctx: Context) -> list[str]:
        await ctx.options(name="a1").step(act, "a1")
        first = await ctx.options(id="named").child(below)
        return [first, await ctx.child(undoes)]

    broken.update(("d2", "u1"))
    async with app.worker():
        run = await above.start()
        await failed(run, "no d2")
        broken.remove("d2")
        again = await run.retry()
        await failed(again, "no u1")
        broken.clear()
        # What has undone its work begins anew.
        assert await (await again.retry()).result(timeout=15) == ["d2", "u1"]
    assert did == ["a1", "b1", "d1", "d2", "d2", "u1", "undo", "u1"]
    (seen, *_) = (await again.tree()).children
    assert [one.name for one in (seen, *seen.children)] == ["below", "deepest"]


@pytest.mark.parametrize("first", [True, False])
async def test_time_limits_around_what_is_done_again_begin_anew(app: Weft, first: bool):
    @app.workflow
    async def flow(ctx: Context) -> str:
        if not first:
            await ctx.options(name="before").step(act, "before")
        async with asyncio.timeout(0.2):
            return await ctx.step(act, "a")

    broken.add("a")
    async with app.worker():
        run = await flow.start()
        await failed(run, "no a")
        broken.clear()
        await asyncio.sleep(0.3)
        assert await (await run.retry()).result(timeout=10) == "a"


async def test_a_run_that_did_nothing_begins_anew_and_steps_know_their_run(app: Weft):
    seen: list[str] = []

    async def who() -> str:
        seen.append(current().run_id)
        return current().run_id

    @app.workflow
    async def flow(ctx: Context) -> str:
        if "all" in broken:
            raise ValueError("too early")
        return await ctx.step(who)

    broken.add("all")
    async with app.worker():
        run = await flow.start()
        await failed(run)
        broken.clear()
        again = await run.retry()
        assert await again.result(timeout=10) == again.id
