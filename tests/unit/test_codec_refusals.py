"""What the codec cannot carry is refused, with the place and the reason."""

import datetime as dt
import decimal
import pathlib
import sys
import uuid
from collections.abc import Callable, Iterable, Iterator
from typing import Annotated, Any, Literal

import annotated_types
import msgspec
import pydantic
import pytest
from codec_values import (
    INF,
    NAN,
    NOON,
    UUID,
    Basket,
    Circle,
    Colour,
    Hiding,
    Invoice,
    Leaf,
    Login,
    Order,
    Pair,
    Point,
    Refund,
    Row,
    RushOrder,
    Unknown,
    Word,
    trip,
)

from weft.codec import MAX_DEPTH, DoesNotFit, TypeCodec, encode_plain
from weft.differences import spell
from weft.errors import DefinitionError, PayloadRefused, PayloadTooLarge


@pytest.mark.parametrize(
    ("annotation", "value", "words"),
    [
        (int, True, "expected `int`, got `bool`"),
        (int, 1.0, "expected `int`, got `float`"),
        (int, "1", "expected `int`, got `str`"),
        (int, Unknown(), "expected `int`, got `Unknown`"),
        (str, b"x", "expected `str`, got `bytes`"),
        (str, UUID, "expected `str`, got `UUID`"),
        (str, NOON, "expected `str`, got `datetime`"),
        (bytes, "x", "expected `bytes`, got `str`"),
        (bool, 1, "expected `bool`, got `int`"),
        (float, True, "expected `float`, got `bool`"),
        (type(None), 1, "expected `None`, got `int`"),
        (int | dict, True, "expected `int | dict`, got `bool`"),
        (dict, [1], "expected `dict`, got `list`"),
        (dt.datetime, "2024-01-01T00:00:00", "expected `datetime`, got `str`"),
        (decimal.Decimal, 1.5, "expected `Decimal`, got `float`"),
        (decimal.Decimal, decimal.Decimal("NaN"), "not a number"),
        (Literal["a"], "hunter2", "invalid enum value"),
        (Annotated[int, msgspec.Meta(ge=1)], 0, ">= 1"),
        (Annotated[int, pydantic.Field(ge=1)], 0, "greater than or equal to 1"),
        (Annotated[int, pydantic.Field(ge=1)], True, "valid integer"),
        (list[Annotated[int, annotated_types.Ge(1)]], [1, 0], "`b[1]`"),
        (list[int], [1, "x"], "expected `int`, got `str` at `b[1]`"),
        (list[str], ["a", UUID], "a `UUID` would come back as a `str` at `b[1]`"),
        (list[int], [Unknown()], "`b[0]` is of type Unknown"),
        (list[list[int]], frozenset({(1, 2)}), "expected `list[list[int]]`, got `frozenset`"),
        (Iterable[int], (n for n in [1]), "got `generator`"),
        (set[int], [1, 1], "expected `set[int]`, got `list`"),
        (Basket, Basket([Point(1), Point("x")], NOON), "expected `int`, got `str` at `b.items[1].x`"),
        (Point, {"x": 1}, "expected `Point`, got `dict`"),
        (Point, Circle(1), "a `Circle` would come back as its parent `Point`"),
        (list[Point], [Circle(1)], "its parent `Point` at `b[0]`"),
        (Row, {"a": 1, "b": 2}, "are lost"),
        (Order, {"id": 1}, "expected `Order`, got `dict`"),
        (Order, RushOrder(id=1), "a `RushOrder` would come back as its parent `Order`"),
        (Order, Order.model_construct(id="x"), "valid integer"),
        (Order | Invoice, Invoice(id=1), "a `Invoice` would come back as a `Order`"),
        (Order | int, "3", "`b.int`"),
        (uuid.UUID | str, UUID, "a `UUID` would come back as a `str`"),
        (dict[int, Any], {1: NOON}, "a `datetime` would come back as a `str` at `b[1]`"),
        (Login, Login(password="hunter2"), "comes back changed at `b.password`"),
        (Hiding, Hiding(hidden=5), "comes back changed at `b.hidden`"),
        (pathlib.Path, "/a", "instance of Path"),
    ],
)
def test_what_does_not_fit_is_refused_with_the_annotation_and_the_place(annotation, value, words):
    with pytest.raises(DoesNotFit) as caught:
        TypeCodec(annotation, what="argument b of f(b)", root="b").encode(value)
    assert str(caught.value).startswith(f"argument b of f(b) does not fit `{spell(annotation)}`: ")
    assert words in str(caught.value)
    assert "hunter2" not in str(caught.value)
    assert isinstance(caught.value, PayloadRefused)


