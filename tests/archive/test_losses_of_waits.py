"""What waits when the store is lost waits again as it did: for signals, for people, for a second start of what takes long."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from weft import Conflict, Discard, StepFailed, Weft
from weft.ids import partition_of

pytestmark = [pytest.mark.leaves("history", "open runs"), pytest.mark.usefixtures("quick")]


@pytest.fixture
def database_url(tmp_path) -> str:
    """SQLite only: what is looked at here is the store."""
    return f"sqlite:///{tmp_path / 'archive.sqlite'}"


def waits(app: Weft, raw: Any, run: str) -> dict[str, Any]:
    """Returns all that the store has of the steps of a run that wait, and of its signals."""
    keys, p = app.engine().ns.keys, partition_of(run)
    timers = dict(raw.zrange(keys.timers(p), 0, -1, withscores=True))
    steps = {}
    for name in sorted(raw.hkeys(keys.ledger(p, run))):
        row = raw.hgetall(keys.run(p, f"{run}/{name.decode()}"))
        steps[name] = (row[b"open"].partition(b":")[2], row.get(b"status"), row.get(b"due"))
    return {
        "signals": raw.hgetall(keys.signals(p, run)),
        "steps": steps,
        "timers": {name: due for name, due in timers.items() if name.startswith((b"wait:", b"open:"))},
        "parked": raw.hget(keys.run(p, run), "parked"),
        "approvals": raw.hget(keys.run(p, run), "approvals"),
        "pending": raw.zrange(keys.pending_approvals(p), 0, -1, withscores=True),
    }


@pytest.fixture
def lose(app, archive, archivers, raw):
    async def lost(run: str) -> None:
        await archive()
        before = waits(app, raw, run)
        raw.delete(*raw.scan_iter(match=f"{app.engine().ns.keys.namespace}:*"))
        for each in await archivers():
            assert await each._recover()
        assert waits(app, raw, run) == before

    return lost


async def parked(run: Any, n: int, eventually: Any) -> None:
    async def all_wait() -> bool:
        return [event.type for event in await run.history()].count("step_waiting") == n

    await eventually(all_wait)


async def test_steps_that_wait_for_signals_and_people_with_their_time(app, lose, start_worker, eventually):
    graph = app.graph("order", output="${[a, b, late, ok.decision]}")
    graph.wait("a", signal="go", timeout="1h")
    graph.wait("b", signal="go")
    graph.wait("late", signal="never", timeout="2s", on_timeout="continue")
    graph.approval("ok", title="ok?", approvers=["ann", "bo", "cy"], quorum=2, timeout="1h", reminders=["10m"])
    worker = await start_worker()
    run = await graph.start()
    await parked(run, 4, eventually)
    await worker.stop()
    (asked,) = await app.approvals.list(run=run.id)
    await app.approvals.approve(asked.id, by="ann", digest=asked.digest, request_id="v1")

    await lose(run.id)

    (after,) = await app.approvals.list(run=run.id)
    assert after == msgspec.structs.replace(asked, votes=after.votes) and [vote["by"] for vote in after.votes] == [
        "ann"
    ]
    with pytest.raises(Conflict, match="one vote"):
        await app.approvals.approve(asked.id, by="ann", digest=asked.digest)
    assert await run.signal("go", 1, request_id="s1")  # somebody waits, though no worker is there
    assert await run.signal("go", 1, request_id="s1")
    assert await run.signal("go", 2, request_id="s2")
    await app.approvals.approve(asked.id, by="bo", digest=asked.digest)
    await start_worker()
    assert await run.result(30) == [1, 2, None, "approved"]


async def test_signals_that_nobody_took_are_kept_once(app, lose, start_worker, eventually):
    graph = app.graph("order", output="${[a, b, c]}")
    gate = graph.wait("gate", signal="open")
    a = graph.wait("a", signal="go", after=gate)
    b = graph.wait("b", signal="go", after=a)
    graph.wait("c", signal="go", after=b)
    worker = await start_worker()
    run = await graph.start()
    await parked(run, 1, eventually)
    await worker.stop()
    for n, request in enumerate(("one", "two, | %")):
        assert await run.signal("go", n, request_id=request) is False

    await lose(run.id)

    # Whoever was not sure that it arrived sends it again.
    for n, request in enumerate(("one", "two, | %")):
        assert await run.signal("go", n, request_id=request) is False
    assert await run.signal("go", 2, request_id="three") is False
    await start_worker()
    await run.signal("open")
    assert await run.result(30) == [0, 1, 2]


async def test_items_of_maps_that_take_long_are_started_a_second_time_again(app, archive, archivers, raw, start_worker):
    calls: list[int] = []
    graph, gate = app.graph("slow"), asyncio.Event()

    @graph.node(map="input.items", hedge="100ms")
    async def each(item: int) -> int:
        calls.append(item)
        if item == 1 and not (gate.is_set() and calls.count(1) % 2 == 0):
            await asyncio.sleep(3600)
        return item * 10

    run = await graph.start({"items": [0, 1]})
    worker = await start_worker()
    while calls.count(1) < 2:
        await asyncio.sleep(0.01)
    while "each#0" not in [event.step for event in await run.history() if event.type == "step_completed"]:
        await asyncio.sleep(0.01)
    await worker.stop(grace=0)
    await archive()
    raw.delete(*raw.scan_iter(match=f"{app.engine().ns.keys.namespace}:*"))
    for each_one in await archivers():
        assert await each_one._recover()

    assert any(b"hedge:" in name for name in raw.zrange(app.engine().ns.keys.timers(partition_of(run.id)), 0, -1))
    gate.set()
    await start_worker()
    assert await run.result(30) == [0, 10]
    hedged = [event.step for event in await run.history() if event.type == "step_hedged"]
    assert hedged == ["each#1", "each#1"] and calls.count(0) == 1


async def test_a_wait_whose_time_was_over_while_the_store_was_away(app, lose, start_worker, eventually):
    graph = app.graph("late")
    graph.wait("paid", signal="paid", timeout="300ms")
    worker = await start_worker()
    run = await graph.start()
    await parked(run, 1, eventually)
    await worker.stop()

    await lose(run.id)

    await asyncio.sleep(0.3)
    await start_worker()
    with pytest.raises(StepFailed, match="did not come within 300ms"):
        await run.result(30)


async def test_what_was_discarded_stays_so_after_a_loss(app, lose, start_worker, eventually):
    calls: list[int] = []
    graph = app.graph("discarding", output="${[status.once, each, late]}")

    @graph.node
    async def once() -> None:
        calls.append(-1)
        raise Discard("not needed")

    @graph.node(map="[1, 2, 3]")
    async def each(item: int) -> int:
        calls.append(item)
        if item == 2:
            raise Discard("nor this")
        return item

    graph.wait("late", signal="late")
    worker = await start_worker()
    run = await graph.start()
    await parked(run, 1, eventually)

    async def all_else_ended() -> bool:
        nodes = (await run.graph())["nodes"]
        return (nodes["once"]["status"], nodes["each"]["status"]) == ("skipped", "completed")

    await eventually(all_else_ended)
    await worker.stop()

    await lose(run.id)

    assert (await run.graph())["nodes"]["once"]["reason"] == "not needed"
    await start_worker()
    await run.signal("late", 4)
    assert await run.result(30) == ["skipped", [1, None, 3], 4]
    assert sorted(calls) == [-1, 1, 2, 3]


async def test_a_patch_of_a_run_that_was_lost_is_undone(app, lose, start_worker, eventually):
    graph = app.graph("patched", output="${go}")
    graph.wait("go", signal="go")
    await start_worker()
    run = await graph.start()
    await parked(run, 1, eventually)
    value = {"type": "transform", "value": 1, "after": ["go"]}
    await run.patch([{"op": "add", "path": "/nodes/more", "value": value}])

    await lose(run.id)

    undone = await run.undo_patch()
    assert undone["revision"] == 3 and "more" not in (await run.graph())["nodes"]
    await run.signal("go", 7)
    assert await run.result(20) == 7
