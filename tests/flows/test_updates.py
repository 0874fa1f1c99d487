"""`run.update` and `ctx.on_update`: a question into a running workflow, answered once and for good."""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass
from typing import Any

import pytest

from weft import Conflict, Context, InvalidArguments, InvalidOption, PayloadTooLarge, RunStatus, StepFailed, Weft
from weft.engine.waiting import NewsWatch
from weft.errors import Unavailable, UserError
from weft.store.namespace import Namespace
from weft.store.runs import watch_runs


@dataclass
class Item:
    name: str
    n: int = 1


@dataclass
class Basket:
    items: list[Item]


def shopping(app: Weft, calls: list[str]):
    async def reserve(name: str) -> str:
        calls.append(name)
        return f"reserved {name}"

    @app.workflow
    async def shop(ctx: Context) -> list[str]:
        items: list[Item] = []

        async def add(item: Item) -> Basket:
            await ctx.step(reserve, item.name)
            items.append(item)
            return Basket(list(items))

        def refuse_none(item: Item) -> None:
            if item.n < 1:
                raise ValueError(f"{item.n} of {item.name} is not an order")

        def count() -> int:
            return len(items)

        def broken(value: str) -> None:
            raise KeyError(value)

        ctx.on_update("add", add, validate=refuse_none)
        ctx.on_update("count", count)
        ctx.on_update("broken", broken)
        await ctx.receive("pay")
        return [f"{item.n} {item.name}" for item in items]

    return shop


async def test_an_update_is_typed_answered_and_seen_by_the_workflow(app: Weft, memory: str):
    calls: list[str] = []
    shop = shopping(app, calls)
    async with app.worker():
        run = await shop.start()
        plain = await run.update("add", {"name": "tea", "n": 2}, timeout=10)
        assert plain == {"items": [{"name": "tea", "n": 2}]}
        basket = await run.update("add", {"name": "milk"}, type=Basket, timeout=10)
        assert basket == Basket([Item("tea", 2), Item("milk")])
        assert await run.update("count", timeout=10) == 2
        await run.signal("pay")
        assert await run.result(timeout=10) == ["2 tea", "1 milk"]
    told = [(e.type, e.data["name"]) for e in await run.history() if e.type.startswith("update_")]
    assert told == [(f"update_{what}", name) for name in ("add", "add", "count") for what in ("received", "completed")]
    assert calls == ["tea", "milk"]


async def test_one_id_is_one_update_whoever_asks_and_however_often(app: Weft, memory: str):
    calls: list[str] = []
    shop = shopping(app, calls)
    async with app.worker():
        run = await shop.start()
        asked = [run.update("add", {"name": "tea"}, id="u-1", timeout=10) for _ in range(5)]
        first, *others = await asyncio.gather(*asked)
        assert first == {"items": [{"name": "tea"}]}
        assert all(other == first for other in others)
        await run.update("add", {"name": "milk"}, id="u-2", timeout=10)
        # Whoever comes back later gets what was answered then, also behind the end of the run.
        assert await run.update("add", {"name": "tea"}, id="u-1", timeout=10) == first
        await run.signal("pay")
        await run.result(timeout=10)
        assert await run.update("add", {"name": "tea"}, id="u-1", timeout=10) == first
    assert calls == ["tea", "milk"]


async def test_what_is_wrong_with_an_update_is_told_and_changes_nothing(app: Weft, memory: str):
    shop = shopping(app, [])
    async with app.worker():
        run = await shop.start()
        with pytest.raises(InvalidArguments, match="no update ad; it has add, broken, count"):
            await run.update("ad", timeout=10)
        with pytest.raises(InvalidArguments, match="Item"):
            await run.update("add", {"nme": "tea"}, timeout=10)
        with pytest.raises(InvalidArguments, match="0 of tea is not an order"):
            await run.update("add", {"name": "tea", "n": 0}, timeout=10)
        with pytest.raises(InvalidArguments, match="takes no value"):
            await run.update("count", 5, timeout=10)
        with pytest.raises(StepFailed, match="KeyError") as caught:
            await run.update("broken", "x", id="b", timeout=10)
        assert caught.value.type == "KeyError"
        with pytest.raises(StepFailed, match="KeyError"):  # the same again
            await run.update("broken", "x", id="b", timeout=10)
        with pytest.raises(InvalidOption):
            await run.update("a b")
        with pytest.raises(PayloadTooLarge):
            await run.update("add", "x" * 100_000)
        assert await run.update("count", timeout=10) == 0
        await run.signal("pay")
        assert await run.result(timeout=10) == []
        with pytest.raises(Conflict, match="has ended \\(completed\\)"):
            await run.update("count", timeout=10)