@pytest.mark.parametrize(
    ("value", "path", "kind"),
    [
        (Point(1), "b", "Point"),
        ({"items": [1, 2, 3, {"price": decimal.Decimal(1)}]}, "b.items[3].price", "Decimal"),
        ({"two words": {1, 2}}, "b['two words']", "set"),
        ([NOON], "b[0]", "datetime"),
        ([UUID], "b[0]", "UUID"),
        (Order(id=1), "b", "Order"),
        (Colour.RED, "b", "Colour"),
        (Word.HI, "b", "Word"),
        (Pair(1, "a"), "b", "Pair"),
        (bytearray(b"x"), "b", "bytearray"),
        (Unknown, "b", "type"),
        (Unknown(), "b", "Unknown"),
        ({"a": {1: 2}}, "b.a", "int"),
        ({None: 2}, "b", "None"),
        (len, "b", "builtin_function_or_method"),
    ],
)
@pytest.mark.parametrize("annotation", [None, Any])
def test_without_an_annotation_only_plain_data_goes(annotation, value, path, kind):
    with pytest.raises(PayloadRefused) as caught:
        TypeCodec(annotation, what="argument b of f(b)", root="b").encode(value)
    assert f"`{path}` " in str(caught.value)
    assert f" type {kind}" in str(caught.value)
    assert "annotate it" in str(caught.value)
    assert caught.value.facts["path"] == path


@pytest.mark.parametrize("number", [NAN, INF, -INF])
@pytest.mark.parametrize(
    ("annotation", "wrap", "path"),
    [
        (None, lambda n: n, "b"),
        (None, lambda n: {"items": [1, {"price": n}]}, "b.items[1].price"),
        (float, lambda n: n, "b"),
        (Point, lambda n: Point(1, n), "b.y"),
        (list[float | None], lambda n: [None, n], "b[1]"),
        (dict[float, int], lambda n: {n: 1}, "b[float]"),
        (Order | float, lambda n: n, "b"),
    ],
)
def test_not_a_number_and_infinities_are_refused_where_they_stand(annotation, wrap, path, number):
    with pytest.raises(PayloadRefused, match="is not a finite number") as caught:
        TypeCodec(annotation, root="b").encode(wrap(number))
    assert caught.value.facts["path"] == path


def test_bytes_and_integers_that_look_like_nan_are_carried():
    lookalikes = [b"\xcb\x7f\xf0\x00", b"\xca\xff\xff", "Ë\x7fð", -9218868437227405312, 1.7976931348623157e308, 5e-324]
    assert trip(None, lookalikes) == lookalikes


@pytest.mark.parametrize("annotation", [None, int, list[int], dict])
@pytest.mark.parametrize("number", [2**64, -(2**63) - 1, 10**100])
def test_integers_beyond_64_bits_are_refused(annotation, number):
    value = {None: number, int: number, list[int]: [number], dict: {"n": number}}[annotation]
    with pytest.raises(PayloadRefused, match="beyond 64 bits"):
        TypeCodec(annotation).encode(value)


