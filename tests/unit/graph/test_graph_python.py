"""Graphs declared in Python, and loaded from files: the same definitions, and tasks that workers can run."""

import functools
from datetime import timedelta

import pytest

from weft import DefinitionError, Depends, Graph, InvalidGraph, InvalidOption, NotFound, Weft
from weft.core.graph.validate import check_text


@pytest.fixture
def app():
    return Weft("shop")


def codes(caught) -> list[str]:
    return [problem["code"] for problem in caught.value.facts["problems"]]


def test_functions_become_nodes_and_tasks(app):
    report = app.graph("report", version="1.2", output="${publish}")

    @report.node
    async def fetch(input: dict) -> dict:
        return {"pages": [input]}

    @report.node(after=fetch, map="fetch.pages", max_parallel=8, gather="all")
    async def classify(item: dict) -> dict:
        return item

    @report.node(after=classify, when="size(classify) > 0", timeout=timedelta(seconds=90))
    def publish(classify: list) -> str:
        return str(len(classify))

    assert report.document == {
        "name": "report",
        "version": "1.2",
        "output": "${publish}",
        "nodes": {
            "fetch": {"type": "task", "call": "report.fetch"},
            "classify": {
                "type": "task",
                "call": "report.classify",
                "after": ["fetch"],
                "map": "fetch.pages",
                "max_parallel": 8,
                "gather": "all",
            },
            "publish": {
                "type": "task",
                "call": "report.publish",
                "after": ["classify"],
                "when": "size(classify) > 0",
                "timeout": "90000ms",
            },
        },
    }
    assert list(app.tasks) == ["report.fetch", "report.classify", "report.publish"]
    assert app.graphs == {"report": report} and isinstance(report, Graph)
    assert publish([1, 2]) == "2", "calling it just calls it"


def test_python_and_yaml_give_the_same_definition(app):
    report = app.graph("report", input={"type": "object", "required": ["url"]}, output="${save}")
    save_task = app.task(name="save")(lambda report=None: None)
    fetch = report.http("fetch", "${input.url}", retries=3, timeout="30s")
    classify = report.task("classify", "classify", after=[fetch], map="fetch.body.pages", cache="1h")
    group = report.gather("group", after=classify, group_by="item.kind")
    report.branch("route", [("size(group) > 3", "review")], "save", after=group)
    review = report.approval("review", approvers="ops", timeout="2h", on_timeout="reject", show=group)
    save = report.task("save", save_task, after=[review, "route"], with_={"report": group})
    again = report.loop("again", after=save, while_="save.retry", to=save, max_iterations=3, on_exhausted="continue")
    pause = report.wait("pause", duration="5m", after=again)
    ready = report.transform("ready", {"n": "${size(group)}"}, after=pause)
    report.subgraph("other", "other_graph", after=ready, with_={"x": ready})
    report.agent("notify", "writer", "Summarise ${save}", after=[again])

    (read,) = check_text(
        """
name: report
input: {type: object, required: [url]}
output: "${save}"
nodes:
  fetch:    {type: http, url: "${input.url}", retries: 3, timeout: 30s}
  classify: {type: task, call: classify, after: [fetch], map: "fetch.body.pages", cache: 1h}
  group:    {type: gather, after: classify, group_by: "item.kind"}
  route:    {type: branch, after: [group], cases: [{when: "size(group) > 3", to: review}], default: save}
  review:   {type: approval, approvers: [ops], timeout: 2h, on_timeout: reject, show: "${group}"}
  save:     {type: task, call: save, after: [review, route], with: {report: "${group}"}}
  again:    {type: loop, after: [save], while: "save.retry", to: save, max_iterations: 3, on_exhausted: continue}
  pause:    {type: wait, after: again, duration: 5m}
  ready:    {type: transform, after: pause, value: {n: "${size(group)}"}}
  other:    {type: subgraph, after: ready, graph: other_graph, with: {x: "${ready}"}}
  notify:   {type: agent, after: [again], agent: writer, prompt: "Summarise ${save}"}
"""
    )

    assert report.spec == read.valid()
    assert report.plan.address == app.graphs["report"].plan.address
    assert {problem.code for problem in report.problems()} == {"unknown_task", "unknown_graph"}


