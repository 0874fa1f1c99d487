"""Templates: values with expressions in their texts."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.test_expressions import json_values

from weft.core.templates import MAX_FRAGMENTS, Template
from weft.errors import ExpressionFailed, InvalidExpression

SCOPE = {"x": 7, "s": "text", "f": 1.5, "t": True, "n": None, "l": [1, "a", None], "d": {"b": 1, "a": "é"}, "w": 2.0}


@pytest.mark.parametrize(
    ("value", "result"),
    [
        # only an expression: the value itself
        ("${x}", 7),
        ("${ d }", {"b": 1, "a": "é"}),
        ("${n}", None),
        ("${x > 3}", True),
        # inside a text: text as it is, null as nothing, the rest as compact JSON
        ("a ${x} b", "a 7 b"),
        ("${x}${x}", "77"),
        (" ${x}", " 7"),
        ("${s}!", "text!"),
        ("${f} ${w} ${t} [${n}]", "1.5 2.0 true []"),
        ("${l} ${d}", '[1,"a",null] {"b":1,"a":"é"}'),
        # where an expression ends
        ("${'}'}", "}"),
        ("${{'a': {'b': x}}}", {"a": {"b": 7}}),
        ("<${ {'a': '}${'}.a }>", "<}${>"),
        ('${"\\"}"}', '"}'),
        ("${'''}'''} ${r'\\'}", "} \\"),
        ("${x // }\n}", 7),
        # what is no expression
        ("", ""),
        ("plain } $ { $x {x}", "plain } $ { $x {x}"),
        ("$${x}", "${x}"),
        ("$${x} ${x} $${", "${x} 7 ${"),
        ("cost: $$5", "cost: $$5"),
        ("$", "$"),
        # structures; keys are never templates
        ({"a": ["${x}", {"b": "${s}-${x}"}], "${x}": 1}, {"a": [7, {"b": "text-7"}], "${x}": 1}),
        ([1, 1.5, None, True], [1, 1.5, None, True]),
        (5, 5),
    ],
)
def test_a_template_gives(value: Any, result: Any) -> None:
    filled = Template(value).evaluate(SCOPE)
    assert filled == result
    assert type(filled) is type(result)


def test_names_and_nodes_are_those_of_all_expressions() -> None:
    template = Template({"a": "${fetch.x} ${input.y}", "b": ["${status.save}"]})
    assert template.names == {"fetch", "input", "status"}
    assert template.nodes == {"fetch", "save"}
    assert not template.constant
    assert Template({"a": ["$${b}"]}).constant


@pytest.mark.parametrize(
    ("value", "path", "offset", "why"),
    [
        ("ab ${1 +} c", None, 8, "ends where a value is expected"),
        ("ab ${", None, 3, "never closed"),
        ("${'a}", None, 2, "never closed"),
        ("${}", None, 2, "empty"),
        ("${a} ${b c}", None, 9, "`c` stands where"),
        ({"headers": [{"x": "y${?}"}]}, "headers[0].x", 3, "`headers[0].x`"),
        ("${" + "x" * 5000, None, 0, "never closed"),
        ("${" + "1+" * 3000 + "1}", None, 0, "an expression may have 4096 characters"),
    ],
)
def test_what_cannot_be_read_is_refused_with_its_place(value: Any, path: str | None, offset: int, why: str) -> None:
    with pytest.raises(InvalidExpression) as caught:
        Template(value)
    assert why in caught.value.message
    assert caught.value.facts["offset"] == offset
    assert caught.value.facts.get("path") == path


@pytest.mark.parametrize("value", [{1: 2}, {"a": object()}, b"x", {"a": {1, 2}}])
def test_a_template_is_json_like(value: Any) -> None:
    with pytest.raises(InvalidExpression):
        Template(value)


def test_a_template_that_contains_itself_or_too_much_is_refused() -> None:
    loop: list[Any] = []
    loop.append(loop)
    with pytest.raises(InvalidExpression, match="contains itself"):
        Template(loop)
    with pytest.raises(InvalidExpression, match="at most"):
        Template(["${x}"] * (MAX_FRAGMENTS + 1))


def test_errors_at_run_time_give_the_offset_in_the_text() -> None:
    with pytest.raises(ExpressionFailed) as caught:
        Template("Dear ${d.nam}").evaluate(SCOPE)
    assert caught.value.facts["offset"] == 9
    assert "`d` has no field `nam`" in caught.value.message


def test_unknown_names_are_found_before_anything_runs() -> None:
    with pytest.raises(InvalidExpression, match="did you mean `fetch`") as caught:
        Template({"a": "x ${fetsh}"}).check_names({"fetch"})
    assert caught.value.facts["path"] == "a"
    assert caught.value.facts["offset"] == 4


def test_a_text_cannot_grow_without_bound() -> None:
    with pytest.raises(ExpressionFailed) as caught:
        Template("${s}" * 100).evaluate({"s": "x" * 1_000_000})
    assert caught.value.reason == "too_large"


def test_what_is_filled_in_is_not_read_as_a_template() -> None:
    assert Template("${s}").evaluate({"s": "${x}"}) == "${x}"
    assert Template("a ${s}").evaluate({"s": "${x}"}) == "a ${x}"


def test_a_template_is_its_own() -> None:
    value = {"a": ["${x}"]}
    template = Template(value)
    value["a"].append("later")
    assert template.evaluate(SCOPE) == {"a": [7]}
    assert template.evaluate(SCOPE) is not template.evaluate(SCOPE)


@settings(deadline=None)
@given(json_values)
def test_every_json_value_goes_through_unchanged(value: Any) -> None:
    assert Template("${x}").evaluate({"x": value}) == value
    assert json.loads(Template("[${x},0]").evaluate({"x": [value]})) == [[value], 0]


@settings(deadline=None)
@given(st.text(max_size=30))
def test_escaped_text_stays_as_it_is(text: str) -> None:
    # A `$` before the `${` would itself be read as the escape.
    plain = text.replace("$", "")
    assert Template(plain + "$${" + plain).evaluate({}) == plain + "${" + plain


@settings(deadline=None)
@given(st.text(max_size=30) | st.text(alphabet="${}'\"x\\ [:,", max_size=20))
def test_no_text_does_anything_but_give_or_refuse(text: str) -> None:
    try:
        Template(text).evaluate({"x": 1})
    except (InvalidExpression, ExpressionFailed) as error:
        assert 0 <= error.facts["offset"] <= len(text)


def test_the_expressions_of_a_template_share_their_points() -> None:
    costly, scope = "${l.all(x, l.all(y, x * y >= 0))}", {"l": list(range(250))}
    assert Template([costly] * 5).evaluate(scope) == [True] * 5
    with pytest.raises(ExpressionFailed, match="2,000,000 points of work for all expressions of the template together"):
        Template([costly] * 50).evaluate(scope)
    assert Template(["${size(l)}"] * 256).evaluate(scope) == [250] * 256
