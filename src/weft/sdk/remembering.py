"""Remembers what was found out about functions by their code: one that is made anew for each call is looked at once."""

from __future__ import annotations

import contextlib
from typing import Any, Generic, TypeVar

T = TypeVar("T")

#: Functions that are remembered.
MAX_KEPT = 10_000


class Remembered(Generic[T]):
    """What is known about functions.

    Functions of one code may differ in what they are called and in what their annotations say, as those that another
    function makes; and one decorator gives the code of its wrapper to all that it decorates.
    """

    def __init__(self) -> None:
        self._known: dict[Any, tuple[str, Any, T]] = {}

    def get(self, fn: Any) -> T | None:
        """Returns what is known about a function; None when that is nothing."""
        try:
            found = self._known.get(_code_of(fn))
        except TypeError:  # an object that has no hash
            return None
        if found is None or found[0] != getattr(fn, "__name__", "") or found[1] != _annotations_of(fn):
            return None
        return found[2]

    def keep(self, fn: Any, known: T) -> None:
        """Remembers what was found out about a function."""
        if len(self._known) >= MAX_KEPT:
            self._known.clear()
        with contextlib.suppress(TypeError):
            self._known[_code_of(fn)] = (getattr(fn, "__name__", ""), _annotations_of(fn), known)


def _code_of(fn: Any) -> Any:
    """Returns the code of a function, and of all that it wraps; an object that has none stands for itself."""
    code = getattr(fn, "__code__", None)
    if code is None:
        return fn
    inner = getattr(fn, "__wrapped__", None)
    return code if inner is None else (code, _code_of(inner))


def _annotations_of(fn: Any) -> Any:
    try:
        return getattr(fn, "__annotations__", None)
    except NameError:  # it names what is not there yet
        return None
