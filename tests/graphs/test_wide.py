"""Wide graphs: a node with thousands of successors, a join with thousands of predecessors, and many steps open at once."""

from __future__ import annotations

from typing import Any

import pytest

from graphs.comparing import declare_graph
from graphs.workload import declare
from weft import Weft
from weft.core.routing import MAX_EFFECTS
from weft.ids import partition_of


def task(after: list[str] | None = None, gives: Any = 1, **fields: Any) -> dict[str, Any]:
    with_ = {"gives": gives, **fields.pop("arguments", {})}
    return {"type": "task", "call": "act", "with": with_, **({"after": after} if after else {}), **fields}


async def run_of(app: Weft, nodes: dict[str, Any], input: Any = None, **fields: Any):
    return await declare_graph(app, {"name": "g", "nodes": nodes, **fields}).start(input or {})


async def test_a_run_that_fails_with_many_steps_open_is_put_away_whole(app, start_worker, put_away, raw, namespace):
    """More open steps than one round of the timer service ends."""
    declare(app)
    nodes = {"m": task(gives="${item}", map="input.items", queue="nobody"), "a": task(arguments={"fails": 1})}
    await start_worker()
    run = await run_of(app, nodes, {"items": list(range(450))})
    with pytest.raises(Exception, match="fails"):
        await run.result(30)
    await put_away()
    assert raw.xlen(app.engine().ns.keys.tasks(partition_of(run.id), "nobody", 5)) == 0


async def test_an_item_that_cannot_be_asked_for_fails_alone(app, start_worker):
    declare(app)
    nodes = {
        "m": task(gives="${item.x}", map="input.items", on_error="continue", max_parallel=1),
        "z": {"type": "transform", "after": ["m"], "value": {"m": "${m}", "who": "${errors.m[0].index}"}},
    }
    await start_worker()
    run = await run_of(app, nodes, {"items": [{"x": 1}, {}, {"x": 3}]})
    assert await run.result(20) == {"m": [1, None, 3], "who": 1}


async def test_a_node_with_thousands_of_successors_opens_them_in_bounded_commits(app: Weft, start_worker, put_away):
    declare(app)
    n = 2_000
    nodes = {"a": task(gives=2), **{f"b{i}": task(["a"], f"${{a * {i}}}") for i in range(n)}}
    await start_worker(concurrency=100)

    run = await run_of(app, nodes, output="${b0 + b1999}")

    assert await run.result(90) == 2 * 1999
    events = await run.history()
    opened = [event.data["opened"] for event in events if "opened" in event.data]
    assert max(map(len, opened)) <= MAX_EFFECTS + 1
    assert sum(event.step.startswith("b") for event in events if event.type == "step_completed") == n
    # What is more than one commit may do goes on in steps of its own.
    assert sum(event.step.endswith(">") for event in events) >= n // MAX_EFFECTS
    await put_away()


async def test_a_join_with_thousands_of_predecessors_begins_once_when_all_have_come(app: Weft, start_worker, put_away):
    declare(app)
    n = 2_000
    nodes: dict[str, Any] = {f"a{i}": task(gives=i) for i in range(n)}
    nodes["z"] = {"type": "gather", "after": list(nodes)}
    await start_worker(concurrency=100)

    run = await run_of(app, nodes)

    assert await run.result(90) == list(range(n))
    events = await run.history()
    assert sum(event.step == "z?" for event in events) == 1
    assert sum(event.type == "step_completed" for event in events) == n
    await put_away()


async def test_a_skip_that_reaches_thousands_goes_on_in_bounded_commits(app: Weft, start_worker, put_away):
    declare(app)
    n = 2_000
    nodes: dict[str, Any] = {
        "a": task(gives=1),
        "no": task(["a"], when="a > 1"),
        **{f"b{i}": task(["no"]) for i in range(n)},
    }
    nodes["z"] = {"type": "transform", "after": ["a", *(f"b{i}" for i in range(n))], "value": "${status.b1999}"}
    await start_worker()

    run = await run_of(app, nodes)

    assert await run.result(90) == "skipped"
    events = await run.history()
    assert sum(event.type == "node_skipped" for event in events) == n + 1
    await put_away()
