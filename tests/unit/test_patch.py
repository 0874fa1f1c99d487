"""Patches, without a store: what differs, what must not be touched, and who reaches what again."""

import pytest

from weft.core.graph.compile import Plan
from weft.core.graph.validate import check_document
from weft.core.patch import (
    Ended,
    StepLimits,
    apply_operations,
    check_begun,
    check_operations,
    check_step,
    compare,
    difference,
    jobs_for,
)
from weft.core.routing import Job
from weft.errors import Conflict, InvalidArguments, PatchLimit, PayloadTooLarge


def plan(**nodes) -> Plan:
    full = {id: {"type": "transform", "value": 1, **node} for id, node in nodes.items()}
    return Plan(check_document({"name": "g", "nodes": full}).valid())


def looped(**more) -> Plan:
    nodes = {
        "a": {"type": "transform", "value": 1},
        "b": {"type": "transform", "value": 2, "after": ["a"]},
        "again": {"type": "loop", "to": "a", "while": "false", "max_iterations": 3, "after": ["b"]},
        "end": {"type": "transform", "value": 3, "after": ["again"]},
        **more,
    }
    return Plan(check_document({"name": "g", "nodes": nodes}).valid())


def test_what_differs_is_told_by_kind():
    old = plan(a={}, b={"after": ["a"]}, c={"after": ["a"]}, d={"after": ["b", "c"]})
    new = plan(a={}, b={"after": ["a"], "value": 2}, e={"after": ["b"]}, d={"after": ["b"]})

    change = compare(old, new)

    assert (change.added, change.removed, change.changed, change.rerouted) == (("e",), ("c",), ("b", "d"), ("d",))
    assert change.touched == {"b", "c", "d", "e"}


def test_another_order_of_the_same_predecessors_reroutes_nothing():
    old = plan(a={}, b={}, c={"after": ["a", "b"]})
    assert compare(old, plan(a={}, b={}, c={"after": ["b", "a"]})).rerouted == ()
    assert compare(old, plan(a={}, b={}, c={"after": ["a", "b"], "join": "any"})).rerouted == ("c",)


def test_what_has_begun_is_not_touched():
    old, new = plan(a={}, b={"after": ["a"]}), plan(a={}, b={"after": ["a"], "value": 2})
    check_begun(compare(old, new), old, new, {"a"})
    with pytest.raises(Conflict, match="node b has begun, so it cannot be changed"):
        check_begun(compare(old, new), old, new, {"a", "b"})
    with pytest.raises(Conflict, match="cannot be removed"):
        check_begun(compare(old, plan(a={})), old, plan(a={}), {"b"})


def test_a_step_may_not_give_a_run_more_agents_than_it_may_have():
    agent = {"type": "agent", "agent": "writer", "prompt": "x"}

    def written(n: int, **more) -> Plan:
        nodes = {f"a{i}": agent for i in range(n)} | {"t": {"type": "transform", "value": 1}, **more}
        return Plan(check_document({"name": "g", "nodes": nodes}).valid())

    def check(old: Plan, new: Plan, *, agents: int = 3, nodes: int = 2, made: int = 0) -> None:
        limits = StepLimits(nodes=nodes, patches=10, agents=agents)
        check_step(compare(old, new), old.spec, new.spec, step="r/plan", made=made, limits=limits)

    other = {"u": {"type": "transform", "value": 2}}
    check(written(1), written(3))
    check(written(5), written(4))
    # People gave it more than steps may: other nodes can still be added, agents cannot.
    check(written(5), written(5, **other))
    with pytest.raises(PatchLimit, match="would have 4 nodes of type agent; 3 are allowed") as told:
        check(written(3), written(4))
    assert told.value.facts == {"limit": 3, "count": 4, "setting": "WEFT_AGENT_NODES"}
    with pytest.raises(PatchLimit, match="would have 6"):
        check(written(5), written(6))
    with pytest.raises(PatchLimit, match="touches 3 nodes; 2 are allowed"):
        check(written(0), written(3))
    check(written(0), written(1), made=9)
    with pytest.raises(PatchLimit, match="patched this run 10 times, and 10 are allowed"):
        check(written(0), written(1), made=10)


def test_the_body_of_a_loop_changes_only_before_it_begins():
    old = looped()
    new = looped(b={"type": "transform", "value": 5, "after": ["a"]})
    check_begun(compare(old, new), old, new, set())
    with pytest.raises(Conflict, match="body of loop again, which has begun"):
        check_begun(compare(old, new), old, new, {"a"})
    behind = looped(more={"type": "transform", "value": 1, "after": ["again"]})
    check_begun(compare(old, behind), old, behind, {"a", "b", "again"})