async def test_an_update_waits_for_its_handler_and_the_run_for_its_updates(app: Weft, memory: str, eventually):
    @app.workflow
    async def flow(ctx: Context) -> str:
        await ctx.receive("begin")

        async def slow(n: int) -> int:
            await ctx.sleep("50ms")
            return n * 2

        ctx.on_update("double", slow)
        return "over"

    async with app.worker():
        run = await flow.start()
        with pytest.raises(TimeoutError, match="ask again with id='early'"):
            await run.update("double", 1, id="early", timeout=0.2)
        asked = asyncio.ensure_future(run.update("double", 4, timeout=10))

        async def waits() -> bool:
            return [e.type for e in await run.history()].count("update_received") == 2

        await eventually(waits)
        await run.signal("begin")
        # Its code has ended by then: it waits for the updates that it has begun.
        assert await asked == 8
        assert await run.update("double", 1, id="early", timeout=10) == 2
        assert await run.result(timeout=10) == "over"


async def test_a_run_that_ends_before_its_answer_says_so(app: Weft):
    @app.workflow
    async def deaf(ctx: Context) -> None:
        await ctx.receive("go")

    @app.task
    async def plain() -> None: ...

    async with app.worker():
        run = await deaf.start()
        asked = asyncio.ensure_future(run.update("ask", 1, timeout=10))
        while not any(e.type == "update_received" for e in await run.history()):
            pass
        await run.signal("go")
        with pytest.raises(Conflict, match="without an answer to update ask"):
            await asked
        task = await plain.enqueue()
        await task.result(timeout=10)
        from weft.sdk.flowrun import WorkflowRun

        with pytest.raises(InvalidArguments, match="no workflow"):
            await WorkflowRun(app, task.id, lambda data: data).update("ask")


async def test_updates_that_nobody_took_go_to_the_next_life(app: Weft, memory: str):
    @app.workflow
    async def flow(ctx: Context, ready: bool = False) -> list[int]:
        if not ready:
            await ctx.receive("go")
            ctx.continue_as_new(True)
        told: list[int] = []

        def tell(n: int) -> int:
            told.append(n)
            return n + 1

        ctx.on_update("tell", tell)
        await ctx.receive("end")
        return told

    async with app.worker():
        run = await flow.start()
        asked = [asyncio.ensure_future(run.update("tell", 1, timeout=10))]
        while not any(e.type == "resumed" for e in await run.history()):
            pass
        asked.append(asyncio.ensure_future(run.update("tell", 2, timeout=10)))
        await run.signal("go")
        assert await asyncio.gather(*asked) == [2, 3]
        assert await run.update("tell", 3, timeout=10) == 4
        await run.signal("end")
        assert await run.result(timeout=10) == [1, 2, 3]


async def test_an_update_before_the_run_has_begun_and_by_code_without_a_loop(app: Weft):
    shop = shopping(app, [])
    run = await shop.start()
    asked = asyncio.ensure_future(run.update("count", timeout=15))
    while not any(e.type == "update_received" for e in await run.history()):
        pass
    async with app.worker():
        assert await asked == 0
        assert await asyncio.to_thread(lambda: shop.run(run.id).sync.update("count", timeout=10)) == 0
        await run.signal("pay")
        await run.result(timeout=10)


async def test_handlers_that_make_no_sense_are_refused(app: Weft):
    @app.workflow
    async def flow(ctx: Context) -> list[str]:
        found = []
        ctx.on_update("one", lambda: 1)
        for wrong in (lambda: ctx.on_update("one", lambda: 1), lambda: ctx.on_update("two", 5)):
            try:
                wrong()
            except InvalidArguments as error:
                found.append(str(error))
        try:
            ctx.on_update("two", lambda a, b: 1)
        except Exception as error:
            found.append(str(error))
        return found

    async with app.worker():
        found = await (await flow.start()).result(timeout=10)
    assert ["has a handler already" in found[0], "takes functions" in found[1], "one value" in found[2]] == [True] * 3


