"""What a run does when it fails: every undo that was asked for can be called, with the options it was asked for with."""

from __future__ import annotations

import functools
from typing import Any

import pytest

from weft import Context, InvalidArguments, InvalidOption, StepFailed, Weft, current

pytestmark = pytest.mark.usefixtures("memory")


async def test_an_undo_has_the_options_it_was_asked_for_with(app: Weft):
    attempts: list[tuple[str, int]] = []

    async def refund(what: str) -> None:
        attempts.append((what, current().attempt))
        if current().attempt < 3:
            raise ConnectionError("the bank does not answer")

    @app.workflow
    async def trip(ctx: Context) -> None:
        ctx.options(retries=3, retry_delay="1ms", name="refund-hotel").on_failure(refund, "hotel")
        ctx.options(name="free").on_failure(lambda: attempts.append(("free", 1)))
        await ctx.sleep("5ms")
        raise ValueError("no car")

    async with app.worker():
        run = await trip.start()
        with pytest.raises(StepFailed, match="no car"):
            await run.result(timeout=10)
    assert attempts == [("free", 1), ("hotel", 1), ("hotel", 2), ("hotel", 3)]
    ended = [event.step for event in await run.history() if event.type == "step_completed"]
    assert ended == ["free", "refund-hotel"]


async def test_an_undo_that_could_never_be_called_is_refused_where_it_is_asked_for(app: Weft):
    async def refund(what: str) -> None:
        pass

    @app.workflow
    async def other(ctx: Context) -> None:
        pass

    @app.workflow
    async def flow(ctx: Context) -> list[str]:
        told: list[str] = []
        wrong: list[Any] = [lambda: None, functools.partial(refund, "hotel"), other, 5]
        for undo in wrong:
            try:
                ctx.on_failure(undo)
            except InvalidArguments as error:
                told.append(error.message)
        try:
            ctx.options(queue="slow").on_failure(refund, "hotel")
        except InvalidOption as error:
            told.append(error.message)
        return told

    async with app.worker():
        told = await (await flow.start()).result(timeout=10)
    assert told[0] == "a lambda has no name to be remembered by: ctx.options(name='…').on_failure(…)"
    assert told[1] == "this object has no name to be remembered by: ctx.options(name='…').on_failure(…)"
    assert told[2].startswith("ctx.on_failure takes a function or a task, not ")
    assert told[3] == "ctx.on_failure takes a function or a task, not 5"
    assert told[4] == "ctx.options(queue=…) means nothing for ctx.on_failure"


async def test_options_that_would_be_ignored_are_refused(app: Weft):
    @app.workflow
    async def flow(ctx: Context) -> list[str]:
        asked: list[Any] = [
            lambda: ctx.options(retries=3).sleep("1ms"),
            lambda: ctx.options(timeout="1s").receive("go"),
            lambda: ctx.options(timeout="1s").approve("Well?"),
            lambda: ctx.options(name="x").signal(ctx.run_id, "go"),
            lambda: ctx.options(timeout="1s").gather(),
            lambda: ctx.options(timeout="1s").race(ctx.sleep("1h")),
            lambda: ctx.options(name="x").on_update("add", print),
            lambda: ctx.options(deadline="1h").continue_as_new(),
        ]
        told: list[str] = []
        for ask in asked:
            try:
                ask()
            except InvalidOption as error:
                told.append(error.message)
        return told

    async with app.worker():
        told = await (await flow.start()).result(timeout=10)
    assert told == [
        "ctx.options(retries=…) means nothing for ctx.sleep",
        "ctx.options(timeout=…) means nothing for ctx.receive; give it there: ctx.receive(…, timeout=…)",
        "ctx.options(timeout=…) means nothing for ctx.approve; give it there: ctx.approve(…, timeout=…)",
        "ctx.options(name=…) means nothing for ctx.signal",
        "ctx.options(timeout=…) means nothing for ctx.gather",
        "ctx.options(timeout=…) means nothing for ctx.race",
        "ctx.options(name=…) means nothing for ctx.on_update",
        "ctx.options(deadline=…) means nothing for ctx.continue_as_new",
    ]
