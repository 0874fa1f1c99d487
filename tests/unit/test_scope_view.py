"""The names that expressions see of a run: found by need, so that a large graph costs no more than a small one."""

from __future__ import annotations

from typing import Any

import pytest

from weft.core.expressions import Expression
from weft.core.scope import Scope, View
from weft.errors import ExpressionFailed


def view(**extra: Any) -> View:
    scope = Scope(
        input={"n": 1},
        values={"done": [1, 2]},
        status={"done": "completed", "gone": "skipped", "bad": "failed"},
        errors={"bad": {"type": "ValueError", "message": "no"}},
        names={"later", "done"},
    )
    return View(scope, {"iteration": 2, **extra})


def test_what_ended_has_its_value_and_what_was_looked_for_is_null() -> None:
    seen = view(item=7, index=0)

    assert seen["done"] == [1, 2]
    assert (seen["gone"], seen["bad"], seen["later"]) == (None, None, None)
    assert (seen["input"], seen["iteration"], seen["item"], seen["index"]) == ({"n": 1}, 2, 7, 0)
    assert seen["status"] == {"done": "completed", "gone": "skipped", "bad": "failed", "later": None}
    assert seen["errors"]["bad"]["message"] == "no" and seen["errors"]["done"] is None
    assert seen.get("nobody") is None and "nobody" not in seen


def test_what_nobody_looked_for_is_missing_and_the_message_names_what_is_near() -> None:
    with pytest.raises(KeyError):
        view()["nobody"]
    with pytest.raises(ExpressionFailed, match="there is no `dune` here") as failed:
        Expression("dune").evaluate(view())
    assert "done" in str(failed.value)


def test_all_names_can_be_listed() -> None:
    assert set(view()) == {"iteration", "input", "status", "errors", "done", "gone", "bad", "later"}
    assert len(view()) == 8


def test_a_view_of_a_large_run_copies_nothing() -> None:
    names = {f"n{i}": i for i in range(5_000)}
    scope = Scope(values=dict(names), status=dict.fromkeys(names, "completed"), names=frozenset(names))

    seen = scope.view(None, ())  # type: ignore[arg-type]

    assert seen["n4999"] == 4999
    assert len(seen._own) == 2, "only what it was given beside the nodes"  # type: ignore[attr-defined]
