"""Every problem a definition can have: its code, its sentence, and where it is. `§` marks the place that is told."""

import time

import pytest

from weft.core.graph.arguments import TaskShape
from weft.core.graph.model import from_json, to_json
from weft.core.graph.validate import check_document, check_text
from weft.errors import InvalidGraph

SHAPES = {
    "save": TaskShape("save(report: dict, deep: bool = False) -> str", ("report", "deep"), frozenset({"report"})),
    "each": TaskShape("each(item: dict) -> dict", ("item",), frozenset({"item"})),
    "any": TaskShape("any(**values)", (), frozenset(), takes_any=True),
}


def marked(text: str) -> tuple[str, list[tuple[int, int]]]:
    """Returns a text without its marks, and the lines and columns they stood at."""
    places = []
    for number, line in enumerate(text.splitlines(), 1):
        marks = [at for at, char in enumerate(line) if char == "§"]
        places += [(number, at + 1 - before) for before, at in enumerate(marks)]
    return text.replace("§", ""), places


def problems_of(text: str):
    return [problem for checked in check_text(text, SHAPES.get) for problem in checked.problems]


#: code, words of the message, nodes (or, beginning with a name, the whole file).
TABLE = [
    # --- the file
    ("not_a_graph", "holds no graph", "§"),
    ("not_a_graph", "not a list", "§[1, 2]"),
    ("bad_yaml", "(begun in line 2)", "name: x\nnodes: {a: {type: task\n§"),
    ("bad_yaml", "tag", "name: §!!python/object x\nnodes: {a: {type: transform, value: 1}}"),
    ("bad_yaml", "no anchor &b", "name: x\nnodes: {a: §*b}"),
    ("bad_yaml", "an alias cannot be a key", "name: &b x\nnodes: {§*b : 1}"),
    ("bad_yaml", "a key must be a text", "name: x\nnodes: {§{a: 1}: 1}"),
    ("bad_yaml", "<< merges", "name: x\nnodes:\n  a:\n    <<: §3\n    type: task"),
    ("duplicate_key", "the first is in line 1", "name: x\n§name: y\nnodes: {a: {type: transform, value: 1}}"),
    ("duplicate_graph", "graph x is there twice", "name: x\nnodes: {a: {type: wait, duration: 1s}}\n---\n" * 2),
    # --- the graph
    ("missing_field", "a graph needs a name", "§nodes: {a: {type: wait, duration: 1s}}"),
    ("no_nodes", "it has none", "§name: x"),
    ("no_nodes", "not a list", "name: x\nnodes: §[a]"),
    ("unknown_field", "did you mean nodes?", "name: x\nnodes: {a: {type: wait, duration: 1s}}\n§node: 1"),
    ("bad_value", 'write it in quotes, as "1.2"', "name: x\nversion: §1.2\nnodes: {a: {type: wait, duration: 1s}}"),
    ("bad_value", "is not a name", "name: §a b\nnodes: {a: {type: wait, duration: 1s}}"),
    ("bad_schema", "did you mean string?", "name: x\ninput: {type: §strin}\nnodes: {a: {type: wait, duration: 1s}}"),
    ("bad_schema", "is not checked", "name: x\ninput: {§pattern: a}\nnodes: {a: {type: wait, duration: 1s}}"),
    ("bad_schema", "list of names", "name: x\ninput: {required: §url}\nnodes: {a: {type: wait, duration: 1s}}"),
    ("unknown_name", "did you mean a?", 'name: x\noutput: "${§aa}"\nnodes: {a: {type: wait, duration: 1s}}'),
    ("unknown_name", "called item", 'name: x\noutput: "${§item}"\nnodes: {a: {type: wait, duration: 1s}}'),
    # --- one node
    ("duplicate_node", "the first is in line 3", "a: {type: wait, duration: 1s}\n§a: {type: wait, duration: 2s}"),
    ("bad_node_id", "not beginning with a digit", "§1a: {type: wait, duration: 1s}"),
    ("bad_node_id", "a word of CEL", "§in: {type: wait, duration: 1s}"),
    ("bad_node_id", "already use", "§status: {type: wait, duration: 1s}"),
    ("bad_node", "must be a mapping", "a: §3"),
    ("missing_field", "needs a type", "§a: {call: save}"),
    ("unknown_type", "did you mean task?", "a: {type: §tsk, call: save}"),
    ("unknown_field", "did you mean retries?", "a: {type: http, url: 'http://a', §retires: 3}"),
    ("unknown_field", "it is called after", "a: {type: http, url: 'http://a', §depends_on: b}"),
    ("unknown_field", "it goes with http", "a: {type: wait, duration: 1s, §url: 'http://a'}"),
    ("missing_field", "task a needs call", "§a: {type: task}"),
    ("missing_field", "needs url", "§a: {type: http}"),
    ("missing_field", "needs value", "§a: {type: transform}"),
    ("bad_value", "whole number from 0", "a: {type: http, url: 'http://a', retries: §-1}"),
    ("bad_value", "whole number from 1 to 10", "a: {type: http, url: 'http://a', priority: §11}"),
    ("bad_value", "true or false", "a: {type: http, url: 'http://a', jitter: §no}"),
    ("bad_value", "there are fixed", "a: {type: http, url: 'http://a', backoff: §never}"),
    ("bad_value", "did you mean continue?", "a: {type: http, url: 'http://a', on_error: §continu}"),
    ("bad_value", "is not a value that JSON carries", "a: {type: transform, value: {x: §.nan}}"),
    ("bad_value", "is not a value that JSON carries", "a: {type: transform, value: [1, §99999999999999999999]}"),
    ("bad_value", "must be a mapping", "a: {type: task, call: any, with: §[1]}"),
    ("bad_value", "such as 200, 2xx or 200-204", "a: {type: http, url: 'http://a', expect: [200, §999]}"),
    ("bad_duration", "is not a length of time", "a: {type: http, url: 'http://a', timeout: §soon}"),
    ("bad_duration", "is zero", "a: {type: wait, duration: §0}"),
    ("bad_rate", "is not a rate", "a: {type: http, url: 'http://a', rate_limit: §many}"),
    ("bad_url", "must begin with http", "a: {type: http, url: §ftp://a}"),
    ("bad_gather", "first(k)", "a: {type: http, url: 'http://a', map: input.x, gather: §some}"),
    ("bad_gather", "whole number from 1", "a: {type: http, url: 'http://a', map: input.x, gather: §first(0)}"),
    ("bad_gather", "a share above 0", "a: {type: http, url: 'http://a', map: input.x, gather: §quorum(1.5)}"),
    ("bad_gather", "is not a length of time", "a: {type: http, url: 'http://a', map: input.x, gather: §deadline(x)}"),
    ("needs_field", "without map", "a: {type: http, url: 'http://a', §max_parallel: 8}"),
    ("needs_field", "without rate_limit", "a: {type: http, url: 'http://a', §rate_cost: 8}"),
    ("needs_field", "without concurrency_per_key", "a: {type: http, url: 'http://a', §concurrency_key: a}"),
    ("needs_field", "without timeout", "a: {type: approval, §on_timeout: reject}"),
    ("needs_field", "without signal", "a: {type: wait, duration: 1s, §timeout: 2s}"),
    ("needs_field", "needs approvers", "a: {type: approval, §quorum: 2}"),
    ("needs_field", "no node says how", "a: {type: http, url: 'http://a', on_error: §compensate}"),
    ("unknown_field", "there are ttl, key", "a: {type: http, url: 'http://a', cache: {ttl: 1h, §x: 1}}"),
    ("missing_field", "cache needs ttl", "a: {type: http, url: 'http://a', cache: §{key: x}}"),
    ("bad_wait", "either signal or duration", "§a: {type: wait}"),
    ("bad_wait", "either signal or duration", "§a: {type: wait, signal: x, duration: 1s}"),
    ("too_many_bodies", "json and body", "a: {type: http, url: 'http://a', method: POST, json: 1, §body: x}"),
    ("body_without_method", "say method: POST", "a: {type: http, url: 'http://a', §json: 1}"),
    ("never_happens", "hedge after 1m", "a: {type: http, url: 'http://a', map: input.a, timeout: 30s, hedge: §1m}"),
    ("needs_field", "hedge does nothing without map", "a: {type: http, url: 'http://a', §hedge: 1m}"),
    ("bad_duration", "hedge: 0 is zero", "a: {type: http, url: 'http://a', map: input.a, hedge: §0}"),
    ("never_happens", "allow 2", "a: {type: http, url: 'http://a', map: input.a, max_parallel: 1, hedge: §1m}"),
    ("never_happens", "reminders after 3h", "a: {type: approval, timeout: 2h, reminders: [1h, §3h]}"),
    ("needs_field", "retry_on does nothing without retries", "a: {type: http, url: 'http://a', §retry_on: 429}"),
    ("needs_field", "backoff does nothing without retries", "a: {type: subgraph, graph: b, §backoff: fixed}"),
    ("never_happens", "longer than max_delay", "a: {type: task, call: any, retry_delay: §2m, max_delay: 1m}"),
    ("never_happens", "default max_delay 5m", "a: {type: http, url: 'http://a', retries: 1, retry_delay: §6m}"),
    ("bad_value", "and a wait makes none", "a: {type: wait, signal: s, on_error: §dead_letter}"),
    ("bad_value", "and an approval makes none", "a: {type: approval, on_error: §dead_letter}"),
    ("bad_value", "a subgraph has no cache", "a: {type: subgraph, graph: b, cache: §1h}"),
    ("cycle", "would run within itself", "a: {type: subgraph, graph: §x}"),
    ("never_happens", "never passes", "a: {type: http, url: 'http://a', rate_limit: 5/s, rate_cost: §6}"),
    # --- edges
    (
        "unknown_node",
        "did you mean a?",
        "a: {type: wait, duration: 1s}\nb: {type: wait, duration: 1s, after: [a, §aa]}",
    ),
    ("unknown_node", "there is no node 'zz'", "a: {type: wait, duration: 1s, after: §zz}"),
    ("duplicate_predecessor", "twice", "a: {type: wait, duration: 1s}\nb: {type: wait, duration: 1s, after: [a, §a]}"),
    ("cycle", "names itself", "b: {type: wait, duration: 1s}\na: {type: wait, duration: 1s, after: [b, §a]}"),
    (
        "bad_join",
        "follows only 1 node",
        "a: {type: wait, duration: 1s}\nb: {type: wait, duration: 1s, after: a, join: §2}",
    ),
    ("bad_join", "follows no node", "a: {type: wait, duration: 1s, join: §any}"),
    ("bad_value", "join must be", "a: {type: wait, duration: 1s, join: §some}"),
    (
        "cycle",
        "circle: b -> c -> b",
        "a: {type: wait, duration: 1s}\n§b: {type: wait, duration: 1s, after: [a, c]}\n"
        "c: {type: wait, duration: 1s, after: b}",
    ),
    (
        "unreachable",
        "behind a circle",
        "a: {type: wait, duration: 1s}\n§b: {type: wait, duration: 1s, after: [a, c]}\n"
        "c: {type: wait, duration: 1s, after: b}\n§d: {type: wait, duration: 1s, after: c}",
    ),
    # --- branches
    (
        "branch_without_default",
        "needs a default",
        "a: {type: wait, duration: 1s}\n§r: {type: branch, cases: [{when: 'true', to: a}]}",
    ),
    (
        "unknown_node",
        "did you mean ab?",
        "ab: {type: wait, duration: 1s}\nr: {type: branch, cases: [{when: 'true', to: §abb}], default: ab}",
    ),
    (
        "unknown_node",
        "did you mean ab?",
        "ab: {type: wait, duration: 1s}\nr: {type: branch, cases: [{when: 'true', to: ab}], default: §abb}",
    ),
    (
        "missing_field",
        "cases[0] needs to",
        "a: {type: wait, duration: 1s}\nr: {type: branch, cases: [§{when: 'true'}], default: a}",
    ),
    ("bad_value", "not an empty one", "a: {type: wait, duration: 1s}\nr: {type: branch, cases: §[], default: a}"),
    ("bad_value", "list of {when, to}", "a: {type: wait, duration: 1s}\nr: {type: branch, cases: §{}, default: a}"),
    (
        "unreachable",
        "never chooses it",
        "a: {type: wait, duration: 1s}\nr: {type: branch, cases: [{when: 'true', to: a}], default: a}\n"
        "b: {type: wait, duration: 1s, after: [§r]}",
    ),
    # --- loops
    (
        "loop_without_bound",
        "max_iterations",
        "a: {type: wait, duration: 1s}\n§l: {type: loop, after: a, to: a, while: 'true'}",
    ),
    (
        "loop_target",
        "is not before it",
        "l: {type: loop, to: §a, while: 'true', max_iterations: 2}\na: {type: wait, duration: 1s, after: l}",
    ),
    (
        "loop_left",
        "left by a -> x",
        "a: {type: wait, duration: 1s}\nl: {type: loop, after: a, to: a, while: 'true', max_iterations: 2}\n"
        "§x: {type: wait, duration: 1s, after: a}",
    ),
    (
        "loop_entered",
        "put x before a",
        "x: {type: wait, duration: 1s}\na: {type: wait, duration: 1s}\n§b: {type: wait, duration: 1s, after: [a, x]}\n"
        "l: {type: loop, after: b, to: a, while: 'true', max_iterations: 2}",
    ),
    (
        "loop_left",
        "left by l -> a",
        "§a: {type: wait, duration: 1s}\nb: {type: wait, duration: 1s, after: a}\n"
        "l: {type: loop, after: b, to: a, while: 'true', max_iterations: 2}\n"
        "m: {type: loop, after: l, to: b, while: 'true', max_iterations: 2}",
    ),
    # --- expressions
    (
        "bad_expression",
        "cannot be read",
        "a: {type: wait, duration: 1s}\nb: {type: wait, duration: 1s, after: a, when: 'a ==§ '}",
    ),
    ("bad_expression", "true or false", "a: {type: wait, duration: 1s, when: '§1 + 1'}"),
    ("bad_expression", "cannot be read", 'a: {type: transform, value: {x: ["ok", "${input.x} and ${1 +§}"]}}'),
    (
        "unknown_name",
        "did you mean fetch?",
        "fetch: {type: wait, duration: 1s}\nb: {type: transform, after: fetch, value: '${§fetsh}'}",
    ),
    ("unknown_name", "each item of a map only", "a: {type: transform, value: '${§item}'}"),
    ("unknown_name", "each item of a map only", "a: {type: http, url: 'http://a', map: input.x, when: '§index > 1'}"),
    ("unknown_name", "its own output", "a: {type: transform, value: 'is ${§a}'}"),
    ("not_before", "which is not before b", "a: {type: wait, duration: 1s}\nb: {type: transform, value: '${§a}'}"),
    (
        "not_before",
        "which is not before b",
        "a: {type: wait, duration: 1s}\nb: {type: transform, value: '${status.§a}'}",
    ),
    # --- arguments
    (
        "missing_argument",
        "nothing provides parameter report of save(",
        "a: {type: task, call: §each}".replace("each", "save"),
        "url",
    ),
    ("missing_argument", "only a node with map", "a: {type: task, call: §each}"),
    ("missing_argument", "add it to after", "report: {type: wait, duration: 1s}\na: {type: task, call: §save}"),
    ("unknown_argument", "did you mean deep?", "a: {type: task, call: save, with: {report: 1, §dep: 2}}"),
    (
        "ambiguous_argument",
        "say which",
        "report: {type: wait, duration: 1s}\na: {type: task, call: §save, after: report}",
        "report",
    ),
]


