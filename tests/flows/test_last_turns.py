"""What the code does last is done, also when its worker is gone and another one comes to the end by a replay."""

from __future__ import annotations

import asyncio

import pytest

from weft import Context, Weft
from weft.core.flow import Entry, Turn
from weft.engine import steps
from weft.worker.flow import Flow


@pytest.fixture
def leaving(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Has the first worker that is told of a signal or update leave, before its code hears of it."""
    left: list[str] = []
    real = Flow._apply

    def apply(self: Flow, entries: list[Entry], *, fresh: bool = False) -> None:
        if not left and any(entry.type in ("signal", "update") for entry in entries):
            left.append(self.run_id)
            self._release(steps.returned(self.token, "worker stopped", self.execution.started_ms))
            return
        real(self, entries, fresh=fresh)

    monkeypatch.setattr(Flow, "_apply", apply)
    return left


async def test_an_update_is_answered_whose_answer_is_the_last_thing_the_code_does(app: Weft, leaving: list[str]):
    @app.workflow
    async def flow(ctx: Context) -> int:
        came = asyncio.Event()

        def add(n: int) -> int:
            came.set()
            return n + 1

        ctx.on_update("add", add)
        await came.wait()
        return 1

    async with app.worker():
        run = await flow.start()
        assert await run.update("add", 41, timeout=10) == 42
        assert await run.result(timeout=10) == 1
    assert leaving == [run.id]


async def test_a_child_is_begun_that_the_code_leaves_behind_when_it_returns(app: Weft, leaving: list[str]):
    @app.workflow
    async def child(ctx: Context) -> str:
        return "done"

    @app.workflow
    async def flow(ctx: Context) -> str:
        await ctx.receive("go")
        return ctx.options(on_parent_close="leave").child(child).id

    async with app.worker():
        run = await flow.start()
        await run.signal("go")
        left = await run.result(timeout=10)
        assert await app.runs.get(left).result(timeout=10) == "done"
    assert leaving == [run.id]


async def test_a_child_that_is_left_in_the_first_turn_of_a_run_leaves_a_journal_that_can_be_replayed(
    app: Weft, monkeypatch: pytest.MonkeyPatch
):
    """That the run began, and what it was told by `ctx.changed`, the code hears before it is written: it must be."""
    left: list[str] = []
    real = Flow._apply

    def apply(self: Flow, entries: list[Entry], *, fresh: bool = False) -> None:
        if not left and any(entry.type == "opened" for entry in entries):
            left.append(self.run_id)
            self._release(steps.returned(self.token, "worker stopped", self.execution.started_ms))
            return
        real(self, entries, fresh=fresh)

    monkeypatch.setattr(Flow, "_apply", apply)

    @app.workflow
    async def old(ctx: Context) -> str:
        return "old"

    @app.workflow
    async def new(ctx: Context) -> str:
        return "new"

    @app.workflow
    async def flow(ctx: Context) -> str:
        chosen = new if ctx.changed("another-child") else old
        return ctx.options(on_parent_close="leave").child(chosen).id

    async with app.worker():
        run = await flow.start()
        child = await run.result(timeout=10)
        assert await app.runs.get(child).result(timeout=10) == "new"
    assert left == [run.id]
    types = [event.type for event in await run.history()]
    assert types == ["queued", "began", "changed", "child_opened", "returned", "completed"]


async def test_a_change_is_marked_when_something_says_that_the_code_came_by(app: Weft, monkeypatch: pytest.MonkeyPatch):
    """One worker leaves before its mark is written, the next one right behind its first commit: the third goes the same way."""
    left: list[str] = []
    apply, commit = Flow._apply, Flow._commit

    def leave(flow: Flow, why: str) -> None:
        left.append(why)
        flow._release(steps.returned(flow.token, "worker stopped", flow.execution.started_ms))

    def shaky_commit(self: Flow, turn: Turn) -> None:
        if not left and any(added.entry.type == "marker" for added in turn.added):
            return leave(self, "before the mark")
        return commit(self, turn)

    def shaky_apply(self: Flow, entries: list[Entry], *, fresh: bool = False) -> None:
        if len(left) == 1:
            return leave(self, "behind the first commit")
        return apply(self, entries, fresh=fresh)

    monkeypatch.setattr(Flow, "_commit", shaky_commit)
    monkeypatch.setattr(Flow, "_apply", shaky_apply)

    async def step() -> None:
        pass

    @app.workflow
    async def flow(ctx: Context) -> str:
        await ctx.step(step)
        taken = "the new way" if ctx.changed("new-way") else "the old way"
        await ctx.step(step)
        return taken

    async with app.worker():
        assert await (await flow.start()).result(timeout=10) == "the new way"
    assert left == ["before the mark", "behind the first commit"]
