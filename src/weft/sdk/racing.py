"""Races and maps of a workflow: who comes first, and so many at a time. What losers have received is given back."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any

from weft.sdk.flowloop import FlowFuture, FlowTask

if TYPE_CHECKING:
    from weft.sdk.program import Program


def race(program: Program, awaitables: Sequence[Awaitable[Any]]) -> FlowTask:
    """Returns the task that waits for the first; it gives place and result."""
    futures: list[asyncio.Future[Any]] = [asyncio.ensure_future(one) for one in awaitables]
    task: FlowTask = program.loop.create_task(_race(futures))
    task.stands_for = futures
    # No `finally` of the task: one that is cancelled before it begins has none. Whoever awaits it is woken after this.
    task.add_done_callback(lambda done: _settle(program, done, futures))
    return task


async def _race(futures: Sequence[asyncio.Future[Any]]) -> tuple[int, Any]:
    await asyncio.wait(futures, return_when=asyncio.FIRST_COMPLETED)
    first = next(i for i, future in enumerate(futures) if future.done())
    return first, futures[first].result()


def _settle(program: Program, done: asyncio.Future[Any], futures: Sequence[asyncio.Future[Any]]) -> None:
    won = done.result()[0] if not done.cancelled() and done.exception() is None else -1
    if won >= 0:
        done.stands_for = [futures[won]]  # type: ignore[attr-defined]
    for i, future in enumerate(futures):
        if i != won:
            give_up(program, future)


def give_up(program: Program, future: asyncio.Future[Any]) -> None:
    """Cancels what the code does not wait for any more; signals that it has received already are there for others."""
    future.cancel()
    for one in _received_by(future):
        program.give_back(one)


def _received_by(future: Any) -> list[FlowFuture]:
    if isinstance(future, FlowFuture):
        given = future.received is not None and future.done() and not future.cancelled()
        return [future] if given and future.exception() is None else []
    # A race, a receive with a time limit, or what asyncio.gather gives.
    parts = getattr(future, "stands_for", None) or getattr(future, "_children", None) or ()
    return [one for part in parts for one in _received_by(part)]


async def call_all(call: Callable[[Any], asyncio.Future[Any]], items: Sequence[Any], most: int) -> list[Any]:
    """Calls something for every item, so many at a time; returns the results in order. The first failure ends the others."""
    results: dict[int, Any] = {}
    at: dict[asyncio.Future[Any], int] = {}
    following = iter(enumerate(items))
    try:
        while True:
            while len(at) < most and (one := next(following, None)) is not None:
                at[call(one[1])] = one[0]
            if not at:
                return [results[i] for i in range(len(items))]
            done, _ = await asyncio.wait(at, return_when=asyncio.FIRST_COMPLETED)
            for future in [future for future in at if future in done]:
                results[at.pop(future)] = future.result()
    finally:
        for future in at:
            future.cancel()
