"""A graph that an app cannot run is told so as a whole: by `problems()`, by files that are checked, and at the start."""

from pathlib import Path

import pytest

from weft import Weft
from weft.errors import DefinitionError, InvalidGraph
from weft.sdk.files import check_file
from weft.sdk.fitting import check_fit

WRONG = """\
name: wrong
nodes:
  sort:  {type: task, call: sotr}
  slow:  {type: task, call: sort, map: "[1]", hedge: 40s}
  ask:   {type: http, url: "http://a", map: "[1]", hedge: 30s}
  down:  {type: subgraph, graph: innr}
  old:   {type: subgraph, graph: inner, version: "2"}
  late:  {type: task, call: sort, retry_delay: 6m}
  short: {type: task, call: tidy, max_delay: 1m}
  undo:  {type: task, call: sort, compensate: srot}
  undo2: {type: task, call: sort, compensate: {call: sort, with: {more: 1}}}
  once:  {type: task, call: once}
  keyed: {type: task, call: keyed}
"""


@pytest.fixture
def shop() -> Weft:
    app = Weft("shop")

    @app.task(aliases=["arrange"])
    async def sort(n: int = 1) -> int:
        return n

    @app.task(retry_delay="2m")
    async def tidy() -> None: ...

    @app.task(unique_for="1h")
    async def once() -> None: ...

    @app.task(concurrency_key=lambda: "k", concurrency_per_key=1)
    async def keyed() -> None: ...

    app.graph("inner").transform("one", 1)
    return app


def test_all_that_an_app_lacks_is_told_with_its_place(shop: Weft, tmp_path: Path) -> None:
    file = tmp_path / "wrong.yaml"
    file.write_text(WRONG)

    (checked,) = check_file(file, shop.find_shape, check_fit(shop))

    found = [(problem.node, problem.code, problem.path, problem.line, problem.column) for problem in checked.problems]
    assert found == [
        ("sort", "unknown_task", "/nodes/sort/call", 3, 29),
        ("slow", "never_happens", "/nodes/slow/hedge", 4, 54),
        ("ask", "never_happens", "/nodes/ask/hedge", 5, 59),
        ("down", "unknown_graph", "/nodes/down/graph", 6, 34),
        ("old", "unknown_version", "/nodes/old/version", 7, 50),
        ("late", "never_happens", "/nodes/late/retry_delay", 8, 48),
        ("short", "never_happens", "/nodes/short/max_delay", 9, 46),
        ("undo", "unknown_task", "/nodes/undo/compensate/call", 10, 35),
        ("undo2", "unknown_argument", "/nodes/undo2/compensate", 11, 47),
        ("once", "unfit_task", "/nodes/once/call", 12, 29),
        ("keyed", "unfit_task", "/nodes/keyed/call", 13, 29),
    ]
    told = {problem.node: problem.message for problem in checked.problems}
    assert told["sort"] == "app 'shop' has no task 'sotr': did you mean sort?"
    assert told["down"] == "app 'shop' has no graph 'innr': did you mean inner?"
    assert told["late"].startswith("retry_delay 6m is longer than the default max_delay 5m")
    assert told["short"].startswith("retry_delay 2m is longer than max_delay 1m")
    assert told["undo"] == "app 'shop' has no task 'srot': did you mean sort?"


def test_a_file_may_be_loaded_before_its_tasks_are_declared_and_is_told_off_as_a_whole_when_used(
    shop: Weft, tmp_path: Path
) -> None:
    file = tmp_path / "wrong.yaml"
    file.write_text(WRONG)

    (graph,) = shop.load(file)

    assert len(graph.problems()) == 11
    with pytest.raises(InvalidGraph, match="graph wrong has 11 problems:") as refused:
        graph.publish()
    assert {problem["code"] for problem in refused.value.facts["problems"]} >= {"unknown_task", "unknown_graph"}
    assert "sort: app 'shop' has no task 'sotr': did you mean sort? [unknown_task]" in str(refused.value)


def test_one_problem_is_told_in_a_sentence(shop: Weft) -> None:
    graph = shop.graph("one")
    graph.task("sort", "sotr")

    with pytest.raises(DefinitionError, match="graph one, node sort: app 'shop' has no task 'sotr'"):
        graph.publish()


def test_a_node_may_call_a_task_by_an_older_name(shop: Weft) -> None:
    graph = shop.graph("older")
    graph.task("sort", "arrange", with_={"n": 3})

    assert graph.problems() == []
    assert graph.publish()


def test_graphs_of_the_same_file_may_run_each_other(shop: Weft, tmp_path: Path) -> None:
    file = tmp_path / "two.yaml"
    file.write_text(
        "name: a\nnodes: {x: {type: subgraph, graph: b}}\n---\nname: b\nnodes: {y: {type: transform, value: 1}}\n"
    )

    specs = {one.valid().name: one.valid() for one in check_file(file)}

    assert [one.problems for one in check_file(file, shop.find_shape, check_fit(shop, specs))] == [[], []]
    a, _ = shop.load(file)
    assert a.problems() == []


def test_graphs_that_would_run_within_themselves_by_way_of_others_are_told_off(shop: Weft, tmp_path: Path) -> None:
    file = tmp_path / "round.yaml"
    file.write_text(
        """\
name: first
nodes:
  down: {type: subgraph, graph: second}
  fine: {type: subgraph, graph: leaf}
---
name: second
nodes:
  down: {type: subgraph, graph: third}
---
name: third
nodes:
  back: {type: subgraph, graph: first}
---
name: leaf
nodes:
  one: {type: transform, value: 1}
"""
    )
    specs = {one.spec.name: one.spec for one in check_file(file) if one.spec}

    checked = check_file(file, None, check_fit(None, specs))

    assert [[problem.message for problem in one.problems] for one in checked] == [
        ["graph first would run within itself (first > second > third > first): only a loop node goes back"],
        ["graph second would run within itself (second > third > first > second): only a loop node goes back"],
        ["graph third would run within itself (third > first > second > third): only a loop node goes back"],
        [],
    ]
    assert [(problem.code, problem.line) for one in checked for problem in one.problems] == [
        ("cycle", 3), ("cycle", 8), ("cycle", 12)
    ]  # fmt: skip

    around = shop.graph("around")
    around.subgraph("down", graph="within")
    shop.graph("within").subgraph("up", graph="around")
    assert [problem.code for problem in around.problems()] == ["cycle"]


def test_the_version_of_a_graph_in_a_file_is_the_one_in_the_file(shop: Weft, tmp_path: Path) -> None:
    file = tmp_path / "two.yaml"
    file.write_text(
        """\
name: inner
version: "3"
nodes:
  one: {type: transform, value: 1}
---
name: outer
nodes:
  new: {type: subgraph, graph: inner, version: "3"}
  old: {type: subgraph, graph: inner, version: "2"}
"""
    )
    specs = {one.spec.name: one.spec for one in check_file(file) if one.spec}

    inner, outer = check_file(file, shop.find_shape, check_fit(shop, specs))

    assert inner.problems == []
    assert [(problem.node, problem.code) for problem in outer.problems] == [("old", "unknown_version")]
