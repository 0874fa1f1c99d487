"""Runs of workflows, however they went and ended, are told the same by both stores."""

from __future__ import annotations

import asyncio

import pytest
from views import told_apart, views_of

from weft import Context, Weft, current

pytestmark = pytest.mark.leaves("history", "pending")


async def ends(*runs):
    await asyncio.gather(*(run.result(20) for run in runs), return_exceptions=True)


@pytest.fixture
def declared(app: Weft):
    tries: dict[str, int] = {}

    @app.task
    async def call(text: str) -> str:
        current().log.info("called", text=text)
        return text * 5_000

    async def shaky() -> str:
        tries[current().run_id] = tries.get(current().run_id, 0) + 1
        if tries[current().run_id] == 1:
            raise ValueError("once")
        return "ok"

    async def bad() -> None:
        raise KeyError("cause")

    @app.workflow(tags={"team": "c"})
    async def below(ctx: Context, text: str) -> str:
        ctx.set_state(at="below")
        return await ctx.call(call, text)

    @app.workflow
    async def breaks(ctx: Context) -> None:
        await ctx.step(bad)

    @app.workflow
    async def full(ctx: Context, text: str) -> list[object]:
        ctx.set_state(phase="begun", text=text)  # more than a row has room for
        ctx.log.info("in the code")
        found: list[object] = [await ctx.options(retries=1, retry_delay="1ms", jitter=False).step(shaky)]
        found.append(len(await ctx.child(below, "c")))
        await ctx.sleep("5ms")
        found.append(await ctx.receive("go"))
        found.append((await ctx.approve("Sure?", show={"n": 1}, approvers=["ann"]))["decision"])
        try:
            await ctx.child(breaks)
        except Exception as error:
            found.append(type(error).__name__)
        found.append(len(await ctx.map(call, ["a", "b"])))
        ctx.set_state(phase="done")
        return found

    @app.workflow
    async def fails(ctx: Context, text: str) -> None:
        ctx.set_state(phase="failing")
        try:
            await ctx.step(bad)
        except Exception as error:
            raise LookupError(text) from error

    @app.workflow
    async def hangs(ctx: Context) -> None:
        ctx.set_state(phase="hanging")
        try:
            await ctx.receive("never")
        finally:
            ctx.set_state(phase="cleaned")

    @app.workflow
    async def lives(ctx: Context, n: int) -> int:
        ctx.set_state(**{f"life{n}": True})
        await ctx.step(call, "z")
        if n:
            await ctx.continue_as_new(n - 1)
        return n

    @app.workflow
    async def answers(ctx: Context) -> int:
        seen: list[int] = []

        def add(n: int) -> int:
            seen.append(n)
            return len(seen)

        ctx.on_update("add", add)
        await ctx.receive("go")
        return len(seen)

    @app.workflow(version="2.0")
    async def pinned(ctx: Context) -> bool:
        return ctx.changed("tax")

    @app.workflow(deadline="200ms")
    async def late(ctx: Context) -> None:
        await ctx.sleep("1h")

    @app.workflow
    async def empty(ctx: Context) -> None: ...


async def waits(run):
    async with asyncio.timeout(20):
        while await run.status() != "waiting":
            await asyncio.sleep(0.01)


async def make(app: Weft):
    w = app.workflows
    made = {
        "full": await w["full"].options(id="order-1", tags={"team": "a"}, deadline="1d").start("t" * 6_000),
        "fails": await w["fails"].start("u" * 100),
        "hangs": await w["hangs"].start(),
        "lives": await w["lives"].start(2),
        "answers": await w["answers"].start(),
        "pinned": await w["pinned"].options(version="pin").start(),
        "late": await w["late"].start(),
        "empty": await w["empty"].start(),
        "later": await w["empty"].options(delay="20ms").start(),
        "never": await w["empty"].options(delay="1h").start(),
        "committed": await w["empty"].options(durability="committed").start(),
    }
    await made["never"].cancel("not now")
    await made["full"].signal("go", {"n": 2})
    await made["answers"].update("add", 3)
    await made["answers"].signal("go")
    await waits(made["hangs"])
    await made["hangs"].cancel("enough")
    async with asyncio.timeout(20):
        while not (found := await app.approvals.list(run=made["full"].id)):
            await asyncio.sleep(0.01)
    await app.approvals.approve(found[0].id, by="ann", digest=found[0].digest)
    await ends(*made.values())
    made["again"] = await made["fails"].retry()
    made["goes on"] = await made["hangs"].retry()
    await made["goes on"].signal("never")
    await ends(made["again"], made["goes on"])
    for child in (await made["full"].tree()).children:
        made[f"child {child.name}"] = app.workflows[child.name].run(child.id)
    return made


async def test_workflows_of_every_end_are_told_the_same(app, declared, start_worker, archive, forget, quiet):
    await start_worker()
    await archive()  # else nothing could be committed
    made = await make(app)
    await quiet()
    hot = await views_of(app, made)
    await archive(1)
    forget(*made.values())

    assert told_apart(hot, await views_of(app, made)) == ([], set())