@pytest.mark.parametrize(
    ("annotation", "value", "path"),
    [
        (None, ["a", "\ud800"], "value[1]"),
        (str, "\udfff", "value"),
        (Leaf, Leaf("\ud800"), "value.name"),
        (Order, Order.model_construct(id=1, tags=["\ud800"]), "value.tags[0]"),
        (None, {"\ud800": 1}, "value['\\ud800']"),
    ],
)
def test_lone_surrogates_are_refused(annotation, value, path):
    with pytest.raises(PayloadRefused, match="lone surrogate") as caught:
        TypeCodec(annotation).encode(value)
    assert caught.value.facts["path"] == path
    str(caught.value).encode()


def cyclic_list() -> list[Any]:
    cycle: list[Any] = []
    cycle.extend([cycle, cycle])
    return cycle


def cyclic_basket() -> Basket:
    basket = Basket([], NOON)
    basket.next = basket
    return basket


@pytest.mark.parametrize("annotation", [None, list, list[list[Any]]])
def test_a_list_that_contains_itself_is_refused(annotation):
    with pytest.raises(PayloadRefused, match="contains itself") as caught:
        TypeCodec(annotation).encode(cyclic_list())
    assert len(str(caught.value)) < 300


def test_an_object_that_contains_itself_is_refused():
    with pytest.raises(PayloadRefused, match="contains itself"):
        TypeCodec(Basket).encode(cyclic_basket())


@pytest.mark.parametrize("depth", [MAX_DEPTH, MAX_DEPTH + 1, 100_000])
def test_plain_data_may_be_nested_up_to_a_fixed_depth(depth):
    value: Any = 1
    for _ in range(depth):
        value = [value]
    if depth <= MAX_DEPTH:
        assert trip(None, value) == value
    else:
        with pytest.raises(PayloadRefused, match=f"deeper than {MAX_DEPTH}"):
            encode_plain(value)


def test_a_value_over_the_limit_is_refused_with_both_numbers():
    codec = TypeCodec(str, what="result of f() -> str", max_bytes=1_000)
    assert codec.encode("x" * 997)
    with pytest.raises(
        PayloadTooLarge, match=r"result of f\(\) -> str takes 1,003 bytes, the limit is 1,000"
    ) as caught:
        codec.encode("x" * 1_000)
    assert caught.value.facts == {"size": 1_003, "limit": 1_000}


@pytest.mark.parametrize(
    ("annotation", "data", "words"),
    [
        (int, b"\xa1x", "`int`: expected `int`, got `str`"),
        (int, b"", "truncated"),
        (int, b"\xc1", "malformed"),
        (None, b"\x01\x02", "trailing"),
        (None, b"\xa1\xff", "utf-8"),
        (None, b"\x91" * 100_000, "deeper"),
        (
            list[Point],
            encode_plain([{"x": 1}, {"x": "q"}]),
            "`list[Point]`: expected `int`, got `str` at `result[1].x`",
        ),
        (Order, encode_plain({"id": "q"}), "`Order`: input should be a valid integer"),
        (Order | Refund, encode_plain({}), "`Order | Refund`: Field required"),
        (uuid.UUID, encode_plain("hunter2"), "invalid UUID"),
    ],
)
def test_bytes_that_do_not_fit_are_refused_with_the_annotation_and_the_place(annotation, data, words):
    with pytest.raises(PayloadRefused) as caught:
        TypeCodec(annotation, what="result of f()", root="result").decode(data)
    assert str(caught.value).startswith("result of f(): ")
    assert words in str(caught.value)
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    "annotation", [Callable[[int], int], type[int], Iterator[int], Unknown, list[Unknown], Leaf | Point, "int", 3]
)
def test_an_annotation_nothing_can_carry_is_a_definition_error(annotation):
    with pytest.raises(DefinitionError, match=r"^argument f of g: ") as caught:
        TypeCodec(annotation, what="argument f of g")
    assert f"`{spell(annotation)}`" in str(caught.value)


def test_without_pydantic_its_annotations_are_a_definition_error_that_names_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "pydantic", None)
    with pytest.raises(DefinitionError, match="with pydantic installed"):
        TypeCodec(pathlib.Path)
    assert trip(Point, Point(1)) == Point(1)
