"""Expressions: what they give, what they read, what they refuse, and that they always end."""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import uuid
from typing import Any

import cel
import msgspec
import pydantic
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weft.core.cel.program import MAX_POINTS
from weft.core.expressions import (
    MAX_EXPRESSION_CHARS,
    RESERVED_NAMES,
    Condition,
    Expression,
    check_node_id,
    purse_for,
)
from weft.core.templates import Template
from weft.errors import ExpressionFailed, InvalidExpression, InvalidOption

SCOPE: dict[str, Any] = {
    "input": {"url": "http://x", "n": 3, "ratio": 1.5, "none": None, "tags": ["a", "b"], "weird-key": 1, "in": 2},
    "fetch": {"pages": [{"size": 1}, {"size": 5}, {"size": 9}], "count": 3},
    "skipped": None,
    "x": 1,
    "status": {"fetch": "completed", "skipped": "skipped"},
    "errors": {"fetch": None},
}

#: Standard CEL: the oracle gives the same.
STANDARD = """
1 + 2 * 3 | (1 + 2) * 3 | 7 / 2 | -7 / 2 | -7 % 3 | 7 % -3 | 2--1 | --1 | -x | -9223372036854775808 | 0x1F | 1.5e3 | .5 | 1e3
x == 1.0 | x < 1.5 | 1.0 in [1, 2] | [1] == [1.0] | {'a': 1} == {'a': 1.0} | 1 == true | null == false | 1 == '1'
'a' + 'b' | [1] + [2, 'c'] | 'a' < 'b' | 'b' in ['a'] | 'pages' in fetch | true > false | !true | !!true
true || fetch.nope | fetch.nope || true | false && fetch.nope | fetch.nope && false | fetch.nope == 1 || true
true ? 1 : fetch.nope | false ? 1 : true ? 2 : 3 | 1 < 2 == true | 1 == 1 == true
fetch.pages[1].size | fetch['count'] | input['weird-key'] | has(fetch.count) | has(fetch.nope) | size(fetch.pages) | 'ab'.size()
fetch.pages.map(p, p.size) | fetch.pages.map(p, p.size > 3, p.size * 2) | fetch.pages.filter(p, p.size > 3) | [1, 2].map(x, x)
fetch.pages.all(p, p.size > 0) | fetch.pages.exists(p, p.size == 5) | fetch.pages.exists_one(p, p.size > 3)
[[1, 2], [3]].map(l, l.map(i, i + size(l))) | {'a': 1}.map(k, k) | [1, 0].exists(i, 1 / i > 0)
'abc'.contains('b') | 'abc'.startsWith('b') | 'abc'.endsWith('c')
string(1) | string(1.0) | string(1.5) | int('7') | int(1.9) | double('1.5')
'\\n\\x41\\101\\u00e9\\U0001F600' | r'\\n' | 'a"b' | "a'b" | '''a'b'''
[1, 2,] | {'a': 1,}.a | type(1) == int | type('a') == type(1)
timestamp('2024-01-01T00:00:00Z') < timestamp('2024-01-01T01:00:00+00:30') | timestamp('2024-03-05T06:07:08Z').getMonth()
timestamp('2024-01-02T00:00:00Z') - timestamp('2024-01-01T00:00:00Z') == duration('24h') | duration('90m').getHours()
status.fetch == 'completed' | skipped == null | 1 + 1 // why
"""


