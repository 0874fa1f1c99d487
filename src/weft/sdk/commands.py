"""What the code of a workflow asks for, and how it asks for a new life."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from weft.codec import decode_plain

if TYPE_CHECKING:
    from weft.sdk.flowloop import FlowFuture, Handle


@dataclass(slots=True, eq=False)
class Command:
    """Something that a workflow's code has asked for and waits for."""

    key: str
    #: step, call, child, timer, receive, or limit (of `asyncio.timeout`).
    kind: str
    future: FlowFuture | None = None
    decode: Callable[[bytes], Any] = decode_plain
    #: What it takes to do it, by kind.
    work: Any = None
    #: When a timer, or the next attempt of a step, is due.
    due_ms: int = 0
    attempt: int = 1
    #: A call or child that is on its way.
    opened: bool = False
    handle: Handle | None = None
    #: Where in the source it was asked for, in a replay that is traced.
    place: str = ""

    @property
    def spelled(self) -> str:
        """How people call it."""
        return spell(self.kind, self.key)


def spell(kind: str, key: str) -> str:
    """Returns how people call a command."""
    if key.startswith("$timeout"):  # a time limit, which is a timer to the journal
        return "time limit" + key.removeprefix("$timeout")
    return f"{kind} {key.lstrip('$')}"


class ContinuedAsNew(BaseException):
    """Leaves the code of a workflow whose run goes on in a new life. No Exception: code that handles errors lets it pass."""


def is_continued(error: BaseException | None) -> bool:
    """Tells whether code ended for a new life, and for nothing else: a TaskGroup on the way wraps what it lets through."""
    if isinstance(error, BaseExceptionGroup):
        return all(is_continued(one) for one in error.exceptions)
    return isinstance(error, ContinuedAsNew)
