"""What the codec carries comes back as it went in; everything else is refused, with the place and the reason."""

import collections
import dataclasses
import datetime as dt
import decimal
import enum
import ipaddress
import pathlib
import sys
import uuid
import zoneinfo
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal, NamedTuple, NoReturn, TypedDict, TypeVar

import annotated_types
import msgspec
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.codec import MAX_DEPTH, DoesNotFit, TypeCodec, decode_plain, encode_plain
from weft.differences import spell
from weft.errors import DefinitionError, PayloadRefused, PayloadTooLarge

NAN, INF = float("nan"), float("inf")
NOON = dt.datetime(2024, 2, 29, 12, 0, 0, 123456)
BERLIN = zoneinfo.ZoneInfo("Europe/Berlin")
UUID = uuid.UUID("12345678-1234-5678-1234-567812345678")


@dataclasses.dataclass
class Point:
    x: int
    y: float = 0.0


@dataclasses.dataclass
class Circle(Point):
    radius: float = 1.0


@dataclasses.dataclass
class Basket:
    items: list[Point]
    at: dt.datetime
    next: "Basket | None" = None


@dataclasses.dataclass(eq=False)
class Identical:
    x: int


@dataclasses.dataclass
class Mount:
    path: pathlib.Path


class Leaf(msgspec.Struct):
    name: str
    weight: decimal.Decimal = decimal.Decimal("1.50")


class Cat(msgspec.Struct, tag=True):
    lives: int


class Dog(msgspec.Struct, tag=True):
    lives: int


class Order(pydantic.BaseModel):
    id: int
    when: dt.datetime | None = None
    tags: set[str] = set()


class RushOrder(Order):
    courier: str = "x"


class Refund(pydantic.BaseModel):
    amount: decimal.Decimal


class Invoice(pydantic.BaseModel):
    id: int


class Strict(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(strict=True, frozen=True, extra="forbid")
    key: uuid.UUID = pydantic.Field(alias="theKey")
    path: pathlib.Path
    address: ipaddress.IPv4Address
    blob: bytes
    names: dict[int, str]
    either: int | str
    _seen: int = pydantic.PrivateAttr(default_factory=lambda: id(object()))

    @pydantic.computed_field
    def doubled(self) -> int:
        return 2


class Login(pydantic.BaseModel):
    password: pydantic.SecretStr


class Hiding(pydantic.BaseModel):
    hidden: int = pydantic.Field(1, exclude=True)


class Open(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="allow")


@pydantic.dataclasses.dataclass
class Checked:
    n: int = pydantic.Field(ge=1)


class Colour(enum.Enum):
    RED = "r"


class Level(enum.IntEnum):
    LOW = 1


class Word(enum.StrEnum):
    HI = "hi"


class Pair(NamedTuple):
    a: int
    b: str


class Row(TypedDict):
    a: int


class Unknown:
    pass


def trip(annotation: Any, value: Any) -> Any:
    codec = TypeCodec(annotation)
    return codec.decode(codec.encode(value))


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