@pytest.mark.parametrize("text", [part.strip() for line in STANDARD.strip().splitlines() for part in line.split(" | ")])
def test_standard_cel_gives_what_the_oracle_gives(text: str) -> None:
    ours, theirs = Expression(text).evaluate(SCOPE), cel.compile(text).execute(SCOPE)
    assert ours == theirs
    assert type(ours) is type(theirs)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        # int and double mix
        ("1 + 1.5", 2.5),
        ("input.n * 0.5", 1.5),
        ("7 / 2.0", 3.5),
        ("input.ratio - 1", 0.5),
        ("x <= 1.0 && 1.0 >= x", True),
        ("9007199254740993 == 9007199254740992.0", False),
        ("fetch.pages[1.0].size", 5),
        # absence
        ("has(skipped.body)", False),
        ("has(fetch.nope.deeper)", False),
        ("has(input.none)", True),
        ("has(input.none.deeper)", False),
        # one item that decides is enough, whatever stands before it
        ("[0, 1].exists(i, 1 / i > 0)", True),
        ("[0, 1].all(i, 1 / i > 2)", False),
        # text counts characters
        ("size('äö😀')", 3),
        ("'Äb'.upperAscii()", "ÄB"),
        ("'a, b'.split(', ').join('-')", "a-b"),
        ("'aXa'.replace('X', 'YY').lowerAscii()", "ayya"),
        ("' a '.trim()", "a"),
        ("string(true) + string(1.0)", "true1"),
        ("bool('true')", True),
        # what JSON has no form for leaves as text
        ("timestamp('2024-01-01T00:00:00Z') + duration('1h')", "2024-01-01T01:00:00Z"),
        ("[duration('1.5s'), duration('-1m')]", ["1.5s", "-60s"]),
        ("[timestamp('2024-01-01T05:00:00Z')].map(t, t.getHours())", [5]),
        ("timestamp(0).getFullYear()", 1970),
        ("[type(1), type(null)]", ["int", "null_type"]),
        ("${ fetch.count > 2 }", True),
        ("  ${{'a': '}'}}  ", {"a": "}"}),
    ],
)
def test_an_expression_gives(text: str, value: object) -> None:
    result = Expression(text).evaluate(SCOPE)
    assert result == value
    assert type(result) is type(value)


def test_maps_keep_their_order_and_results_are_fresh() -> None:
    scope = {"x": {"b": [1], "a": 2}}
    result = Expression("x").evaluate(scope)
    assert list(result) == ["b", "a"]
    result["b"].append(2)
    assert scope["x"] == {"b": [1], "a": 2}


@pytest.mark.parametrize(
    ("text", "offset", "why"),
    [
        ("", 0, "empty"),
        ("  ", 2, "empty"),
        ("1 +", 3, "ends where a value is expected"),
        ("a = 1", 2, "write `==`"),
        ("a & b", 2, "write `&&`"),
        ("(1 + 2", 0, "never closed"),
        ("1)", 1, "closes nothing"),
        ("[1, 2)", 5, "`]` is expected first"),
        ("'abc", 0, "never closed"),
        ("'\\q'", 1, "no escape"),
        ("'\\ud800'", 1, "no escape"),
        ("1_000", 0, "neither a number nor a name"),
        ("9223372036854775808", 0, "beyond 64 bits"),
        ("-9223372036854775809", 0, "beyond 64 bits"),
        ("1e999", 0, "too large"),
        ("1u", 0, "unsigned"),
        ("b'a'", 0, "bytes"),
        ("while", 0, "reserved word"),
        ("a.in", 2, "['in']"),
        ("{1: 2}", 1, "text, as in JSON"),
        ("Foo{a: 1}", 3, "end or an operator"),
        ("f(1)", 0, "no function `f`"),
        ("sise(a)", 0, "did you mean `size`"),
        ("a.startswith('x')", 0, "did you mean `startsWith`"),
        ("contains('a', 'b')", 0, "x.contains(…)"),
        ("a.string()", 0, "string(x)"),
        ("a.matches('x')", 0, "not part of expressions"),
        ("size(1, 2)", 0, "takes 1 argument, not 2"),
        ("has(a)", 0, "asks for a field"),
        ("l.map(i)", 2, "a name and an expression"),
        ("l.map(a.b, 1)", 6, "plain name"),
        ("true ? false ? 1 : 2 : 3", 13, "parentheses"),
        ("a\n + \n*", 6, "line 3, column 1"),
        ("${a} && ${b}", 4, "only one"),
        ("a && ${b}", 5, "names are written bare"),
        ("${a", 0, "a `}` is missing"),
        ("${ 1 + }", 7, "ends where a value is expected"),
        ("a\ud800", 1, "surrogate"),
        ("__import__('os')", 0, "no function"),
        ("x" * (MAX_EXPRESSION_CHARS + 1), 0, "are the limit"),
        ("(" * 100 + "1" + ")" * 100, 32, "levels deep"),
        ("a" + ".b" * 200, 0, "levels high"),
        ("l.all(a, l.all(b, l.all(c, l.all(d, l.all(e, true)))))", 38, "inside each other"),
    ],
)
def test_what_cannot_be_read_is_refused_with_its_place(text: str, offset: int, why: str) -> None:
    with pytest.raises(InvalidExpression) as caught:
        Expression(text)
    assert why in caught.value.message
    assert caught.value.facts["offset"] == offset
    assert caught.value.code == "invalid_expression"


