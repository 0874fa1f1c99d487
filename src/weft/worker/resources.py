"""The resources of one worker, or of one of its child processes: each opened at first use, all closed at the end."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, contextmanager
from typing import Any

from weft.errors import ResourceFailed
from weft.sdk.depends import GUARDS, Resource
from weft.sdk.task import Task
from weft.telemetry import get_logger

log = get_logger("weft.worker")

#: Seconds one resource may take to close before the worker leaves without it.
CLOSE_SECONDS = 10.0

#: Calls a plain function where it may block.
Aside = Callable[[Callable[[], Any]], Awaitable[Any]]


class Resources:
    """Opens each resource once, however many steps ask at the same time; one that could not be opened is tried again."""

    def __init__(self, aside: Aside) -> None:
        self._aside = aside
        self._held: dict[Callable[..., Any], _Held] = {}
        # Not the context of the step that asks first: a resource belongs to all of them.
        self._context = contextvars.copy_context()

    async def of(self, task: Task[Any, Any]) -> dict[str, Any]:
        """Returns what a task's parameters get, by name; raises ResourceFailed."""
        found = {}
        for name, resource in task.needs.items():
            try:
                found[name] = await self._get(resource)
            except asyncio.CancelledError:
                raise
            except BaseException as error:
                raise ResourceFailed(
                    f"task {task.name}: its resource {name} ({resource.name}) could not be opened:"
                    f" {type(error).__name__}: {error}",
                    task=task.name,
                    resource=resource.name,
                ) from error
        return found

    async def close(self) -> None:
        """Closes everything, the last opened first; what goes wrong is logged."""
        while self._held:
            _, held = self._held.popitem()
            held.closing.set()
            if not held.value.done():
                held.owner.cancel()
            done, _ = await asyncio.wait([held.owner], timeout=CLOSE_SECONDS)
            if not done:
                held.owner.cancel()
                log.error("a resource takes too long to close; the worker leaves without it", resource=held.name)

    async def _get(self, resource: Resource) -> Any:
        held = self._held.get(resource.opener)
        if held is None:
            # First those it needs: they are closed after it.
            given = {name: await self._get(needed) for name, needed in (resource.needs or {}).items()}
            held = self._held.get(resource.opener)
            if held is None:
                held = self._held[resource.opener] = _Held(self._aside, resource, given)
                held.begin(self._context.copy(), on_end=self._forget)
        # Shielded: the step that asked first may time out, and others still wait.
        return await asyncio.shield(held.value)

    def _forget(self, held: _Held) -> None:
        if self._held.get(held.resource.opener) is held:
            del self._held[held.resource.opener]


class _Held:
    """One resource and the task that owns it: what is entered in a task must be left in the same one."""

    def __init__(self, aside: Aside, resource: Resource, given: dict[str, Any]) -> None:
        self._aside, self.resource, self._given = aside, resource, given
        self.name = resource.name
        self.value: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.closing = asyncio.Event()
        self.owner: asyncio.Task[None]

    def begin(self, context: contextvars.Context, *, on_end: Callable[[_Held], None]) -> None:
        loop = asyncio.get_running_loop()
        self.owner = loop.create_task(self._own(), name=f"weft resource {self.name}", context=context)
        self.owner.add_done_callback(lambda _: on_end(self))

    async def _own(self) -> None:
        try:
            async with self._opened() as value:
                self.value.set_result(value)
                await self.closing.wait()
        except BaseException as error:  # noqa: BLE001 - whatever user code raises: it goes to the steps, or to the log
            if self.value.done():
                log.error("a resource could not be closed", resource=self.name, error=repr(error))
            elif isinstance(error, asyncio.CancelledError):
                self.value.cancel()
            else:
                self.value.set_exception(error)
                self.value.exception()  # seen: every step that waited may be gone by now

    @asynccontextmanager
    async def _opened(self) -> AsyncIterator[Any]:
        opener, given = self.resource.opener, self._given
        if inspect.iscoroutinefunction(opener):
            yield await opener(**given)
            return
        # A class that is entered with `async with` is made on the loop; everything else plain may block.
        on_loop = isinstance(opener, type) and hasattr(opener, "__aenter__")
        made = _managed(opener(**given) if on_loop else await self._aside(lambda: opener(**given)))
        if isinstance(made, GUARDS):
            yield made
        elif hasattr(type(made), "__aenter__"):
            async with made as value:
                yield value
        elif hasattr(type(made), "__enter__"):
            value = await self._aside(made.__enter__)
            try:
                yield value
            finally:
                await self._aside(lambda: made.__exit__(None, None, None))
        else:
            yield await made if inspect.isawaitable(made) else made


def _managed(made: Any) -> Any:
    """Makes a context manager of a generator."""
    if inspect.isasyncgen(made):
        return asynccontextmanager(lambda: made)()
    return contextmanager(lambda: made)() if inspect.isgenerator(made) else made