def test_a_task_that_exists_can_be_a_node(app):
    @app.task(retries=2)
    def work(x: int) -> int:
        return x

    @app.task
    def undo(x: int = 0) -> None: ...

    graph = app.graph("g")
    assert graph.node(work) is work
    second = graph.node(id="second", after=work, compensate=undo, on_error="compensate")(work)

    assert second is work
    assert graph.document["nodes"]["second"]["compensate"] == {"call": "undo"}
    assert list(app.tasks) == ["work", "undo"]


def test_compensation_with_arguments(app):
    undo = app.task(name="undo")(lambda id: None)
    graph = app.graph("g")
    graph.transform("a", 1)
    graph.task("pay", "pay", after="a", compensate={"call": undo, "with": {"id": "${pay.id}"}})

    assert graph.document["nodes"]["pay"]["compensate"] == {"call": "undo", "with": {"id": "${pay.id}"}}


def test_a_graph_or_node_declared_twice_is_an_error(app):
    graph = app.graph("g")
    with pytest.raises(DefinitionError, match="already has a graph 'g'"):
        app.graph("g")
    graph.transform("a", 1)
    with pytest.raises(DefinitionError, match="already has a node 'a'"):
        graph.transform("a", 2)


def test_a_node_is_checked_where_it_is_declared(app):
    graph = app.graph("g")

    with pytest.raises(InvalidGraph, match="did you mean retries") as caught:

        @graph.node(retires=3, timeout="soon")
        def fetch() -> None: ...

    assert codes(caught) == ["unknown_field", "bad_duration"]
    assert app.tasks == {} and graph.problems()[0].code == "no_nodes"
    with pytest.raises(InvalidOption, match="write with_"):
        graph.task("a", "b", **{"with": {}})


def test_a_function_that_cannot_be_a_task_leaves_no_node_behind(app):
    graph = app.graph("g")

    with pytest.raises(DefinitionError, match="generator"):

        @graph.node
        def fetch():
            yield 1

    assert graph.problems()[0].code == "no_nodes"
    with pytest.raises(DefinitionError, match="made of a function"):
        graph.node(3)


def test_references_to_other_graphs_or_plain_tasks_are_refused(app):
    a, b = app.graph("a"), app.graph("b")
    node = a.transform("x", 1)
    task = app.task(name="t")(lambda: None)

    with pytest.raises(DefinitionError, match="belongs to graph a"):
        b.transform("y", 1, after=node)
    with pytest.raises(DefinitionError, match="is no node of graph b"):
        b.transform("y", 1, after=task)


def test_the_whole_is_checked_at_first_use_with_signatures(app):
    graph = app.graph("g", input={"properties": {"url": {"type": "string"}}})

    @graph.node
    def fetch(url: str, db: int = Depends(lambda: 1)) -> dict:
        return {}

    @graph.node(after="fetch")
    def save(fetch: dict, missing: int, *rest: int, **more: int) -> None: ...

    with pytest.raises(InvalidGraph) as caught:
        _ = graph.spec
    assert codes(caught) == ["missing_argument"]
    assert "save(fetch: dict, missing: int" in caught.value.message

    graph.transform("missing", 3)
    assert [p.code for p in graph.problems()] == ["missing_argument"], "it is a node now, but not before save"


def test_a_graph_may_grow_after_it_was_looked_at(app):
    graph = app.graph("g")
    graph.transform("a", 1)
    before = graph.plan.address
    graph.transform("b", 1, after="a")

    assert graph.plan.address != before and len(graph.plan) == 2