def test_everybody_who_has_ended_reaches_again_as_what_they_are():
    graph = plan(a={}, b={}, c={}, d={}, j={"after": ["a", "b", "c", "d"]}, e={})
    ended = {"a": Ended("completed"), "b": Ended("skipped"), "c": Ended("failed")}
    assert jobs_for(graph, ["j", "e"], ended) == [
        Job("reach", "j", (), "a+"),
        Job("reach", "j", (), "b-"),
        Job("reach", "j", (), "c!"),
        Job("enter", "e", ()),
    ]


def test_a_branch_is_a_skip_to_all_that_it_did_not_choose():
    graph = Plan(
        check_document(
            {
                "name": "g",
                "nodes": {
                    "r": {"type": "branch", "cases": [{"when": "true", "to": "x"}], "default": "y"},
                    "x": {"type": "transform", "value": 1, "after": ["r"]},
                    "y": {"type": "transform", "value": 1, "after": ["r"]},
                },
            }
        ).valid()
    )
    for end, marks in (
        (Ended("completed", (), "x"), "+-"),
        (Ended("completed", (), "y"), "-+"),
        (Ended("skipped"), "--"),
    ):
        assert "".join(job.mark[-1] for job in jobs_for(graph, ["x", "y"], {"r": end})) == marks


def test_operations_are_applied_in_order_and_the_original_stays():
    document = {"name": "g", "nodes": {"a": {"type": "transform", "value": 1}}}
    patched = apply_operations(
        document,
        [
            {"op": "test", "path": "/name", "value": "g"},
            {"op": "copy", "from": "/nodes/a", "path": "/nodes/b"},
            {"op": "replace", "path": "/nodes/b/value", "value": 2},
        ],
    )
    assert patched["nodes"]["b"] == {"type": "transform", "value": 2}
    assert document == {"name": "g", "nodes": {"a": {"type": "transform", "value": 1}}}
    assert apply_operations(document, difference(document, patched)) == patched


@pytest.mark.parametrize(
    "path", ["/nodes", "/nodes/", "nodes/a", "", "/name", "/version", "/input/x", "/output", 5, None]
)
def test_only_nodes_can_be_patched(path):
    with pytest.raises(InvalidArguments):
        check_operations([{"op": "add", "path": path, "value": 1}])


def test_large_patches_are_refused():
    with pytest.raises(PayloadTooLarge, match="bytes"):
        check_operations([{"op": "add", "path": "/nodes/a", "value": "x" * 300_000}])
    with pytest.raises(PayloadTooLarge, match="touches 300 nodes"):
        compare(plan(a={}), plan(a={}, **{f"n{i}": {} for i in range(300)}))
    with pytest.raises(InvalidArguments, match="plain JSON"):
        check_operations([{"op": "add", "path": "/nodes/a", "value": object()}])


BROAD = {"name": "g", "nodes": {"fetch": {"type": "task", "after": ["a", "b"]}, "wx": {"type": "wait"}}}


@pytest.mark.parametrize(
    ("operation", "message"),
    [
        ({"op": "replace", "path": "/nodes/zz/with", "value": 1}, "there is no /nodes/zz: /nodes has fetch, wx"),
        ({"op": "remove", "path": "/nodes/fetsch"}, "there is no /nodes/fetsch: did you mean fetch?"),
        (
            {"op": "remove", "path": "/nodes/fetch/after/2"},
            "there is no /nodes/fetch/after/2: /nodes/fetch/after has 2 elements, from 0 on",
        ),
        (
            {"op": "replace", "path": "/nodes/wx/type/y", "value": 1},
            'there is no /nodes/wx/type/y: /nodes/wx/type is "wait"',
        ),
        ({"op": "move", "from": "/nodes/3", "path": "/nodes/y"}, "there is no /nodes/3: /nodes has fetch, wx"),
        ({"op": "copy", "from": "/nodes/wx", "path": "/nodes/q/with"}, "there is no /nodes/q: /nodes has fetch, wx"),
        ({"op": "test", "path": "/nodes/wx/type", "value": "http"}, 'it is "wait", not "http"'),
        ({"op": "test", "path": "/nodes/wx/signal", "value": 1}, "there is no /nodes/wx/signal: /nodes/wx has type"),
    ],
)
def test_an_operation_that_finds_nothing_says_what_is_there(operation, message):
    with pytest.raises(Conflict if operation["op"] == "test" else InvalidArguments) as caught:
        apply_operations(BROAD, [operation])
    assert str(caught.value) == f"operation 1: {operation['op']} {operation['path']}: {message}"
