"""Which items of a map are started a second time, and when to look again. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

#: Milliseconds between two looks, at least, at a map of which nothing has run for long enough.
LOOK_MS = 1_000


@dataclass(frozen=True, slots=True)
class Item:
    """An open item of a map."""

    id: str
    #: For how long a worker has had it; None while it waits for one.
    running_ms: int | None = None
    #: In how many milliseconds it goes on, when it waits for its time.
    due_ms: int = 0
    #: It was started a second time already.
    copied: bool = False


def choose(items: Sequence[Item], hedge_ms: int, most: int) -> tuple[list[str], int]:
    """Returns the items to start a second time, the slowest first, and in how many milliseconds to look again.

    A copy counts like an item: with the items that are open there are never more than `most`.
    """
    pause_ms = max(hedge_ms, LOOK_MS)
    single = [item for item in items if not item.copied]
    room = max(0, most - len(items) - (len(items) - len(single)))
    late = sorted(
        (item for item in single if item.running_ms is not None and item.running_ms >= hedge_ms),
        key=lambda item: -(item.running_ms or 0),
    )
    waits = [pause_ms] if len(late) > room or len(single) < len(items) or not items else []
    for item in single:
        if item.running_ms is None:
            waits.append(item.due_ms + pause_ms)
        elif item.running_ms < hedge_ms:
            waits.append(hedge_ms - item.running_ms)
    return [item.id for item in late[:room]], min(waits, default=pause_ms)