@pytest.mark.parametrize(
    ("text", "reason", "offset", "why"),
    [
        ("fetch.cout", "missing_field", 6, "`fetch` has no field `cout`; ask with `has(fetch.cout)`"),
        ("fetch.cout", "missing_field", 6, "did you mean `count`?"),
        ("skipped.body", "missing_field", 8, "`skipped` is null"),
        ("fetch['nope']", "missing_field", 6, "no such key"),
        ("fetch.pages[3]", "missing_item", 12, "has 3 items"),
        ("fetch.pages[-1]", "missing_item", 12, "has 3 items"),
        ("fetc.count", "unknown_name", 0, "did you mean `fetch`?"),
        ("'a' + 1", "wrong_type", 6, "`+` does not go with a string and an int"),
        ("skipped > 1", "wrong_type", 10, "`>` does not go with null and an int; test for null"),
        ("x && true", "wrong_type", 0, "`&&` needs true or false, and `x` is an int"),
        ("fetch.pages.map(p, p.size.x)", "wrong_type", 26, "`p.size` is an int, so it has no field `x`"),
        ("x.map(i, i)", "wrong_type", 0, "`x` is an int"),
        ("'a' in 'abc'", "wrong_type", 7, "text.contains(part)"),
        ("size(x)", "wrong_type", 0, "size() takes string or list or map, and `x` is an int"),
        ("5 % 2.0", "wrong_type", 4, "`%`"),
        ("{x: 1}", "wrong_type", 1, "keys of a map are text"),
        ("1 / 0", "division_by_zero", 4, "zero"),
        ("1 / 0.0", "division_by_zero", 4, "zero"),
        ("9223372036854775807 + x", "overflow", 22, "beyond 64 bits"),
        ("1e308 * 10", "not_finite", 8, "too large"),
        ("int('x')", "bad_value", 0, "not an integer"),
        ("timestamp('2024-01-01T00:00:00')", "bad_value", 0, "offset"),
        ("${ fetch.cout }", "missing_field", 9, "column 10"),
    ],
)
def test_what_has_no_result_says_why_and_where(text: str, reason: str, offset: int, why: str) -> None:
    with pytest.raises(ExpressionFailed) as caught:
        Expression(text).evaluate(SCOPE)
    assert caught.value.reason == reason
    assert why in caught.value.message
    assert caught.value.facts["offset"] == offset


def test_messages_do_not_repeat_values() -> None:
    with pytest.raises(ExpressionFailed) as caught:
        Expression("int(input.secret) + input.secret").evaluate({"input": {"secret": "hunter2"}})
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "names", "nodes"),
    [
        ("1 + 1", set(), set()),
        ("fetch.count > input.n", {"fetch", "input"}, {"fetch"}),
        ("status.a == 'x' && has(errors.b.type) || status['c'] == ''", {"status", "errors"}, {"a", "b", "c"}),
        ("fetch.pages.map(p, p.size + other)", {"fetch", "other"}, {"fetch", "other"}),
        ("p.map(p, p.map(p, p))", {"p"}, {"p"}),
        ("l.map(status, status.x)", {"l"}, {"l"}),
        ("type(a) == int", {"a"}, {"a"}),
        ("{'k': v}.k", {"v"}, {"v"}),
        ("item.x + index + iteration", {"item", "index", "iteration"}, set()),
        ("size(errors) > 0 && status.a == ''", {"errors", "status"}, {"a"}),
    ],
)
def test_names_are_what_is_read_from_outside(text: str, names: set[str], nodes: set[str]) -> None:
    assert Expression(text).names == names
    assert Expression(text).nodes == nodes


