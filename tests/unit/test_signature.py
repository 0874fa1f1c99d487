"""A signature binds, checks, stores and restores the arguments of a call; annotations here are postponed on purpose."""

from __future__ import annotations

import dataclasses
import datetime as dt
import functools
import inspect
import typing
import uuid
from collections.abc import Awaitable
from typing import TYPE_CHECKING, Any, Optional, TypedDict, Unpack

import msgspec
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.codec import decode_plain, encode_plain
from weft.errors import DefinitionError, InvalidArguments, PayloadRefused, PayloadTooLarge
from weft.sdk.signature import Signature

if TYPE_CHECKING:
    from somewhere import Nowhere

NOON = dt.datetime(2024, 2, 29, 12)
NOTHING = object()


@dataclasses.dataclass
class Item:
    price: float
    name: str = ""


class Order(pydantic.BaseModel):
    id: int
    items: list[int] = []


class Refund(pydantic.BaseModel):
    amount: int


class Size(TypedDict, total=False):
    width: int


def add(a: int, b: int) -> int: ...
def nothing() -> None: ...
def mixed(a, /, b: str, c: float = 1.5, *, d: bool, e: list[int] | None = None): ...
def greedy(first: int, *rest: int, flag: bool = False, **options: str) -> dict[str, int]: ...
def loose(*args, **kwargs): ...
def optional(a: int = 1, b: int = 2, /, c: int = 3, *, d: int = 4) -> int: ...
def rich(order: Order, items: list[Item], at: dt.datetime, key: uuid.UUID | None = None) -> Order: ...
def either(what: Order | Refund, n: int = 0) -> Order | Refund: ...
async def later(order: Order) -> list[Item]: ...
def wide(**size: Unpack[Size]): ...
def clash(self: int, p0: int, data: int, cls: int): ...


def sign(fn: Any, **options: Any) -> Signature:
    return Signature(fn, name=fn.__name__, **options)