@pytest.mark.parametrize(("code", "words", "text", "field"), [(*row, "")[:4] for row in TABLE])
def test_every_problem_has_its_code_its_reason_and_its_place(code, words, text, field):
    whole = text.startswith(("name:", "§n", "§[", "[")) or text == "§"
    if not whole:
        schema = f"input: {{required: [{field}]}}\n" if field else ""
        text = f"name: x\n{schema}nodes:\n" + "".join(f"  {line}\n" for line in text.splitlines())
    text, places = marked(text)

    found = [problem for problem in problems_of(text) if problem.code == code]

    assert any(words in problem.message for problem in found), problems_of(text)
    if places:
        told = [(problem.line, problem.column) for problem in problems_of(text)]
        assert set(places) <= set(told), (places, problems_of(text))


@pytest.mark.parametrize(
    "text",
    [row[2] for row in TABLE if row[0] not in ("not_a_graph", "bad_yaml") and not row[2].startswith(("name", "§n"))],
)
def test_a_problem_of_a_node_names_the_node_and_a_path_to_it(text):
    nodes = "name: x\ninput: {required: [report]}\nnodes:\n" + "".join(f"  {line}\n" for line in text.splitlines())

    for problem in problems_of(nodes.replace("§", "")):
        assert problem.node is not None or problem.path in ("/nodes", ""), problem
        assert problem.path.startswith(f"/nodes/{problem.node or ''}".rstrip("/")), problem


