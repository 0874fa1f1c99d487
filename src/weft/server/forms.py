"""Forms: a JSON Schema as fields that people fill in, and what they filled in as a value.

A property that is a text, a number, a yes or no, or a choice is a field of its own; anything deeper is JSON that people write.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from weft.core.graph.schema import check_input
from weft.errors import InvalidArguments
from weft.server.requests import parse_json

#: The field that takes a form as a whole.
WHOLE = "form"
#: More properties than that are written as JSON.
MAX_FIELDS = 60
#: Texts longer than that get several lines.
LONG = 120

_INTEGER = re.compile(r"[+-]?[0-9]{1,300}")
_NUMBER = re.compile(r"[+-]?[0-9]{1,300}(\.[0-9]{1,300})?([eE][+-]?[0-9]{1,3})?")
_FLAT = ("string", "integer", "number", "boolean")


@dataclass(frozen=True, slots=True)
class Field:
    """One field."""

    #: The property it fills; nothing for the whole form.
    name: str
    #: string, integer, number, boolean, choice or json.
    kind: str
    schema: dict[str, Any]
    required: bool = False

    @property
    def key(self) -> str:
        """How the page names it."""
        return f"{WHOLE}.{self.name}" if self.name else WHOLE

    @property
    def label(self) -> str:
        return str(self.schema.get("title") or self.name or "Form (JSON)")

    @property
    def is_check(self) -> bool:
        """Whether it is a box to tick: one that may also be left unsaid is a choice."""
        return self.kind == "boolean" and (self.required or isinstance(self.schema.get("default"), bool))


@dataclass(slots=True)
class Filled:
    """What a form has in it: texts as people see them, the value they make, and what is wrong with it."""

    texts: dict[str, str] = field(default_factory=dict)
    value: Any = None
    #: By the key of the field.
    problems: dict[str, str] = field(default_factory=dict)
    #: What is wrong with all of it.
    general: list[str] = field(default_factory=list)
    comment: str = ""

    @property
    def fits(self) -> bool:
        return not self.problems and not self.general


def fields_of(schema: dict[str, Any]) -> list[Field]:
    """Returns the fields for a schema; one that takes all of it as JSON, where it is not an object of known properties."""
    known = schema.get("properties")
    if schema.get("type", "object") != "object" or not known or len(known) > MAX_FIELDS:
        return [Field("", "json", schema, required=True)]
    if isinstance(schema.get("additionalProperties"), dict) or schema.keys() & {
        "anyOf",
        "oneOf",
        "allOf",
        "enum",
        "const",
    }:
        return [Field("", "json", schema, required=True)]
    required = schema.get("required", ())
    if set(required) - known.keys():
        return [Field("", "json", schema, required=True)]
    found = [
        Field(name, _kind(part), part if isinstance(part, dict) else {}, name in required)
        for name, part in known.items()
    ]
    # Definitions keep no order of properties: what is needed comes first.
    return sorted(found, key=lambda one: not one.required)


def _kind(schema: Any) -> str:
    if not isinstance(schema, dict) or schema.keys() & {"anyOf", "oneOf", "allOf", "const"}:
        return "json"
    if "enum" in schema:
        return "choice" if all(isinstance(one, (str, int, float)) or one is None for one in schema["enum"]) else "json"
    kind = schema.get("type")
    return kind if isinstance(kind, str) and kind in _FLAT else "json"


def start(fields: list[Field], shown: Any) -> Filled:
    """Returns a form as it is before anybody fills it in: with what is shown, else with the defaults of the schema."""
    filled = Filled()
    for one in fields:
        if not one.name:
            given = shown if not check_input(one.schema, shown) else one.schema.get("default")
            filled.texts[one.key] = "" if given is None else _pretty(given)
            continue
        offers = [shown[one.name]] if isinstance(shown, dict) and one.name in shown else []
        offers += [one.schema["default"]] if "default" in one.schema else []
        fitting = next((offer for offer in offers if not check_input(one.schema, offer)), None)
        if fitting is not None:
            filled.texts[one.key] = _text(one, fitting)
    return filled


def fill(schema: dict[str, Any], fields: list[Field], given: Mapping[str, str]) -> Filled:
    """Returns what was filled in: a value that fits the schema, or what is wrong with each field."""
    filled = Filled(texts={one.key: given.get(one.key, "") for one in fields})
    value: dict[str, Any] = {}
    for one in fields:
        try:
            there, part = _read(one, given.get(one.key))
        except InvalidArguments as error:
            filled.problems[one.key] = error.message
            continue
        if not one.name:
            value = part
        elif there:
            value[one.name] = part
        elif one.required:
            filled.problems[one.key] = "this is needed"
            continue
        if wrong := check_input(one.schema, part) if there else []:
            # The name of the field stands above it.
            filled.problems[one.key] = "; ".join(text.removeprefix("input ").replace("input/", "/") for text in wrong)
    if not filled.problems:
        filled.general = [text.replace("input", "the form", 1) for text in check_input(schema, value)]
        filled.value = value
    return filled


def _read(one: Field, text: str | None) -> tuple[bool, Any]:
    """Reads a field; returns whether anything was filled in, and what. Raises InvalidArguments."""
    if one.is_check:
        return True, text is not None
    # Browsers send every end of a line as two characters.
    text = (text or "").replace("\r\n", "\n")
    if one.kind == "string":
        return bool(text), text
    text = text.strip()
    if not text:
        return False, None
    if one.kind == "choice":
        choices = one.schema["enum"]
        if not text.isascii() or not text.isdigit() or len(text) > 9 or int(text) >= len(choices):
            raise InvalidArguments("choose one of those that are offered")
        return True, choices[int(text)]
    if one.kind == "boolean":
        if text not in ("yes", "no"):
            raise InvalidArguments("choose yes or no")
        return True, text == "yes"
    if one.kind == "integer":
        if not _INTEGER.fullmatch(text):
            raise InvalidArguments("must be a whole number, such as 42")
        return True, int(text)
    if one.kind == "number":
        number = (int(text) if _INTEGER.fullmatch(text) else float(text)) if _NUMBER.fullmatch(text) else math.inf
        if not math.isfinite(number):
            raise InvalidArguments("must be a number, such as 42 or 1.5")
        return True, number
    return True, parse_json(text)


def _text(one: Field, value: Any) -> str:
    """Returns a value as its field shows it."""
    if one.kind == "choice":
        same = [i for i, choice in enumerate(one.schema["enum"]) if choice == value and type(choice) is type(value)]
        return str(same[0]) if same else ""
    if one.kind == "boolean":
        return ("yes" if value else "") if one.is_check else ("yes" if value else "no")
    if one.kind == "string":
        return str(value)
    return _pretty(value)


def _pretty(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False, default=str)
