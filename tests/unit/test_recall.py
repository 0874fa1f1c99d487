"""What nodes gave in the iteration before, found without a store."""

from dataclasses import dataclass, field

import pytest

from weft.core.effects import Mark
from weft.core.graph.validate import check_document
from weft.core.patch import Ended
from weft.core.published import Bundle, Published
from weft.core.recall import read_before, recall
from weft.core.redo import plan_redo

#: s, then outer: a -> inner: (b -> c), then end. `a` reads `c`, `b` reads itself and `c`, the others those before.
NODES = {
    "s": {"type": "transform", "value": 1},
    "a": {"type": "transform", "value": "${c}", "after": ["s"]},
    "b": {"type": "transform", "value": "${[a, b, c]}", "after": ["a"]},
    "c": {"type": "transform", "value": "${b}", "after": ["b"]},
    "inner": {"type": "loop", "after": ["c"], "to": "b", "while": "true", "max_iterations": 9},
    "outer": {"type": "loop", "after": ["inner"], "to": "a", "while": "true", "max_iterations": 9},
    "end": {"type": "transform", "value": "${b}", "after": ["outer"]},
}
GRAPH = Published(Bundle(check_document({"name": "g", "nodes": NODES}).valid(), {}), "0" * 64)


@dataclass
class Told:
    type: str
    step: str = ""
    payload: bytes = b""
    facts: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.facts = {"step": self.step} if self.step else {}


def ended(**iterations: tuple[int, ...]) -> dict[str, Ended]:
    return {id: Ended("completed", place) for id, place in iterations.items()}


@pytest.mark.parametrize(
    ("given", "from_step", "wanted"),
    [
        (ended(a=(0,), b=(0, 0), c=(0, 0)), "b", {}),  # there was none before
        (ended(a=(0,), b=(0, 2), c=(0, 2)), "b", {"b": (0, 2), "c": (0, 2)}),
        (ended(a=(0,), b=(0, 2), c=(0, 1)), "b", {"b": (0, 2)}),  # what c gave is of the iteration before
        (ended(a=(0,), b=(0, 2), c=(0, 2)), "c", {}),  # b stays
        (ended(a=(1,), b=(1, 2), c=(1, 2)), "a", {"b": (1,), "c": (1,)}),  # the inner loop begins anew
        (ended(a=(2,), b=(1, 2), c=(1, 2)), "a", {}),  # what both gave is of the iteration before
        (ended(s=(), a=(2,), b=(1, 2), c=(1, 2)), "s", {}),  # all begins anew
    ],
)
def test_what_is_read_before_it_runs_anew_is_wanted(given, from_step, wanted):
    assert read_before(GRAPH, plan_redo(GRAPH.plan, given, from_step)) == wanted


def test_the_last_outcome_before_the_iteration_is_found():
    events = [
        Told("queued"),
        Told("step_completed", "b~0.1", b"1"),
        Told("node_failed", "c~0.1", b"e"),
        Told("step_completed", "b~0.2", b"2"),
        Told("step_completed", "b~0.2!", b"undone"),
        Told("step_completed", "b~0.2#4", b"item"),
        Told("node_errors", "b~0.2", b"[]"),
        Told("step_cached", "b~1.0", b"3"),
        Told("failed"),
    ]
    assert recall(GRAPH, {"b": (1,), "c": (1, 0)}, events) == {
        "b": Mark("b", "b~0.2", "completed", b"2"),
        "b*": Mark("b*", "b~0.2", "completed", b"[]"),
        "c": Mark("c", "c~0.1", "failed", b"e"),
    }
    assert recall(GRAPH, {"b": (1, 1)}, events)["b"] == Mark("b", "b~1.0", "completed", b"3", cached=True)
    assert recall(GRAPH, {"b": (0, 1)}, events) == {}
