"""Graph runs that only the archive has: retried they come back, forked they are where the new one begins."""

from __future__ import annotations

import asyncio

import pytest

from weft import Conflict, ResultExpired, StepFailed, Weft

pytestmark = pytest.mark.leaves("history")


def declare(app: Weft, calls: list[str], broken: list[str]):
    """A graph of a map, a join, a subgraph and a step that fails while `broken` says so."""

    @app.task
    async def load(item: int) -> str:
        calls.append(f"load {item}")
        return str(item) * 5_000

    @app.task
    async def below() -> str:
        calls.append("below")
        if "below" in broken:
            raise ValueError("below")
        return "deep"

    @app.task
    async def store(loaded: list, tail: str) -> int:
        calls.append("store")
        if "store" in broken:
            raise ValueError("store")
        return len("".join(loaded)) + len(tail)

    inner = app.graph("inner", output="${step}")
    inner.task("step", call="below")
    graph = app.graph("outer", output="${stored}")
    graph.task("loaded", call="load", map="input.items")
    graph.transform("side", "${size(input.note)}")
    graph.subgraph("child", inner, after="loaded")
    graph.task("stored", call="store", with_={"loaded": "${loaded}", "tail": "${child}"}, after=["child", "side"])
    return graph


@pytest.fixture
async def failed(app, start_worker, archive, forget, quiet):
    """Returns a run that failed at some task and that the hot store has forgotten, and its child."""
    calls: list[str] = []
    broken: list[str] = []

    async def make(where: str):
        graph = declare(app, calls, broken)
        broken.append(where)
        await start_worker()
        run = await graph.start({"items": [1, 2], "note": "n" * 6_000})
        with pytest.raises(StepFailed):
            await run.result(20)
        child = (await run.graph())["nodes"]["child"]["child"]
        await quiet()
        await archive()
        forget(run, app.runs.get(child))
        broken.clear()
        return run, child, calls

    return make


async def test_many_that_only_the_archive_has_are_retried_by_a_filter(failed, app: Weft, quiet):
    run, _, _ = await failed("store")

    told = await app.runs.change("retry", name="outer", dry_run=True)
    assert (told.matched, told.runs) == (1, [run.id])
    assert (await app.runs.change("retry", name="outer", status="completed")).matched == 0
    assert (await app.runs.change("retry", name="outer", status="cancelled")).matched == 0
    assert (await app.runs.change("cancel", name="outer")).matched == 0, "what has ended cannot be cancelled"
    changed = await app.runs.change("retry", name="outer", status="failed")

    assert (changed.done, changed.refused) == ([run.id], {})
    assert await run.result(20) == 10_004
    await quiet()


async def test_a_retried_run_comes_back_and_goes_on_from_what_is_archived(app, failed, archive, forget, quiet):
    run, child, calls = await failed("store")
    calls.clear()

    assert await run.retry(reason="mended") == ["stored"]

    assert await run.result(20) == 10_004
    assert calls == ["store"]
    nodes = (await run.graph())["nodes"]
    assert {node["status"] for node in nodes.values()} == {"completed"} and nodes["child"]["child"] == child
    await quiet()
    await archive()
    forget(run)
    assert await run.result(5) == 10_004
    assert [event.type for event in await run.history()].count("retried") == 1
    with pytest.raises(Conflict, match="has completed"):
        await run.retry()


async def test_a_retried_run_starts_children_of_its_own_whatever_is_left_of_those_before(app, failed, archive, quiet):
    run, child, calls = await failed("below")

    assert "child" in await run.retry()

    assert await run.result(20) == 10_004
    assert calls.count("below") == 2
    again = (await run.graph())["nodes"]["child"]["child"]
    assert again != child
    await quiet()
    await archive()
    for id, status in ((child, "failed"), (again, "completed")):
        events = await app.runs.get(id).history()
        assert [event.seq for event in events] == list(range(1, len(events) + 1)) and events[-1].type == status


async def test_two_who_retry_at_once_bring_one_run_back(app, failed):
    run, _, calls = await failed("store")
    calls.clear()
    told = await asyncio.gather(*(run.retry() for _ in range(5)), return_exceptions=True)
    assert sum(isinstance(one, list) for one in told) == 1
    assert all(isinstance(one, (list, Conflict)) for one in told)
    assert await run.result(20) == 10_004 and calls == ["store"]


