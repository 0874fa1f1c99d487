"""Faults that graphs could have."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from graphs.comparing import ENDS, declare_graph, differences, start
from graphs.generator import Graph
from graphs.workload import declare
from weft import Conflict, Weft, current


def task(after: list[str] | None = None, gives: Any = 1, **fields: Any) -> dict[str, Any]:
    with_ = {"gives": gives, **fields.pop("arguments", {})}
    return {"type": "task", "call": "act", "with": with_, **({"after": after} if after else {}), **fields}


async def run_of(app: Weft, nodes: dict[str, Any], input: Any = None, **fields: Any):
    return await declare_graph(app, {"name": "g", "nodes": nodes, **fields}).start(input or {})


def ends(events: list[Any]) -> list[str]:
    return sorted(event.step for event in events if event.type in ENDS)


async def test_1_a_diamonds_join_runs_once_and_the_run_completes(app, start_worker):
    declare(app)
    nodes = {"a": task(), "b": task(["a"], 2), "c": task(["a"], 3), "d": task(["b", "c"], "${b + c}")}
    await start_worker()
    for run in [await run_of(app, nodes) for _ in range(20)]:
        assert await run.result(20) == 5
        assert ends(await run.history()) == ["a", "b", "c", "d"]


async def test_2_a_loop_of_three_iterations_completes(app, start_worker):
    declare(app)
    nodes = {
        "a": task(gives="${iteration}"),
        "again": {"type": "loop", "after": ["a"], "to": "a", "while": "a < 2", "max_iterations": 9},
        "b": task(["again"], "${again * 10 + a}"),
    }
    await start_worker()
    run = await run_of(app, nodes)
    assert await run.result(20) == 32
    assert ends(await run.history()) == ["a", "a~1", "a~2", "b"]


async def test_2_two_loops_one_after_the_other_each_count_from_zero(app, start_worker):
    declare(app)
    nodes: dict[str, Any] = {}
    for i, before in enumerate([None, "l0", "l1"]):
        nodes[f"a{i}"] = task([before] if before else None, "${iteration}")
        nodes[f"l{i}"] = {
            "type": "loop",
            "after": [f"a{i}"],
            "to": f"a{i}",
            "while": "iteration < 2",
            "max_iterations": 3,
        }
    await start_worker()
    run = await run_of(app, nodes)
    assert await run.result(20) == 3
    assert len(ends(await run.history())) == 9


async def test_3_no_false_completion_in_a_thousand_random_interleavings(app, start_worker):
    """The join behind unequal arms never begins, and the run never ends, before the last of them has ended."""
    rng, going = random.Random(3), {}

    @app.task
    async def arm(ms: int) -> int:
        going.setdefault(current().run_id.partition("/")[0], set()).add(current().step)
        await asyncio.sleep(ms / 1000)
        going[current().run_id.partition("/")[0]].discard(current().step)
        return ms

    @app.task
    async def last(arms: list[int]) -> int:
        assert not going[current().run_id.partition("/")[0]]
        return sum(arms)

    await start_worker(concurrency=50)
    runs = []
    for _ in range(1_000):
        n = rng.randint(2, 5)
        nodes: dict[str, Any] = {
            f"a{i}": {"type": "task", "call": "arm", "with": {"ms": rng.choice([0, 1, 5])}} for i in range(n)
        }
        arms = "${[" + ", ".join(f"a{i}" for i in range(n)) + "]}"
        nodes["z"] = {"type": "task", "call": "last", "after": sorted(nodes), "with": {"arms": arms}}
        want = sum(node["with"]["ms"] for id, node in nodes.items() if id != "z")
        runs.append((await run_of(app, nodes), want))
    assert [await run.result(120) for run, _ in runs] == [want for _, want in runs]


async def test_14_an_empty_scatter_ends_at_once_and_duplicates_count_once(app, start_worker):
    declare(app)
    nodes = {
        "none": task(map="[]"),
        "all": task(["none"], "${item}", map="input.items"),
        "z": {"type": "transform", "after": ["all"], "value": "${size(none) + size(all)}"},
    }
    # Two orchestrators: any of three workers decides.
    for _ in range(3):
        await start_worker(concurrency=5)
    for n in (0, 1, 7, 300):
        run = await run_of(app, nodes, {"items": list(range(n))})
        assert await run.result(30) == n
        assert len(ends(await run.history())) == n


async def test_15_an_approval_blocks_no_one_else_and_survives_restarts(app, start_worker):
    declare(app)
    nodes = {
        "review": {"type": "approval", "approvers": ["ann"]},
        "beside": task(gives="done"),
        "z": {"type": "transform", "after": ["review", "beside"], "value": "${[review.decision, beside]}"},
    }
    graph = declare_graph(app, {"name": "g", "nodes": nodes})
    first = await start_worker(concurrency=1)
    waiting = [await graph.start({}) for _ in range(30)]
    # Thirty wait for people, and the only slot is free: what stands beside them and behind them is done.
    for run in waiting:
        while (await run.graph())["nodes"]["beside"]["status"] != "completed":
            await asyncio.sleep(0.01)
    assert await (await run_of(app, {"a": task(gives=1)})).result(20) == 1
    while len(asked := await app.approvals.list()) < 30:
        await asyncio.sleep(0.01)

    await first.stop()
    for one in asked[:15]:  # some are decided while no worker is there
        await app.approvals.approve(one.id, by="ann", digest=one.digest)
    await start_worker(concurrency=1)
    for one in asked[15:]:
        await app.approvals.approve(one.id, by="ann", digest=one.digest)

    assert [await run.result(20) for run in waiting] == [["approved", "done"]] * 30


async def test_16_the_same_idempotency_key_gives_the_same_run(app, start_worker):
    declare(app)
    graph = declare_graph(app, {"name": "g", "nodes": {"a": task(gives="${input.n}")}})
    runs = await asyncio.gather(*(graph.options(idempotency_key="k").start({"n": 1}) for _ in range(20)))
    assert len({run.id for run in runs}) == 1
    await start_worker()
    assert await runs[0].result(20) == 1


async def test_18_all_keys_of_a_run_are_in_one_slot(app, start_worker, raw, namespace):
    declare(app)
    graph = Graph(1, n=20, fatal=False)
    await start_worker()
    run = await start(app, graph)
    assert await differences(graph, run) == []
    keys = [key.decode() for key in raw.scan_iter(f"{namespace}:*{run.id}*")]
    assert len(keys) > 5
    assert len({key.partition("{")[2].partition("}")[0] for key in keys}) == 1


@pytest.mark.parametrize("fatal", [False, True])
async def test_19_nothing_is_left_after_retention(app, start_worker, put_away, raw, namespace, fatal):
    declare(app)
    await start_worker()
    graphs = [Graph(seed, n=14, fatal=fatal) for seed in range(6)]
    runs = [await start(app, graph) for graph in graphs]
    for graph, run in zip(graphs, runs, strict=True):
        assert await differences(graph, run) == []
    await put_away()
    for run in runs:
        for key in raw.scan_iter(f"{namespace}:*{run.id}*"):
            # The wait for a step's end, or the run's own retention.
            assert raw.pttl(key) > 0, key


async def test_20_concurrent_patches_lose_no_update(app, start_worker):
    declare(app)
    graph = declare_graph(app, {"name": "g", "nodes": {"go": {"type": "wait", "signal": "go"}}})
    run = await graph.start({})

    async def patch(i: int) -> int:
        node = {"type": "task", "call": "act", "with": {"gives": i}, "after": ["go"]}
        while True:
            try:
                return (await run.patch([{"op": "add", "path": f"/nodes/n{i}", "value": node}]))["revision"]
            except Conflict:
                await asyncio.sleep(0)  # another came first: made anew on what it left

    revisions = await asyncio.gather(*(patch(i) for i in range(20)))

    assert sorted(revisions) == list(range(2, 22))
    await start_worker()
    await run.signal("go")
    await run.result(20)
    nodes = (await run.graph())["nodes"]
    assert {id: about["output"] for id, about in nodes.items() if id != "go"} == {f"n{i}": i for i in range(20)}
    assert ends(await run.history()) == sorted(["go", *(f"n{i}" for i in range(20))])


async def test_22_results_of_a_scatter_come_in_index_order(app, start_worker):
    @app.task
    async def late(item: int) -> int:
        await asyncio.sleep(random.random() / 50)
        return item * 2

    await start_worker(concurrency=30)
    nodes = {"m": {"type": "task", "call": "late", "map": "input.items", "max_parallel": 20}}
    run = await run_of(app, nodes, {"items": list(range(120))})
    assert await run.result(30) == [2 * n for n in range(120)]
