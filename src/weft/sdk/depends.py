"""`Depends(open_db)` as a parameter's default: the worker opens the resource once and hands it to the task.

Only declared and checked here; `worker/resources.py` opens and closes. Such a parameter is no part of the call: `enqueue`
neither needs nor accepts it, and whoever calls the function directly passes what it likes.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from inspect import Parameter
from typing import Any, NoReturn, TypeVar, overload

from weft.errors import DefinitionError

T = TypeVar("T")

#: Context managers that guard a block rather than open something: handed out as they are.
GUARDS: tuple[type, ...] = (
    *(type(threading.Lock()), type(threading.RLock()), threading.Condition, threading.Semaphore),
    *(asyncio.Lock, asyncio.Condition, asyncio.Semaphore),
)
G = TypeVar(
    "G", threading.Lock, threading.Condition, threading.Semaphore, asyncio.Lock, asyncio.Condition, asyncio.Semaphore
)

#: Parameter name -> the resource it gets.
Needs = dict[str, "Resource"]


class Resource:
    """Something to be opened: its opener, and the resources that one needs itself."""

    __slots__ = ("name", "needs", "opener")

    def __init__(self, opener: Callable[..., Any]) -> None:
        if not callable(opener):
            raise DefinitionError(f"Depends takes a function that opens something, not {opener!r}")
        try:
            hash(opener)
        except TypeError:
            raise DefinitionError(
                f"Depends({opener!r}): it is not hashable, so it cannot be told from others"
            ) from None
        self.opener = opener
        self.name: str = getattr(opener, "__qualname__", None) or repr(opener)
        #: Read with the definition of the first task that uses it.
        self.needs: Needs | None = None


class Unopened:
    """What stands as the parameter's default. Whoever calls the function without a worker meets it, and is told."""

    __slots__ = ("weft_resource",)

    def __init__(self, resource: Resource) -> None:
        self.weft_resource = resource

    def __getattr__(self, name: str) -> NoReturn:
        raise AttributeError(
            f"{name}: {self!r} is not open here: a worker opens it; where you call the function yourself, pass what it"
            " needs"
        )

    def __repr__(self) -> str:
        return f"Depends({self.weft_resource.name})"


@overload
def Depends(opener: Callable[..., G]) -> G: ...
@overload
def Depends(opener: Callable[..., AbstractAsyncContextManager[T]]) -> T: ...
@overload
def Depends(opener: Callable[..., AbstractContextManager[T]]) -> T: ...
@overload
def Depends(opener: Callable[..., AsyncIterator[T]]) -> T: ...
@overload
def Depends(opener: Callable[..., Iterator[T]]) -> T: ...
@overload
def Depends(opener: Callable[..., Awaitable[T]]) -> T: ...
@overload
def Depends(opener: Callable[..., T]) -> T: ...
def Depends(opener: Callable[..., Any]) -> Any:
    """Declares that a parameter gets what `opener` opens, once per worker.

    The opener is a plain or async function, a generator or async generator that yields once, or returns a context
    manager; what stands behind the `yield`, or the manager's exit, runs when the worker stops. Its own parameters may be
    `Depends(…)` too.
    """
    return Unopened(Resource(opener))


def read_needs(fn: Callable[..., Any], *, of: str) -> Needs:
    """Returns the resources that a task's parameters ask for; raises DefinitionError for what could never be opened."""
    return _read(fn, f"task {of}", ())


def _read(fn: Callable[..., Any], what: str, path: tuple[Callable[..., Any], ...]) -> Needs:
    needs: Needs = {}
    for parameter in _parameters(fn):
        if parameter.default is Depends:
            raise DefinitionError(f"{what}: {parameter.name} = Depends lacks its opener: write Depends(open_it)")
        if any(isinstance(extra, Unopened) for extra in getattr(parameter.annotation, "__metadata__", ())):
            raise DefinitionError(
                f"{what}: {parameter.name} has its Depends in the annotation: write it as the default, {parameter.name}: … ="
                " Depends(open_it)"
            )
        if isinstance(parameter.default, Unopened):
            resource = parameter.default.weft_resource
            if parameter.kind is Parameter.POSITIONAL_ONLY:
                raise DefinitionError(
                    f"{what}: {parameter.name} is a resource and can only be given by position; a worker hands resources"
                    " over by name"
                )
            _settle(resource, what, path)
            needs[parameter.name] = resource
        elif path and parameter.default is Parameter.empty and parameter.kind not in _OPTIONAL:
            raise DefinitionError(
                f"{what} needs {parameter.name}, and nobody would give it: give it a default, or one of Depends(…)"
            )
    return needs


def _settle(resource: Resource, what: str, path: tuple[Callable[..., Any], ...]) -> None:
    """Finds out, once, what an opener needs itself."""
    path = (*path, resource.opener)
    if resource.opener in path[:-1]:
        names = " -> ".join(getattr(opener, "__qualname__", repr(opener)) for opener in path)
        raise DefinitionError(f"{what}: its resources need each other in a circle: {names}")
    if resource.needs is None:
        resource.needs = _read(resource.opener, f"{what}: its resource {resource.name}", path)


_OPTIONAL = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)


def _parameters(fn: Callable[..., Any]) -> list[Parameter]:
    try:
        return list(inspect.signature(fn).parameters.values())
    except (TypeError, ValueError):
        return []  # written in C: it does not say what it takes, and Signature complains where that matters
