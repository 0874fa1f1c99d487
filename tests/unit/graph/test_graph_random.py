"""Random definitions: valid ones compile and come back from JSON as they went; broken ones have problems, never exceptions."""

import copy
import json

from hypothesis import given, settings
from hypothesis import strategies as st

from weft.core.graph.arguments import TaskShape
from weft.core.graph.compile import compile
from weft.core.graph.drawing import draw
from weft.core.graph.mermaid import to_mermaid
from weft.core.graph.model import from_json, to_document, to_json
from weft.core.graph.validate import check_document, check_text

LEAVES = [
    {"type": "transform", "value": {"x": ["${input.x}", 1, None]}},
    {
        "type": "task",
        "call": "any",
        "with": {"a": "${input.a}"},
        "retries": 3,
        "backoff": "linear",
        "retry_delay": "2s",
    },
    {
        "type": "task",
        "call": "any",
        "map": "input.items",
        "filter": "item.ok",
        "gather": "quorum(50%)",
        "max_parallel": 3,
    },
    {
        "type": "http",
        "url": "https://example.com/${input.id}",
        "method": "POST",
        "json": {"a": 1.5},
        "expect": [200, "3xx"],
    },
    {"type": "agent", "agent": "writer", "prompt": "Write ${string(iteration)}", "cache": "1h"},
    {"type": "approval", "approvers": ["ops"], "timeout": "2h", "reminders": ["1h"], "when": "input.big"},
    {"type": "gather", "group_by": "item.kind"},
    {"type": "subgraph", "graph": "other", "with": {"url": "${input.url}"}, "on_error": "continue"},
    {"type": "wait", "signal": "go", "timeout": 60},
    {"type": "wait", "duration": "${input.pause}"},
]

blocks = st.recursive(
    st.tuples(st.just("leaf"), st.integers(0, len(LEAVES) - 1)),
    lambda inner: st.tuples(
        st.sampled_from(["chain", "side", "branch", "loop"]), st.lists(inner, min_size=1, max_size=3)
    ),
    max_leaves=12,
)


class Builder:
    """Writes blocks as nodes: whatever it is given, the definition is valid."""

    def __init__(self) -> None:
        self.nodes: dict[str, dict] = {}

    def add(self, node: dict, after: list[str]) -> str:
        id = f"n{len(self.nodes)}"
        self.nodes[id] = {**copy.deepcopy(node), **({"after": list(after)} if after else {})}
        return id

    def put(self, block, after: list[str]) -> list[str]:
        """Writes a block behind some nodes; returns the nodes it ends with."""
        kind, parts = block
        if kind == "leaf":
            return [self.add(LEAVES[parts], after)]
        if kind == "chain":
            for part in parts:
                after = self.put(part, after)
            return after
        if kind == "side":
            return [end for part in parts for end in self.put(part, after)]
        if kind == "branch":
            branch = self.add({"type": "branch"}, after)
            targets, ends = [], []
            for part in parts:
                targets.append(self.add(LEAVES[0], []))
                ends += self.put(part, targets[-1:])
            cases = [{"when": f"input.x == {i}", "to": target} for i, target in enumerate(targets)]
            self.nodes[branch] |= {"cases": cases, "default": targets[0]}
            return ends
        start = self.add(LEAVES[0], after)
        ends = [start]
        for part in parts:
            ends = self.put(part, ends)
        back = {"type": "loop", "to": start, "while": f"{start}.x[1] == iteration", "max_iterations": 3}
        return [self.add(back, ends)]


def document_of(block) -> dict:
    builder = Builder()
    builder.put(block, [])
    return {"name": "random", "version": "1", "input": {"type": "object"}, "nodes": builder.nodes}


documents = blocks.map(document_of)


@given(documents)
@settings(max_examples=150, deadline=None)
def test_valid_definitions_compile_and_come_back_as_they_went(document):
    checked = check_document(document)
    assert checked.problems == []
    spec = checked.valid()
    plan = compile(spec)

    # The JSON form is one: it comes back as it went, and reading it anew changes nothing.
    assert from_json(to_json(spec)) == spec
    assert to_json(check_document(to_document(spec)).valid()) == to_json(spec)
    assert json.loads(to_json(spec)) == to_document(spec)
    # A file says the same.
    (read,) = check_text(json.dumps(document, indent=1))
    assert read.valid() == spec

    assert set(plan.order) == set(document["nodes"])
    seen = set()
    for id in plan.order:
        node = plan.node(id)
        assert set(node.predecessors) <= seen, "each comes behind those it follows"
        assert node.need <= len(node.predecessors)
        assert node.reads <= set(document["nodes"])
        assert all(id in plan.loops[loop].body for loop in node.loops)
        seen.add(id)
    for loop in plan.loops.values():
        outside = {o for id in loop.body - {loop.id} for o in plan.node(id).successors} - loop.body
        assert not outside and loop.to in loop.body
    assert all(id in draw(plan) for id in plan.order)
    assert to_mermaid(plan).count("-->") == sum(len(plan.node(id).successors) for id in plan.order)


junk = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(st.characters(), max_size=8)
    | st.sampled_from(["n0", "n1", "${n0}", "1s"]),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(st.characters(), max_size=5), inner, max_size=3)
    ),
    max_leaves=5,
)
words = st.sampled_from(
    "type after join when map filter gather cases default to while max_iterations with call value url json n0 n1".split()
)


def paths_of(value, path=()):
    yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, part in items:
        yield from paths_of(part, (*path, key))


def mutate(document: dict, data: st.DataObject) -> object:
    path = data.draw(st.sampled_from(list(paths_of(document))))
    if not path:
        return data.draw(junk)
    around = document
    for key in path[:-1]:
        around = around[key]
    how = data.draw(st.sampled_from(["replace", "replace", "delete", "add", "rename"]))
    if how == "delete":
        del around[path[-1]]
    elif how == "replace":
        around[path[-1]] = data.draw(junk)
    elif isinstance(around, dict) and how == "add":
        around[data.draw(words)] = data.draw(junk)
    elif isinstance(around, dict):
        around[data.draw(words | st.text(st.characters(), max_size=4))] = around.pop(path[-1])
    return document


@given(documents, st.data())
@settings(max_examples=300, deadline=None)
def test_broken_definitions_have_problems_or_compile_but_never_raise(document, data):
    for _ in range(data.draw(st.integers(1, 4))):
        document = mutate(document, data)
        if not isinstance(document, dict):
            break

    shape = TaskShape("any(a)", ("a",), frozenset({"a"}))
    checked = check_document(document, {"any": shape}.get)

    if checked.problems:
        assert all(problem.code and problem.message for problem in checked.problems)
        return
    plan = compile(checked.valid())
    assert from_json(to_json(plan.spec)) == plan.spec
    for id in plan.order:
        node = plan.node(id)
        assert node.reads <= set(plan.spec.nodes)
        assert node.gather and node.cases is not None and node.on_error
    assert draw(plan) and to_mermaid(plan) and plan.result


@given(st.text(max_size=200) | st.binary(max_size=200).map(lambda data: data.decode("latin-1")))
@settings(max_examples=200, deadline=None)
def test_any_text_at_all_has_problems_never_exceptions(text):
    assert all(checked.problems for checked in check_text(text))


@given(documents, st.integers(0, 10_000), st.text(alphabet="{}[]:,&*!|>'\"%@`#\n -?~ab", max_size=4))
@settings(max_examples=150, deadline=None)
def test_a_file_with_something_typed_into_it_never_raises(document, at, typed):
    text = json.dumps(document, indent=1)
    at %= len(text)

    check_text(text[:at] + typed + text[at:])