def test_all_problems_are_told_at_once():
    text, places = marked(
        """
name: report
nodes:
  fetch: {type: §htp, url: x}
  sort:  {type: task, call: sort, after: [§fech], retries: §many}
  route: {type: branch, after: sort, cases: [{when: "size(sort) >§", to: sort2}], default: nowhere}
  §1x:    {type: wait, duration: §later}
"""
    )

    codes = {problem.code for problem in problems_of(text)}

    assert codes >= {"unknown_type", "unknown_node", "bad_value", "bad_expression", "bad_node_id", "bad_duration"}
    assert len(problems_of(text)) == 8
    lines = [problem.line for problem in problems_of(text)]
    assert lines == sorted(lines)
    assert set(places) <= {(problem.line, problem.column) for problem in problems_of(text)}


def test_no_entry_is_told():
    found = check_document(
        {
            "name": "x",
            "nodes": {
                "a": {"type": "wait", "duration": 1, "after": "b"},
                "b": {"type": "wait", "duration": 1, "after": "a"},
            },
        }
    ).problems

    assert [problem.code for problem in found] == ["no_entry", "cycle"]
    assert all(problem.line is None for problem in found)


def test_an_invalid_definition_raises_with_all_problems_as_data():
    with pytest.raises(InvalidGraph) as caught:
        check_document({"name": "x", "nodes": {"a": {"type": "task"}, "b": {"type": "loop"}}}).valid()

    assert caught.value.code == "invalid_graph"
    assert "graph x has 4 problems" in caught.value.message
    assert [problem["code"] for problem in caught.value.facts["problems"]] == [
        "missing_field",
        "missing_field",
        "missing_field",
        "loop_without_bound",
    ]


