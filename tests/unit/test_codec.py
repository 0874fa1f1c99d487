"""What the codec carries comes back as it went in."""

import collections
import datetime as dt
import decimal
import ipaddress
import pathlib
import sys
import uuid
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, Literal, NoReturn, TypeVar

import pydantic
import pytest
from codec_values import (
    BERLIN,
    INF,
    NOON,
    UUID,
    Basket,
    Cat,
    Checked,
    Colour,
    Dog,
    Identical,
    Leaf,
    Level,
    Mount,
    Open,
    Order,
    Pair,
    Point,
    Refund,
    Row,
    Strict,
    Word,
    trip,
)
from hypothesis import given
from hypothesis import strategies as st

from weft.codec import TypeCodec, decode_plain, encode_plain
from weft.differences import spell
from weft.errors import PayloadRefused

CARRIED = [
    (int, 2**64 - 1),
    (int, -(2**63)),
    (float, 1.5),
    (str, "größe 🧵\x00"),
    (bytes, b"\x00\xff"),
    (bool, True),
    (type(None), None),
    (int | None, None),
    (int | str, "a"),
    (dt.datetime, NOON),
    (dt.datetime, NOON.replace(tzinfo=dt.UTC)),
    (dt.datetime, NOON.replace(tzinfo=BERLIN)),
    (dt.date, NOON.date()),
    (dt.time, NOON.time()),
    (dt.timedelta, dt.timedelta(days=-1, microseconds=7)),
    (uuid.UUID, UUID),
    (decimal.Decimal, decimal.Decimal("1.50")),
    (Colour, Colour.RED),
    (Level, Level.LOW),
    (Word, Word.HI),
    (Literal["a", 3], 3),
    (list[dict[str, tuple[int, str]]], [{"k": (1, "a")}]),
    (dict[int, str], {1: "a"}),
    (dict[tuple[int, int], int], {(1, 2): 3}),
    (set[uuid.UUID], {UUID}),
    (frozenset[int], frozenset({1, 2})),
    (Sequence[int], [1, 2]),
    (Mapping[str, int], {"a": 1}),
    (Iterable[int], [1, 2]),
    (Pair, Pair(1, "b")),
    (Row, {"a": 1}),
    (Point, Point(1, 2.5)),
    (Basket, Basket([Point(1)], NOON, Basket([], NOON))),
    (list[Point | None], [Point(1), None]),
    (Leaf, Leaf("a")),
    (Cat | Dog, Dog(9)),
    (Order, Order(id=1, when=NOON, tags={"a"})),
    (Order | None, None),
    (dict[str, list[Order]], {"k": [Order(id=1), Order(id=2)]}),
    (Order | Refund, Refund(amount=decimal.Decimal("1.10"))),
    (list[Order | int], [3, Order(id=1)]),
    (Open, Open(extra=1)),
    (Checked, Checked(2)),
    (Mount, Mount(pathlib.Path("/a"))),
    (pathlib.Path, pathlib.Path("/a")),
    (ipaddress.IPv4Address, ipaddress.IPv4Address("10.0.0.1")),
    (collections.deque[int], collections.deque([1, 2])),
    (Annotated[int, pydantic.Field(ge=1)], 2),
    (bytes | str, b"x"),
    (bytes | str, "x"),
    (dt.datetime | str, NOON.replace(tzinfo=dt.UTC)),
    (dict, {"a": [1, {"b": None}]}),
    (list[Any], [1, "a", b"x", 1.5, True, None, [], {}]),
    (dict | None, {"a": 1}),
    (Any, {"a": [1, 2.5, "x", b"y", None, True]}),
    (object, "x"),
    (None, [1]),
    (TypeVar("T"), [1]),
    (NoReturn, None),
]


@pytest.mark.parametrize(("annotation", "value"), CARRIED, ids=lambda part: spell(part)[:40])
def test_a_value_comes_back_as_it_went_in(annotation, value):
    back = trip(annotation, value)
    assert back == value
    assert type(back) is type(value)


def test_a_strict_model_with_aliases_odd_types_and_private_state_comes_back():
    model = Strict(
        theKey=UUID,
        path=pathlib.Path("/x"),
        address=ipaddress.IPv4Address("10.0.0.1"),
        blob=b"\xff",
        names={1: "a"},
        either="5",
    )
    back = trip(Strict, model)
    assert back.model_dump() == model.model_dump()
    assert type(back.path) is type(model.path)


