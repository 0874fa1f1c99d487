"""What a task may be made of besides plain functions: what decorators leave, objects that can be called, odd parameters."""

from __future__ import annotations

import asyncio
import functools
import threading

import pytest

from weft import StepFailed, current


def counted(fn):
    @functools.wraps(fn)
    def inner(*args, **kwargs):
        return fn(*args, **kwargs)

    return inner


class Doubler:
    async def __call__(self, n: int) -> int:
        await asyncio.sleep(0)
        return 2 * n


async def test_a_plain_function_around_an_async_one_goes_on_on_the_loop(app, start_worker):
    # Given a decorator that knows nothing of coroutines.
    @app.task
    @counted
    async def where(n: int) -> list[str]:
        await asyncio.sleep(0)
        return [threading.current_thread().name, current().step, str(n)]

    await start_worker()

    assert await (await where.enqueue(3)).result(timeout=10) == [threading.current_thread().name, "where", "3"]


async def test_its_timeout_stops_it(app, start_worker):
    stopped = asyncio.Event()

    @app.task(timeout="100ms")
    @counted
    async def slow() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            stopped.set()

    await start_worker()
    with pytest.raises(StepFailed, match="timeout"):
        await (await slow.enqueue()).result(timeout=10)
    await asyncio.wait_for(stopped.wait(), 5)


async def test_a_batch_of_such_a_function_is_awaited(app, start_worker):
    @app.task(batch=3, batch_wait="50ms")
    @counted
    async def lengths(words: list[str]) -> list[int]:
        return [len(word) for word in words]

    await start_worker()
    runs = await lengths.enqueue_many([("a",), ("bb",), ("ccc",)])
    assert [await run.result(timeout=10) for run in runs] == [1, 2, 3]


async def test_an_object_with_an_async_call_is_an_async_task(app, start_worker):
    double = app.task(name="double")(Doubler())
    await start_worker()

    assert await double(4) == 8
    assert await (await double.enqueue(21)).result(timeout=10) == 42


async def test_a_parameter_may_be_called_self(app, start_worker):
    @app.task
    async def named(self: int, args: int, kwargs: int) -> int:
        return self + args + kwargs

    await start_worker()
    assert await named(self=1, args=2, kwargs=3) == 6
    assert await (await named.enqueue(self=1, args=2, kwargs=3)).result(timeout=10) == 6
    assert await (await named.options(priority=9).enqueue(self=1, args=2, kwargs=3)).result(timeout=10) == 6
    again = await asyncio.to_thread(named.sync.enqueue, self=1, args=2, kwargs=3)
    assert await again.result(timeout=10) == 6