def call(fn: Any, *args: Any, **kwargs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    signature = sign(fn)
    return signature.decode(signature.encode(args, kwargs))


@pytest.mark.parametrize(
    ("fn", "text"),
    [
        (add, "add(a: int, b: int) -> int"),
        (nothing, "nothing() -> None"),
        (mixed, "mixed(a, /, b: str, c: float = 1.5, *, d: bool, e: list[int] | None = None)"),
        (greedy, "greedy(first: int, *rest: int, flag: bool = False, **options: str) -> dict[str, int]"),
        (later, "later(order: Order) -> list[Item]"),
    ],
)
def test_the_text_is_the_signature_as_it_was_written(fn, text):
    assert sign(fn).text == text


def test_the_text_spells_real_types_without_modules_and_hides_long_defaults():
    def spelled(a, b, c): ...

    spelled.__annotations__ = {"a": dt.datetime, "b": Optional[Item], "return": list[Item]}  # noqa: UP045
    spelled.__defaults__ = ("x" * 99, NOTHING)
    assert sign(spelled).text == "spelled(a: datetime, b: Optional[Item] = ..., c=...) -> list[Item]"


def test_arguments_are_stored_by_parameter_name_in_parameter_order():
    signature = sign(add)
    by_position = signature.encode((2, 3), {})
    assert decode_plain(by_position) == {"a": 2, "b": 3}
    assert signature.encode((), {"b": 3, "a": 2}) == by_position
    assert signature.encode((2,), {"b": 3}) == by_position


def test_nothing_to_carry_is_no_bytes():
    assert sign(nothing).encode((), {}) == b""
    assert sign(nothing).decode(b"") == ((), {})
    assert sign(optional).encode((), {}) == b""
    assert sign(loose).encode((), {}) == b""
    assert sign(loose).decode(b"") == ((), {})


@pytest.mark.parametrize(
    ("fn", "args", "kwargs"),
    [
        (add, (2, 3), {}),
        (mixed, (None, "b"), {"d": True}),
        (mixed, ([1, {"k": b"x"}], "b", 2), {"d": False, "e": [1]}),
        (greedy, (1, 2, 3), {"flag": True, "x": "y", "options": "z", "rest": "q"}),
        (greedy, (), {"first": 1}),
        (loose, (1, "a", [None]), {"args": 1, "kwargs": {"a": 2}}),
        (optional, (), {"d": 9}),
        (optional, (7,), {"c": 8}),
        (rich, (Order(id=1), [Item(1.5, "x")], NOON), {"key": uuid.UUID(int=7)}),
        (rich, (), {"at": NOON, "items": [], "order": Order(id=1, items=[2])}),
        (either, (Refund(amount=1),), {}),
        (either, (Order(id=1),), {"n": 2}),
        (later, (Order(id=1),), {}),
        (wide, (), {"width": 3}),
        (clash, (1, 2), {"data": 3, "cls": 4}),
    ],
)
def test_what_was_enqueued_is_what_the_worker_gets(fn, args, kwargs):
    expected = inspect.signature(fn).bind(*args, **kwargs)
    got_args, got_kwargs = call(fn, *args, **kwargs)
    got = inspect.signature(fn).bind(*got_args, **got_kwargs)
    expected.apply_defaults()
    got.apply_defaults()
    assert got.arguments == expected.arguments


def test_omitted_arguments_are_left_to_the_functions_own_default():
    shared: list[int] = []

    def collect(n: int, into: list[int] = shared) -> list[int]:
        into.append(n)
        return into

    signature = sign(collect)
    data = signature.encode((1,), {})
    assert decode_plain(data) == {"n": 1}
    args, kwargs = signature.decode(data)
    assert collect(*args, **kwargs) is shared


def test_an_omitted_argument_before_a_given_one_keeps_its_default_too():
    args, kwargs = sign(optional).decode(encode_plain({"b": 5}))
    assert inspect.signature(optional).bind(*args, **kwargs).args == (1, 5)
    args, kwargs = sign(greedy).decode(encode_plain({"first": 1, "rest": [2]}))
    assert args == (1, 2)


@pytest.mark.parametrize(
    ("fn", "args", "kwargs", "words"),
    [
        (add, (1,), {}, "missing a required argument: 'b'"),
        (add, (), {}, "missing a required argument: 'a'"),
        (add, (1, 2, 3), {}, "too many positional arguments, 3 given"),
        (add, (1, 2), {"c": 3}, "unexpected keyword argument 'c'"),
        (add, (1,), {"a": 2}, "multiple values for argument 'a'"),
        (add, (1, 2), {"b": 2}, "multiple values for argument 'b'"),
        (nothing, (1,), {}, "too many positional arguments, 1 given"),
        (nothing, (), {"x": 1}, "unexpected keyword argument 'x'"),
        (mixed, (1, "b"), {}, "missing a required argument: 'd'"),
        (mixed, (), {"a": 1, "b": "b", "d": True}, "'a'"),
        (add, (1, "2"), {}, "argument b of add(a: int, b: int) -> int does not fit `int`: expected `int`, got `str`"),
        (add, (True, 2), {}, "argument a"),
        (add, (1, 2.0), {}, "expected `int`, got `float`"),
        (add, (None, 2), {}, "expected `int`, got `None`"),
        (mixed, (1, b"b"), {"d": True}, "expected `str`, got `bytes`"),
        (mixed, (1, "b"), {"d": 1}, "expected `bool`, got `int`"),
        (mixed, (1, "b"), {"d": True, "e": [1, "x"]}, "expected `int`, got `str` at `e[1]`"),
        (greedy, (1, 2, "3"), {}, "`rest[1]`"),
        (greedy, (1,), {"x": 1}, "expected `str`, got `int`"),
        (rich, (Order(id=1), [Item("x")], NOON), {}, "`items[0].price`"),
        (rich, ({"id": 1}, [], NOON), {}, "expected `Order`, got `dict`"),
        (either, (Item(1.0),), {}, "argument what"),
    ],
)
def test_arguments_that_do_not_fit_are_refused_with_the_signature_and_the_reason(fn, args, kwargs, words):
    signature = sign(fn)
    with pytest.raises(InvalidArguments) as caught:
        signature.encode(args, kwargs)
    assert signature.text in str(caught.value)
    assert words in str(caught.value)
    assert caught.value.facts["signature"] == signature.text


@pytest.mark.parametrize(
    ("fn", "args", "words"),
    [
        (
            add,
            (1, 2**64),
            "argument b of add(a: int, b: int) -> int cannot be stored: `b` is an integer beyond 64 bits",
        ),
        (mixed, ("\ud800", "b"), "`a` holds a lone surrogate"),
        (mixed, (1, "b", float("nan")), "`c` is not a finite number"),
        (mixed, ([1, {"at": NOON}], "b"), "`a[1].at` is of type datetime"),
        (loose, (1, {"x": Item(1.0)}), "`args[1].x` is of type Item"),
    ],
)
def test_a_value_that_fits_but_cannot_be_stored_is_refused(fn, args, words):
    with pytest.raises(PayloadRefused) as caught:
        sign(fn).encode(args, {"d": True} if fn is mixed else {})
    assert words in str(caught.value)


def test_a_scalar_float_is_checked_on_the_quick_path_too():
    def scale(by: float) -> float: ...

    for number in (float("nan"), float("inf"), float("-inf")):
        with pytest.raises(PayloadRefused, match="not a finite number"):
            sign(scale).encode((number,), {})
    assert call(scale, 3) == ((3.0,), {})


@pytest.mark.parametrize(("args", "kwargs"), [(("x" * 60, "x" * 60), {}), (("x" * 60,), {"b": "x" * 60})])
def test_arguments_over_the_limit_are_refused_with_both_numbers(args, kwargs):
    def say(a: str, b: str): ...

    with pytest.raises(PayloadTooLarge, match=r"all arguments of say\(a: str, b: str\) together") as caught:
        sign(say, max_bytes=100).encode(args, kwargs)
    assert caught.value.facts == {"size": 129, "limit": 100}


@pytest.mark.parametrize(
    ("stored", "words"),
    [
        ({"a": 1, "b": 2, "c": 3}, ["(a, b, c)", "unknown c"]),
        ({"a": 1}, ["(a)", "missing b"]),
        ({"a": 1, "z": 2}, ["(a, z)", "unknown z; missing b"]),
        ({}, ["(none)", "missing a, b"]),
        ({"a": 1, "b": "2"}, ["expected `int`, got `str` at `b`"]),
        ([1, 2], ["missing a, b"]),
    ],
)
def test_stored_arguments_that_no_longer_fit_name_what_was_stored_and_the_signature_now(stored, words):
    with pytest.raises(InvalidArguments) as caught:
        sign(add).decode(encode_plain(stored))
    assert "add(a: int, b: int) -> int" in str(caught.value)
    assert all(word in str(caught.value) for word in words)


def test_no_stored_arguments_for_a_function_that_needs_some_are_refused():
    with pytest.raises(InvalidArguments, match="missing a, b"):
        sign(add).decode(b"")


def test_a_stored_union_that_no_longer_fits_is_refused_with_the_signature():
    with pytest.raises(InvalidArguments, match=r"argument what of either\(what: Order \| Refund"):
        sign(either).decode(encode_plain({"what": {"nope": 1}}))


@pytest.mark.parametrize("data", [b"\xc1", b"\x81\xa1a", b"\x82\xa1a\x01\xa1b\xa1\xff", b"\x80\x80"])
def test_damaged_arguments_are_refused(data):
    with pytest.raises((PayloadRefused, InvalidArguments)) as caught:
        sign(add).decode(data)
    assert "add(a: int, b: int) -> int" in str(caught.value)


def test_without_defaults_equal_calls_are_equal_bytes_also_when_a_parameter_is_added():
    def old(a: int, flag: bool = False) -> None: ...

    def new(a: int, flag: bool = False, extra: str = "x", *more: int, **others: int) -> None: ...

    before, after = Signature(old, name="f"), Signature(new, name="f")

    plain = before.encode((1,), {})
    assert before.without_defaults(plain) == plain
    assert before.without_defaults(before.encode((1, False), {})) == plain
    assert after.without_defaults(after.encode((1, False), {"extra": "x"})) == plain
    assert after.without_defaults(after.encode((1, True, "x", 7), {"z": 1})) != plain
    assert before.without_defaults(b"") == b""


def test_a_new_parameter_with_a_default_takes_waiting_calls():
    def grown(a: int, b: int, c: int = 3, *, d: str = "x") -> int: ...

    assert sign(grown).decode(sign(add).encode((1, 2), {})) == ((1, 2), {})


def test_reordered_parameters_take_waiting_calls_by_name():
    def turned(b: int, a: int) -> int: ...

    assert sign(turned).decode(sign(add).encode((1, 2), {})) == ((2, 1), {})


def test_a_default_of_none_lets_none_through():
    def sloppy(a: int = None, b: Order = None): ...  # noqa: RUF013

    assert call(sloppy, None, None) == ((None, None), {})
    assert call(sloppy, 1, Order(id=2)) == ((1, Order(id=2)), {})


@pytest.mark.parametrize(
    ("fn", "value"),
    [(add, 3), (nothing, None), (later, [Item(1.0)]), (either, Refund(amount=3)), (rich, Order(id=1)), (loose, [1])],
)
def test_results_are_carried_by_the_return_annotation(fn, value):
    codec = sign(fn).returns
    assert codec.decode(codec.encode(value)) == value


def test_a_result_that_does_not_fit_names_the_signature():
    with pytest.raises(PayloadRefused, match=r"result of add\(a: int, b: int\) -> int does not fit `int`"):
        sign(add).returns.encode("3")
    with pytest.raises(PayloadRefused, match="expected `None`, got `int`"):
        sign(nothing).returns.encode(3)
    with pytest.raises(PayloadRefused, match=r"`result\.at` is of type datetime"):
        sign(loose).returns.encode({"at": NOON})


def test_a_function_that_returns_an_awaitable_returns_what_it_gives():
    def handed_on() -> Awaitable[Order]: ...

    codec = sign(handed_on).returns
    assert codec.decode(codec.encode(Order(id=1))) == Order(id=1)


def test_a_class_defined_after_the_function_is_found_at_first_use():
    signature = sign(early)
    assert signature.text == "early(late: Late) -> Late"
    globals()["Late"] = Item
    try:
        assert signature.decode(signature.encode((Item(1.0),), {})) == ((Item(1.0),), {})
        assert signature.returns.decode(signature.returns.encode(Item(2.0))) == Item(2.0)
    finally:
        del globals()["Late"]


def early(late: Late) -> Late: ...  # noqa: F821
def lost(a: int, b: Nowhere) -> int: ...
def lost_result(a: int) -> Nowhere: ...
def misspelled(a: dt.datetme): ...
def untypable(a: 3 + int): ...
def uncarriable(a: int, b: object | typing.Callable[[], int]): ...


@pytest.mark.parametrize(("fn", "args"), [(lost, (1, 2)), (lost_result, (1,)), (misspelled, (1,))])
def test_a_name_that_is_never_defined_is_a_definition_error_at_first_use(fn, args):
    signature = sign(fn)
    for use in (
        lambda: signature.encode(args, {}),
        lambda: signature.decode(encode_plain({"a": 1})),
        lambda: signature.returns,
    ):
        with pytest.raises(DefinitionError) as caught:
            use()
        assert signature.text in str(caught.value)
        assert "Nowhere" in str(caught.value) or "datetme" in str(caught.value)


@pytest.mark.parametrize("fn", [untypable, uncarriable])
def test_an_annotation_that_is_no_type_or_nothing_can_carry_is_refused_at_once(fn):
    with pytest.raises(DefinitionError, match=rf"{fn.__name__}\("):
        sign(fn)


def test_classes_of_the_decorating_function_are_found_in_the_namespace_given():
    @dataclasses.dataclass
    class Local:
        n: int

    def use(local: Local) -> Local: ...

    signature = sign(use, namespace=locals())
    assert signature.decode(signature.encode((Local(1),), {})) == ((Local(1),), {})


def test_skipped_parameters_are_neither_asked_for_nor_stored():
    def step(ctx: Nowhere, a: int, b: int = 2, *, log: Nowhere) -> int: ...

    signature = sign(step, skip=frozenset({"ctx", "log"}))
    assert signature.text == "step(a: int, b: int = 2) -> int"
    data = signature.encode((1,), {})
    assert decode_plain(data) == {"a": 1}
    assert signature.decode(data) == ((), {"a": 1})
    with pytest.raises(InvalidArguments, match="unexpected keyword argument 'ctx'"):
        signature.encode((1,), {"ctx": 1})


def test_a_skipped_parameter_cannot_stand_before_one_that_only_goes_by_position():
    def step(ctx, *rest): ...

    with pytest.raises(DefinitionError, match="rest can only be given by position, but follows ctx"):
        sign(step, skip=frozenset({"ctx"}))


class Greeter:
    def greet(self, order: Order, n: int = 1) -> str: ...
    def __call__(self, order: Order) -> str: ...


def test_methods_partials_wrappers_and_callable_objects_have_signatures_too():
    @functools.wraps(rich)
    def wrapped(*args: Any, **kwargs: Any) -> Any: ...

    order = Order(id=1)
    assert call(Greeter().greet, order, 2) == ((order, 2), {})
    assert call(wrapped, order, [], NOON) == ((order, [], NOON), {})
    for fn in (functools.partial(Greeter().greet, n=3), Greeter()):
        signature = Signature(fn, name="greet")
        assert signature.decode(signature.encode((order,), {})) == ((order,), {})


def test_something_without_a_signature_is_a_definition_error():
    for fn in (3, max):
        with pytest.raises(DefinitionError, match="cannot be read"):
            Signature(fn, name="odd")


def test_struct_arguments_go_by_their_own_annotations():
    class Leaf(msgspec.Struct):
        n: int

    def take(leaf, others): ...

    take.__annotations__ = {"leaf": Leaf, "others": list[Leaf]}
    assert call(take, Leaf(1), [Leaf(2)]) == ((Leaf(1), [Leaf(2)]), {})


names = st.sampled_from(["a", "b", "c", "d", "e", "x", "options", "rest"])


@given(
    st.sampled_from([add, nothing, mixed, greedy, loose, optional]),
    st.lists(st.integers(0, 9) | st.just("s") | st.booleans(), max_size=4),
    st.dictionaries(names, st.integers(0, 9) | st.just("s") | st.booleans(), max_size=4),
)
def test_binding_agrees_with_python_and_refuses_only_by_name(fn, args, kwargs):
    signature, python = sign(fn), inspect.signature(fn)
    try:
        # The call itself decides: `Signature.bind` of 3.13.0 takes a positional-only parameter by keyword.
        fn(*args, **kwargs)
    except TypeError:
        with pytest.raises(InvalidArguments, match="do not fit"):
            signature.encode(tuple(args), kwargs)
        return
    expected = python.bind(*args, **kwargs)
    try:
        data = signature.encode(tuple(args), kwargs)
    except InvalidArguments as error:
        assert str(error).startswith("argument ")
        return
    got_args, got_kwargs = signature.decode(data)
    got = python.bind(*got_args, **got_kwargs)
    got.apply_defaults()
    expected.apply_defaults()
    assert got.arguments == expected.arguments


@given(st.integers(-(2**63), 2**64 - 1), st.integers(-(2**63), 2**64 - 1))
def test_every_pair_of_integers_comes_back(a, b):
    assert call(add, a, b) == ((a, b), {})


@given(st.binary(max_size=40))
def test_no_bytes_make_decoding_fail_in_another_way(data):
    for fn in (add, mixed, greedy, either):
        try:
            sign(fn).decode(data)
        except (InvalidArguments, PayloadRefused) as error:
            assert sign(fn).text in str(error)


def test_arguments_in_json_form_are_read_only_where_they_may_have_gone_through_expressions():
    def call(data: bytes, keys: dict[int, str], order: Order, more: int = 0) -> None: ...

    signature = Signature(call, name="call")
    stored = encode_plain({"data": "AP8=", "keys": {"1": "a"}, "order": {"id": 1}})

    assert signature.decode(stored, formed=True) == ((b"\x00\xff", {1: "a"}, Order(id=1)), {})
    with pytest.raises(InvalidArguments, match="expected `bytes`, got `str` at `data`"):
        signature.decode(stored)
    with pytest.raises(InvalidArguments, match="expected `bytes`, got `str` at `data`"):
        signature.decode(encode_plain({"data": "no base64", "keys": {}, "order": {"id": 1}}), formed=True)
