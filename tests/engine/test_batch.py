"""Batches: the function gets a list, each item was enqueued by itself and has its own result."""

import asyncio
import time

import pytest

from weft import DefinitionError, Depends, Discard, InvalidArguments, InvalidOption, StepFailed, current


async def results(runs):
    return await asyncio.gather(*(run.result(20) for run in runs), return_exceptions=True)


async def test_items_are_gathered_and_each_gets_its_own_result(app, start_worker):
    sizes: list[int] = []

    @app.task(batch=10, batch_wait="1h")
    async def double(numbers: list[int]) -> list[int]:
        sizes.append(len(numbers))
        return [2 * n for n in numbers]

    await start_worker(concurrency=3)
    runs = await double.enqueue_many([(n,) for n in range(30)])

    assert await results(runs) == [2 * n for n in range(30)]
    assert sizes == [10, 10, 10]
    assert await double([1, 2]) == [2, 4]


async def test_a_batch_that_does_not_fill_goes_when_its_time_is_over(app, start_worker):
    @app.task(batch=100, batch_wait="100ms")
    def store(rows: list[dict[str, int]]) -> None:
        sizes.append(len(rows))

    sizes: list[int] = []
    await start_worker()
    began = time.monotonic()
    runs = await store.enqueue_many([({"n": n},) for n in range(7)])
    assert await results(runs) == [None] * 7
    assert sizes == [7]
    assert time.monotonic() - began >= 0.1


async def test_waiting_for_others_takes_no_slot(app, start_worker, eventually):
    @app.task(batch=50, batch_wait="1h")
    async def gather(items: list[int]) -> None: ...

    @app.task
    async def quick() -> str:
        return "through"

    worker = await start_worker(concurrency=2)
    runs = await gather.enqueue_many([(n,) for n in range(49)])
    await eventually(lambda: len(worker.running) == 49)
    assert await (await quick.enqueue()).result(10) == "through"
    last = await gather.enqueue(49)
    assert await results([*runs, last]) == [None] * 50


async def test_an_item_may_fail_alone_and_a_batch_as_a_whole(app, start_worker):
    attempts: list[list[int]] = []

    @app.task(batch=3, batch_wait="50ms", retries=1, retry_delay="1ms")
    async def shaky(items: list[int]) -> list[object]:
        attempts.append(items)
        if len(attempts) == 1:
            raise ConnectionError("once")
        return [
            ValueError(f"bad {item}") if item == 1 else Discard("not needed") if item == 2 else "ok" for item in items
        ]

    await start_worker()
    runs = await shaky.enqueue_many([(0,), (1,), (2,)])
    good, bad, dropped = await results(runs)

    assert good == "ok"
    assert isinstance(bad, StepFailed) and bad.type == "ValueError"
    assert "not needed" in str(dropped)
    assert (await runs[1].info()).attempt == 2


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt, StopIteration, GeneratorExit, asyncio.CancelledError])
@pytest.mark.parametrize("plain", [False, True])
async def test_a_batch_that_raises_what_ends_programs_only_fails(app, start_worker, error, plain):
    if plain:

        @app.task(name="odd", batch=2, batch_wait="50ms")
        def odd(items: list[int]) -> None:
            raise error("no")
    else:

        @app.task(name="odd", batch=2, batch_wait="50ms")
        async def odd(items: list[int]) -> None:
            raise error("no")

    @app.task(batch=2, batch_wait="50ms")
    async def mixed(items: list[int]) -> list[object]:
        return [error("no"), "ok"]

    await start_worker()
    ends = await results(await odd.enqueue_many([(1,), (2,)]))
    assert [isinstance(end, StepFailed) and error.__name__ in str(end) for end in ends] == [True, True]
    bad, good = await results(await mixed.enqueue_many([(1,), (2,)]))
    assert (isinstance(bad, StepFailed) and error.__name__ in str(bad), good) == (True, "ok")


async def test_a_result_that_does_not_fit_its_items_fails_them_with_a_clear_text(app, start_worker):
    @app.task(batch=2, batch_wait="50ms")
    async def short(items: list[int]) -> list[int]:
        return [1]

    await start_worker()
    with pytest.raises(StepFailed, match="was given 2 items and returned 1 results: it must return a list"):
        for error in await results(await short.enqueue_many([(1,), (2,)])):
            raise error


async def test_a_cancelled_item_leaves_the_others_alone(app, start_worker, eventually):
    seen: list[int] = []
    go = asyncio.Event()

    @app.task(batch=3, batch_wait="1h")
    async def work(items: list[int]) -> list[int]:
        seen.extend(items)
        await go.wait()
        return items

    await start_worker()
    first, second, third = await work.enqueue_many([(1,), (2,), (3,)])
    await eventually(lambda: seen == [1, 2, 3])
    await first.cancel()
    go.set()
    assert await second.result(10) == 2
    assert await third.result(10) == 3
    assert await first.status() == "cancelled"


async def test_a_stopping_worker_calls_what_it_has_gathered(app, start_worker, eventually):
    seen: list[int] = []

    @app.task(batch=100, batch_wait="1h")
    async def work(items: list[int]) -> None:
        seen.extend(items)

    worker = await start_worker()
    runs = await work.enqueue_many([(n,) for n in range(5)])
    await eventually(lambda: len(worker.running) == 5)
    await worker.stop()
    assert seen == [0, 1, 2, 3, 4]
    assert await results(runs) == [None] * 5