def test_unknown_names_are_found_before_anything_runs() -> None:
    Expression("fetch.x && status.fetch == ''").check_names({"fetch", "status"})
    with pytest.raises(InvalidExpression, match="no name `fetsh` here; did you mean `fetch`") as caught:
        Expression("true || fetsh.x").check_names({"fetch"})
    assert caught.value.facts["offset"] == 8
    with pytest.raises(InvalidExpression, match="no node `fetsh`"):
        Expression("status.fetsh == ''").check_names({"fetch", "status"})


def test_a_condition_is_true_or_false() -> None:
    assert Condition("fetch.count > 2").evaluate(SCOPE) is True
    assert Condition("${!has(fetch.nope)}").evaluate(SCOPE) is True
    for text in ("1", "'true'", "null", "[true]", "{'a': 1}", "size(x)", "x + 1", "x.map(i, true)"):
        with pytest.raises(InvalidExpression, match="a condition is true or false"):
            Condition(text)
    with pytest.raises(ExpressionFailed, match="this is a list") as caught:
        Condition("fetch.pages").evaluate(SCOPE)
    assert caught.value.reason == "not_bool"


class Colour(pydantic.BaseModel):
    name: str
    at: datetime.datetime


class Point(msgspec.Struct):
    x: int


@dataclasses.dataclass
class Pair:
    left: Any
    right: tuple[Any, ...]


@pytest.mark.parametrize(
    ("value", "text", "result"),
    [
        (datetime.datetime(2024, 1, 1, tzinfo=datetime.UTC), "x", "2024-01-01T00:00:00Z"),
        (datetime.datetime(2024, 1, 1, tzinfo=datetime.UTC), "timestamp(x).getFullYear()", 2024),
        (decimal.Decimal("1.10"), "x", "1.10"),
        (uuid.UUID(int=1), "x", "00000000-0000-0000-0000-000000000001"),
        (b"\xff", "x", "/w=="),
        (Colour(name="red", at=datetime.datetime(2024, 1, 1, tzinfo=datetime.UTC)), "x.at", "2024-01-01T00:00:00Z"),
        ([Point(1), Point(2)], "x.map(p, p.x)", [1, 2]),
        (Pair(None, (1, Point(2))), "x.right[1].x + size(x.right)", 4),
        ({"a": (1, 2)}, "x", {"a": [1, 2]}),
        ({1: "a", 2: "b"}, "x['1'] + x[2]", "ab"),
        ({1: "a"}, "x", {"1": "a"}),
        ({1: "a"}, "x.map(k, k)", ["1"]),
        (2**63 - 1, "x", 2**63 - 1),
        ({"big": 2**63, "n": 1}, "x.n", 1),
    ],
)
def test_values_are_in_json_form(value: object, text: str, result: object) -> None:
    assert Expression(text).evaluate({"x": value}) == result


@pytest.mark.parametrize("value", [2**63, -(2**63) - 1, 10**400, float("nan"), float("inf"), object(), {(1, 2): 3}])
def test_values_without_a_json_form_are_refused(value: object) -> None:
    for held in (value, [value], {"a": {"b": value}}):
        with pytest.raises(ExpressionFailed):
            Expression("x").evaluate({"x": held})


def test_a_value_that_contains_itself_is_refused() -> None:
    loop: list[Any] = []
    loop.append(loop)
    with pytest.raises(ExpressionFailed, match="nested deeper"):
        Expression("x").evaluate({"x": loop})
    with pytest.raises(ExpressionFailed, match="nested deeper"):
        Expression("x == y").evaluate({"x": loop, "y": [loop]})


