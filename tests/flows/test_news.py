"""News reaches a run wherever its code is, and code that waits stands in nobody's way."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import redis

from weft import Context, RunStatus, Weft
from weft.ids import partition_of


async def test_code_that_is_made_anew_in_the_middle_gives_its_slot_back_when_it_waits(app: Weft, eventually):
    """As after other workers went on with a run whose code this one still has: it holds slots for no run that waits."""

    @app.workflow
    async def flow(ctx: Context) -> list[int]:
        return [await ctx.receive("word", type=int) for _ in range(3)]

    async with app.worker() as worker:
        flows, slots = worker.executor.flows, worker.slots

        async def waits() -> bool:
            return run.id in flows._waiting and await run.status() == RunStatus.WAITING

        run = await flow.start()
        await eventually(waits)
        old = flows._waiting.pop(run.id)
        await run.signal("word", 1)
        await eventually(waits)
        flows._waiting.pop(run.id).let_go()
        flows._waiting[run.id] = old
        await run.signal("word", 2)
        await eventually(waits)
        await eventually(lambda: slots.free == slots.size)
        await run.signal("word", 3)
        assert await run.result(timeout=10) == [1, 2, 3]


@pytest.fixture
def busy(app: Weft) -> tuple[Any, asyncio.Event, asyncio.Event]:
    """A workflow that is here for long, because a step of it runs, and waits for a signal at the same time."""
    begun, over = asyncio.Event(), asyncio.Event()

    async def work() -> str:
        begun.set()
        await over.wait()
        return "worked"

    @app.workflow
    async def flow(ctx: Context) -> Any:
        _, first = await ctx.race(ctx.step(work), ctx.receive("go"))
        return first

    return flow, begun, over


async def test_a_signal_that_came_while_the_worker_was_deaf_is_found_when_it_listens_again(
    app: Weft, busy: Any, raw: redis.Redis, monkeypatch: pytest.MonkeyPatch
):
    flow, begun, _ = busy
    async with app.worker() as worker:
        run = await flow.start()
        await begun.wait()
        deaf = asyncio.Event()
        with monkeypatch.context() as patch:
            patch.setattr(worker.executor.flows, "notify", lambda run: deaf.set())
            await run.signal("go", "heard")
            await deaf.wait()
        raw.client_kill_filter(_type="pubsub")
        assert await run.result(timeout=10) == "heard"


async def test_a_signal_whose_news_is_lost_in_silence_is_found_all_the_same(
    app: Weft, busy: Any, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("WEFT_LEASE", "1s")
    flow, begun, _ = busy
    async with app.worker() as worker:
        monkeypatch.setattr(worker.executor.flows, "notify", lambda run: None)
        run = await flow.start()
        await begun.wait()
        await run.signal("go", "found")
        assert await run.result(timeout=10) == "found"


async def test_who_only_looks_for_mail_is_where_it_was_when_its_worker_died(
    app: Weft, busy: Any, raw: redis.Redis, eventually: Any
):
    """A step that kills its worker late would else never be known as poison."""
    flow, begun, over = busy
    async with app.worker() as worker:
        run = await flow.start()
        await begun.wait()
        key = app.engine().ns.keys.run(partition_of(run.id), run.id)
        seen = raw.hget(key, "turn")

        async def looked() -> bool:
            return raw.hget(key, "turn") != seen

        for crashes in (b"", b"2"):  # the first look writes down that it began
            worker.executor.flows.look_again()
            await eventually(looked)
            assert (raw.hget(key, "crashes") or b"") == crashes
            seen = raw.hget(key, "turn")
            raw.hset(key, "crashes", 2)
        over.set()
        assert await run.result(timeout=10) == "worked"
