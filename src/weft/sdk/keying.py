"""Functions of a task's arguments: the ones that give a key or a cost for one call.

They get the arguments by their names, those that they name, as the call has them or as the task's defaults say. So
`lambda customer: customer` serves a task of five parameters, and a call is the same call however it is written.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable
from inspect import Parameter
from typing import Any

from weft.errors import DefinitionError
from weft.sdk.gating import Gating
from weft.sdk.once import Uniqueness
from weft.sdk.signature import Signature

_SEVERAL = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)
_BY_NAME = (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)
_PLACED = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)


def fit_gating(gating: Gating | None, signature: Signature) -> Gating | None:
    """Returns limits whose functions get the arguments of one signature. Raises DefinitionError for those that cannot."""
    if gating is None:
        return None
    given = {name: getattr(gating, name) for name in ("concurrency_key", "rate_key", "rate_cost")}
    fitted: dict[str, Any] = {
        name: fit(value, signature, option=name) for name, value in given.items() if callable(value)
    }
    return dataclasses.replace(gating, **fitted) if fitted else gating


def fit_uniqueness(rule: Uniqueness | None, signature: Signature) -> Uniqueness | None:
    """Returns a rule for equal calls whose key gets the arguments of one signature."""
    if rule is None or rule.key is None:
        return rule
    return dataclasses.replace(rule, key=fit(rule.key, signature, option="unique_key"))


def fit(function: Callable[..., Any], signature: Signature, *, option: str) -> Callable[..., Any]:
    """Returns a function that takes a call's arguments, as they were given, and hands this one what it names of them."""
    if inspect.iscoroutinefunction(function):
        raise DefinitionError(f"{signature.text}: {option} is called where nobody can wait: make it a plain function")
    has = signature.parameters
    try:
        wants = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        # A built-in that does not tell: it gets the arguments as they were given.
        return function
    if any(p.kind in _SEVERAL for p in has):
        return function
    names = [p.name for p in has]
    defaults = {p.name: p.default for p in has if p.default is not Parameter.empty}
    placed = [p.name for p in has if p.kind in _PLACED]
    taken = _named(wants, names)
    if taken is None:
        others = [name for name in names if name not in placed]
        _check_placed(function, placed, others, option, signature)
        return lambda *args, **kwargs: _place(
            function, placed, others, {**defaults, **_by_name(placed, args), **kwargs}
        )
    if taken == names and not defaults and all(p.kind is Parameter.POSITIONAL_OR_KEYWORD for p in (*wants, *has)):
        # The same parameters in the same order: whatever is a call of the one is one of the other.
        return function

    def by_name(*args: Any, **kwargs: Any) -> Any:
        values = {**defaults, **_by_name(placed, args), **kwargs}
        return function(**{name: values[name] for name in taken})

    return by_name


def _named(wants: list[Parameter], names: list[str]) -> list[str] | None:
    """Returns which of the names a function takes; None when it must have something else, or by place alone."""
    single = [p for p in wants if p.kind is not Parameter.VAR_KEYWORD]
    for p in single:
        if p.default is Parameter.empty and (p.name not in names or p.kind not in _BY_NAME):
            return None
    if len(single) < len(wants):
        return names
    return [p.name for p in wants if p.name in names and p.kind in _BY_NAME]


def _check_placed(
    function: Callable[..., Any], placed: list[str], others: list[str], option: str, signature: Signature
) -> None:
    try:
        inspect.signature(function).bind(*placed, **dict.fromkeys(others))
    except TypeError as error:
        raise DefinitionError(
            f"{signature.text}: {option} gets these arguments by name, those that it has parameters for; it cannot be"
            f" called with them: {error}",
            option=option,
        ) from error


def _by_name(placed: list[str], args: tuple[Any, ...]) -> dict[str, Any]:
    return dict(zip(placed, args, strict=False))


def _place(function: Callable[..., Any], placed: list[str], others: list[str], values: dict[str, Any]) -> Any:
    return function(*(values[name] for name in placed), **{name: values[name] for name in others})