@pytest.mark.parametrize(
    "text",
    [
        "l.all(a, l.all(b, l.all(c, true)))",
        "l.map(a, l.map(b, l))",
        "l.exists(a, l.exists(b, a.x))",
        "l.filter(a, a in l && l == l + l)",
        "l.map(a, s + s)",
        "l.map(a, s == t)",
        "l.map(a, s.contains('y'))",
        "l.map(a, s.split(''))",
        "l.map(a, s.replace('x', 'yy'))",
        "l.map(a, m == n)",
        "l.map(a, l + l)",
        "l.map(a, s < t)",
        "l.map(a, u.lowerAscii())",
        "l.map(a, l.map(b, duration('1h')))",
    ],
)
def test_hostile_expressions_end_by_their_budget(text: str) -> None:
    """Each would take minutes to weeks. That it ends at all, as too costly, is the test: points are counted, not time."""
    text_a, text_b = "x" * 1_000_000, "x" * 999_999 + "y"
    scope = {"l": list(range(100_000)), "s": text_a, "t": text_b, "u": "é" * 1_000_000}
    scope |= {name: {str(i): [i] for i in range(50_000)} for name in ("m", "n")}
    with pytest.raises(ExpressionFailed) as caught:
        Expression(text).evaluate(scope, max_points=100_000)
    assert caught.value.reason in ("too_costly", "too_large")


def test_work_that_is_certain_to_be_too_much_is_refused_when_declared() -> None:
    many = "[" + ",".join("1" * 1 for _ in range(400)) + "]"
    with pytest.raises(InvalidExpression, match="at least"):
        Expression(f"{many}.map(a, {many}.map(b, {many}.map(c, a)))")
    Expression(f"{many}.all(a, {many}.all(b, {many}.all(c, a > 0)))")


def test_a_small_expression_cannot_make_a_large_result() -> None:
    scope = {"s": "x" * 1_000_000, "l": list(range(1000))}
    for text in ("l.map(i, s)", "{'a': l.map(i, [s, s])}", "s" + " + s" * 100, "l.map(i, s).join('')"):
        with pytest.raises(ExpressionFailed) as caught:
            Expression(text).evaluate(scope)
        assert caught.value.reason in ("too_large", "too_costly")


def test_an_object_is_converted_once_per_evaluation() -> None:
    dumped: list[int] = []

    class Model:
        def model_dump(self, **_: Any) -> dict[str, int]:
            dumped.append(1)
            return {"a": 1}

    assert Expression("l.all(i, m.a == 1 && [m][0].a == 1)").evaluate({"l": [1, 2, 3], "m": Model()})
    assert len(dumped) == 1


def test_ordinary_work_is_far_below_the_budget() -> None:
    scope = {"fetch": {"pages": [{"url": str(i), "links": [1, 2, 3]} for i in range(10_000)]}}
    text = "fetch.pages.filter(p, size(p.links) > 2 && p.url != '').map(p, {'url': p.url, 'n': size(p.links)})"
    assert len(Expression(text).evaluate(scope)) == 10_000
    with pytest.raises(ExpressionFailed):
        Expression(text).evaluate(scope, max_points=MAX_POINTS // 10)


def test_long_chains_do_not_exhaust_the_stack() -> None:
    assert Expression("+".join(["1"] * 2000)).evaluate({}) == 2000
    assert Expression("&&".join(["true"] * 500)).evaluate({}) is True
    assert Expression("!" * 1001 + "true").evaluate({}) is False
    assert Expression("-" * 1001 + "1").evaluate({}) == -1


def test_equal_texts_share_one_program() -> None:
    one, other = Expression("a.b > 1"), Expression("a.b > 1")
    assert one == other
    assert one._fragment.program is other._fragment.program


def test_node_ids() -> None:
    for text in ("a", "_", "fetch_2", "A" * 64, "size", "all"):
        assert check_node_id(text) == text
    bad = [
        "",
        "1a",
        "a-b",
        "a.b",
        "a b",
        "a\n",
        "ä",
        "A" * 65,
        "true",
        "in",
        "while",
        "namespace",
        "int",
        "list",
        None,
        7,
    ]
    for value in (*bad, *RESERVED_NAMES):
        with pytest.raises(InvalidOption, match="node id"):
            check_node_id(value)  # type: ignore[arg-type]


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=12,
)
snippets = st.lists(
    st.sampled_from(
        "x y.a ['k'] . ( ) [ ] { } , : ? && || == != < <= in + - * / % ! 1 2.5 'a' \"b\" true null "
        "size( has( .map(i, .all(i, .exists(i, .filter(i, i string( int( timestamp( duration( "
        "${ } // r' \\ .join( .split('')".split()
    ),
    max_size=14,
).map(" ".join)


