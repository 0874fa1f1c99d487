"""How reading and evaluating say no, before the door adds the whole sentence."""

from __future__ import annotations

from collections.abc import Iterable


class Unreadable(Exception):
    """The text is not an expression: `why`, and the offset where that was noticed."""

    def __init__(self, why: str, at: int) -> None:
        super().__init__(why)
        self.why, self.at = why, at


class Unclosed(Unreadable):
    """Something that was opened is not closed before the text ends."""


class Fault(Exception):
    """An evaluation has no result. `&&`, `||`, `all` and `exists` forget it when the rest decides without it.

    `near` is a word and what it may have meant: looked up only if the fault is shown, for it may be one of many.
    """

    def __init__(self, reason: str, why: str, at: int, *, near: tuple[str, Iterable[object]] | None = None) -> None:
        super().__init__(why)
        self.reason, self.why, self.at, self.near = reason, why, at, near


class Spent(Exception):
    """The evaluation was stopped: its points are spent. Not a `Fault`, so that no operator can forget it."""
