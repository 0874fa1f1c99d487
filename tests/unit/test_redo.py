"""What runs anew in a retry, without a store."""

import pytest

from weft.core.graph.compile import Plan
from weft.core.graph.validate import check_document
from weft.core.patch import Ended
from weft.core.redo import behind, outrun, plan_redo
from weft.core.routing import Job
from weft.errors import Conflict, NotFound

DONE = Ended("completed")


def plan(**nodes) -> Plan:
    full = {id: node if "type" in node else {"type": "transform", "value": 1, **node} for id, node in nodes.items()}
    return Plan(check_document({"name": "g", "nodes": full}).valid())


CHAIN = plan(a={}, b={"after": ["a"]}, c={"after": ["b"]}, x={}, end={"after": ["c", "x"]})


def test_everything_behind_is_everything_that_may_depend_on_it():
    assert behind(CHAIN, ["b"]) == {"b", "c", "end"}
    assert behind(CHAIN, ["end"]) == {"end"}


def test_what_failed_and_what_was_not_reached_runs_anew():
    redo = plan_redo(CHAIN, {"a": DONE, "b": Ended("failed")}, None)
    assert set(redo.kept) == {"a"}
    assert set(redo.again) == {"b", "c", "x", "end"}
    assert redo.roots == ("b",)
    assert redo.jobs == [Job("enter", "b", ()), Job("enter", "x", ())]


def test_a_failure_that_the_run_went_on_after_is_kept():
    graph = plan(a={"on_error": "continue"}, b={"after": ["a"]})
    redo = plan_redo(graph, {"a": Ended("failed")}, None)
    assert set(redo.kept) == {"a"}
    assert redo.jobs == [Job("reach", "b", (), "a!")]


def test_only_the_first_of_several_beginnings_is_entered():
    redo = plan_redo(CHAIN, {"a": DONE, "b": DONE, "x": DONE, "c": Ended("failed")}, "b")
    assert redo.roots == ("b",)
    assert redo.jobs == [Job("enter", "b", ()), Job("reach", "end", (), "x+")]


def test_a_step_that_was_running_when_all_was_cut_off_is_reached_by_those_before_it():
    redo = plan_redo(CHAIN, {"a": DONE, "x": DONE}, "b")
    assert redo.roots == ()
    assert redo.jobs == [Job("reach", "b", (), "a+"), Job("reach", "end", (), "x+")]


def test_steps_that_are_not_there_or_never_began_are_refused():
    with pytest.raises(NotFound, match="no node 'z'"):
        plan_redo(CHAIN, {"a": DONE}, "z")
    with pytest.raises(Conflict, match="node c never began: b"):
        plan_redo(CHAIN, {"a": DONE}, "c")
    with pytest.raises(Conflict, match="node c never began: b"):
        plan_redo(CHAIN, {"a": DONE, "b": Ended("failed")}, "c")


NESTED = plan(
    a={},
    b={"after": ["a"]},
    inner={"type": "loop", "after": ["b"], "to": "b", "while": "true", "max_iterations": 9},
    outer={"type": "loop", "after": ["inner"], "to": "a", "while": "true", "max_iterations": 9},
    end={"after": ["outer"]},
)


def test_what_ended_in_an_earlier_iteration_has_not_ended_in_this_one():
    ended = {
        "a": Ended("completed", (2,)),
        "b": Ended("completed", (1, 3)),
        "inner": Ended("completed", (1, 3)),
    }
    assert outrun(NESTED, ended) == {"b", "inner"}
    redo = plan_redo(NESTED, ended, None)
    assert set(redo.kept) == {"a"}
    assert redo.again == ("b", "inner", "outer", "end")
    assert redo.jobs == [Job("reach", "b", (2,), "a+")]
    assert redo.earlier == {"b", "inner"}


def test_an_iteration_of_an_inner_loop_outruns_only_what_is_in_it():
    ended = {
        "a": Ended("completed", (0,)),
        "b": Ended("failed", (0, 2)),
        "inner": Ended("completed", (0, 1)),
    }
    assert outrun(NESTED, ended) == {"inner"}
    redo = plan_redo(NESTED, ended, None)
    assert set(redo.kept) == {"a"}
    assert redo.jobs == [Job("enter", "b", (0, 2))]


def test_a_step_that_an_iteration_did_not_come_to_cannot_be_named():
    ended = {"a": Ended("completed", (1,)), "b": Ended("completed", (0, 0)), "inner": Ended("completed", (0, 0))}
    with pytest.raises(Conflict, match="node inner never began: b"):
        plan_redo(NESTED, ended, "inner")


def test_a_loop_that_begins_anew_leaves_nothing_to_read():
    graph = plan(
        s={},
        a={"after": ["s"]},
        b={"after": ["a"]},
        again={"type": "loop", "after": ["b"], "to": "a", "while": "true", "max_iterations": 9},
    )
    ended = {"s": DONE, "a": Ended("completed", (2,)), "b": Ended("completed", (1,))}
    assert plan_redo(graph, ended, "a").earlier == {"b"}
    assert plan_redo(graph, ended, "a").replaced == {"a": (2,)}
    redo = plan_redo(graph, ended, "s")
    assert (redo.earlier, redo.replaced, redo.jobs) == (frozenset(), {}, [Job("enter", "s", ())])


def test_an_inner_loop_that_begins_anew_leaves_what_the_outer_iteration_before_gave():
    ended = {
        "a": Ended("completed", (1,)),
        "b": Ended("completed", (1, 2)),
        "inner": Ended("completed", (0, 4)),
    }
    redo = plan_redo(NESTED, ended, "a")
    assert redo.earlier == {"inner"}
    assert redo.replaced == {"a": (1,), "b": (1,)}
