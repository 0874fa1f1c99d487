"""A worker whose clock is wrong: what a workflow is told of time, and when it goes on, comes from the store."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime, timedelta

import pytest

from weft import Context, StepFailed, Weft


@pytest.fixture(params=[-5, 5], ids=["hours behind", "hours ahead"])
def skew(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> timedelta:
    """Has the clock of this process, client and worker alike, wrong by hours."""
    real, seconds = time.time, request.param * 3600
    monkeypatch.setattr(time, "time", lambda: real() + seconds)
    return timedelta(seconds=seconds)


async def test_time_comes_from_the_store(app: Weft, raw, skew, memory):
    tries: list[int] = []

    async def flaky() -> int:
        tries.append(1)
        if len(tries) == 1:
            raise ValueError("once")
        return len(tries)

    @app.workflow
    async def flow(ctx: Context) -> tuple[datetime, datetime, int, int] | None:
        began = ctx.now()
        await ctx.sleep("100ms")
        first, _ = await ctx.race(ctx.sleep("50ms"), ctx.receive("never"))
        tried = await ctx.options(retries=1, retry_delay="50ms", jitter=False).step(flaky)
        try:
            async with asyncio.timeout(0.05):
                await ctx.receive("never")
        except TimeoutError:
            return began, ctx.now(), first, tried
        return None

    @app.workflow
    async def late(ctx: Context) -> None:
        await ctx.receive("never")

    def now() -> datetime:
        seconds, micros = raw.time()
        return datetime.fromtimestamp(seconds + micros / 1e6, UTC)

    before = now()
    async with app.worker():
        overdue = await late.options(deadline="200ms").start()
        began, ended, first, tried = await (await flow.start()).result(timeout=20)
        with pytest.raises(StepFailed, match="deadline"):
            await overdue.result(timeout=20)
    after = now()

    second = timedelta(seconds=1)
    assert before - second <= began <= ended <= after + second
    assert ended - began >= timedelta(milliseconds=240)  # each wait is rounded to milliseconds
    assert (first, tried) == (0, 2)
    assert abs(datetime.fromtimestamp(time.time(), UTC) - after) > timedelta(hours=4)  # the clock was wrong to the end


async def test_a_run_goes_on_at_the_stores_time_whoever_goes_on_with_it(app: Weft, monkeypatch: pytest.MonkeyPatch):
    """Begun by a worker with the right clock, gone on with by one that is a day ahead: nothing is early."""

    @app.workflow
    async def flow(ctx: Context) -> float:
        began = ctx.now()
        await ctx.sleep("1500ms")
        return (ctx.now() - began).total_seconds()

    async with app.worker():
        run = await flow.start()
        while (await run.status()) != "waiting":
            await asyncio.sleep(0.01)
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + 86_400)
    async with app.worker():
        assert 1.5 <= await run.result(timeout=20) < 60
