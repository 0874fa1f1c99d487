"""The part of JSON Schema that a graph's `input` may use: what is here is checked, every other keyword is refused.

No `pattern` (a regular expression from outside can take for ever) and no `$ref` (nothing is fetched or followed).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from weft.codec import ADVICE, encode_plain
from weft.core.graph.problems import Path, Problems, pointer, show, similar
from weft.errors import PayloadRefused

#: What to do about an input that is no plain data.
_ADVICE = (
    "the input of a graph is in JSON form: hand over what `model_dump(mode='json')`, `isoformat()` or `str()` gives"
)

_TYPES: dict[str, Callable[[Any], bool]] = {
    "object": lambda value: isinstance(value, dict),
    "array": lambda value: isinstance(value, list),
    "string": lambda value: isinstance(value, str),
    "integer": lambda value: not isinstance(value, bool) and (isinstance(value, int) or _is_round(value)),
    "number": lambda value: isinstance(value, (int, float)) and not isinstance(value, bool),
    "boolean": lambda value: isinstance(value, bool),
    "null": lambda value: value is None,
}
#: Keyword -> (the type it is about, what is compared, the words for what is wrong, whether it fits).
_BOUNDS: dict[str, tuple[str, Callable[[Any], Any], str, Callable[[Any, Any], bool]]] = {
    "minimum": ("number", lambda v: v, "must be at least", lambda v, bound: v >= bound),
    "maximum": ("number", lambda v: v, "must be at most", lambda v, bound: v <= bound),
    "exclusiveMinimum": ("number", lambda v: v, "must be above", lambda v, bound: v > bound),
    "exclusiveMaximum": ("number", lambda v: v, "must be below", lambda v, bound: v < bound),
    "minLength": ("string", len, "must have this many characters or more:", lambda v, bound: v >= bound),
    "maxLength": ("string", len, "must have at most this many characters:", lambda v, bound: v <= bound),
    "minItems": ("array", len, "must have this many items or more:", lambda v, bound: v >= bound),
    "maxItems": ("array", len, "must have at most this many items:", lambda v, bound: v <= bound),
}
#: Keywords that tell readers something and are not checked.
_NOTES = frozenset(
    {"title", "description", "default", "examples", "format", "$schema", "$comment", "$id", "deprecated"}
)
_CHOICES = ("anyOf", "oneOf", "allOf")
_KEYWORDS = frozenset(
    {"type", "properties", "required", "additionalProperties", "items", "enum", "const", *_CHOICES, *_BOUNDS, *_NOTES}
)


def check_schema(schema: dict[str, Any] | None, problems: Problems, path: Path = ("input",)) -> None:
    """Notes what is wrong with a schema."""
    if schema is None:
        return
    line: list[tuple[Path, Any]] = [(path, schema)]
    while line:
        at, part = line.pop()
        if isinstance(part, bool):
            continue
        if not isinstance(part, dict):
            problems.add("bad_schema", f"a schema is a mapping, not {show(part)}", at)
            continue
        for keyword, value in part.items():
            if said := _wrong(keyword, value):
                problems.add("bad_schema", said, (*at, keyword), at_key=keyword not in _KEYWORDS)
        line.extend(_inside(part, at))


def _wrong(keyword: str, value: Any) -> str:
    """Returns what is wrong with one keyword, or nothing."""
    if keyword not in _KEYWORDS:
        return f"the schema keyword {show(keyword)} is not checked{similar(keyword, _KEYWORDS) or '; leave it out'}"
    if keyword == "type":
        types = value if isinstance(value, list) else [value]
        for one in types:
            if not isinstance(one, str) or one not in _TYPES:
                return f"there is no type {show(one)}{similar(one, _TYPES) or '; there are ' + ', '.join(_TYPES)}"
    if keyword == "required" and not (isinstance(value, list) and all(isinstance(one, str) for one in value)):
        return f"required must be a list of names, not {show(value)}"
    if keyword == "properties" and not isinstance(value, dict):
        return f"properties must be a mapping of names and schemas, not {show(value)}"
    if keyword in ("enum", *_CHOICES) and (not isinstance(value, list) or not value):
        return f"{keyword} must be a list that is not empty, not {show(value)}"
    if keyword in _BOUNDS and not _TYPES["number"](value):
        return f"{keyword} must be a number, not {show(value)}"
    return ""


def _inside(schema: dict[str, Any], path: Path) -> Iterator[tuple[Path, Any]]:
    """Yields the schemas inside a schema."""
    properties = schema.get("properties")
    for name, part in (properties if isinstance(properties, dict) else {}).items():
        yield (*path, "properties", name), part
    for keyword in ("items", "additionalProperties"):
        if keyword in schema:
            yield (*path, keyword), schema[keyword]
    for keyword in _CHOICES:
        parts = schema.get(keyword)
        for i, part in enumerate(parts if isinstance(parts, list) else ()):
            yield (*path, keyword, i), part


def check_input(schema: dict[str, Any] | None, value: Any) -> list[str]:
    """Returns what is wrong with a value, a sentence each; nothing when it fits. The schema was checked before."""
    return [] if schema is None else list(_misfits(schema, value, ()))


def _misfits(schema: Any, value: Any, path: Path) -> Iterator[str]:
    where = f"input{pointer(path)}"
    if isinstance(schema, bool):
        if not schema:
            yield f"{where} is not expected"
        return
    types = schema.get("type")
    if types is not None:
        wanted = types if isinstance(types, list) else [types]
        if not any(_TYPES[one](value) for one in wanted):
            yield f"{where} must be {' or '.join(wanted)}, not {show(value)}"
            return
    if "enum" in schema and not any(_same(value, one) for one in schema["enum"]):
        yield f"{where} must be one of {', '.join(map(show, schema['enum'][:20]))}, not {show(value)}"
    if "const" in schema and not _same(value, schema["const"]):
        yield f"{where} must be {show(schema['const'])}, not {show(value)}"
    for keyword, (type, measure, words, fits) in _BOUNDS.items():
        if keyword in schema and _TYPES[type](value) and not fits(measure(value), schema[keyword]):
            yield f"{where} {words} {schema[keyword]}"
    yield from _misfits_inside(schema, value, path)
    for keyword in _CHOICES:
        if keyword in schema:
            yield from _misfits_of_choice(keyword, schema[keyword], value, path)


def _misfits_inside(schema: dict[str, Any], value: Any, path: Path) -> Iterator[str]:
    if isinstance(value, dict):
        known = schema.get("properties", {})
        for name in schema.get("required", ()):
            if name not in value:
                yield f"input{pointer(path)} needs {name}"
        for name, part in value.items():
            inner = known[name] if name in known else schema.get("additionalProperties", True)
            if inner is False and name not in known:
                yield f"input{pointer(path)} has no field {show(name)}{similar(name, known)}"
            else:
                yield from _misfits(inner, part, (*path, name))
    if isinstance(value, list) and "items" in schema:
        for i, part in enumerate(value):
            yield from _misfits(schema["items"], part, (*path, i))


def _misfits_of_choice(keyword: str, schemas: list[Any], value: Any, path: Path) -> Iterator[str]:
    if keyword == "allOf":
        for one in schemas:
            yield from _misfits(one, value, path)
        return
    n_fit = sum(next(_misfits(one, value, path), None) is None for one in schemas)
    if not n_fit:
        yield f"input{pointer(path)} fits none of the forms it may have"
    elif keyword == "oneOf" and n_fit > 1:
        yield f"input{pointer(path)} fits {n_fit} forms where it must fit one"


def _is_round(value: Any) -> bool:
    return isinstance(value, float) and value.is_integer()


def _same(a: Any, b: Any) -> bool:
    # True == 1 in Python, not in JSON.
    return isinstance(a, bool) == isinstance(b, bool) and bool(a == b)


def pack_input(input: Any) -> bytes:
    """Returns the input of a run as it is stored. It has no annotation by which more than plain data could be carried."""
    try:
        return encode_plain(input, what="the input of the run")
    except PayloadRefused as error:
        raise PayloadRefused(error.message.replace(ADVICE, _ADVICE), **error.facts) from None