@settings(deadline=None)
@given(json_values)
def test_every_json_value_comes_back_as_itself(value: Any) -> None:
    result = Expression("x").evaluate({"x": value})
    assert result == value
    assert msgspec.msgpack.encode(result) == msgspec.msgpack.encode(value)
    assert Expression("x == y").evaluate({"x": value, "y": value}) is True


@settings(max_examples=400, deadline=None)
@given(st.text(max_size=40) | snippets, json_values, json_values)
def test_no_text_does_anything_but_give_or_refuse(text: str, one: Any, other: Any) -> None:
    try:
        expression = Expression(text)
        result = expression.evaluate({"x": one, "y": other}, max_points=10_000)
    except (InvalidExpression, ExpressionFailed) as error:
        assert 0 <= error.facts["offset"] <= len(text)
        return
    assert expression.names <= {"x", "y"} or "||" in text or "&&" in text or "?" in text or "(" in text
    msgspec.json.encode(result)


@settings(max_examples=300, deadline=None)
@given(snippets)
def test_what_we_read_the_oracle_reads(text: str) -> None:
    """Never more lenient than CEL in grammar: what people write here they can write elsewhere."""
    try:
        Expression(text)
    except InvalidExpression:
        return
    if not text.strip().startswith("${"):
        cel.compile(text)


@pytest.mark.parametrize(
    ("text", "whole"),
    [
        ("status.a == errors['b'].type || has(status.c)", False),
        ("l.map(errors, errors)", False),
        ("size(errors)", True),
        ("status[input.id]", True),
        ("errors.exists(id, errors[id].type == 'x')", True),
        ("{'all': status}", True),
        ("status.a == 'x' && size(status) > 1", True),
    ],
)
def test_it_is_known_whether_status_and_errors_are_read_as_a_whole(text: str, whole: bool) -> None:
    assert Expression(text).whole is whole
    assert Template({"deep": [f"so: ${{{text}}}"]}).whole is whole


def test_what_is_evaluated_for_many_items_shares_its_points() -> None:
    condition, scope = Condition("l.all(x, l.all(y, x * y >= 0))"), {"l": list(range(250))}
    assert condition.evaluate(scope)  # alone it may
    purse, done = purse_for(250), 0
    with pytest.raises(ExpressionFailed, match="points of work for all items together") as caught:
        while done < 250:
            condition.evaluate(scope, max_points=purse)
            done += 1
    assert caught.value.reason == "too_costly" and done < 20


def test_short_expressions_for_very_many_items_stay_within_their_points() -> None:
    purse = purse_for(1_000_000)
    before = purse.left
    condition, scope = (
        Condition("item.kind == 'a' && item.size > 10 || index % 2 == 0"),
        {"item": {"kind": "b"}, "index": 1},
    )
    for _ in range(100):
        assert not condition.evaluate(scope, max_points=purse)
    assert 0 < (before - purse.left) / 100 < before / 1_000_000


def test_one_item_may_not_cost_more_than_any_evaluation() -> None:
    condition, scope = Condition("l.all(x, l.all(y, x * y >= 0))"), {"l": list(range(2_000))}
    with pytest.raises(ExpressionFailed, match="more than 1,000,000 points of work; go"):
        condition.evaluate(scope, max_points=purse_for(100_000))
