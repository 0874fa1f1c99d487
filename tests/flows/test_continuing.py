"""`ctx.continue_as_new`: the same run, a new execution and a new journal; and the limit that makes it needed."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from weft import Context, InvalidArguments, RunCancelled, StepFailed, Weft, current


def limit_journals(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("flow", "flowend"):
        monkeypatch.setattr(f"weft.worker.{module}.MAX_ENTRIES", 20)


async def test_a_run_goes_on_in_a_new_life_with_new_arguments(app: Weft, memory: str, raw):
    keys: list[str] = []

    async def note(n: int) -> int:
        keys.append(current().effect_key.partition("/")[2])
        return n

    @app.workflow
    async def count(ctx: Context, n: int, total: int = 0) -> int:
        total += await ctx.step(note, n)
        await ctx.sleep("5ms")
        if n == 0:
            return total
        await ctx.continue_as_new(n - 1, total)

    async with app.worker():
        run = await count.options(id="c-1").start(2)
        assert await run.result(timeout=15) == 3
    # No effect of one life is taken for that of another.
    assert keys == ["note/0/0", "note/1.0/0", "note/2.0/0"]
    history = await run.history()
    continued = [event.data for event in history if event.type == "continued"]
    assert [(data["life"], data["input"]) for data in continued] == [
        (1, {"n": 1, "total": 2}),
        (2, {"n": 0, "total": 3}),
    ]
    assert [event.seq for event in history] == list(range(1, len(history) + 1))


async def test_signals_state_and_what_is_random_over_lives(app: Weft, memory: str, eventually):
    seen: list[float] = []

    @app.workflow
    async def flow(ctx: Context, lives: int) -> list[object]:
        if lives == 0:
            return [await ctx.receive("a"), await ctx.receive("b"), await ctx.receive("a")]
        await ctx.receive("go")
        if ctx.random() not in seen:
            seen.append(ctx.random())
        ctx.set_state(**{f"life{lives}": True})
        ctx.continue_as_new(lives - 1)  # without `await` it is the same

    async with app.worker():
        run = await flow.start(2)
        # Two that the first life takes from its mail and nobody receives, then one more.
        await run.signal("a", 1)
        await run.signal("b", 2)
        await run.signal("go")
        await run.signal("go")
        await run.signal("a", 3)
        assert await run.result(timeout=15) == [1, 2, 3]
        assert await run.state() == {"life2": True, "life1": True}
    assert len(set(seen)) == len(seen) >= 2


async def test_a_child_continues_and_its_parent_gets_the_last_result(app: Weft, memory: str):
    @app.workflow
    async def below(ctx: Context, n: int) -> str:
        await ctx.sleep("5ms")
        if n:
            ctx.continue_as_new(n - 1)
        return f"done {ctx.run_id}"

    @app.workflow
    async def above(ctx: Context) -> list[str]:
        child = ctx.child(below, 2)
        return [child.id, await child]

    async with app.worker():
        id, result = await (await above.start()).result(timeout=15)
        assert result == f"done {id}"


async def test_a_parent_continues_and_lets_its_children_go(app: Weft, memory: str, quiet):
    @app.task
    async def pack(n: int) -> int:
        await asyncio.sleep(3600)
        return n

    @app.workflow
    async def below(ctx: Context) -> str:
        return str(await ctx.receive("go"))

    @app.workflow
    async def above(ctx: Context, ids: list[str]) -> list[str]:
        if ids:
            late = ctx.child(below)
            await late.signal("go", "new")
            assert await late == "new"
            return [*ids, late.id]
        child, left = ctx.child(below), ctx.options(on_parent_close="leave").child(below)
        waiting = ctx.call(pack, 1)
        await ctx.race(asyncio.shield(waiting), ctx.sleep("50ms"))
        ctx.continue_as_new([child.id, left.id])

    async with app.worker():
        first, left, second = await (await above.start([])).result(timeout=15)
        assert len({first, left, second}) == 3
        with pytest.raises(RunCancelled):
            await app.runs.get(first).result(timeout=10)
        kept = await app.runs.get(left)
        await kept.signal("go", "left")
        assert await kept.result(timeout=10) == "left"
        await quiet()


async def test_clean_up_runs_and_undoing_does_not(app: Weft, memory: str):
    done: list[str] = []

    async def note(what: str) -> None:
        done.append(what)

    @app.workflow
    async def flow(ctx: Context, again: bool) -> str:
        if not again:
            return "end"
        ctx.on_failure(note, "undone")
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(_wait(ctx))
                await ctx.sleep("5ms")
                await ctx.continue_as_new(False)
        finally:
            await ctx.step(note, "tidy")

    async with app.worker():
        assert await (await flow.start(True)).result(timeout=15) == "end"
    assert done == ["tidy"]


async def _wait(ctx: Context) -> None:
    await ctx.receive("never")


async def test_what_a_life_had_is_let_go(app: Weft, raw, quiet):
    @app.workflow
    async def flow(ctx: Context, n: int, text: str) -> int:
        made = await ctx.step(large, n)
        if n:
            await ctx.continue_as_new(n - 1, made)
        await ctx.receive("go")
        return len(text)

    async with app.worker():
        run = await flow.start(3, "")
        while await run.status() != "waiting":
            pass
        ns = app.engine().ns
        p = int(run.id[1 : run.id.index("-")])
        kept = [key for key in raw.scan_iter(ns.keys.blob(p, run.id, "*")) if raw.pttl(key) == -1]
        # The argument of this life and what its own step gave; what came before has a time to go.
        assert len(kept) == 2
        assert raw.scard(ns.keys.belongings(p, run.id)) == 2
        assert raw.llen(ns.keys.journal(p, run.id)) == 2
        await run.signal("go")
        assert await run.result(timeout=10) == 50_001
        await quiet()


async def large(n: int) -> str:
    return f"{n}" + "x" * 50_000


async def test_what_does_not_fit_is_an_error_of_the_line_that_asked(app: Weft):
    @app.workflow
    async def flow(ctx: Context, n: int) -> list[str]:
        found = []
        try:
            ctx.continue_as_new("one")
        except InvalidArguments as error:
            found.append(error.code)
        try:
            await ctx.gather(_continue(ctx))
        except Exception as error:
            found.append(str(error))
        return found

    async with app.worker():
        first, second = await (await flow.start(1)).result(timeout=10)
    assert first == "invalid_arguments"
    assert "by the workflow itself" in second


async def _continue(ctx: Context) -> None:
    ctx.continue_as_new(1)


async def test_a_run_that_is_cancelled_on_the_way_to_its_next_life_is_cancelled(app: Weft, memory: str, eventually):
    @app.workflow
    async def flow(ctx: Context) -> None:
        try:
            ctx.continue_as_new()
        finally:
            await ctx.receive("tidy")

    async with app.worker():
        run = await flow.start()

        async def waits() -> bool:
            return await run.status() == "waiting"

        await eventually(waits)
        await run.cancel()
        with pytest.raises(RunCancelled):
            await run.result(timeout=10)
    assert "continued" not in [event.type for event in await run.history()]


async def test_the_journal_has_a_limit_that_is_told_at_half_and_explained_at_the_end(
    app: Weft, memory: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    limit_journals(monkeypatch)

    async def nothing() -> None: ...

    @app.workflow
    async def endless(ctx: Context) -> None:
        while True:
            await ctx.step(nothing)

    @app.workflow
    async def thrifty(ctx: Context, left: int) -> int:
        while left:
            await ctx.step(nothing)
            left -= 1
            if ctx.history_length >= 8:
                ctx.continue_as_new(left)
        return ctx.history_length

    async with app.worker():
        with pytest.raises(StepFailed, match="continue_as_new") as caught:
            await (await endless.start()).result(timeout=15)
        assert caught.value.type == "HistoryLimit"
        assert len([line for line in caplog.messages if "half full" in line and "continue_as_new" in line]) == 1
        caplog.clear()
        assert await (await thrifty.start(40)).result(timeout=15) <= 8
        assert not [line for line in caplog.messages if "half full" in line]


async def test_a_run_whose_journal_is_full_cleans_up_and_has_failed(
    app: Weft, memory: str, monkeypatch: pytest.MonkeyPatch
):
    limit_journals(monkeypatch)
    did: list[str] = []

    async def charge(n: int) -> None:
        did.append(f"charge {n}")

    async def refund(n: int) -> None:
        did.append(f"refund {n}")

    @app.task
    async def tidy() -> str:
        return "tidied"

    @app.workflow
    async def endless(ctx: Context) -> None:
        try:
            for n in range(100):
                await ctx.step(charge, n)
                ctx.on_failure(refund, n)
        except asyncio.CancelledError as error:
            did.append(str(error)[:15])
            raise
        finally:
            async with ctx.shield():
                did.append(await ctx.call(tidy))

    async with app.worker():
        run = await endless.start()
        with pytest.raises(StepFailed, match=f"the journal of run {run.id} has 20 entries, its limit") as caught:
            await run.result(timeout=15)
    assert caught.value.type == "HistoryLimit"
    n = sum(one.startswith("charge") for one in did)
    # What was done last is undone, too: the code was told of it first.
    undone = [f"refund {i}" for i in reversed(range(n))]
    if memory == "kept":
        assert did[n:] == ["the journal of ", "tidied", *undone]
    else:  # the code is made anew, and passes here again
        assert [one for one in did if one.startswith("refund")] == undone and "tidied" in did
    assert "history_full" in [event.type for event in await run.history()]


async def test_clean_up_that_does_not_end_is_ended_where_its_room_ends(app: Weft, monkeypatch: pytest.MonkeyPatch):
    limit_journals(monkeypatch)
    monkeypatch.setattr("weft.worker.flowend.ROOM", 10)

    async def nothing() -> None: ...

    @app.task
    async def never() -> None: ...

    @app.workflow
    async def stubborn(ctx: Context) -> None:
        while True:
            with contextlib.suppress(asyncio.CancelledError):
                await ctx.step(nothing)

    @app.workflow
    async def wide(ctx: Context) -> None:
        """Asks for more at once than any journal has room for: none of it begins."""
        try:
            await ctx.gather(*[ctx.options(queue="nobody").call(never) for _ in range(60)])
        finally:
            async with ctx.shield():
                await ctx.step(nothing)

    async with app.worker():
        for flow in (stubborn, wide):
            run = await flow.start()
            with pytest.raises(StepFailed, match="continue_as_new") as caught:
                await run.result(timeout=15)
            assert caught.value.type == "HistoryLimit"
            assert len(await run.history()) < 100
    types = [event.type for event in await run.history()]
    assert types[1:3] == ["began", "history_full"] and types[-2:] == ["step_completed", "failed"]


async def test_two_workers_that_keep_the_code_never_take_one_life_for_another(app: Weft):
    """Each keeps the code of the life that it saw last; lives have journals of the same length."""

    async def one() -> int:
        return 1

    @app.workflow
    async def flow(ctx: Context, lives: int, total: int = 0) -> int:
        for _ in range(3):
            total += await ctx.step(one)
            await ctx.sleep("1ms")
        if not lives:
            return total
        ctx.continue_as_new(lives - 1, total)

    async with app.worker(), app.worker():
        runs = [await flow.start(6) for _ in range(5)]
        for run in runs:
            assert await run.result(timeout=60) == 21
            steps = [event.step for event in await run.history() if event.type == "step_completed"]
            assert len(steps) == len(set(steps)) == 21


async def test_what_a_life_shows_and_logs_before_it_first_waits_is_seen(app: Weft, memory: str, eventually):
    @app.workflow
    async def flow(ctx: Context, life: int = 0) -> None:
        ctx.set_state(life=life)
        ctx.log.info("life %d", life)
        if life < 2:
            await ctx.continue_as_new(life + 1)
        for _ in range(3):
            await ctx.receive("go")

    async with app.worker():
        run = await flow.start()

        async def shown() -> bool:
            return await run.state() == {"life": 2}

        await eventually(shown)
        for _ in range(3):
            await run.signal("go")
            await asyncio.sleep(0.02)
        await run.result(timeout=10)
    # Once each, however often the code was made anew.
    assert [line.message for line in await run.logs()] == ["life 0", "life 1", "life 2"]
    states = [event for event in await run.history() if event.type == "state_changed"]
    assert len(states) <= 3


async def test_a_run_has_taken_the_time_of_all_its_turns_and_lives(app: Weft, memory: str):
    @app.workflow
    async def flow(ctx: Context, n: int = 0) -> int:
        await ctx.sleep("150ms")
        if n < 2:
            await ctx.continue_as_new(n + 1)
        return n

    async with app.worker():
        run = await flow.start()
        assert await run.result(timeout=10) == 2
    info = await run.info()
    assert info.started_at is not None and info.finished_at is not None
    assert (info.started_at - info.created_at).total_seconds() < 0.15
    assert (info.finished_at - info.started_at).total_seconds() >= 0.45
