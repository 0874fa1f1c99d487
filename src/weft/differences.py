"""Tells where two values differ, and names types and places as their author would write them.

Used when a value comes back from its bytes: only once something is known or suspected to be wrong, so it may be slow.
"""

from __future__ import annotations

import re
from collections import abc
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, get_args

#: How much of a name an error message repeats, in characters.
SHOWN_CHARS = 60

_MODULE = re.compile(r"(?:[A-Za-z_]\w*\.)+(?=[A-Za-z_])|[A-Za-z_]\w*\.<locals>\.")


def difference(value: Any, back: Any) -> tuple[str, str] | None:
    """Return where and how what comes back differs from what went in; None if a reader could not tell.

    A list may come back for a tuple or a set, a float or Decimal for an integer, a text for a member of a
    string enum: whoever annotates so asks for it.
    """
    if type(value) is type(back) and _equal(value, back):
        return None
    if isinstance(value, abc.Mapping) and isinstance(back, abc.Mapping):
        return _difference_of_parts(value, back, value.keys(), value.keys() == back.keys())
    if isinstance(value, list | tuple) and isinstance(back, list | tuple):
        return _difference_of_parts(value, back, range(len(value)), len(value) == len(back))
    if isinstance(value, abc.Set) and isinstance(back, abc.Set | list | tuple):
        return None if _same_items(value, back) else ("", "its items change")
    return _difference_of_fields(value, back) if type(value) is type(back) else _difference_of_types(value, back)


def _difference_of_parts(value: Any, back: Any, steps: abc.Collection[Any], all_there: bool) -> tuple[str, str] | None:
    for step in steps if all_there else ():
        if found := difference(value[step], back[step]):
            return step_text(step) + found[0], found[1]
    return None if all_there else ("", "some of its items or keys are lost")


def _difference_of_fields(value: Any, back: Any) -> tuple[str, str] | None:
    # Compared field by field and not by `==`, which may mind private attributes that nobody meant to store.
    for name in (names := field_names(type(value))):
        if found := difference(getattr(value, name, None), getattr(back, name, None)):
            return step_text(name) + found[0], found[1]
    if isinstance(value, Decimal) and value.is_nan():
        return "", "it is not a number"
    if isinstance(value, datetime) and value.tzinfo and back.tzinfo:
        # In the hour that a clock change repeats, equal moments of two zones are never `==`.
        return None if value.astimezone(UTC) == back.astimezone(UTC) else ("", "it comes back changed")
    extra = getattr(value, "model_extra", None) == getattr(back, "model_extra", None)
    # Without fields and without an `==` of its own there is nothing left to compare.
    opaque = getattr(type(value), "__eq__", None) is object.__eq__
    return None if extra and (names or opaque) else ("", "it comes back changed")


def _same_items(value: abc.Set[Any], back: abc.Collection[Any]) -> bool:
    try:
        return len(value) == len(back) and value == set(back)
    except TypeError:
        # Items that were hashable and no longer are have changed their type.
        return False


def _difference_of_types(value: Any, back: Any) -> tuple[str, str] | None:
    if type(value) is int and isinstance(back, float | Decimal):
        return None
    if isinstance(value, type(back) | bytearray | memoryview) and _equal(value, back):
        return None
    if isinstance(value, type(back)):
        return "", f"a `{spell(type(value))}` would come back as its parent `{spell(type(back))}`"
    return "", f"a `{spell(type(value))}` would come back as a `{spell(type(back))}`"


def _equal(value: Any, back: Any) -> bool:
    try:
        return bool(value == back)
    except Exception:  # noqa: BLE001 - the author's own `__eq__` may raise anything; then the fields decide
        return False


def field_names(cls: Any) -> tuple[str, ...]:
    """Return the fields of a model, Struct, dataclass or attrs class; nothing for other types."""
    if hasattr(cls, "model_validate"):
        return tuple(getattr(cls, "model_fields", ()))
    if attrs := getattr(cls, "__attrs_attrs__", ()):
        return tuple(attribute.name for attribute in attrs)
    return tuple(getattr(cls, "__struct_fields__", ()) or getattr(cls, "__dataclass_fields__", ()))


def spell(annotation: Any) -> str:
    """Return an annotation as its author would write it: without module names, and text as it stands."""
    if isinstance(annotation, str):
        return annotation
    if annotation is None or annotation is type(None):
        return "None"
    if isinstance(annotation, type) and not get_args(annotation):
        return annotation.__name__
    text = repr(annotation)
    # A quote means text inside the annotation, such as `Literal['a.b']`, whose dots are not module names.
    return text.replace("typing.", "") if "'" in text else _MODULE.sub("", text)


def step_text(step: Any) -> str:
    """Return one step into a value as its author would write it: `.price`, `[3]`, `['two words']`, `[UUID]`."""
    if type(step) is int:
        return f"[{step}]"
    if not isinstance(step, str):
        return f"[{spell(type(step))}]"
    return f".{step}" if step.isidentifier() and len(step) <= SHOWN_CHARS else f"[{step[:SHOWN_CHARS]!r}]"
