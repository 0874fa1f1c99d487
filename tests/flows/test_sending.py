"""Signals that workflows give to others: in the order they were given, and whatever the store does meanwhile."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from weft import Context, Weft
from weft.engine import signals
from weft.errors import NotExecuted, OutcomeUnknown


async def test_signals_of_one_workflow_come_in_the_order_they_were_given(app: Weft, memory: str):
    @app.workflow
    async def listener(ctx: Context) -> list[int]:
        return [await ctx.receive("n", type=int) for _ in range(20)]

    @app.workflow
    async def teller(ctx: Context) -> list[int]:
        child = ctx.child(listener)
        await asyncio.gather(*(child.signal("n", n) for n in range(20)))
        return await child

    async with app.worker():
        assert await (await teller.start()).result(timeout=20) == list(range(20))


async def test_a_store_that_is_away_fails_no_signal_and_doubles_none(app: Weft, monkeypatch: pytest.MonkeyPatch):
    real, calls = signals.signal, 0

    async def shaky(*args: Any, **options: Any) -> bool:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise NotExecuted("the store is loading")
        told = await real(*args, **options)
        if calls == 2:
            raise OutcomeUnknown("the connection broke")
        return told

    @app.workflow
    async def listener(ctx: Context) -> list[str]:
        got = [await ctx.receive("word", type=str)]
        try:
            got.append(await ctx.receive("word", type=str, timeout="300ms"))
        except TimeoutError:
            got.append("nothing more")
        return got

    @app.workflow
    async def teller(ctx: Context, run: str) -> bool:
        return await ctx.signal(run, "word", "hello")

    async with app.worker():
        run = await listener.start()
        monkeypatch.setattr(signals, "signal", shaky)
        await (await teller.start(run.id)).result(timeout=10)
        assert await run.result(timeout=10) == ["hello", "nothing more"]
    assert calls == 3
