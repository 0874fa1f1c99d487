"""Versions of a workflow's code that differ in what they do before the timer or signal a run waits for."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest

from weft import Context, RunStatus, Weft
from weft.sdk.checking import check_runs

pytestmark = pytest.mark.leaves("open runs")


async def waiting(run: Any) -> bool:
    return (await run.info()).status == RunStatus.WAITING


async def diverged(run: Any) -> bool:
    return (await run.explain()).reason == "diverged"


@pytest.mark.parametrize("action", ["pin", "accept", "fork"])
async def test_code_that_waits_for_something_else_than_the_timer_the_run_sleeps_for(app: Weft, eventually, action: str):
    ran: list[str] = []
    version = 1

    async def charge() -> None:
        ran.append("charge")

    async def check() -> None:
        ran.append("check")

    @app.workflow
    async def flow(ctx: Context) -> str:
        await ctx.step(charge)
        if version == 2:
            await ctx.step(check)
        await ctx.sleep("300ms")
        return "done"

    async with app.worker():
        run = await flow.start()
        await eventually(lambda: waiting(run))
    version = 2
    (checked,) = await check_runs(app)
    assert checked.verdict == "breaks" and "behind entry 2 it waited for\n  - timer sleep\n" in checked.text
    async with app.worker():
        # Its journal fits both: it would do the check only now, and sleep once more.
        await eventually(lambda: diverged(run))
        assert re.search(r"\+ step check \(.*test_awaited_versions.py:\d+\)", (await run.explain()).text)
        version = 1 if action == "pin" else 2
        resolved = await run.resolve(action)
        assert await resolved.result(timeout=10) == "done"
    assert ran == (["charge"] if action == "pin" else ["charge", "check"])
    if action == "fork":
        assert await diverged(run)


async def test_code_that_does_something_before_the_signal_the_run_waits_for(app: Weft, eventually):
    ran: list[str] = []
    version = 1

    async def check() -> None:
        ran.append("check")

    @app.workflow
    async def flow(ctx: Context) -> str:
        if version == 2:
            await ctx.step(check)
        return str(await ctx.receive("go"))

    async with app.worker():
        run = await flow.start()
        await eventually(lambda: waiting(run))
    version = 2
    async with app.worker():
        await run.signal("go", "now")
        await eventually(lambda: diverged(run))
        assert "behind entry 1 it waited for\n  - receive signal:go\n" in (await run.explain()).text
        assert ran == []
        await run.resolve("accept")
        assert await run.result(timeout=10) == "now"
    assert ran == ["check"]


async def test_what_does_not_fit_is_called_what_it_is(app: Weft, eventually):
    version = 1

    @app.workflow
    async def kid(ctx: Context) -> None:
        await ctx.receive("go")

    @app.workflow
    async def flow(ctx: Context) -> None:
        if version == 1:
            await ctx.child(kid)
        async with asyncio.timeout(60):
            await ctx.receive("go")

    async with app.worker():
        run = await flow.start()
        await eventually(lambda: waiting(run))
    version = 2
    (text,) = [one.text for one in await check_runs(app) if one.name == "flow"]
    # The journal says only that something was opened: it is no call just because of that.
    assert "- call or child kid, opened\n" in text
    assert re.search(r"\+ time limit \(.*test_awaited_versions.py:\d+\), receive signal:go \(", text)
