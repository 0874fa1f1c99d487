"""Patching a run: the definition changes under it, nothing runs twice, nothing that has begun is touched."""

import asyncio

import pytest
from graph_keys import closed, remains
from held_graphs import held_line, started

from weft import Conflict, InvalidArguments, InvalidGraph


@pytest.fixture
def line(app):
    """a -> b -> c, where a runs until it is let go; `note` is a task that patches may call."""
    graph = held_line(app, "line", output="${c}")

    @app.task
    async def note(text: str) -> str:
        graph.ran.append(text)
        return text

    return graph


def noting(id: str, *after: str, **more) -> dict:
    value = {"type": "task", "call": "note", "with": {"text": id}, **({"after": list(after)} if after else {}), **more}
    return {"op": "add", "path": f"/nodes/{id}", "value": value}


async def test_a_node_is_added_behind_what_runs_and_counts_from_the_next_step_on(
    line, app, raw, start_worker, eventually
):
    await start_worker()
    run = await started(line)

    told = await run.patch([noting("extra", "a")], author="planner", reason="because")
    line.go.set()

    assert await run.result(10) == 3
    assert sorted(line.ran) == ["a", "b", "c", "extra"]
    assert (told["revision"], told["added"], told["removed"], told["reached"]) == (2, ["extra"], [], [])
    graph = await run.graph()
    assert graph["revision"] == 2 and graph["nodes"]["extra"]["output"] == "extra"
    (event,) = [event for event in await run.history() if event.type == "patched"]
    assert (event.data["author"], event.data["reason"], event.data["revision"]) == ("planner", "because", 2)
    assert event.data["operations"] == [noting("extra", "a")]
    assert [e.type for e in await run.history()].count("step_completed") == 4
    await closed(run, eventually)
    assert await remains(app, raw) == []


async def test_a_node_behind_what_has_ended_begins_at_once(line, start_worker, eventually):
    await start_worker()
    run = await started(line)
    told = await run.patch([noting("first"), noting("second", "first")])
    assert told["reached"] == ["first"]
    await eventually(lambda: line.ran == ["first", "second"])
    told = await run.patch([noting("third", "second"), noting("both", "third", "first", "a")])
    assert told["reached"] == ["third", "both"]
    await eventually(lambda: line.ran == ["first", "second", "third"])
    line.go.set()
    assert await run.result(10) == 3
    assert sorted(line.ran) == ["a", "b", "both", "c", "first", "second", "third"]
    await closed(run, eventually)


async def test_a_removed_predecessor_lets_the_join_go_on(app, start_worker, eventually):
    graph = app.graph("joins", output="${end}")
    go = asyncio.Event()

    @graph.node
    async def quick() -> int:
        return 1

    @graph.node(timeout="60s")
    async def slow() -> int:
        await go.wait()
        return 2

    @graph.node(after=slow)
    async def behind(slow: int) -> int:
        return 3

    @graph.node(after=[quick, behind])
    async def end(quick: int) -> int:
        return quick

    await start_worker()
    run = await graph.start()

    async def quick_done() -> bool:
        return (await run.graph())["nodes"]["quick"]["status"] == "completed"

    await eventually(quick_done)
    told = await run.patch(
        [{"op": "remove", "path": "/nodes/behind"}, {"op": "replace", "path": "/nodes/end/after", "value": ["quick"]}]
    )
    assert (told["removed"], told["rerouted"], told["reached"]) == (["behind"], ["end"], ["end"])

    async def end_done() -> bool:
        return (await run.graph())["nodes"]["end"]["status"] == "completed"

    await eventually(end_done)
    go.set()
    assert await run.result(10) == 1
    await closed(run, eventually)


async def test_a_dry_run_tells_and_changes_nothing(line, start_worker, eventually):
    await start_worker()
    run = await started(line)
    told = await run.patch(
        [noting("extra", "a"), {"op": "replace", "path": "/nodes/c/after", "value": ["b", "extra"]}], dry_run=True
    )
    assert told["revision"] == 1 and told["added"] == ["extra"] and told["rerouted"] == ["c"]
    assert {op["path"] for op in told["diff"]} == {"/nodes/extra", "/nodes/c/after/1"}
    assert (await run.graph())["revision"] == 1
    line.go.set()
    assert await run.result(10) == 3
    assert line.ran == ["a", "b", "c"]
    await closed(run, eventually)


