"""What `ctx.child` gives: a run that a workflow started and may wait for."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeVar

from weft.sdk.commands import Command

if TYPE_CHECKING:
    from weft.sdk.context import Context

R = TypeVar("R")


class Child(Awaitable[R]):
    """A run that a workflow started: await it for its result."""

    def __init__(self, context: Context, command: Command, id: str) -> None:
        self._context, self._command, self.id = context, command, id

    @property
    def _future(self) -> asyncio.Future[R]:
        assert self._command.future is not None
        return self._command.future

    def __await__(self) -> Any:
        return self._future.__await__()

    def __hash__(self) -> int:
        return hash(self._future)  # sets of them are in the same order in every replay

    def __eq__(self, other: object) -> bool:
        return self is other

    def cancel(self) -> bool:
        """Cancels the child."""
        self._command.work = (*self._command.work[:3], "cancel")  # also one that a cancelled parent would leave
        return self._future.cancel()

    def signal(self, name: str, value: Any = None) -> asyncio.Future[bool]:
        """Gives the child a signal, once, whatever dies meanwhile."""
        return self._context._give(self.id, name, value)

    # --- what a future has: asyncio.wait asks for it, and so may the code -------------------------

    def done(self) -> bool:
        """Whether the child has ended, as far as this code was told."""
        return self._future.done()

    def cancelled(self) -> bool:
        """Whether this code has cancelled it."""
        return self._future.cancelled()

    def result(self) -> R:
        """Its result, once it is done."""
        return self._future.result()

    def exception(self) -> BaseException | None:
        """What it failed with, once it is done; None: it did not."""
        return self._future.exception()

    def add_done_callback(self, callback: Callable[[Any], object], *, context: Any = None) -> None:
        """Has something called when it is done."""
        self._future.add_done_callback(callback, context=context)

    def remove_done_callback(self, callback: Callable[[Any], object]) -> int:
        """Takes that back."""
        return self._future.remove_done_callback(callback)
