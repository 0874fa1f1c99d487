"""Functions that give a key or a cost for a call get what they name of its arguments."""

from typing import Any

import pytest

from weft import DefinitionError, Weft
from weft.sdk.keying import fit
from weft.sdk.signature import Signature


def bill(customer: str, amount: int = 1, *, note: str = "") -> None: ...


BILL = Signature(bill, name="bill")


def call(function: Any, *args: Any, **kwargs: Any) -> Any:
    return fit(function, BILL, option="concurrency_key")(*args, **kwargs)


@pytest.mark.parametrize(
    "function",
    [
        lambda customer: customer,
        lambda amount, customer: customer,
        lambda customer, amount, note: customer,
        lambda customer, **others: customer,
        lambda *args, **kwargs: args[0],
        lambda who, how_much, note: who,
        lambda customer, unknown=None: customer,
    ],
)
def test_a_call_has_one_key_however_it_is_written(function: Any) -> None:
    calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
        (("ada",), {}),
        (("ada", 1), {}),
        ((), {"customer": "ada"}),
        (("ada",), {"note": "", "amount": 1}),
    ]

    assert {call(function, *args, **kwargs) for args, kwargs in calls} == {"ada"}


def test_defaults_of_the_task_are_seen() -> None:
    assert call(lambda amount, note: f"{amount}{note!r}", "ada") == "1''"
    assert call(lambda amount=7: amount, "ada") == 1  # the task's default, not the key's
    assert call(lambda: "all", "ada", 5) == "all"


def test_a_function_of_the_very_same_parameters_costs_nothing() -> None:
    def send(to: str, body: str) -> None: ...

    def key(to: str, body: str) -> str:
        return to

    assert fit(key, Signature(send, name="send"), option="unique_key") is key


def test_parameters_of_a_dependency_and_open_ended_calls() -> None:
    def many(*items: int) -> None: ...

    signature = Signature(bill, name="bill", skip=frozenset({"note"}))

    assert fit(lambda who, amount: amount, signature, option="rate_key")("ada") == 1
    assert fit(lambda *items: len(items), Signature(many, name="many"), option="rate_cost")(1, 2, 3) == 3
    assert fit(max, Signature(many, name="many"), option="rate_cost")(1, 2, 3) == 3


async def later(customer: str) -> str:
    return customer


@pytest.mark.parametrize("function", [lambda who: who, lambda customer, day: day, later])
def test_a_function_that_could_never_be_called_is_refused_where_it_is_written(function: Any) -> None:
    app = Weft("keys")

    with pytest.raises(DefinitionError, match="concurrency_key"):
        app.task(concurrency_key=function, concurrency_per_key=1)(bill)
    with pytest.raises(DefinitionError, match="unique_key"):
        app.task(unique_for="1h", unique_key=function)(bill)
    with pytest.raises(DefinitionError, match="rate_cost"):
        app.task(rate_limit="5/m", rate_cost=function)(bill)
    assert "bill" not in app.tasks
