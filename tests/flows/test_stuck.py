"""No run is stuck: what classes, values and options of the user's own do wrong is an error of the line that asked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from weft import Context, InvalidOption, StepFailed, Weft
from weft.worker import flow as flows

pytestmark = pytest.mark.usefixtures("memory")

allowed = 7


@dataclass
class Strict:
    """Raises what is no ValueError when it is made."""

    n: int

    def __post_init__(self) -> None:
        if self.n != allowed:
            raise LookupError(f"there is no {self.n}")


@dataclass
class Endless:
    n: int

    def __post_init__(self) -> None:
        raise StopIteration(str(self.n))


async def test_what_a_class_says_when_it_is_made_is_told_where_it_is_awaited(app: Weft):
    @app.workflow
    async def flow(ctx: Context) -> list[str]:
        told: list[str] = []
        for type in (Strict, Endless, Strict):
            try:
                told.append(str(await ctx.receive("n", type=type)))
            except Exception as error:
                told.append(repr(error))
        return told

    async with app.worker():
        run = await flow.start()
        for n in (1, 2, 7):
            await run.signal("n", {"n": n})
        assert await run.result(timeout=10) == [
            "LookupError('there is no 1')",
            "RuntimeError('what came raised StopIteration: 2')",
            "Strict(n=7)",
        ]


async def test_arguments_and_results_that_a_class_refuses_fail_the_run(app: Weft, monkeypatch: pytest.MonkeyPatch):
    @app.workflow
    async def takes(ctx: Context, value: Strict) -> None:
        pass

    @app.workflow
    async def gives(ctx: Context) -> Strict:
        value = Strict(7)
        value.n = 8
        return value

    run = await takes.start(Strict(7))
    monkeypatch.setitem(globals(), "allowed", 9)  # the class was changed since
    async with app.worker():
        with pytest.raises(StepFailed, match=r"do not fit takes.*LookupError: there is no 7"):
            await run.result(timeout=10)
        monkeypatch.setitem(globals(), "allowed", 7)
        with pytest.raises(StepFailed, match="there is no 8"):
            await (await gives.start()).result(timeout=10)


async def test_the_state_is_what_it_was_when_it_was_shown(app: Weft):
    @app.workflow
    async def flow(ctx: Context) -> None:
        items: list[Any] = ["tea"]
        ctx.set_state(items=items)
        items.append(object())  # the code's own, and nothing that could be shown
        await ctx.receive("go")
        ctx.set_state(phase="done")

    async with app.worker():
        run = await flow.start()
        await run.signal("go")
        await run.result(timeout=10)
        assert await run.state() == {"items": ["tea"], "phase": "done"}


async def test_errors_to_retry_on_that_are_none_are_refused_before_the_step_runs(app: Weft):
    ran: list[int] = []

    async def effect() -> None:
        ran.append(1)
        raise ValueError("no")

    @app.workflow
    async def flow(ctx: Context) -> list[str]:
        told: list[str] = []
        wrong: list[Any] = [{"retry_on": "ValueError"}, {"fatal_on": (ValueError, "KeyError")}]
        for options in wrong:
            try:
                await ctx.options(**options).step(effect)
            except InvalidOption as error:
                told.append(error.message)
        return told

    async with app.worker():
        assert await (await flow.start()).result(timeout=10) == [
            "retry_on takes exception classes, not 'ValueError'",
            "fatal_on takes exception classes, not (<class 'ValueError'>, 'KeyError')",
        ]
    assert ran == []


async def test_a_run_that_a_worker_cannot_go_on_with_is_handed_back(app: Weft, monkeypatch: pytest.MonkeyPatch):
    """Whatever goes wrong in the worker: its token does not stay with a worker that forgot it."""
    real, calls = flows.Flow._load, 0

    async def shaky(self: flows.Flow) -> None:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise RuntimeError("nobody thought of this")
        await real(self)

    monkeypatch.setattr(flows.Flow, "_load", shaky)
    monkeypatch.setattr(flows, "TROUBLE_MS", 50)

    @app.workflow
    async def flow(ctx: Context) -> str:
        return "done"

    async with app.worker():
        run = await flow.start()
        assert await run.result(timeout=10) == "done"
    assert [event.type for event in await run.history()] == ["queued", "returned", "completed"]
