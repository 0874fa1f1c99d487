"""How `key=value` and `--input` become arguments: by the types of the parameters. No store is needed for that."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any, Literal
from uuid import UUID

import pydantic
import pytest

from weft import Weft
from weft.cli.arguments import read_arguments, read_input
from weft.cli.banner import example_command
from weft.cli.enqueue import became
from weft.cli.target import Place
from weft.errors import InvalidArguments

app = Weft("typed")


class Colour(Enum):
    RED = "red"


@dataclass
class Point:
    x: int
    y: int = 0


class Order(pydantic.BaseModel):
    id: int
    lines: list[str] = []


@app.task
async def scalars(i: int, f: float, b: bool, s: str, raw: bytes, d: Decimal, u: UUID, day: date, c: Colour) -> None: ...


@app.task
async def choices(a: int | None = None, b: Literal["x", "y"] = "x", c: str | None = None, d: int | str = 0) -> None: ...


@app.task
async def models(point: Point, order: Order, orders: dict[str, Order] | None = None) -> None: ...


@app.task
async def loose(a, b: Any = None, /, *, c: object = None, **others: int) -> None: ...


@app.task
async def patient(t: timedelta, more: timedelta | None = None, bare: str = "") -> None: ...


@app.task(batch=10)
async def gathered(ns: list[int]) -> list[int]:
    return ns


@app.task(batch=10)
async def gathered_loosely(items: list) -> None: ...


def read(task: Any, *words: str, document: str | None = None) -> Any:
    args, kwargs = read_arguments(task, words, document)
    task.signature.encode(args, kwargs)  # whatever was read must fit the task
    return (args, kwargs) if args else kwargs


def test_scalars_are_read_by_their_type() -> None:
    id = "12345678-1234-5678-1234-567812345678"
    typed = "i=2 f=2 b=true s=2 raw=hi d=1.50 day=2026-01-02 c=red".split()
    assert read(scalars, *typed, f"u={id}") == {
        "i": 2, "f": 2.0, "b": True, "s": "2", "raw": b"hi", "d": Decimal("1.50"),
        "day": date(2026, 1, 2), "c": Colour.RED, "u": UUID(id),
    }  # fmt: skip


@pytest.mark.parametrize("text", ["90s", "1.5m", "90", "PT1M30S", "90000ms"])
def test_a_length_of_time_is_read_as_everywhere_and_as_iso(text: str) -> None:
    assert read(patient, f"t={text}") == {"t": timedelta(seconds=90)}
    assert read(patient, "t=1h", f"more={text}", "bare=5s") == {
        "t": timedelta(hours=1), "more": timedelta(seconds=90), "bare": "5s",
    }  # fmt: skip


@pytest.mark.parametrize("text", ["soon", "-5s", "nan", "5 parsecs"])
def test_what_is_no_length_of_time_is_refused(text: str) -> None:
    with pytest.raises(InvalidArguments, match=r"t must be timedelta; the task is patient\("):
        read(patient, f"t={text}")


def test_a_union_takes_what_fits_it() -> None:
    assert read(choices, "a=3", "b=y", "c=null", "d=2") == {"a": 3, "b": "y", "c": "null", "d": "2"}
    assert read(choices, "a=null") == {"a": None}
    assert read(choices, document='{"c": null, "d": 2}') == {"c": None, "d": 2}


def test_models_are_json() -> None:
    assert read(models, 'point={"x": 1}', 'order={"id": 7, "lines": ["a"]}', 'orders={"a": {"id": 1}}') == {
        "point": Point(1),
        "order": Order(id=7, lines=["a"]),
        "orders": {"a": Order(id=1)},
    }
    assert read(models, document='{"point": {"x": 1, "y": 2}, "order": {"id": 7}}')["point"] == Point(1, 2)


def test_what_has_no_type_is_json_or_text() -> None:
    assert read(loose, "a=[1]", "b=plain", "c=1.5", "d=4") == (([1], "plain"), {"c": 1.5, "d": 4})


def test_a_call_of_a_batch_task_has_one_item() -> None:
    assert read(gathered, "ns=3") == {"ns": 3}
    assert read(gathered, document='{"ns": 3}') == {"ns": 3}
    assert read(gathered_loosely, "items=[1]") == {"items": [1]}
    with pytest.raises(InvalidArguments, match=r"ns must be int; the task is gathered\(ns: int\)"):
        read(gathered, "ns=x")


def test_a_word_wins_over_the_document() -> None:
    assert read(choices, "a=2", document='{"a": 1, "b": "y"}') == {"a": 2, "b": "y"}


@pytest.mark.parametrize(
    ("words", "document", "said"),
    [
        (["a=x"], None, r"a must be int \| None; the task is choices\("),
        (["b=z"], None, "b must be Literal"),
        (["a=1", "a=2"], None, "a is given twice"),
        (["1"], None, "'1' is not key=value"),
        (["=1"], None, "'=1' is not key=value"),
        ([], "[1]", "must be a JSON object"),
        ([], "{", "--input is not JSON"),
        ([], '{"a": "2"}', "a must be int"),
    ],
)
def test_what_cannot_be_read_is_refused_with_the_signature(words: list[str], document: str | None, said: str) -> None:
    with pytest.raises(InvalidArguments, match=said) as caught:
        read(choices, *words, document=document)
    assert choices.signature.text in caught.value.message


def test_the_example_command_is_about_a_task_whose_arguments_can_be_made_up() -> None:
    simple = Weft("simple")

    @simple.task
    async def hard(order: Order) -> None: ...

    @simple.task
    async def easy(name: str, n: int, m: int, more: bool = False) -> None: ...

    command = example_command(simple, Place("shop:app", "the command line"))
    assert command.endswith(" enqueue --app shop:app easy name=Ada n=2 m=3 --watch")


def test_a_call_that_became_another_is_told_why() -> None:
    simple = Weft("simple")

    @simple.task(unique_for="1m")
    async def joined() -> None: ...

    @simple.task(unique_for="1m", unique="drop")
    async def dropped() -> None: ...

    assert became(joined, None) == "a call like it was made before: that run is meant"
    assert became(dropped, None) == "a call like it was made before: this one was dropped"
    assert became(scalars, "k") == became(None, "k") == "this idempotency key was used before: that run is meant"


@pytest.mark.parametrize(
    ("words", "place"),
    [
        (['order={"id": "x"}'], "`Order.id`"),
        (["order={}"], "field required at `Order.id`"),
        (['orders={"a": {"id": 1}, "b": {"id": "x"}}'], "`Order.id` at `orders[...]`"),
    ],
)
def test_what_does_not_fit_a_model_is_told_with_its_place(words: list[str], place: str) -> None:
    with pytest.raises(InvalidArguments) as refused:
        read(models, 'point={"x": 1}', *words)
    assert place in str(refused.value) and models.signature.text in str(refused.value)


@pytest.mark.parametrize(
    ("words", "document"),
    [([], '{"a": 1, "a": 2}'), ([], '{"a": {"b": 1, "c": 2, "b": 1}}'), (['a=[{"k": 1, "k": 2}]'], None)],
)
def test_a_key_that_stands_twice_is_refused(words: list[str], document: str | None) -> None:
    with pytest.raises(InvalidArguments, match="stands twice in one JSON object"):
        read(loose, *words, document=document)
    with pytest.raises(InvalidArguments, match="stands twice"):
        read_input(None, words, document)


def test_json_beyond_all_depth_is_refused() -> None:
    with pytest.raises(InvalidArguments, match="too deeply"):
        read(loose, document='{"a": ' + "[" * 100_000 + "]" * 100_000 + "}")
