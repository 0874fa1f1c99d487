"""Starts whose runs must be kept more safely than in the memory of the store. The default level never comes here."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol, TypeVar

from weft.engine.batching import Batcher
from weft.engine.engine import Engine
from weft.errors import DurabilityUnmet, Unavailable
from weft.ids import partition_of
from weft.store.durability import acknowledge_runs, check_level, is_kept

#: Starts that one wait of the store answers at most: what comes while one is under way shares the next.
SHARED = 10_000


class HasId(Protocol):
    """A run that was accepted."""

    @property
    def id(self) -> str: ...


S = TypeVar("S", bound=HasId)


async def keep(engine: Engine, level: str, start: Callable[[], Awaitable[Sequence[S]]]) -> Sequence[S]:
    """Starts runs and waits until they are kept at a level; notes that on them.

    Raises DurabilityUnmet: before anything was started when the store cannot do it at all, or else with the ids of what was
    started and goes on. Starting it again by the same idempotency key gives the same run, and waits again.
    """
    await engine.open()
    await check_level(engine.ns, level)
    started = await start()
    homes: dict[int, list[str]] = {}
    for one in started:
        homes.setdefault(partition_of(one.id), []).append(one.id)
    for p, runs in homes.items():
        try:
            if not await _waiter(engine, p, level).call(None):
                raise DurabilityUnmet("the store did not say so in time")
            await acknowledge_runs(engine.ns, p, runs, level)
        except Unavailable as error:
            shown = runs[0] + (f" and {len(started) - 1} more" if len(started) > 1 else "")
            raise DurabilityUnmet(
                f"run {shown} was started and goes on, but is not known to be kept at durability={level!r}: {error.message}."
                " Start it again by the same idempotency_key to wait again; without one that is a second run",
                level=level,
                run=runs[0],
                runs=[one.id for one in started],
            ) from error
    return started


def _waiter(engine: Engine, p: int, level: str) -> Batcher[None, bool]:
    waiter = engine.keepers.get((p, level))
    if waiter is None:

        async def wait(asked: Sequence[None]) -> list[bool]:
            return [await is_kept(engine.ns, p, level)] * len(asked)

        waiter = engine.keepers[p, level] = Batcher(wait, limit=SHARED)
    return waiter