async def test_a_run_that_continues_as_new_waits_for_its_updates_first(app: Weft, memory: str, eventually):
    @app.workflow
    async def flow(ctx: Context, total: int = 0, life: int = 0) -> int:
        async def slow(n: int) -> list[int]:
            nonlocal total
            if not life:
                await ctx.receive("go")
            total += n
            return [life, total]

        ctx.on_update("ask", slow)
        await ctx.receive("next")
        if not life:
            try:
                ctx.continue_as_new(total, 1)
            except UserError as error:
                assert "1 updates are at work" in str(error)
            await ctx.updates_done()
            ctx.continue_as_new(total, 1)
        return total

    async with app.worker():
        run = await flow.start()
        first = asyncio.ensure_future(run.update("ask", 1, timeout=10))

        async def resumed(n: int) -> bool:
            return [e.type for e in await run.history()].count("resumed") >= n and await run.status() == "waiting"

        await eventually(lambda: resumed(1))
        await run.signal("next")
        await eventually(lambda: resumed(2))
        await run.signal("go")
        assert await first == [0, 1]
        assert await run.update("ask", 2, timeout=10) == [1, 3]
        await run.signal("next")
        assert await run.result(timeout=10) == 3


async def test_a_run_that_only_waits_for_a_handler_can_be_cancelled(app: Weft, memory: str, eventually):
    @app.workflow
    async def flow(ctx: Context) -> str:
        ctx.on_update("ask", lambda: ctx.receive("never"))
        await ctx.receive("end")
        return "over"

    async with app.worker():
        run = await flow.start()
        asked = asyncio.ensure_future(run.update("ask", timeout=10))

        async def resumed(n: int) -> bool:
            return [e.type for e in await run.history()].count("resumed") >= n and await run.status() == "waiting"

        await eventually(lambda: resumed(1))
        await run.signal("end")
        await eventually(lambda: resumed(2))
        await run.cancel()
        with pytest.raises(StepFailed, match="CancelledError"):
            await asked
        assert await run.result(timeout=10) == "over"


async def test_code_waits_for_what_its_own_handlers_set(app: Weft, memory: str, eventually):
    @app.workflow
    async def flow(ctx: Context) -> str:
        paid, given = asyncio.Event(), []

        async def pay(by: str) -> str:
            given.append(by)
            paid.set()
            return "thanks"

        ctx.on_update("pay", pay)
        await paid.wait()
        return given[0]

    async def waiting() -> bool:
        return (await run.info()).status == RunStatus.WAITING

    async with app.worker():
        run = await flow.start()
        await eventually(waiting)
        assert re.search(r"waits for update pay at .*test_updates.py:\d+", (await run.explain()).text)
        assert await run.update("pay", "card") == "thanks"
        assert await run.result(timeout=10) == "card"


@pytest.fixture
def ending(app: Weft) -> Any:
    @app.workflow
    async def flow(ctx: Context, answers: bool) -> None:
        if answers:
            ctx.on_update("ask", lambda: "answered")
        await ctx.receive("end")

    return flow


async def test_news_of_an_end_is_not_forgotten_while_the_store_does_not_answer(
    app: Weft, ending: Any, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("weft.engine.waiting.RECHECK", 60.0)
    looks: list[str] = []

    async def look(ns: Namespace, p: int, runs: list[str], channel: str) -> list[tuple[str, bytes]]:
        looks.append(channel)
        if len(looks) == 2:  # the first behind the news
            raise Unavailable("too slow")
        return await watch_runs(ns, p, runs, channel)

    async with app.worker():
        run = await ending.start(False)
        monkeypatch.setattr("weft.engine.waiting.watch_runs", look)
        asking = asyncio.create_task(run.update("ask", timeout=30))
        while not looks:
            await asyncio.sleep(0)
        await run.signal("end")
        async with asyncio.timeout(10):
            with pytest.raises(Conflict, match="has ended without an answer"):
                await asking
    assert len(looks) == 3


@pytest.mark.parametrize("answers", [True, False])
async def test_who_hears_nothing_looks_once_more_when_its_time_is_over(
    app: Weft, ending: Any, answers: bool, eventually: Any, monkeypatch: pytest.MonkeyPatch
):
    waits, over = asyncio.Event(), asyncio.Event()

    async def hear_nothing(watch: NewsWatch) -> None:
        waits.set()
        await over.wait()
        raise TimeoutError

    monkeypatch.setattr(NewsWatch, "wait", hear_nothing)
    async with app.worker():
        run = await ending.start(answers)
        asking = asyncio.create_task(run.update("ask", timeout=60))
        await waits.wait()
        await run.signal("end")

        async def ended() -> bool:
            return await run.status() == RunStatus.COMPLETED

        await eventually(ended)
        over.set()
        if answers:
            assert await asking == "answered"
        else:
            with pytest.raises(Conflict, match="has ended without an answer"):
                await asking
