"""The plan of a graph: what the engine looks up, per node, and how it is kept."""

import sys

import pytest

from weft.core.expressions import Condition
from weft.core.graph.arguments import Source, TaskShape
from weft.core.graph.compile import Plans, compile
from weft.core.graph.kinds import GatherRule, parse_gather
from weft.core.graph.model import address_of, from_json, to_document, to_json
from weft.core.graph.validate import check_document, check_text

REPORT = """
name: report
version: "1.2"
input: {type: object, required: [url]}
output: "${save}"
nodes:
  fetch:    {type: http, url: "${input.url}", retries: 3, timeout: 30s}
  classify: {type: task, call: classify, after: [fetch], map: "fetch.body.pages", max_parallel: 8, cache: 1h}
  group:    {type: gather, after: [classify], group_by: "item.kind"}
  route:    {type: branch, after: [group], cases: [{when: "size(group) > 3", to: review}], default: save}
  review:   {type: approval, approvers: [ops], quorum: 1, timeout: 2h, on_timeout: reject, on_reject: fail, show: "${group}"}
  save:     {type: function, call: save, after: [review, route]}
  again:    {type: loop, after: [save], while: "save.retry", to: save, max_iterations: 3, on_exhausted: continue}
  notify:   {type: agent, after: [again], agent: writer, prompt: "Summarise ${save} ${errors.fetch}"}
"""


def plan_of(nodes, **fields):
    return compile(check_document({"name": "x", "nodes": nodes, **fields}).valid())


@pytest.fixture(scope="module")
def report():
    (checked,) = check_text(REPORT)
    return compile(checked.valid())


def step(*after, **fields):
    return {"type": "transform", "value": 1, **({"after": list(after)} if after else {}), **fields}


def test_edges_are_those_of_after_and_of_branches(report):
    assert report.entries == ("fetch",)
    assert report.terminals == ("notify",)
    assert report.node("review").predecessors == ("route",)
    assert report.node("route").successors == ("review", "save")
    assert report.node("route").targets == ("review", "save")
    assert report.node("again").successors == ("notify",)
    assert report.node("save").predecessors == ("review", "route")


def test_function_is_another_word_for_task(report):
    assert report.node("save").type == "task"


def test_a_loop_knows_its_body_and_its_way_back(report):
    loop = report.node("again").loop

    assert (loop.id, loop.to, loop.body) == ("again", "save", {"save", "again"})
    assert report.loops == {"again": loop}
    assert report.node("save").loops == ("again",)
    assert report.node("notify").loops == ()


def test_loops_inside_loops_are_told_from_the_outermost_on():
    plan = plan_of(
        {
            "a": step(),
            "b": step("a"),
            "inner": {"type": "loop", "after": "b", "to": "b", "while": "b < 2", "max_iterations": 2},
            "outer": {"type": "loop", "after": "inner", "to": "a", "while": "a < 2", "max_iterations": 2},
        }
    )

    assert plan.node("a").loops == ("outer",)
    assert plan.node("b").loops == ("outer", "inner")
    assert plan.node("inner").loops == ("outer", "inner")
    assert plan.loops["outer"].body == {"a", "b", "inner", "outer"}


def test_a_node_of_a_loop_may_read_what_comes_later_in_its_body():
    plan = plan_of(
        {
            "draft": step(value="${review}"),
            "review": step("draft"),
            "again": {"type": "loop", "after": "review", "to": "draft", "while": "review < 2", "max_iterations": 2},
        }
    )

    assert plan.node("draft").reads == {"review"}


def test_joins_say_how_many_must_arrive():
    nodes = {"a": step(), "b": step(), "c": step()}
    after = ("a", "b", "c")
    joins = {"all": 3, "any": 1, 2: 2}
    plan = plan_of(
        {**nodes, **{f"j{n}": step(*after, join=join) for n, join in enumerate(joins)}, "plain": step(*after)}
    )

    assert [plan.node(f"j{n}").need for n in range(3)] == list(joins.values())
    assert plan.node("plain").need == 3
    assert plan.node("a").need == 0


def test_expressions_are_compiled_at_first_use_and_kept(report):
    route = report.node("route")

    assert route.cases == ((Condition("size(group) > 3"), "review"),)
    assert route.cases is route.cases
    assert report.node("route") is route
    assert report.node("classify").map.evaluate({"fetch": {"body": {"pages": [1]}}}) == [1]
    assert report.node("fetch").template("url").evaluate({"input": {"url": "http://a"}}) == "http://a"
    assert report.node("fetch").template("json") is None
    assert report.node("again").while_.evaluate({"save": {"retry": True}})
    assert report.node("fetch").when is None


