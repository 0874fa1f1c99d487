"""Stored definitions stay as long as a run that is kept needs them, however long that is, and go when none does."""

from __future__ import annotations

import asyncio

import pytest
from waiting import node_of

from weft import Weft
from weft.engine import keeping
from weft.engine.definitions import Definitions
from weft.engine.housekeeping.sweeper import RECONCILE_PAGE
from weft.engine.keeping import Keeper
from weft.store.runs import read_ledgers, scan_runs


class Rounds:
    """What the sweeper does for definitions, a whole round at a time."""

    def __init__(self, app: Weft) -> None:
        self.ns = app.engine().ns
        self.keepers = [Keeper(self.ns, p) for p in range(self.ns.partitions)]

    async def go(self, n: int = 1) -> None:
        for _ in range(n):
            for p, keeper in enumerate(self.keepers):
                cursor = 0
                while True:
                    await keeper.ask()
                    cursor, ids = await scan_runs(self.ns, p, cursor, count=RECONCILE_PAGE)
                    keeper.note(await read_ledgers(self.ns, p, ids))
                    if not cursor:
                        break
                await keeper.end_round()

    async def stored(self) -> int:
        n = 0
        for p in range(self.ns.partitions):
            marks = await self.ns.read("HKEYS", self.ns.keys.definitions(p), p=p)
            n += sum([await self.ns.read("EXISTS", self.ns.keys.ir(p, one.decode()), p=p) for one in marks])
        return n

    async def forget_runs(self) -> None:
        """Lets time pass until no run is kept."""
        for p in range(self.ns.partitions):
            _, ids = await scan_runs(self.ns, p, 0)
            for id in ids:
                await self.ns.read("DEL", self.ns.keys.run(p, id), p=p)


@pytest.fixture
async def worker(start_worker):
    return await start_worker()


@pytest.fixture
def asks(app: Weft):
    """Waits for a signal, then runs a step and a subgraph that no run has needed until then."""
    inner = app.graph("inner")

    @inner.node
    async def last() -> str:
        return "done"

    asks = app.graph("asks")
    asks.wait("approved", signal="go")
    asks.subgraph("child", inner, after="approved")
    return asks


@pytest.fixture
def forgetful(monkeypatch):
    """Makes every process read definitions anew."""

    def forget() -> None:
        for place in ("weft.engine.definitions.definitions", "weft.engine.graphs.definitions"):
            monkeypatch.setattr(place, Definitions())

    return forget


@pytest.mark.parametrize("paused", [False, True])
async def test_a_run_that_is_parked_for_years_finds_its_definition(
    app, asks, worker, weft_clock, one_home, quiet, forgetful, paused
):
    run = await asks.start({})
    await node_of(run, "approved", "waiting")
    if paused:
        await run.pause()
    rounds = Rounds(app)

    for _ in range(4):
        await rounds.go(2)
        await weft_clock.advance("365d")
    forgetful()

    if paused:
        await run.resume()
    await run.signal("go", {})
    assert await run.result(timeout=30) == "done"
    assert await rounds.stored() == 2


async def test_what_no_run_needs_is_dropped_and_the_next_start_stores_it_again(
    app, asks, worker, weft_clock, one_home, quiet
):
    run = await asks.start({})
    await run.signal("go", {})
    await run.result(timeout=30)
    await quiet()
    rounds = Rounds(app)
    await rounds.go(2)
    await weft_clock.advance("2h")
    await rounds.go(2)
    assert await rounds.stored() == 2  # a run that has ended can be retried and forked while it is kept

    await rounds.forget_runs()
    await rounds.go(2)
    assert await rounds.stored() == 2  # its next run may come soon
    await weft_clock.advance("2h")
    await rounds.go(2)
    assert await rounds.stored() == 0

    run = await asks.start({})
    await run.signal("go", {})
    assert await run.result(timeout=30) == "done"
    assert await rounds.stored() == 2
    await quiet()


async def test_a_start_takes_the_mark_away(app, asks, worker, weft_clock, one_home, quiet):
    run = await asks.start({})
    await run.cancel()
    await quiet()
    rounds = Rounds(app)
    await rounds.forget_runs()
    await rounds.go(2)
    await weft_clock.advance("2h")

    # Started in the middle of the round that would drop it, behind where the round has looked.
    (keeper,) = rounds.keepers[:1]
    await keeper.ask()
    _, ids = await scan_runs(rounds.ns, 0, 0)
    keeper.note(await read_ledgers(rounds.ns, 0, ids))
    run = await asks.start({})
    await keeper.end_round()

    await node_of(run, "approved", "waiting")
    await rounds.go(2)
    await run.signal("go", {})
    assert await run.result(timeout=30) == "done"
    await quiet()


async def test_a_page_that_could_not_be_read_drops_nothing(app, asks, worker, weft_clock, one_home, quiet):
    run = await asks.start({})
    await node_of(run, "approved", "waiting")
    rounds = Rounds(app)
    (keeper,) = rounds.keepers[:1]
    for _ in range(3):
        await keeper.ask()  # and the read fails
        await keeper.end_round()
        await weft_clock.advance("2h")
    assert await rounds.stored() == 2
    await run.cancel()
    await quiet()


async def test_patched_runs_keep_all_the_definitions_they_may_go_back_to(
    app, asks, worker, weft_clock, one_home, quiet, forgetful
):
    run = await asks.start({})
    await node_of(run, "approved", "waiting")
    for i in range(3):
        node = {"type": "transform", "value": f"{i}", "after": ["child"]}
        await run.patch([{"op": "add" if i == 0 else "replace", "path": "/nodes/more", "value": node}])
    rounds = Rounds(app)
    await rounds.go(2)
    await weft_clock.advance("2h")
    await rounds.go(2)
    # The first, the newest, the one before it, and the subgraph's.
    assert await rounds.stored() == 4
    forgetful()

    await run.undo_patch()
    await run.signal("go", {})
    assert await run.result(timeout=30) == "done"
    assert (await run.graph())["nodes"]["more"]["output"] == "1"
    await quiet()


async def test_the_sweeper_does_it(app, asks, start_worker, short_lease, weft_clock, one_home, quiet, eventually):
    await start_worker()
    run = await asks.start({})
    await run.cancel()
    await quiet()
    rounds = Rounds(app)
    await rounds.forget_runs()

    async def dropped() -> bool:
        await weft_clock.advance(keeping.GRACE_MS / 1000)
        await asyncio.sleep(0.2)
        return await rounds.stored() == 0

    await eventually(dropped, 30)
