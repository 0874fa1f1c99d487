"""Pausing a graph run pauses the runs that its steps have started, and theirs; resuming lets them go on."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from weft import Conflict, RunCancelled, Weft
from weft.ids import partition_of
from weft.store import pauses
from weft.store.pauses import pause_run, resume_run


@pytest.fixture
async def worker(start_worker):
    return await start_worker()


class Nested:
    """Graphs three deep; the innermost has two steps, of which the first waits until it is let go."""

    def __init__(self, app: Weft, **options: Any) -> None:
        self.app, self.begun, self.second = app, 0, 0
        self.go = asyncio.Event()
        nested = self
        inner, middle = app.graph("inner"), app.graph("middle")

        @inner.node
        async def first() -> None:
            nested.begun += 1
            await nested.go.wait()

        @inner.node(after=first)
        async def second() -> int:
            nested.second += 1
            return 1

        middle.subgraph("below", inner)
        self.outer = app.graph("outer")
        self.outer.subgraph("child", middle, **options)

    async def statuses(self) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for info in await self.app.runs.list():
            found.setdefault(info.name, []).append(str(info.status))
        return found


async def test_children_and_theirs_stand_still_and_go_on(app, worker, eventually, quiet):
    nested = Nested(app)
    run = await nested.outer.start()
    await eventually(lambda: nested.begun == 1)

    assert await run.pause("looking") is True
    assert await nested.statuses() == {"outer": ["paused"], "middle": ["paused"], "inner": ["paused"]}
    nested.go.set()
    await asyncio.sleep(0.3)
    assert nested.second == 0

    assert await run.resume() is True
    assert await run.result(timeout=30) == 1
    assert await _all(nested, "completed")
    await quiet()
    child = app.runs.get((await run.graph())["nodes"]["child"]["child"])
    told = {event.type: event.data for event in await child.history() if event.type in ("paused", "resumed")}
    assert told["paused"]["by"] == told["resumed"]["by"] == f"run {run.id}"


async def test_all_children_of_a_map_are_paused(app, worker, eventually, quiet):
    nested = Nested(app, map="[1, 2, 3]")
    run = await nested.outer.start()
    await eventually(lambda: nested.begun == 3)

    await run.pause()
    assert await nested.statuses() == {"outer": ["paused"], "middle": ["paused"] * 3, "inner": ["paused"] * 3}
    nested.go.set()
    await run.resume()

    assert await run.result(timeout=30) == [1, 1, 1]
    await quiet()


async def test_a_child_that_somebody_paused_stays_paused(app, worker, eventually, quiet):
    nested = Nested(app)
    run = await nested.outer.start()
    await eventually(lambda: nested.begun == 1)
    child = app.graphs["middle"].run((await run.graph())["nodes"]["child"]["child"])
    await child.pause("mine")

    await run.pause()
    await run.resume()

    assert await nested.statuses() == {"outer": ["running"], "middle": ["paused"], "inner": ["paused"]}
    await child.resume()
    nested.go.set()
    assert await run.result(timeout=30) == 1
    await quiet()


async def test_a_child_that_is_started_meanwhile_is_paused_too(app, worker, eventually, quiet, monkeypatch):
    nested = Nested(app)
    launched, launch = asyncio.Event(), asyncio.Event()
    from weft.engine import subgraphs

    real = subgraphs._launch

    async def late(*args: Any) -> None:
        launched.set()
        await launch.wait()
        await real(*args)

    monkeypatch.setattr(subgraphs, "_launch", late)
    run = await nested.outer.start()
    await asyncio.wait_for(launched.wait(), 10)
    await run.pause()  # its child is about to be started
    launch.set()

    async def both() -> bool:
        return (await nested.statuses()).get("middle") == ["paused"]

    await eventually(both)
    nested.go.set()
    await run.resume()
    assert await run.result(timeout=30) == 1
    await quiet()


async def test_who_dies_in_between_is_stood_in_for(app, worker, eventually, quiet):
    nested = Nested(app)
    run = await nested.outer.start()
    await eventually(lambda: nested.begun == 1)
    ns, p = app.engine().ns, partition_of(run.id)

    # The caller's script, and not a call more.
    await pause_run(ns, p, run.id, by="c-1", reason="", at_ms=1, spreads=True)
    await eventually(lambda: _all(nested, "paused"))
    await resume_run(ns, p, run.id, by="c-1", spreads=True)
    await eventually(lambda: _all(nested, "running"))

    nested.go.set()
    assert await run.result(timeout=30) == 1
    await quiet()


async def _all(nested: Nested, status: str) -> bool:
    return {one for some in (await nested.statuses()).values() for one in some} == {status}


async def test_whoever_passes_a_pause_on_second_answers_for_all_below(app, worker, eventually, quiet):
    """A timer passes it on beside the caller: the one that came second to a child waits for no other with what is below."""
    nested = Nested(app)
    run = await nested.outer.start()
    await eventually(lambda: nested.begun == 1)
    child = (await run.graph())["nodes"]["child"]["child"]
    ns, p = app.engine().ns, partition_of(run.id)

    # Somebody has come as far as the child.
    await pause_run(ns, p, run.id, by="c-1", reason="", at_ms=1)
    await pause_run(ns, p, child, by=f"run {run.id}", reason="", at_ms=1, above=run.id)
    await run.pause()
    assert await _all(nested, "paused")
    await resume_run(ns, p, run.id, by="c-1")
    await resume_run(ns, p, child, by=f"run {run.id}", above=run.id)
    await run.resume()
    assert await _all(nested, "running")

    nested.go.set()
    assert await run.result(timeout=30) == 1
    await quiet()


async def test_a_pause_that_is_passed_on_late_changes_nothing(app, worker, eventually, quiet):
    nested = Nested(app)
    run = await nested.outer.start()
    await eventually(lambda: nested.begun == 1)
    child = app.runs.get((await run.graph())["nodes"]["child"]["child"])
    ns, p = app.engine().ns, partition_of(run.id)

    assert await pause_run(ns, p, child.id, by="x", reason="", at_ms=1, above=run.id) == ("running", False)
    await run.pause()
    assert await resume_run(ns, p, child.id, by="x", above=run.id) == ("paused", False)
    await run.resume()

    nested.go.set()
    assert await run.result(timeout=30) == 1
    await quiet()


async def test_pausing_and_resuming_at_once_ends_in_what_the_run_says(app, worker, eventually, quiet):
    nested = Nested(app)
    run = await nested.outer.start()
    await eventually(lambda: nested.begun == 1)

    for _ in range(5):
        await asyncio.gather(run.pause(), run.resume(), run.pause(), run.resume())
    await run.resume()

    await eventually(lambda: _all(nested, "running"))
    nested.go.set()
    assert await run.result(timeout=30) == 1
    await quiet()


async def test_cancelling_a_paused_run_ends_its_children_and_lifts_their_pauses(app, worker, eventually, quiet):
    nested = Nested(app)
    run = await nested.outer.start()
    await eventually(lambda: nested.begun == 1)
    await run.pause()

    await run.cancel()

    with pytest.raises(RunCancelled):
        await run.result(timeout=30)
    await eventually(lambda: _all(nested, "cancelled"))
    await quiet()
    ns = app.engine().ns
    assert [await ns.read("HLEN", ns.keys.controls(p), p=p) for p in range(ns.partitions)] == [0] * ns.partitions


async def test_more_children_than_can_be_paused_are_told(app, worker, eventually, quiet, monkeypatch):
    nested = Nested(app, map="[1, 2, 3]")
    run = await nested.outer.start()
    await eventually(lambda: nested.begun == 3)
    monkeypatch.setattr(pauses, "MAX_CONTROLS", 2)

    with pytest.raises(Conflict, match="pause a queue or a task instead"):
        await run.pause()

    assert await run.status() == "paused"
    await run.resume()
    nested.go.set()
    assert await run.result(timeout=30) == [1, 1, 1]
    await quiet()
