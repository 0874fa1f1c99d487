"""Hooks around every attempt of an app's tasks: `@app.before_task`, `@app.after_task`, `@app.on_error`.

Only kept here, and checked when they are registered; `worker/hooks.py` calls them.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from weft.errors import DefinitionError
from weft.sdk.current import Current
from weft.sdk.depends import Unopened

BeforeHook = Callable[[Current], Awaitable[None] | None]
AfterHook = Callable[[Current, Any], Awaitable[None] | None]
ErrorHook = Callable[[Current, BaseException], Awaitable[None] | None]


@dataclass(slots=True)
class Hooks:
    """What an app wants called around its tasks, in order of registration."""

    before: list[BeforeHook] = field(default_factory=list)
    after: list[AfterHook] = field(default_factory=list)
    on_error: list[ErrorHook] = field(default_factory=list)


def check_hook(hook: Any, decorator: str, *parameters: str) -> None:
    """Refuses what could not be called with these parameters: in a worker it would fail every attempt."""
    wanted = f"@app.{decorator} takes a function of ({', '.join(parameters)})"
    if not callable(hook):
        raise DefinitionError(f"{wanted}, not {hook!r}")
    if inspect.isgeneratorfunction(hook) or inspect.isasyncgenfunction(hook):
        raise DefinitionError(f"{wanted}; a generator would never begin to run")
    try:
        signature = inspect.signature(hook)
        for name, parameter in signature.parameters.items():
            if isinstance(parameter.default, Unopened):
                raise DefinitionError(f"{wanted}: its parameter {name} would get no resource, Depends is for tasks")
        signature.bind(*parameters)
    except TypeError as error:
        raise DefinitionError(f"{wanted}, and {getattr(hook, '__name__', hook)} cannot be called so: {error}") from None
    except ValueError:
        return  # written in C: it does not say what it takes