@pytest.mark.parametrize(
    "bad", ["\ud800", "a\0b", 10**30, float("nan"), float("inf"), object(), b"x", {1: 2}, {"\ud800": 1}, [[{"a": {3}}]]]
)
@pytest.mark.parametrize(
    ("type", "field"),
    [
        *(
            ("task", field)
            for field in ("call", "with", "after", "join", "when", "map", "timeout", "retries", "cache", "rate_cost")
        ),
        *(
            ("http", field)
            for field in ("url", "headers", "json", "body", "expect", "method", "concurrency_key", "compensate")
        ),
        *(("approval", field) for field in ("title", "approvers", "show", "form", "reminders", "escalate", "quorum")),
        *(("branch", field) for field in ("cases", "default")),
        *(("loop", field) for field in ("while", "to", "max_iterations")),
        *(("wait", field) for field in ("signal", "duration")),
        ("transform", "value"),
        ("gather", "group_by"),
    ],
)
def test_no_value_that_json_does_not_carry_gets_anywhere(type, field, bad):
    for value in (bad, [bad], {"x": bad}, f"${{{bad}}}"):
        checked = check_document({"name": "x", "nodes": {"a": {"type": type, field: value}}})
        if not checked.problems:
            assert from_json(to_json(checked.valid())) == checked.spec