async def explained(run, reason):
    return (await run.explain()).reason == reason


@pytest.mark.parametrize("what", ["queue", "task", "strike", "limit"])
async def test_what_operators_set_while_items_are_gathered_holds_for_them(app, start_worker, eventually, what):
    called: list[list[str]] = []

    @app.task(batch=10, batch_wait="600ms", rate_limit="100/h")
    async def embed(texts: list[str]) -> None:
        called.append(texts)

    worker = await start_worker()
    runs = await embed.enqueue_many([("otter",), ("owl",)])
    await eventually(lambda: worker.executor.batches.gathered == 2)
    if what == "strike":
        strike = await app.controls.strike("embed", {"texts": "otter"})
    elif what == "limit":
        await app.controls.limit(task="embed", concurrency=1)
    else:
        await app.controls.pause(**{what: {"queue": "default", "task": "embed"}[what]})
    await eventually(lambda: worker.executor.batches.gathered == 0)
    await eventually(lambda: not worker.running)

    first = {"queue": [], "task": [], "strike": [["owl"]], "limit": [["otter"]]}[what]
    assert called[:1] == first
    if what == "strike":
        await eventually(lambda: explained(runs[0], "struck"))
        await app.controls.unstrike(strike)
    elif what == "limit":
        # The other may have its slot by now; it was not in the same call.
        await app.controls.unlimit(task="embed")
    else:
        for run in runs:
            await eventually(lambda run=run: explained(run, f"{what}_paused"))
        await app.controls.resume(**{what: {"queue": "default", "task": "embed"}[what]})
    assert await results(runs) == [None, None]
    assert sorted(text for texts in called for text in texts) == ["otter", "owl"]
    assert {(await run.info()).attempt for run in runs} == {1}


async def test_the_function_knows_each_items_run_and_gets_its_resources(app, start_worker):
    def open_db() -> str:
        return "db"

    @app.task(batch=2, batch_wait="1h")
    async def work(items: list[str], db: str = Depends(open_db)) -> list[str]:
        return [f"{db} {each.run_id} {item}" for each, item in zip(current().batch, items, strict=True)]

    await start_worker()
    runs = await work.enqueue_many([("a",), ("b",)])
    assert await results(runs) == [f"db {runs[0].id} a", f"db {runs[1].id} b"]


async def test_a_time_limit_stops_the_batch(app, start_worker):
    @app.task(batch=2, batch_wait="50ms", timeout="50ms")
    async def slow(items: list[int]) -> None:
        await asyncio.sleep(60)

    await start_worker()
    for error in await results(await slow.enqueue_many([(1,), (2,)])):
        assert isinstance(error, StepFailed) and error.type == "TimeoutError"


async def test_a_batch_that_waits_for_a_slot_does_not_run_out_of_time(app, start_worker):
    sizes: list[int] = []

    @app.task(batch=10, batch_wait="50ms", timeout="200ms")
    async def gather(items: list[int]) -> None:
        sizes.append(len(items))
        if items[0] < 0:
            await asyncio.sleep(60)

    @app.task
    async def busy() -> None:
        await asyncio.sleep(0.7)

    # Given a worker whose only slot is taken by something else while items gather.
    runs = [await gather.enqueue(1), await gather.enqueue(2)]
    await busy.enqueue()
    await start_worker(concurrency=1)
    # Then their time is counted from the call on,
    assert await results(runs) == [None, None]
    assert sizes == [2]
    # and is counted then.
    late = await gather.enqueue(-1)
    with pytest.raises(StepFailed, match=r"timeout of 0\.2 s"):
        await late.result(10)


async def test_arguments_are_those_of_one_item(app):
    @app.task(batch=2)
    async def work(items: list[int]) -> None: ...

    with pytest.raises(InvalidArguments):
        await work.enqueue("no number")
    with pytest.raises(InvalidArguments):
        await work.enqueue(1, 2)


def two(items: list[int], more: int) -> None: ...
def none() -> None: ...
def scalar(item: int) -> None: ...
def one_result(items: list[int]) -> int: ...


@pytest.mark.parametrize("fn", [two, none, scalar, one_result])
async def test_a_function_that_cannot_get_a_batch_is_refused_at_definition(app, fn):
    with pytest.raises(DefinitionError, match="a batch function has one parameter, the list of items"):
        app.task(batch=10)(fn)
    assert app.tasks == {}


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"batch": 0}, InvalidOption),
        ({"batch": True}, InvalidOption),
        ({"batch": 20_000}, InvalidOption),
        ({"batch_wait": "1s"}, DefinitionError),
        ({"batch": 5, "batch_wait": -1}, InvalidOption),
        ({"batch": 5, "pool": "process"}, DefinitionError),
        ({"batch": 5, "concurrency": 4}, DefinitionError),
    ],
)
async def test_options_that_cannot_be_meant_are_refused(app, options, error):
    with pytest.raises(error):

        @app.task(**options)
        def work(items: list[int]) -> None: ...
