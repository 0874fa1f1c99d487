"""Dividing much into portions of bounded size: what is sent or asked for at once must come within a time limit. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")


def portions(items: Iterable[tuple[T, int]], most: int) -> Iterator[list[T]]:
    """Yields things in order, as many at once as their sizes allow; one that is larger than that comes alone."""
    some: list[T] = []
    size = 0
    for item, n in items:
        if some and size + n > most:
            yield some
            some, size = [], 0
        some.append(item)
        size += n
    if some:
        yield some
