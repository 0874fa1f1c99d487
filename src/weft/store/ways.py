"""Two ways to commit: a short one for what goes as usual, a wide one for everything."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

T = TypeVar("T")
#: Commits some ends; returns a word for each.
Way = Callable[[list[T]], Awaitable[list[str]]]


async def commit_both_ways(ends: Sequence[T], short: Sequence[int], by_short: Way[T], by_wide: Way[T]) -> list[str]:
    """Commits those at the places `short` the short way and the others the wide one; returns a word for each.

    Both calls are under way at once. What turns out not to go as usual (`wide`) is committed the wide way, too.
    """
    words = [""] * len(ends)

    async def commit(way: Way[T], places: Sequence[int]) -> None:
        for i, word in zip(places, await way([ends[i] for i in places]), strict=True):
            words[i] = word

    wide = sorted({*range(len(ends))}.difference(short))
    if short and wide:
        for failed in await asyncio.gather(commit(by_short, short), commit(by_wide, wide), return_exceptions=True):
            if failed is not None:
                raise failed  # the caller makes both again; what was committed answers `done`
    else:
        await commit(by_short if short else by_wide, short or wide)
    left = [i for i, word in enumerate(words) if word == "wide"]
    if left:
        await commit(by_wide, left)
    return words
