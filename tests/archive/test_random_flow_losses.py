"""A workflow of every construct loses its store at random moments: it goes on, and nothing archived runs again."""

from __future__ import annotations

import asyncio
import contextlib
import random
from typing import Any

import pytest
from losing import Losing, insisting

from weft import Context, StepFailed, Weft, current
from weft.errors import NotFound, Unavailable

pytestmark = [pytest.mark.leaves("history", "open runs"), pytest.mark.usefixtures("quick")]


@pytest.fixture
def database_url(tmp_path) -> str:
    """SQLite only: what is looked at here is the store."""
    return f"sqlite:///{tmp_path / 'archive.sqlite'}"


def declare_every(app: Weft, losing: Losing, chance: random.Random) -> Any:
    """Declares a workflow of two lives, in each of which it uses every construct."""

    async def charge(what: str) -> str:
        losing.note()
        await asyncio.sleep(chance.random() * 0.03)
        if what == "flaky" and current().attempt == 1:
            raise ValueError("once")
        return what + "!" * (9_000 if what == "large" else 1)

    @app.task(retries=1, retry_delay="10ms")
    async def pack(order: str) -> str:
        return await charge(order)

    @app.workflow
    async def below(ctx: Context, n: int) -> int:
        await ctx.step(charge, f"below {n}")
        await ctx.receive("push")
        await ctx.sleep("30ms")
        return n + 1

    @app.workflow
    async def failing(ctx: Context) -> None:
        ctx.on_failure(charge, "undo")
        await ctx.step(charge, "doomed")
        raise KeyError("no")

    @app.workflow(deadline="5m")
    async def every(ctx: Context, life: int = 0, before: list[Any] | None = None, large: str = "") -> list[Any]:
        async def double(n: int) -> int:
            await ctx.step(charge, f"double {n}")
            return n * 2

        ctx.on_update("double", double)
        ctx.set_state(**{f"life{life}": "begun"})
        child = ctx.child(below, life)
        chosen = [ctx.random(), str(ctx.uuid())]
        noted = await ctx.options(name="note").step(lambda: chosen)
        found: list[Any] = [await ctx.step(charge, f"step {i}") for i in range(2)]
        found += [len(await ctx.step(charge, "large")), await ctx.step(pack, "flaky")]
        if ctx.changed("marker"):
            found.append("new")
        await ctx.sleep("50ms")
        found += await ctx.gather(ctx.call(pack, "a"), ctx.call(pack, "flaky"), ctx.call(pack, "large" + "l" * 9_000))
        found[-1] = len(found[-1])
        found += await ctx.map(pack, ["m0", "m1", "m2"], max_parallel=2)
        found.append(await ctx.race(ctx.call(pack, "quick"), ctx.sleep("1h")))
        try:
            async with asyncio.timeout(0.05):
                await ctx.receive("never")
        except TimeoutError:
            found.append("late")
        await child.signal("push")
        found.append(await child)
        try:
            await ctx.child(failing)
        except StepFailed as error:
            found.append(error.type)
        decided = await ctx.approve("go on?", quorum=2)
        found += [decided["decision"], await ctx.receive("address", type=str)]
        async with ctx.shield():
            found.append(await ctx.step(charge, "last"))
        ctx.set_state(**{f"life{life}": "over"})
        assert chosen == noted  # what is chosen by chance is chosen once
        if life == 0:
            await ctx.updates_done()
            ctx.continue_as_new(1, found, "x" * 9_000)
        return [before, found, len(large)]

    return every


def one_life(life: int) -> list[Any]:
    return [
        *("step 0!", "step 1!", 9_005, "flaky!", "new", "a!", "flaky!", 9_006, "m0!", "m1!", "m2!"),
        *([0, "quick!"], "late", life + 1, "KeyError", "approved", ("here", "there")[life], "last!"),
    ]


async def attend(app: Weft, run: Any, losing: Losing) -> None:
    """Does all that comes from outside, again and again: what was done is known."""
    while not await losing.finished(run.id):
        for n, word in enumerate(("here", "there")):
            await insisting(lambda word=word, n=n: run.signal("address", word, request_id=f"address {n}"))
        for n in (1, 2):
            with contextlib.suppress(TimeoutError):
                await insisting(lambda n=n: doubled(run, n))
        with contextlib.suppress(NotFound, Unavailable):
            for asked in await app.approvals.list(run=run.id):
                for by in ("ann", "bo"):
                    vote = {"by": by, "digest": asked.digest, "request_id": f"{asked.id} {by}"}
                    await insisting(lambda asked=asked, vote=vote: app.approvals.approve(asked.id, **vote))
        await asyncio.sleep(0.05)


async def doubled(run: Any, n: int) -> None:
    assert await run.update("double", n, id=f"double, {n}", timeout=0.2) == n * 2


async def wiped_flow(app: Weft, losing: Losing, start_worker: Any, *, seed: int, wipes: int) -> None:
    chance = random.Random(seed)
    run = await declare_every(app, losing, chance).start()
    while await losing.cold.reader.run(run.id) is None:
        await asyncio.sleep(0.01)
    await start_worker(concurrency=4)
    attending = asyncio.create_task(attend(app, run, losing))
    for _ in range(wipes):
        await asyncio.sleep(0.05 + chance.random() * 1.5)
        if attending.done():
            break
        await losing.lose()
    await attending
    assert losing.archived()[run.id] == "completed", (await run.info()).error
    assert await run.result(10) == [one_life(0), one_life(1), 9_000]
    assert set(losing.archived().values()) == {"completed", "failed"}  # two children fail, as they should
    losing.nothing_ran_again()


@pytest.mark.parametrize("seed", range(2))
async def test_a_workflow_of_every_construct_whose_store_is_wiped(app, losing, start_worker, seed):
    await asyncio.wait_for(wiped_flow(app, losing, start_worker, seed=seed, wipes=2), 90)


@pytest.mark.chaos
@pytest.mark.parametrize("seed", range(20))
async def test_a_workflow_of_every_construct_whose_store_is_wiped_again_and_again(app, losing, start_worker, seed):
    await asyncio.wait_for(wiped_flow(app, losing, start_worker, seed=seed + 100, wipes=1 + seed % 5), 180)