async def test_undoing_is_a_patch_back(line, start_worker, eventually):
    await start_worker()
    run = await started(line)
    with pytest.raises(Conflict, match="never patched"):
        await run.undo_patch()
    await run.patch([noting("extra", "a")])
    told = await run.undo_patch(author="ann", reason="mistake")
    assert (told["revision"], told["removed"]) == (3, ["extra"])
    line.go.set()
    assert await run.result(10) == 3
    assert line.ran == ["a", "b", "c"]
    authors = [e.data["author"] for e in await run.history() if e.type == "patched"]
    assert (authors[0].count("@"), authors[1]) == (1, "ann")
    await closed(run, eventually)


async def test_what_has_begun_stays_as_it_is(line, start_worker, eventually):
    await start_worker()
    run = await started(line)
    for operation in (
        {"op": "replace", "path": "/nodes/a/timeout", "value": "5s"},
        {"op": "add", "path": "/nodes/a/after", "value": ["b"]},
    ):
        with pytest.raises((Conflict, InvalidGraph)):
            await run.patch([operation])
    with pytest.raises(Conflict, match="node a has begun"):
        await run.patch([{"op": "replace", "path": "/nodes/a/timeout", "value": "5s"}])
    line.go.set()
    assert await run.result(10) == 3
    with pytest.raises(Conflict, match="has ended"):
        await run.patch([noting("extra", "a")])
    await closed(run, eventually)


async def test_what_a_pause_holds_can_still_be_changed_and_removed(line, app, raw, start_worker, eventually):
    await start_worker()
    run = await started(line)
    await run.pause()
    line.go.set()

    async def b_waits() -> bool:
        return (await run.graph())["nodes"]["b"]["status"] == "waiting"

    await eventually(b_waits)
    await run.patch([{"op": "replace", "path": "/nodes/b", "value": noting("b", "a")["value"]}])
    await eventually(b_waits)
    await run.patch(
        [
            {"op": "replace", "path": "/nodes/b/with/text", "value": "7"},
            {"op": "replace", "path": "/nodes/c", "value": noting("c", "b")["value"]},
        ]
    )
    await eventually(b_waits)
    await run.resume()
    assert await run.result(10) == "c"
    assert line.ran == ["a", "7", "c"]
    await closed(run, eventually)
    assert await remains(app, raw) == []


async def test_a_run_with_nothing_left_after_a_patch_ends(app, raw, start_worker, eventually):
    graph = app.graph("short")
    go, began = asyncio.Event(), asyncio.Event()

    @graph.node(timeout="60s")
    async def a() -> int:
        began.set()
        await go.wait()
        return 1

    @graph.node(after=a)
    async def b(a: int) -> int:
        return 2

    await start_worker()
    run = await graph.start()
    await asyncio.wait_for(began.wait(), 10)
    await run.pause()
    go.set()

    async def b_waits() -> bool:
        return (await run.graph())["nodes"]["b"]["status"] == "waiting"

    await eventually(b_waits)
    await run.patch([{"op": "remove", "path": "/nodes/b"}])
    # What it returns is fixed by the definition it started with: the output of b, which never ran.
    assert await run.result(10) is None
    await closed(run, eventually)
    assert await remains(app, raw) == []


async def test_of_two_patches_at_once_one_wins_and_the_other_learns_the_revision(line, start_worker, eventually):
    await start_worker()
    run = await started(line)
    said = await asyncio.gather(
        *(run.patch([noting(f"n{i}", "a")], revision=1) for i in range(10)), return_exceptions=True
    )
    won = [one for one in said if isinstance(one, dict)]
    lost = [one for one in said if isinstance(one, Conflict)]
    assert (len(won), len(lost)) == (1, 9)
    assert {one.facts["revision"] for one in lost} == {2}
    line.go.set()
    assert await run.result(10) == 3
    assert sorted(line.ran) == sorted(["a", "b", "c", won[0]["added"][0]])
    await closed(run, eventually)


