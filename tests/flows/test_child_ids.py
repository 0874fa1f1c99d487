"""Children with ids of their own on a store of several partitions: an id is unique in all of them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from weft import AlreadyRunning, Context, InvalidOption, NotFound, RunCancelled, RunStatus, StepFailed, Weft
from weft.engine import flows as verbs
from weft.engine.flows import id_digest, tell_parents
from weft.engine.housekeeping.flows import close_flows
from weft.errors import PartitionLost, Unavailable
from weft.ids import partition_of
from weft.store.runs import read_runs

pytestmark = pytest.mark.usefixtures("memory")


@pytest.fixture
def partitions() -> int:
    return 4


async def status_is(run: Any, status: RunStatus, eventually: Any) -> None:
    async def so() -> bool:
        return bool(await run.status() == status)

    await eventually(so)


def family(app: Weft) -> tuple[Any, Any]:
    @app.workflow
    async def below(ctx: Context, how: str, text: str = "") -> str:
        if how == "waits":
            return str(await ctx.receive("go"))
        if how == "fails":
            raise ValueError("no")
        return how + text

    @app.workflow
    async def above(ctx: Context, id: str, how: str, policy: str = "cancel") -> list[str]:
        child = ctx.options(id=id, on_parent_close=policy).child(below, how, "x" * 20_000 if how == "large" else "")
        ctx.set_state(child=child.id)
        return [child.id, await child]

    return above, below


async def test_parents_everywhere_see_how_their_children_end(app: Weft):
    above, _ = family(app)
    async with app.worker():
        done = await asyncio.gather(*[(await above.start(f"k{i}", "done")).result(timeout=20) for i in range(12)])
        homes = {partition_of(id) for id, _ in done}
        assert len(homes) > 1 and {word for _, word in done} == {"done"}
        large = await asyncio.gather(*[(await above.start(f"k{i}", "large")).result(timeout=20) for i in range(4)])
        assert {len(text) for _, text in large} == {20_005}
        for i in range(4):
            with pytest.raises(StepFailed, match="no"):
                await (await above.start(f"k{i}", "fails")).result(timeout=20)


async def test_an_active_id_is_unique_whoever_has_it_and_free_afterwards(app: Weft, eventually):
    above, below = family(app)
    async with app.worker():
        runs = [await above.start("same", "waits") for _ in range(8)]
        assert len({partition_of(run.id) for run in runs}) > 1

        async def all_but_one() -> bool:
            return [await run.status() for run in runs].count(RunStatus.FAILED) == 7

        await eventually(all_but_one)
        with pytest.raises(AlreadyRunning, match="same"):
            await below.options(id="same").start("waits")
        (winner,) = [run for run in runs if await run.status() != RunStatus.FAILED]
        for run in runs:
            if run is not winner:
                with pytest.raises(StepFailed, match="AlreadyRunning"):
                    await run.result(timeout=5)
        child = below.run((await winner.state())["child"])
        await child.signal("go", "inside")
        assert await winner.result(timeout=10) == [child.id, "inside"]
        again = await above.start("same", "done")
        assert (await again.result(timeout=10))[1] == "done"
        assert await (await below.options(id="same").start("done")).result(timeout=10) == "done"


async def test_cancellation_goes_down_and_what_is_left_stays(app: Weft, eventually):
    above, below = family(app)
    async with app.worker():
        for policy in ("cancel", "leave"):
            for i in range(4):
                run = await above.start(f"c{i}", "waits", policy)
                await status_is(run, RunStatus.WAITING, eventually)
                child = below.run((await run.state())["child"])
                await status_is(child, RunStatus.WAITING, eventually)
                (seen,) = (await run.tree()).children
                assert seen.id == child.id and seen.status == RunStatus.WAITING
                await run.cancel()
                with pytest.raises(RunCancelled):
                    await run.result(timeout=10)
                if policy == "leave":
                    await child.signal("go", 1)
                    assert await child.result(timeout=10) == "1"
                else:
                    with pytest.raises(RunCancelled):
                        await child.result(timeout=10)


async def test_a_parent_whose_partition_is_lost_is_told_later(app: Weft, eventually, raw):
    above, below = family(app)
    async with app.worker():
        run = await above.start("k0", "waits")
        i = 0
        while True:  # one whose child lives elsewhere
            await status_is(run, RunStatus.WAITING, eventually)
            child = below.run((await run.state())["child"])
            if partition_of(child.id) != partition_of(run.id):
                break
            await child.signal("go")
            await run.result(timeout=10)
            i += 1
            run = await above.start(f"k{i}", "waits")
        await child.signal("go", 1)
        await run.result(timeout=10)
    ns, p = app.engine().ns, partition_of(run.id)
    (row,) = await read_runs(ns, partition_of(child.id), [child.id])
    assert row is not None
    epoch, hash = raw.hget(ns.keys.epoch(p), "number"), raw.dump(ns.keys.run(p, run.id))
    raw.hdel(ns.keys.epoch(p), "number")
    raw.delete(ns.keys.run(p, run.id))
    (wrong,) = await tell_parents(ns, [row], by="t")
    assert isinstance(wrong, PartitionLost) and "is being rebuilt" in wrong.message
    # Others do not wait for that: it is put off, and raises nothing.
    timers, close = ns.keys.timers(row_p := partition_of(row.id)), f"close:{row.id}"
    raw.zadd(timers, {close: 1})
    await close_flows(ns, row_p, [row], by="t", seen_ms=1)
    assert float(raw.zscore(timers, close)) > 1
    raw.hset(ns.keys.epoch(p), "number", epoch)
    await close_flows(ns, row_p, [row], by="t", seen_ms=1)
    assert raw.zscore(timers, close) is None
    assert await tell_parents(ns, [row], by="t") == [None]  # it is gone for good: nobody is left to be told
    raw.restore(ns.keys.run(p, run.id), 60_000, hash)


@pytest.mark.leaves("history")
async def test_a_child_that_its_partition_lost_is_looked_for_and_started_again(
    app: Weft, eventually, raw, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("weft.worker.flowend.LOOK_MS", 300)
    above, below = family(app)
    async with app.worker() as worker:
        runs = [await above.start(f"k{i}", "waits") for i in range(4)]
        for run in runs:
            await status_is(run, RunStatus.WAITING, eventually)
        children = [below.run((await run.state())["child"]) for run in runs]
        pairs = [(r, c) for r, c in zip(runs, children, strict=True) if partition_of(r.id) != partition_of(c.id)]
        assert pairs
        for _, child in pairs:
            await status_is(child, RunStatus.WAITING, eventually)
        run, child = pairs[0]
        ns, p = app.engine().ns, partition_of(child.id)
        # As a store that lost its last second: there never was such a run.
        for key in list(raw.scan_iter(f"{ns.keys.prefix(p)}*{child.id}*")):
            raw.delete(key)
        raw.zrem(ns.keys.timers(p), f"open:{child.id}")
        if kept := worker.executor.flows._waiting.pop(child.id, None):
            kept.let_go()  # as for another epoch
        raw.delete(ns.keys.unique(p, id_digest(f"k{runs.index(run)}")))

        async def there() -> bool:
            return bool(raw.exists(ns.keys.run(p, child.id)))

        await eventually(there)
        for one, other in zip(runs, children, strict=True):
            await status_is(other, RunStatus.WAITING, eventually)
            await other.signal("go", "found")
            assert await one.result(timeout=10) == [other.id, "found"]
            told = [event.type for event in await one.history()]
            assert told.count("child_completed") == 1


async def test_a_run_in_progress_is_found_by_its_id(app: Weft, eventually):
    above, below = family(app)
    with pytest.raises(NotFound, match="no workflow with id 'o-1' is running"):
        await below.find("o-1")
    async with app.worker():
        run = await below.options(id="o-1").start("waits")
        found = await below.find("o-1")
        assert found.id == run.id
        with pytest.raises(NotFound, match=f"is a below, not a above: run {run.id}"):
            await above.find("o-1")
        with pytest.raises(InvalidOption):
            await below.find("")
        await found.signal("go", "now")
        assert await run.result(timeout=10) == "now"
        with pytest.raises(NotFound, match="it has ended"):
            await below.find("o-1")


def test_plain_code_finds_a_run_by_its_id(app: Weft):
    _, below = family(app)
    run = below.options(id="o-2").sync.start("waits")
    assert below.sync.find("o-2").id == run.id
    run.cancel()


async def test_a_partition_that_does_not_answer_holds_up_the_news_of_no_other(
    app: Weft, monkeypatch: pytest.MonkeyPatch
):
    above, _ = family(app)
    async with app.worker():
        runs = [await above.start(f"k{i}", "done") for i in range(8)]
        children = [(await run.result(timeout=10))[0] for run in runs]
    ns, silent = app.engine().ns, partition_of(runs[0].id)
    assert {partition_of(run.id) for run in runs} != {silent}
    rows = [row for id in children for row in await read_runs(ns, partition_of(id), [id]) if row is not None]

    async def answer(ns: Any, p: int, ids: list[str]) -> list[Any]:
        if p == silent:
            raise Unavailable("no answer")
        return await read_runs(ns, p, ids)

    monkeypatch.setattr("weft.engine.flows.read_runs", answer)
    wrong = await tell_parents(ns, rows, by="t")
    assert [error is not None for error in wrong] == [partition_of(run.id) == silent for run in runs]


async def test_of_two_children_that_want_one_id_the_first_gets_it(app: Weft, monkeypatch: pytest.MonkeyPatch):
    _, below = family(app)
    begun, start = [], verbs.start_child

    async def first_is_slow(ns: Any, run: str, *args: Any, **options: Any) -> str:
        begun.append(run)
        await asyncio.sleep(0.1 if len(begun) == 1 else 0)
        return await start(ns, run, *args, **options)

    monkeypatch.setattr(verbs, "start_child", first_is_slow)

    @app.workflow
    async def twice(ctx: Context) -> str:
        first, second = (ctx.options(id="one").child(below, how) for how in ("first", "second"))
        with pytest.raises(AlreadyRunning):
            await second
        return await first

    async with app.worker():
        assert await (await twice.start()).result(timeout=20) == "first"
