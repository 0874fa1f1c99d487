"""Patching a run whose steps wait: for a signal, for people, for their time, for a child, at a gate or for a pause to end."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from graph_keys import closed, remains
from waiting import approval_of, node_of

from weft import Conflict, StepFailed, Weft
from weft.core.graph.validate import check_document
from weft.sdk.graph import Graph


@pytest.fixture
async def worker(start_worker):
    return await start_worker()


@pytest.fixture
def ran(app: Weft) -> list[str]:
    """What ran of the task `note`, in order."""
    ran: list[str] = []

    @app.task
    async def note(text: str) -> str:
        ran.append(text)
        return text

    return ran


def noting(text: str, *after: str, **more: Any) -> dict[str, Any]:
    return {"type": "task", "call": "note", "with": {"text": text}, **({"after": list(after)} if after else {}), **more}


def add(id: str, value: dict[str, Any]) -> dict[str, Any]:
    return {"op": "add", "path": f"/nodes/{id}", "value": value}


def graph_of(app: Weft, first: dict[str, Any], **nodes: dict[str, Any]) -> Graph:
    """A graph whose first node waits; `last` comes behind it."""
    nodes = {"first": first, "last": noting("old", "first"), **nodes}
    spec = check_document({"name": "waits", "output": "${last}", "nodes": nodes}, app.find_shape).valid()
    return Graph.of(app, spec)


async def settled(app: Weft, run: Any, raw: Any, eventually: Any) -> None:
    """Waits until nothing is left of a run, its children and what ran beside it."""
    await closed(run, eventually)

    async def nothing_remains() -> bool:
        return await remains(app, raw) == []

    await eventually(nothing_remains, 30)


#: How the first node waits, and what lets it go on.
WAITS = {
    "signal": {"type": "wait", "signal": "go"},
    "approval": {"type": "approval", "approvers": ["ops"]},
    "duration": {"type": "wait", "duration": "1h"},
    "timeout": {"type": "wait", "signal": "never", "timeout": "1h", "on_timeout": "continue"},
}


class Going:
    """Lets a run go on that waits."""

    def __init__(self, app: Weft, clock: Any) -> None:
        self.app, self.clock = app, clock

    async def __call__(self, kind: str, run: Any) -> None:
        if kind == "signal":
            await run.signal("go", {})
        elif kind == "approval":
            approval = await approval_of(self.app, run, "first")
            await self.app.approvals.approve(approval.id, by="ops", digest=approval.digest)
        else:
            await self.clock.advance("2h")


@pytest.fixture
def go_on(app: Weft, weft_clock: Any) -> Going:
    return Going(app, weft_clock)


KINDS = ["signal", "approval", "duration", "timeout"]


@pytest.mark.parametrize("kind", KINDS)
async def test_what_comes_behind_a_step_that_waits_can_be_changed(app, ran, worker, go_on, eventually, raw, kind):
    run = await graph_of(app, WAITS[kind]).start({})
    await node_of(run, "first", "waiting")
    before = await run.graph()

    told = await run.patch([add("last", noting("new", "first")), add("more", noting("more", "first"))])

    assert (told["revision"], told["changed"], told["added"], told["reached"]) == (2, ["last"], ["more"], [])
    after = (await run.graph())["nodes"]["first"]
    assert {name: after[name] for name in ("status", "opened_ms")} == {
        name: before["nodes"]["first"][name] for name in ("status", "opened_ms")
    }
    await go_on(kind, run)
    assert await run.result(timeout=30) == "new"
    assert sorted(ran) == ["more", "new"]
    await settled(app, run, raw, eventually)


@pytest.mark.parametrize("kind", KINDS)
async def test_the_step_that_waits_stays_as_it_is(app, ran, worker, go_on, eventually, raw, kind):
    run = await graph_of(app, WAITS[kind]).start({})
    await node_of(run, "first", "waiting")

    for operation in (
        add("first", {"type": "wait", "signal": "other"}),
        {"op": "remove", "path": "/nodes/first"},
    ):
        operations = [operation, add("last", noting("new"))]
        with pytest.raises(Conflict, match="first has begun"):
            await run.patch(operations)
        with pytest.raises(Conflict, match="first has begun"):
            await run.patch(operations, dry_run=True)

    assert (await run.graph())["revision"] == 1
    await go_on(kind, run)
    assert await run.result(timeout=30) == "old"
    await settled(app, run, raw, eventually)


@pytest.mark.parametrize("kind", KINDS)
async def test_a_node_beside_a_step_that_waits_begins_at_once_and_an_undo_takes_back_what_has_not(
    app, ran, worker, go_on, eventually, raw, kind
):
    run = await graph_of(app, WAITS[kind]).start({})
    await node_of(run, "first", "waiting")

    await run.patch([add("beside", noting("beside"))])
    await eventually(lambda: ran == ["beside"])
    await run.patch([add("last", noting("new", "first", "beside"))])
    await run.undo_patch()

    await go_on(kind, run)
    assert await run.result(timeout=30) == "old"
    assert ran == ["beside", "old"]
    await settled(app, run, raw, eventually)


@pytest.mark.parametrize("kind", KINDS)
async def test_a_join_waits_for_what_is_added_before_it(app, ran, worker, go_on, eventually, raw, kind):
    run = await graph_of(app, WAITS[kind]).start({})
    await node_of(run, "first", "waiting")

    await run.patch([add("other", {"type": "wait", "signal": "also"}), add("last", noting("both", "first", "other"))])
    await go_on(kind, run)
    await node_of(run, "other", "waiting")
    assert (await run.graph())["nodes"]["last"]["status"] == "pending"
    # The signal is known since the patch.
    await run.signal("also", {})

    assert await run.result(timeout=30) == "both"
    assert ran == ["both"]
    await settled(app, run, raw, eventually)


async def test_without_a_worker_patches_are_made_all_the_same(app, ran, start_worker, eventually, raw):
    worker = await start_worker()
    run = await graph_of(app, WAITS["signal"]).start({})
    await node_of(run, "first", "waiting")
    await worker.stop()

    await run.patch([add("last", noting("new", "first"))])
    await run.signal("go", {})

    await start_worker()
    assert await run.result(timeout=30) == "new"
    await settled(app, run, raw, eventually)


async def test_a_patch_and_a_signal_at_once_lose_nothing(app, ran, worker, eventually, raw):
    graph = graph_of(app, WAITS["signal"])
    for i in range(10):
        ran.clear()
        run = await graph.start({})
        await node_of(run, "first", "waiting")

        async def patch(run: Any = run, i: int = i) -> bool:
            await asyncio.sleep(i / 1000)
            try:
                await run.patch([add("last", noting("new", "first"))])
            except Conflict:
                return False
            return True

        patched, _ = await asyncio.gather(patch(), run.signal("go", {}))
        wanted = "new" if patched else "old"
        assert await run.result(timeout=30) == wanted
        assert ran == [wanted]
        await settled(app, run, raw, eventually)


async def test_a_wait_that_a_patch_adds_has_the_signal_that_came_early(app, ran, worker, eventually, raw):
    run = await graph_of(app, WAITS["signal"]).start({})
    await node_of(run, "first", "waiting")
    await run.patch([add("second", {"type": "wait", "signal": "early", "after": ["first"]})])
    assert await run.signal("early", {}) is False
    await run.patch([add("last", noting("new", "second"))])

    await run.signal("go", {})

    assert await run.result(timeout=30) == "new"
    await settled(app, run, raw, eventually)


async def test_a_step_that_is_tried_again_later_has_begun(app, ran, worker, weft_clock, eventually, raw):
    tries: list[int] = []

    @app.task(retries=1, retry_delay="1h", max_delay="2h", jitter=False)
    async def flaky() -> None:
        tries.append(1)
        if len(tries) == 1:
            raise ValueError("once")

    run = await graph_of(app, {"type": "task", "call": "flaky"}).start({})
    await node_of(run, "first", "waiting")

    with pytest.raises(Conflict, match="first has begun"):
        await run.patch([add("first", noting("instead"))])
    await run.patch([add("last", noting("new", "first"))])
    await weft_clock.advance("2h")

    assert await run.result(timeout=30) == "new"
    assert len(tries) == 2
    await settled(app, run, raw, eventually)


async def test_what_comes_behind_a_child_can_be_changed_while_it_waits(app, ran, worker, eventually, raw):
    inner = app.graph("inner")
    inner.wait("inside", signal="go")
    run = await graph_of(app, {"type": "subgraph", "graph": "inner"}).start({})

    async def started() -> bool:
        return any(info.name == "inner" for info in await app.runs.list())

    await eventually(started)
    child = inner.run((await node_of(run, "first", "waiting", "ready", "running"))["child"])
    await node_of(child, "inside", "waiting")

    await run.patch([add("last", noting("new", "first"))])
    await child.signal("go", {})

    assert await run.result(timeout=30) == "new"
    await settled(app, run, raw, eventually)


async def test_a_step_that_waits_in_the_body_of_a_loop_keeps_the_body_as_it_is(app, ran, worker, eventually, raw):
    body = noting("body", "first")
    again = {"type": "loop", "after": ["body"], "while": "iteration < 1", "to": "first", "max_iterations": 2}
    graph = graph_of(app, WAITS["signal"], body=body, again=again, last=noting("old", "again"))
    run = await graph.start({})
    await node_of(run, "first", "waiting")

    with pytest.raises(Conflict, match="body of loop again"):
        await run.patch([add("body", noting("changed", "first"))])
    await run.patch([add("last", noting("new", "again"))])
    await run.signal("go", {})
    await run.signal("go", {})

    assert await run.result(timeout=30) == "new"
    assert ran == ["body", "body", "new"]
    await settled(app, run, raw, eventually)


# --- what has not begun ---------------------------------------------------------------------------


@pytest.fixture
async def crowded(app: Weft, one_home: None, ran: list[str], worker: Any, eventually: Any) -> Any:
    """A task with one slot, which another run has until it is let go. A limit is exact within a partition."""
    go = asyncio.Event()

    @app.task(concurrency=1)
    async def single(text: str) -> str:
        if text == "holder":
            await go.wait()
        ran.append(text)
        return text

    holder = await single.enqueue("holder")

    async def runs() -> bool:
        return str(await holder.status()) == "running"

    await eventually(runs)
    return go


SINGLE = {"type": "task", "call": "single", "with": {"text": "first"}}


@pytest.mark.parametrize("paused", [False, True])
@pytest.mark.parametrize("change", ["replace", "remove"])
async def test_a_step_that_waits_at_a_limit_has_not_begun(app, ran, crowded, eventually, raw, paused, change):
    run = await graph_of(app, SINGLE).start({})
    about = await node_of(run, "first", "waiting")
    assert about["reason"].startswith("limit ")
    if paused:
        await run.pause()

    if change == "replace":
        told = await run.patch([add("first", noting("instead"))])
        assert told["reached"] == ["first"]
    else:
        await run.patch([{"op": "remove", "path": "/nodes/first"}, add("last", noting("alone"))])
    if paused:
        await run.resume()

    assert await run.result(timeout=30) == ("old" if change == "replace" else "alone")
    assert "first" not in ran
    crowded.set()
    await eventually(lambda: "holder" in ran)
    await settled(app, run, raw, eventually)


async def test_a_step_at_a_limit_goes_on_as_it_was_when_others_are_changed(app, ran, crowded, eventually, raw):
    run = await graph_of(app, SINGLE).start({})
    await node_of(run, "first", "waiting")
    await run.patch([add("last", noting("new", "first"))])

    crowded.set()

    assert await run.result(timeout=30) == "new"
    assert ran == ["holder", "first", "new"]
    await settled(app, run, raw, eventually)


async def test_a_wait_whose_time_came_during_a_pause_has_begun(app, ran, worker, weft_clock, eventually, raw):
    run = await graph_of(app, WAITS["duration"]).start({})
    await node_of(run, "first", "waiting")
    await run.pause()
    await weft_clock.advance("2h")

    async def held() -> bool:
        return (await run.graph())["nodes"]["first"].get("reason", "").startswith("limit run")

    await eventually(held)
    with pytest.raises(Conflict, match="first has begun"):
        await run.patch([add("first", {"type": "wait", "duration": "5h"})])
    await run.patch([add("last", noting("new", "first"))])
    await run.resume()

    assert await run.result(timeout=30) == "new"
    await settled(app, run, raw, eventually)


async def test_a_paused_run_that_waits_is_patched_signalled_and_resumed(app, ran, worker, eventually, raw):
    run = await graph_of(app, WAITS["signal"]).start({})
    await node_of(run, "first", "waiting")
    await run.pause()
    await run.signal("go", {})
    with pytest.raises(Conflict, match="first has begun"):
        await run.patch([add("first", noting("instead"))])

    await run.patch([add("last", noting("new", "first"))])
    await asyncio.sleep(0.1)
    assert ran == []
    await run.resume()

    assert await run.result(timeout=30) == "new"
    await settled(app, run, raw, eventually)


async def test_a_rejection_behind_a_patch_follows_the_new_definition(app, ran, worker, eventually, raw):
    run = await graph_of(app, {"type": "approval", "approvers": ["ops"], "on_reject": "fail"}).start({})
    approval = await approval_of(app, run, "first")
    await run.patch([add("last", noting("new", "first"))])

    await app.approvals.reject(approval.id, by="ops", digest=approval.digest, comment="no")

    with pytest.raises(StepFailed, match="no"):
        await run.result(timeout=30)
    assert ran == []
    await settled(app, run, raw, eventually)
