"""Graph files: what YAML means here, what it may not do, and how large it may be."""

import time

import pytest
import yaml

from weft.core.graph import yaml as reader
from weft.core.graph.validate import check_text
from weft.core.graph.yaml import read_yaml


def value_of(text: str):
    (document,) = read_yaml(text)
    assert not document.problems.found, document.problems.found
    return document.value


def codes_of(text: str) -> list[str]:
    return [problem.code for document in read_yaml(text) for problem in document.problems.found]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("no", "no"),
        ("on", "on"),
        ("010", 10),
        ("0x1f", 31),
        ("0o17", 15),
        ("1:30", "1:30"),
        ("2026-03-27", "2026-03-27"),
        ("1.5", 1.5),
        ("1e3", 1000.0),
        ("-.5", -0.5),
        ("true", True),
        ("False", False),
        ("'true'", "true"),
        ("~", None),
        ("30s", "30s"),
        ("1_000", "1_000"),
        ("-", "-"),
        ('"a\\nb"', "a\nb"),
    ],
)
def test_scalars_mean_what_they_mean_in_yaml_1_2(text, value):
    read = value_of(f"a: [{text}]" if text != "-" else 'a: ["-"]')["a"][0]
    assert read == value and type(read) is type(value)


@pytest.mark.parametrize("loader", [yaml.SafeLoader, getattr(yaml, "CSafeLoader", yaml.SafeLoader)])
def test_both_parsers_of_the_library_read_the_same(loader, monkeypatch):
    monkeypatch.setattr(reader, "_Loader", loader)
    text = "name: x\nnodes:\n  a: {type: wait,  duration: soon}\n  b: {type: 'wat'}\n  b: {type: wait, after: [q]}\n"

    found = [(p.code, p.line, p.column) for checked in check_text(text) for p in checked.problems]

    assert found == [
        ("bad_duration", 3, 30),
        ("unknown_type", 4, 13),
        ("duplicate_node", 5, 3),
    ]


def test_documents_of_one_file_are_several_graphs():
    one = "name: {}\nnodes: {{a: {{type: wait, duration: 1s}}}}\n"

    checked = check_text("---\n" + one.format("x") + "---\n" + one.format("y") + "---\n")

    assert [found.valid().name for found in checked] == ["x", "y"]


def test_json_is_yaml_too():
    (checked,) = check_text('{"name": "x",\n\t"nodes": {"a": {"type": "wait", "duration": "1s"}}}')
    assert checked.valid().nodes["a"].duration == "1s"


def test_anchors_and_merges_save_typing():
    (checked,) = check_text(
        """
name: x
nodes:
  a: &call {type: http, url: "http://a", retries: 3}
  b: {<<: *call, after: [a], retries: 5}
  c: {<<: [{timeout: 5s, after: [b]}, *call]}
"""
    )

    nodes = checked.valid().nodes
    assert (nodes["b"].url, nodes["b"].retries) == ("http://a", 5)
    assert (nodes["c"].timeout, nodes["c"].retries) == ("5s", 3)


def test_an_alias_bomb_is_refused_before_it_explodes():
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 10)]
    began = time.process_time()

    assert codes_of("\n".join(lines)) == ["too_large"]
    assert time.process_time() - began < 5


def test_merges_do_not_explode_either():
    lines = ["a0: &a0 {" + ", ".join(f"k{i}: x" for i in range(100)) + "}"]
    lines += [f"a{i}: &a{i} {{x: *a{i - 1}, y: *a{i - 1}, <<: *a{i - 1}}}" for i in range(1, 40)]

    assert codes_of("\n".join(lines)) == ["too_large"]


@pytest.mark.parametrize("text", ["[" * 100_000, "a: " + "{a: " * 100_000, "- " * 50_000 + "x"])
def test_deep_nesting_is_refused_without_recursion(text):
    assert codes_of(text)[0] in ("too_deep", "bad_yaml")


def test_an_alias_inside_its_own_anchor_is_refused():
    assert codes_of("a: &a [*a]") == ["bad_yaml"]


def test_a_large_file_is_refused():
    assert codes_of("# " + "x" * 5_000_000) == ["too_large"]
    assert codes_of("# " + "ü" * 2_500_000) == ["too_large"]


@pytest.mark.parametrize(
    "text", ["\0", "a: \x07", "a: \ud800", "\t", "%", "&", "*", "a: b: c", "'", "? x", ": ", "!!x"]
)
def test_what_is_no_yaml_is_a_problem_never_an_exception(text):
    check_text(text)


def test_five_thousand_nodes_validate_quickly():
    nodes = "\n".join(
        f"  n{i}: {{type: task, call: t, after: [n{i - 1}, n{i // 2}x], when: 'n{i - 1} != {i}'}}".replace(
            f"n{i // 2}x", f"n{max(0, i - 2)}"
        )
        if i > 1
        else f"  n{i}: {{type: task, call: t}}"
        for i in range(5_000)
    )
    began = time.process_time()

    (checked,) = check_text(f"name: big\nnodes:\n{nodes}\n")

    assert checked.problems == []
    # Below a second on an idle machine; quadratic work would take minutes.
    assert time.process_time() - began < 10