@pytest.mark.parametrize(
    ("operations", "error", "text"),
    [
        ([], InvalidArguments, "a list of operations"),
        ([{"op": "grow", "path": "/nodes/x"}], InvalidArguments, "one of add"),
        ([{"op": "add", "path": "/nodes/x"}], InvalidArguments, "needs `value`"),
        ([{"op": "replace", "path": "/name", "value": "other"}], InvalidArguments, "no part of a node"),
        ([{"op": "replace", "path": "/output", "value": "${a}"}], InvalidArguments, "no part of a node"),
        ([{"op": "replace", "path": "", "value": {}}], InvalidArguments, "no part of a node"),
        ([{"op": "replace", "path": "/nodes", "value": {}}], InvalidArguments, "no part of a node"),
        ([{"op": "copy", "from": "/name", "path": "/nodes/x"}], InvalidArguments, "no part of a node"),
        ([{"op": "move", "from": "/nodes/b", "path": "/nodes/b/with"}], InvalidArguments, "operation 1"),
        ([{"op": "remove", "path": "/nodes/nobody"}], InvalidArguments, "operation 1: remove /nodes/nobody"),
        ([{"op": "test", "path": "/name", "value": "other"}], Conflict, "test /name: it is"),
        ([{"op": "remove", "path": "/nodes/c"}], InvalidGraph, "problem"),
        ([noting("x", "nobody")], InvalidGraph, "nobody"),
        ([noting("x", "a", call="unknown_task")], Exception, "unknown_task"),
        (
            [{"op": "add", "path": "/nodes/x", "value": {"type": "task", "call": "note", "status": "completed"}}],
            InvalidGraph,
            "status",
        ),
        ([{"op": "replace", "path": "/nodes/c/after", "value": ["b"]}], InvalidArguments, "changes nothing"),
    ],
)
async def test_bad_patches_are_refused_and_nothing_is_written(line, start_worker, eventually, operations, error, text):
    run = await line.start()
    before = await run.history()
    with pytest.raises(error, match=text):
        await run.patch(operations)
    assert await run.history() == before
    assert (await run.graph())["revision"] == 1
    line.go.set()
    await start_worker()
    assert await run.result(10) == 3
    await closed(run, eventually)


async def test_copies_cannot_make_a_definition_grow_without_bounds(line, start_worker, eventually):
    run = await line.start()
    big = {"op": "add", "path": "/nodes/b/with", "value": {"x": "y" * 1000}}
    doubling = [{"op": "copy", "from": "/nodes/b/with", "path": f"/nodes/b/with/{i}"} for i in range(60)]
    with pytest.raises(Exception, match="bytes; 4194304 are allowed"):
        await run.patch([big, *doubling])
    with pytest.raises(Exception, match="201 operations"):
        await run.patch([noting("x", "a")] * 201)
    line.go.set()
    await start_worker()
    assert await run.result(10) == 3
    await closed(run, eventually)


async def test_patches_against_completion_run_every_node_once(app, raw, start_worker, eventually):
    graph = app.graph("race", output="${b}")
    ran: list[str] = []

    @app.task
    async def note(text: str, run: str) -> str:
        ran.append(f"{run} {text}")
        return text

    @graph.node
    async def a(input: dict) -> int:
        return 1

    @graph.node(after=a)
    async def b(a: int) -> int:
        return 2

    runs = [await graph.start({"run": str(i)}) for i in range(100)]

    async def patch(i: int) -> bool:
        for _ in range(i // 2):
            await asyncio.sleep(0)
        value = {"type": "task", "call": "note", "after": ["a"], "with": {"text": "extra", "run": "${input.run}"}}
        try:
            await runs[i].patch([{"op": "add", "path": "/nodes/extra", "value": value}])
        except Conflict as error:
            assert "has ended" in str(error)
            return False
        return True

    _, *said = await asyncio.gather(start_worker(), *map(patch, range(100)))

    assert [await run.result(10) for run in runs] == [2] * 100
    assert sorted(ran) == sorted(f"{i} extra" for i in range(100) if said[i])
    assert any(said)
    for run in runs:
        await closed(run, eventually)
    assert await remains(app, raw) == []