def test_more_nodes_or_edges_than_a_graph_may_have_are_refused_at_once():
    many = {f"n{i}": {"type": "transform", "value": 1} for i in range(10_001)}
    assert [p.code for p in check_document({"name": "x", "nodes": many}).problems] == ["too_large"]

    ids = [f"n{i}" for i in range(400)]
    dense = {id: {"type": "transform", "value": 1, "after": ids[:i]} for i, id in enumerate(ids)}
    assert [p.code for p in check_document({"name": "x", "nodes": dense}).problems] == ["too_large"]

    big = {"a": {"type": "transform", "value": "x" * 5_000_000}}
    assert [p.code for p in check_document({"name": "x", "nodes": big}).problems] == ["too_large"]


def test_problems_are_bounded():
    bad = {f"n{i}": {"type": "tsak"} for i in range(1_000)}

    assert len(check_document({"name": "x", "nodes": bad}).problems) == 100


def chain(n, *after, **fields):
    """Returns a chain of n nodes, each behind the one before."""
    ids = [f"n{i}" for i in range(n)]
    return {id: {"type": "wait", "duration": 1, "after": ids[max(0, i - 1) : i], **fields} for i, id in enumerate(ids)}


def back(to, after):
    return {"type": "loop", "to": to, "after": after, "while": "true", "max_iterations": 2}