async def test_a_fork_begins_where_the_archived_run_was(app, failed):
    run, _, calls = await failed("store")
    calls.clear()
    fork = await run.fork("stored")
    assert await fork.result(20) == 10_004 and calls == ["store"]
    assert (await fork.info()).replay_of == run.id and (await run.info()).status == "failed"
    other = await run.fork("loaded", {"items": [7], "note": ""})
    assert await other.result(20) == 5_004


async def test_what_cannot_come_back_says_why(app, failed, database):
    run, _, _ = await failed("store")
    async with database.writing() as connection:
        await connection.exec_driver_sql("DELETE FROM weft_blobs WHERE length(data) > 9000")
    with pytest.raises(ResultExpired, match=r"not in the archive: start it anew"):
        await run.retry()
    with pytest.raises(ResultExpired, match=r"no longer kept"):
        await run.fork("stored")
    assert (await run.info()).status == "failed"


async def test_an_imported_run_is_retried_and_forked(app, failed, server, namespace, tmp_path, raw):
    run, _, _ = await failed("store")
    file = await app.runs.export(run.id)
    calls: list[str] = []
    other = Weft(
        "other", redis_url=server.url, namespace=f"{namespace}x", database_url=f"sqlite:///{tmp_path / 'other.sqlite'}"
    )
    declare(other, calls, [])
    async with other, other.worker():
        await other.runs.import_(file)
        there = await other.runs.get(run.id)
        fork = await there.fork("stored")
        assert await fork.result(20) == 10_004 and calls == ["store"]
        assert await there.retry() == ["stored"]
        assert await there.result(20) == 10_004 and calls == ["store"] * 2
    for key in raw.scan_iter(f"{namespace}x:*"):
        raw.delete(key)


async def test_what_a_run_did_before_it_came_back_is_undone_when_it_fails(app, start_worker, archive, forget, quiet):
    undone: list[object] = []

    @app.task
    async def book(item: str) -> str:
        return f"{item} booked"

    @app.task
    async def cancel(item: str, booking: str) -> None:
        undone.append((item, booking))

    @app.task
    async def bad() -> None:
        raise ValueError("no")

    graph = app.graph("trip")
    graph.task(
        "booked",
        call="book",
        map="input.places",
        compensate={"call": "cancel", "with": {"item": "${item}", "booking": "${booked}"}},
    )
    graph.wait("go", signal="go", after="booked")
    graph.task("bad", call="bad", after="go")
    await start_worker()
    run = await graph.start({"places": ["a" * 3_000, "b" * 3_000]})
    async with asyncio.timeout(20):
        while (await run.graph())["nodes"]["booked"]["status"] != "completed":
            await asyncio.sleep(0.02)
    await run.cancel()
    await quiet()
    await archive()
    forget(run)

    assert await run.retry() == ["go", "bad"]
    await run.signal("go")
    with pytest.raises(StepFailed):
        await run.result(20)

    assert sorted(undone) == [(c * 3_000, f"{c * 3_000} booked") for c in "ab"]
    await quiet()
    await archive()
    forget(run)
    with pytest.raises(Conflict, match="has undone what it did"):
        await run.retry()
    assert {node["status"] for node in (await run.graph())["nodes"].values()} == {"completed", "failed"}


async def test_a_loop_that_only_the_archive_has_goes_on_with_what_the_iteration_before_gave(
    app, start_worker, archive, forget, quiet
):
    graph, broken = app.graph("loops", output="${grow.seen}"), ["grow"]

    @graph.node
    async def grow(grow: dict | None, tell: str | None, iteration: int) -> dict:
        if broken and iteration == 2:
            raise ValueError("two")
        return {"seen": [*(grow or {"seen": []})["seen"], (tell or "-")[0]], "weight": "x" * 20_000}

    @graph.node(after=grow)
    async def tell(iteration: int) -> str:
        return str(iteration) * 20_000

    graph.loop("again", after=tell, to=grow, while_="iteration < 3", max_iterations=9)
    await start_worker()
    run = await graph.start()
    with pytest.raises(StepFailed):
        await run.result(20)
    await quiet()
    await archive()
    forget(run)
    assert (await run.graph())["nodes"]["tell"]["iteration"] == 1
    broken.clear()

    assert await run.retry() == ["grow", "tell", "again"]
    assert await run.result(20) == ["-", "0", "1", "2"]
    await quiet()
    await archive()
    forget(run)
    fork = await run.fork(from_step="grow")
    assert await fork.result(20) == ["-", "0", "1", "2"]
    assert (await run.graph())["nodes"]["grow"]["iteration"] == 3