@pytest.mark.parametrize(
    ("annotation", "value", "back"),
    [
        (float, 1, 1.0),
        (decimal.Decimal, 2, decimal.Decimal(2)),
        (list[int], (1, 2), [1, 2]),
        (tuple[int, ...], [1], (1,)),
        (Iterable[int], frozenset({1}), [1]),
        (str, Word.HI, "hi"),
        (int, Level.LOW, 1),
        (bytes, bytearray(b"x"), b"x"),
        (Any, (1, (2,)), [1, [2]]),
        (dict, collections.OrderedDict(a=1), {"a": 1}),
    ],
)
def test_near_kin_is_accepted_and_comes_back_as_what_was_annotated(annotation, value, back):
    got = trip(annotation, value)
    assert got == back
    assert type(got) is type(back)


def test_an_object_without_equality_is_compared_by_its_fields():
    assert trip(Identical, Identical(3)).x == 3


@pytest.mark.parametrize("fold", [0, 1])
def test_an_aware_time_in_the_repeated_hour_keeps_its_moment(fold):
    moment = dt.datetime(2024, 10, 27, 2, 30, tzinfo=BERLIN, fold=fold)
    assert trip(dt.datetime, moment).timestamp() == moment.timestamp()


def test_a_pydantic_model_is_carried_without_importing_pydantic_here(monkeypatch):
    monkeypatch.setitem(sys.modules, "pydantic", None)
    assert trip(list[Order], [Order(id=1)]) == [Order(id=1)]


def test_plain_values_are_read_as_msgpack_gives_them():
    moment = NOON.replace(tzinfo=dt.UTC)
    assert decode_plain(TypeCodec(dt.datetime).encode(moment)) == moment
    assert decode_plain(TypeCodec(Order).encode(Order(id=1))) == {"id": 1, "when": None, "tags": []}
    assert decode_plain(encode_plain((1, b"x"))) == [1, b"x"]
    with pytest.raises(PayloadRefused, match=r"^event: "):
        decode_plain(b"\xc1", what="event")
    with pytest.raises(PayloadRefused, match=r"^signal paid "):
        encode_plain({1}, what="signal paid")


atoms = st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.text() | st.binary()
atoms |= st.floats(allow_nan=False, allow_infinity=False)
plain = st.recursive(atoms, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=20)


@given(plain)
def test_all_plain_data_comes_back_exactly(value):
    assert repr(trip(None, value)) == repr(value)


@given(st.builds(Basket, st.lists(st.builds(Point, st.integers(0, 9), st.floats())), st.datetimes()))
def test_a_dataclass_comes_back_exactly_or_holds_a_float_that_is_not_finite(basket):
    try:
        assert trip(Basket, basket) == basket
    except PayloadRefused as error:
        assert "finite" in str(error)
        assert any(point.y in (INF, -INF) or point.y != point.y for point in basket.items)


@given(st.datetimes(timezones=st.none() | st.timezones()))
def test_every_datetime_keeps_its_moment(moment):
    try:
        back = trip(dt.datetime, moment)
    except PayloadRefused:
        # Near the first and last year some zones have no equivalent in UTC.
        assert moment.tzinfo and moment.year in (1, 9999)
        return
    assert (back.tzinfo is None) == (moment.tzinfo is None)
    if moment.tzinfo:
        assert back == moment.astimezone(dt.UTC)
    else:
        assert back == moment


@given(st.builds(Order, id=st.integers(0, 99), when=st.none() | st.datetimes(), tags=st.sets(st.text())))
def test_every_model_comes_back_exactly(order):
    assert trip(Order, order) == order


@given(st.timedeltas() | st.uuids() | st.dates() | st.times() | st.decimals(allow_nan=False))
def test_every_scalar_of_the_standard_library_comes_back_exactly(value):
    assert trip(type(value), value) == value


@given(st.binary(max_size=60), st.sampled_from([None, int, str, Point, Order, list[Order | int], dt.datetime]))
def test_no_bytes_make_decoding_fail_in_another_way(data, annotation):
    try:
        TypeCodec(annotation).decode(data)
    except PayloadRefused as error:
        assert str(error).startswith("value: ")
