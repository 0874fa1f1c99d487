"""Limits of workflows: a slot belongs to a run from its begin to its end; starts may count as one."""

from __future__ import annotations

from typing import Any

import pytest

from weft import Context, InvalidArguments, InvalidOption, RunCancelled, RunStatus, Weft
from weft.ids import partition_of


async def is_at(run: Any, status: str, eventually: Any) -> None:
    async def there() -> bool:
        return bool((await run.info()).status == status)

    await eventually(there)


async def slots(app: Weft, raw: Any) -> list[str]:
    ns = app.engine().ns
    found = [key for p in range(ns.partitions) for key in raw.scan_iter(ns.keys.gate(p, "*"))]
    return [run.decode() for key in found for run in raw.zrange(key, 0, -1)]


async def test_a_run_keeps_its_slot_while_it_waits_and_gives_it_back_at_its_end(app: Weft, memory, eventually, raw):
    @app.workflow(concurrency=1)
    async def flow(ctx: Context) -> str:
        await ctx.sleep("5ms")
        await ctx.receive("go")
        await ctx.receive("on")
        return "done"

    async with app.worker():
        first = await flow.start()
        await is_at(first, RunStatus.WAITING, eventually)
        second = await flow.start()
        assert (await second.explain()).reason == "concurrency"
        assert (await second.explain()).holders == [first.id]
        for name in ("go", "on"):
            assert await slots(app, raw) == [first.id]
            assert (await second.status()) == RunStatus.QUEUED
            await first.signal(name)
        assert await first.result(timeout=10) == "done"
        for name in ("go", "on"):
            await second.signal(name)
        assert await second.result(timeout=10) == "done"
    assert await slots(app, raw) == []


async def test_a_run_keeps_its_slot_while_nobody_can_go_on_with_it(
    app: Weft, server, namespace, short_lease, eventually, raw
):
    async def code(ctx: Context) -> str:
        await ctx.receive("go")
        return "done"

    other = Weft("other", redis_url=server.url, namespace=namespace)
    flow = app.workflow(name="flow", version="1", concurrency=1)(code)
    newer = other.workflow(name="flow", version="2", concurrency=1)(code)
    first = await flow.options(version="pin").start()
    async with app.worker():
        await is_at(first, RunStatus.WAITING, eventually)
        async with other, other.worker():  # it is offered to both, and one of them hands it back
            second = await newer.start()
    index = app.engine().ns.keys.unserved(partition_of(first.id))
    async with other, other.worker():
        await first.signal("go")
        await eventually(lambda: raw.zcard(index))
        assert await slots(app, raw) == [first.id]
        why = await second.explain()
        assert (why.reason, why.holders) == ("concurrency", [first.id])
        async with app.worker():
            assert await first.result(timeout=15) == "done"
            await second.signal("go")
            assert await second.result(timeout=15) == "done"
    assert await slots(app, raw) == []


async def test_slots_of_runs_that_fail_or_are_cancelled_are_free_again(app: Weft, eventually, raw):
    @app.workflow(concurrency=1)
    async def flow(ctx: Context, fails: bool) -> None:
        await ctx.receive("go")
        if fails:
            raise ValueError("no")

    async with app.worker():
        runs = [await flow.start(fails=n % 2 == 0) for n in range(4)]
        for n, run in enumerate(runs):
            await is_at(run, RunStatus.WAITING, eventually)
            assert await slots(app, raw) == [run.id]
            if n % 2 == 0:
                await run.signal("go")
                await is_at(run, RunStatus.FAILED, eventually)
            else:
                await run.cancel()
                with pytest.raises(RunCancelled):
                    await run.result(timeout=10)
    assert await slots(app, raw) == []


async def test_keys_and_children_are_limited_too(app: Weft, eventually, one_home):
    @app.workflow(concurrency_key=lambda user, n: user, concurrency_per_key=1)
    async def one(ctx: Context, user: str, n: int) -> int:
        await ctx.receive("go")
        return n

    @app.workflow
    async def above(ctx: Context) -> list[int]:
        return list(await ctx.gather(*[ctx.child(one, "a", n) for n in range(2)], ctx.child(one, "b", 2)))

    async with app.worker():
        run = await above.start()

        async def children(status: str) -> list[str]:
            return [info.id for info in await app.runs.list(name="one", status=status)]

        async def begun(n: int) -> None:
            async def there() -> bool:
                return len(await children("waiting")) == n

            await eventually(there)

        await begun(2)
        assert len(await children("queued")) == 1
        for child in await children("waiting"):
            await app.workflows["one"].run(child).signal("go")
        await begun(1)
        for child in await children("waiting"):
            await app.workflows["one"].run(child).signal("go")
        assert await run.result(timeout=10) == [0, 1, 2]


async def test_a_rate_counts_beginnings_not_turns(app: Weft, memory, eventually):
    @app.workflow(rate_limit="1/h")
    async def flow(ctx: Context) -> str:
        for _ in range(3):
            await ctx.sleep("2ms")
        await ctx.receive("go")
        return "done"

    async with app.worker():
        first = await flow.start()
        await first.signal("go")
        assert await first.result(timeout=10) == "done"
        second = await flow.start()
        assert (await second.explain()).reason == "rate"
        await second.cancel()


async def test_starts_count_as_one_for_a_while(app: Weft):
    @app.workflow(unique_for="1h")
    async def joined(ctx: Context, n: int) -> int:
        return n

    @app.workflow(throttle="1h")
    async def throttled(ctx: Context, n: int) -> int:
        return n

    async with app.worker():
        for flow in (joined, throttled):
            first = await flow.start(1)
            assert await first.result(timeout=10) == 1
            again = await flow.start(1)
            assert (again.id, again.deduplicated) == (first.id, True)
            other = await flow.start(2)
            assert not other.deduplicated
            assert await other.result(timeout=10) == 2
            with pytest.raises(InvalidOption, match="second one"):
                await flow.options(id="x").start(1)


async def test_a_failed_start_does_not_stand_in_the_way_and_dropped_ones_end(app: Weft):
    @app.workflow(unique_for="1h", unique="drop")
    async def flow(ctx: Context, n: int) -> int:
        if n:
            raise ValueError("no")
        return n

    async with app.worker():
        first = await flow.start(1)
        with pytest.raises(Exception, match="no"):
            await first.result(timeout=10)
        again = await flow.start(1)
        assert again.id != first.id
        with pytest.raises(Exception, match="no"):
            await again.result(timeout=10)
        kept = await flow.start(0)
        assert await kept.result(timeout=10) == 0
        with pytest.raises(RunCancelled, match="dropped"):
            await (await flow.start(0)).result(timeout=10)


async def test_what_cannot_be_right_is_refused_with_the_reason(app: Weft):
    async def flow(ctx: Context) -> None: ...

    for options, why in (
        ({"debounce": "1s"}, "arguments of a run that has begun"),
        ({"batch": 5}, "a workflow is one run"),
        ({"unique_for": "1h", "unique": "replace"}, "clean-up"),
        ({"concurrency": 0}, "whole number"),
    ):
        with pytest.raises(InvalidOption, match=why):
            app.workflow(**options)(flow)
    with pytest.raises(InvalidOption, match="list of names"):
        app.workflow(aliases="old")(flow)
    assert "flow" not in app.workflows

    unique = app.workflow(unique_for="1h")(flow)

    @app.workflow
    async def above(ctx: Context) -> str:
        try:
            await ctx.child(unique)
        except InvalidArguments as error:
            return str(error)
        return "?"

    async with app.worker():
        assert "a child is one" in await (await above.start()).result(timeout=10)