HOSTILE = {
    "every node follows one that is not there": lambda: {
        f"n{i}": {"type": "wait", "duration": 1, "after": [f"x{i}"]} for i in range(9_000)
    },
    "every expression names what is not there": lambda: chain(9_000, when="x1 == y2"),
    "every field is misspelt": lambda: {f"n{i}": {"type": "http", "uri": 1, "retires": 2} for i in range(9_000)},
    "one node follows another fifty thousand times": lambda: {
        "a": {"type": "wait", "duration": 1},
        "b": {"type": "wait", "duration": 1, "after": ["a"] * 50_000},
    },
    "one circle of all nodes": lambda: {**chain(9_000), "n0": {"type": "wait", "duration": 1, "after": ["n8999"]}},
    "loops side by side over the same long body": lambda: {
        **chain(8_000),
        **{f"l{i}": back("n0", ["n7999"]) for i in range(500)},
    },
    "loops inside loops": lambda: {
        **chain(500),
        **{f"l{i}": back(f"n{499 - i}", [f"l{i - 1}" if i else "n499"]) for i in range(500)},
    },
}


@pytest.mark.parametrize("what", HOSTILE)
def test_hostile_definitions_are_refused_in_bounded_time(what):
    document = {"name": "x", "nodes": HOSTILE[what]()}
    began = time.process_time()

    found = check_document(document).problems

    assert found
    # A second or two at most; what grows with the square of the nodes would take minutes.
    assert time.process_time() - began < 20


def test_without_a_file_a_problem_says_where_it_is_by_its_path():
    with pytest.raises(InvalidGraph) as caught:
        check_document(
            {"name": "x", "nodes": {"a": {"type": "transform", "value": 1, "after": ["nope"]}, "b": {"type": "task"}}}
        ).valid()

    lines = caught.value.message.splitlines()[1:]
    assert sorted(line.split(":")[0].strip() for line in lines) == ["/nodes/a/after/0", "/nodes/b"]