def test_files_are_loaded_whole_or_not_at_all(app, tmp_path):
    file = tmp_path / "graphs.yaml"
    one = "name: {}\nnodes: {{a: {{type: {}, duration: 1s}}}}\n---\n"
    file.write_text(one.format("x", "wait") + one.format("y", "wiat"))

    with pytest.raises(InvalidGraph, match=r"graphs.yaml has 1 problem") as caught:
        app.load(file)
    assert caught.value.facts["problems"][0]["line"] == 5 and app.graphs == {}

    file.write_text(one.format("x", "wait") + one.format("y", "wait"))
    assert [graph.name for graph in app.load(str(file))] == ["x", "y"]
    assert app.graphs["y"].plan.node("a").duration_ms("duration") == 1_000
    with pytest.raises(DefinitionError, match="already has a graph 'x'"):
        app.load(file)
    with pytest.raises(NotFound, match="No such file"):
        app.load(tmp_path / "nothing.yaml")
    with pytest.raises(NotFound):
        app.load(tmp_path)
    file.write_bytes(b"name: \xff\n")
    with pytest.raises(InvalidGraph, match="not UTF-8"):
        app.load(file)


def test_loaded_graphs_are_checked_against_the_tasks_of_the_app(app, tmp_path):
    @app.task
    def save(report: dict) -> None: ...

    file = tmp_path / "g.yaml"
    file.write_text("name: g\ninput: {required: [url]}\nnodes: {a: {type: task, call: save}}\n")

    with pytest.raises(InvalidGraph, match="nothing provides parameter report"):
        app.load(file)


@pytest.mark.parametrize("name", ["", "a b", "x" * 300, "a:b", 3])
def test_bad_names_of_graphs_are_refused(app, name):
    with pytest.raises(InvalidOption, match="is not a name"):
        app.graph(name)
    assert app.graphs == {}


def test_a_node_in_data_stands_for_its_output_whatever_its_key_is_called(app):
    graph = app.graph("mails")

    @app.task
    async def mail(to: str, call: str, when: str, default: str) -> None: ...

    who = graph.transform("who", "ann@example.org")
    told = {"to": who, "call": who, "when": [who], "default": {"to": who}}
    graph.task("send", mail, after=who, with_=told, compensate={"call": mail, "with": told})
    graph.approval("ask", after=who, show=told)
    graph.http("post", "https://example.org", after=who, method="POST", json=told)
    graph.branch("choose", [{"when": "true", "to": "send"}], default="ask", after=who)

    expected = {"to": "${who}", "call": "${who}", "when": ["${who}"], "default": {"to": "${who}"}}
    nodes = graph.document["nodes"]
    assert nodes["send"]["with"] == nodes["ask"]["show"] == nodes["post"]["json"] == expected
    assert nodes["send"]["compensate"] == {"call": "mail", "with": expected}
    assert nodes["choose"]["cases"] == [{"when": "true", "to": "send"}]


def test_what_has_no_name_of_its_own_needs_an_id(app):
    graph = app.graph("g")

    class Called:
        async def __call__(self, input: dict) -> int:
            return 1

    for function in (Called(), functools.partial(Called()), lambda input: 1):
        with pytest.raises(DefinitionError, match=r"has no name that could be the node's: say graph.node\(id=…\)"):
            graph.node(function)
    graph.node(id="called")(Called())
    assert list(graph.document["nodes"]) == ["called"]


@pytest.mark.parametrize("id", ["in", "1a", "a-b", "x" * 65, "input", "", None])
def test_ids_that_nodes_cannot_have_are_refused_where_they_are_declared(app, id):
    graph = app.graph("g")
    with pytest.raises(InvalidGraph) as caught:
        graph.transform(id, 1)
    assert codes(caught) == ["bad_node_id"]
    assert graph.n_nodes == 0


def test_a_graph_without_nodes_has_its_other_problems_told_too(app):
    graph = app.graph("empty", input={"type": "objct"}, output="${1 +}")

    assert {problem.code for problem in graph.problems()} == {"bad_schema", "bad_expression", "no_nodes"}


def test_a_graph_without_nodes_is_named(app):
    with pytest.raises(InvalidGraph, match="graph empty has 1 problem"):
        app.graph("empty").spec  # noqa: B018


def test_a_node_of_another_graph_cannot_be_an_output(app):
    other = app.graph("other").transform("one", 1)
    with pytest.raises(DefinitionError, match="node one belongs to graph other, not to mine"):
        app.graph("mine", output=other)
