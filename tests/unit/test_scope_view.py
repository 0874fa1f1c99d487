"""The names that expressions see of a run: found by need, so that a large graph costs no more than a small one."""

from __future__ import annotations

from typing import Any

import pytest

from weft.core.expressions import Expression
from weft.core.graph.compile import compile
from weft.core.graph.validate import check_document
from weft.core.scope import Scope, View
from weft.errors import ExpressionFailed

PLAN = compile(
    check_document(
        {
            "name": "g",
            "nodes": {
                **{id: {"type": "transform", "value": 1} for id in ("bad", "done", "gone", "later", "beside")},
                "last": {"type": "transform", "value": 1, "after": ["done", "gone", "bad", "later"]},
            },
        }
    ).valid()
)


def view(**extra: Any) -> View:
    scope = Scope(
        input={"n": 1},
        values={"done": [1, 2]},
        status={"done": "completed", "gone": "skipped", "bad": "failed", "beside": "completed"},
        errors={"bad": {"type": "ValueError", "message": "no"}},
        names={"later", "done"},
    )
    return View(scope, PLAN, "last", {"iteration": 2, **extra})


def test_what_ended_has_its_value_and_what_was_looked_for_is_null() -> None:
    seen = view(item=7, index=0)

    assert seen["done"] == [1, 2]
    assert (seen["gone"], seen["bad"], seen["later"]) == (None, None, None)
    assert (seen["input"], seen["iteration"], seen["item"], seen["index"]) == ({"n": 1}, 2, 7, 0)
    assert seen["status"] == {
        "done": "completed",
        "gone": "skipped",
        "bad": "failed",
        "later": None,
        "beside": "completed",
    }
    assert seen["errors"]["bad"]["message"] == "no" and seen["errors"]["done"] is None
    assert seen.get("nobody") is None and "nobody" not in seen


def test_what_nobody_looked_for_is_missing_and_the_message_names_what_is_near() -> None:
    with pytest.raises(KeyError):
        view()["nobody"]
    with pytest.raises(ExpressionFailed, match="there is no `dune` here") as failed:
        Expression("dune").evaluate(view())
    assert "done" in str(failed.value)


def test_all_names_can_be_listed() -> None:
    assert set(view()) == {"iteration", "input", "status", "errors", "done", "gone", "bad", "later", "beside"}
    assert len(view()) == 9


def test_status_and_errors_as_a_whole_are_of_all_that_is_before() -> None:
    whole = {"bad": "failed", "done": "completed", "gone": "skipped", "later": None}
    assert Expression("status").evaluate(view()) == whole
    assert Expression("size(errors) == 4 && errors.exists(id, errors[id] != null)").evaluate(view())
    assert Expression("[errors.done, status.later, has(errors.bad), has(errors.done.type)]").evaluate(view()) == [
        None,
        None,
        True,
        False,
    ]
    assert Expression("status[input.id]").evaluate({"input": {"id": "a"}, "status": {"a": "failed"}}) == "failed"


def test_a_view_of_a_large_run_copies_nothing() -> None:
    names = {f"n{i}": i for i in range(5_000)}
    scope = Scope(values=dict(names), status=dict.fromkeys(names, "completed"), names=frozenset(names))

    seen = scope.view(None, ())  # type: ignore[arg-type]

    assert seen["n4999"] == 4999
    assert len(seen._own) == 2, "only what it was given beside the nodes"  # type: ignore[attr-defined]
