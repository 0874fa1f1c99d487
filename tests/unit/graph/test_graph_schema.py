"""The part of JSON Schema that a graph's input may use."""

import pytest

from weft.core.graph.schema import check_input

SCHEMA = {
    "type": "object",
    "required": ["url"],
    "properties": {
        "url": {"type": "string", "minLength": 3, "maxLength": 20},
        "n": {"type": "integer", "minimum": 1, "exclusiveMaximum": 10},
        "tags": {"type": "array", "items": {"enum": ["a", "b", 1]}, "minItems": 1, "maxItems": 3},
        "flag": {"const": True},
        "either": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        "one": {"oneOf": [{"type": "number"}, {"type": "integer"}]},
        "both": {"allOf": [{"minimum": 1}, {"maximum": 2}]},
    },
    "additionalProperties": False,
}


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ({"url": "http"}, []),
        ({"url": "http", "n": 9, "tags": ["a", 1], "flag": True, "either": None, "one": 1.5, "both": 2}, []),
        ({"url": "http", "n": 2.0}, []),
        ({}, ["input needs url"]),
        ([], ["input must be object, not a list"]),
        (None, ["input must be object, not null"]),
        ({"url": 3}, ["input/url must be string, not 3"]),
        ({"url": "a"}, ["input/url must have this many characters or more: 3"]),
        ({"url": "http", "n": 10}, ["input/n must be below 10"]),
        ({"url": "http", "n": True}, ["input/n must be integer, not true"]),
        ({"url": "http", "n": 1.5}, ["input/n must be integer, not 1.5"]),
        ({"url": "http", "tags": ["a", True, "c"]}, 2),
        ({"url": "http", "tags": []}, ["input/tags must have this many items or more: 1"]),
        ({"url": "http", "flag": 1}, ["input/flag must be true, not 1"]),
        ({"url": "http", "either": 3}, ["input/either fits none of the forms it may have"]),
        ({"url": "http", "one": 1}, ["input/one fits 2 forms where it must fit one"]),
        ({"url": "http", "both": 3}, ["input/both must be at most 2"]),
        ({"url": "http", "ulr": 3}, ["input has no field 'ulr': did you mean url?"]),
    ],
)
def test_what_does_not_fit_is_told_with_its_place(value, said):
    found = check_input(SCHEMA, value)
    assert len(found) == said if isinstance(said, int) else found == said


def test_without_a_schema_everything_fits():
    assert check_input(None, object()) == []
    assert check_input({"additionalProperties": {"type": "string"}}, {"x": 1}) == ["input/x must be string, not 1"]
    assert check_input({"properties": {"x": False}}, {"x": 1}) == ["input/x is not expected"]