def test_what_a_node_reads_is_told(report):
    assert report.node("notify").reads == {"save", "fetch"}
    assert report.node("classify").reads == {"fetch"}
    assert report.node("fetch").reads == frozenset()


def test_numbers_come_as_the_engine_counts_them(report):
    assert report.node("fetch").duration_ms("timeout") == 30_000
    assert report.node("classify").duration_ms("cache.ttl") == 3_600_000
    assert report.node("fetch").duration_ms("hedge") is None
    assert report.node("classify").gather == GatherRule("all")
    limited = plan_of({"a": {"type": "http", "url": "http://a", "rate_limit": "5/10s"}})
    assert limited.node("a").rate == (5, 10_000)


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("any", GatherRule("any")),
        ("first(3)", GatherRule("first", k=3)),
        ("quorum(0.8)", GatherRule("quorum", share=0.8)),
        ("quorum( 80% )", GatherRule("quorum", share=0.8)),
        ("quorum(1)", GatherRule("quorum", share=1.0)),
        ("deadline(90s)", GatherRule("deadline", ms=90_000)),
    ],
)
def test_gather_rules(text, rule):
    assert parse_gather(text) == rule


def test_the_result_is_the_output_else_one_terminal_else_a_map_of_them(report):
    assert report.result.output.evaluate({"save": 3}) == 3
    assert plan_of({"a": step(), "b": step("a")}).result.node == "b"
    assert plan_of({"a": step(), "b": step("a"), "c": step("a")}).result.nodes == ("b", "c")


def test_arguments_come_from_with_then_from_names():
    shape = TaskShape("t(...)", ("x", "item", "a", "url", "other"), frozenset({"x", "item", "a", "url"}))
    task = {"type": "task", "call": "t", "after": "a", "map": "a", "with": {"x": 1}}
    plan = plan_of({"a": step(), "t": task}, input={"properties": {"url": {}}})

    assert plan.binding("t", shape) == {
        "x": Source("with", "x"),
        "item": Source("reserved", "item"),
        "a": Source("node", "a"),
        "url": Source("input", "url"),
    }
    assert plan.binding("t", shape) is plan.binding("t", shape)


def test_where_the_input_says_nothing_what_is_left_is_taken_from_it():
    shape = TaskShape("t(...)", ("url", "deep"), frozenset({"url"}))
    plan = plan_of({"t": {"type": "task", "call": "t"}})

    assert plan.binding("t", shape) == {"url": Source("input", "url"), "deep": Source("input", "deep", optional=True)}


def test_the_same_definition_has_one_address_and_one_plan(report):
    again = compile(check_document(to_document(report.spec)).valid())

    assert again is report
    assert address_of(report.spec) == report.address and len(report.address) == 64
    other = check_document({**to_document(report.spec), "version": "1.3"}).valid()
    assert address_of(other) != report.address


def test_a_plan_is_made_from_stored_json_and_kept(report):
    plans = Plans(most=2)

    made = plans.make(report.address, to_json(report.spec))

    assert made.spec == report.spec and plans.get(report.address) is made
    for n in range(2):
        plans.compile(check_document({"name": f"x{n}", "nodes": {"a": step()}}).valid())
    assert plans.get(report.address) is None


def test_json_comes_back_as_it_went(report):
    data = to_json(report.spec)

    assert from_json(data) == report.spec
    assert to_json(from_json(data)) == data
    assert b'"function"' not in data and b"null" not in data


def test_one_node_of_five_thousand_costs_as_much_as_one_of_ten():
    def calls(n):
        """Counts the calls it takes to look at a few nodes: unlike time, the same on every machine."""
        plan = plan_of({f"n{i}": step(*([f"n{i - 1}"] if i else []), value=f"text {i}") for i in range(n)})
        plan.node("n1")  # what all nodes share
        counted = 0

        def count(frame, event, argument):
            nonlocal counted
            counted += 1

        sys.setprofile(count)
        for i in range(2, 9):
            node = plan.node(f"n{i}")
            assert node.predecessors and node.successors and node.need == 1 and node.loops == ()
            node.template("value")
        sys.setprofile(None)
        return counted

    assert calls(5_000) == calls(10)
