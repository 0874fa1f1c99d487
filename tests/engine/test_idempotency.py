"""Idempotency keys: the same key gives the same run; with other arguments it is a conflict."""

import asyncio

import pytest

from weft import Conflict, InvalidOption, ResultExpired, Weft


async def test_the_same_key_gives_the_same_run(add, start_worker):
    first = await add.options(idempotency_key="order-1").enqueue(1, 2)
    second = await add.options(idempotency_key="order-1").enqueue(1, 2)

    assert (first.id, first.deduplicated) == (second.id, False)
    assert second.deduplicated
    await start_worker()
    assert [await run.result(10) for run in (first, second)] == [3, 3]
    # Also after it has finished.
    third = await add.options(idempotency_key="order-1").enqueue(1, 2)
    assert third.deduplicated
    assert await third.result(10) == 3
    assert (await third.info()).idempotency_key == "order-1"


async def test_arguments_given_another_way_are_the_same_arguments(add):
    keyed = add.options(idempotency_key="k")

    first = await keyed.enqueue(1, 2)

    assert (await keyed.enqueue(b=2, a=1)).id == first.id
    assert (await keyed.enqueue(1, b=2)).id == first.id
    await first.cancel()


async def test_a_default_that_is_written_out_is_the_same_argument(app):
    @app.task
    async def report(day: str, full: bool = False) -> str:
        return day

    keyed = report.options(idempotency_key="k")
    first = await keyed.enqueue("mon")

    assert (await keyed.enqueue("mon", full=False)).id == first.id
    with pytest.raises(Conflict):
        await keyed.enqueue("mon", full=True)
    await first.cancel()


async def test_a_graph_input_in_another_order_is_the_same_input(app):
    graph = app.graph("waits")
    graph.wait("go", signal="go")
    keyed = graph.options(idempotency_key="g")

    first = await keyed.start({"a": 1, "b": {"d": [1, 2], "c": None}})

    assert (await keyed.start({"b": {"c": None, "d": [1, 2]}, "a": 1})).id == first.id
    with pytest.raises(Conflict):
        await keyed.start({"a": 1, "b": {"d": [2, 1], "c": None}})
    await first.cancel()


async def test_equal_sets_are_one_call_however_they_were_made(app):
    @app.task(unique_for="1h")
    async def tag(names: set[int]) -> None: ...

    first = await tag.enqueue({0, 8})

    assert (await tag.enqueue({8, 0})).id == first.id
    assert (await tag.enqueue({0, 9})).id != first.id
    await app.runs.change("cancel", name="tag")


async def test_other_arguments_or_another_task_are_a_conflict(app, add):
    @app.task
    async def sub(a: int, b: int) -> int:
        return a - b

    first = await add.options(idempotency_key="k").enqueue(1, 2)

    for task, args in ((add, (1, 3)), (sub, (1, 2))):
        with pytest.raises(Conflict, match=f"'k' was used before, for run {first.id}"):
            await task.options(idempotency_key="k").enqueue(*args)
    assert len(await app.runs.list()) == 1
    await first.cancel()


async def test_fifty_starts_at_once_are_one_run(app, add, start_worker, server, namespace):
    # Given five clients that know nothing of each other.
    others = [Weft("other", redis_url=server.url, namespace=namespace) for _ in range(5)]
    tasks = []
    for other in others:

        @other.task(name="add")
        async def add_too(a: int, b: int) -> int:
            return a + b

        tasks.append(add_too)

    # When each starts ten runs with the same key at the same time.
    runs = await asyncio.gather(
        *(task.options(idempotency_key="once").enqueue(20, 22) for task in tasks for _ in range(10))
    )

    # Then there is one run, and exactly one caller started it.
    assert len({run.id for run in runs}) == 1
    assert [run.deduplicated for run in runs].count(False) == 1
    assert len(await app.runs.list()) == 1
    await start_worker()
    assert await runs[0].result(10) == 42
    for other in others:
        await other.close()


@pytest.mark.parametrize("key", ["a:b {c} *?[", "ключ 鍵 🔑", "x" * 512, " "])
async def test_any_text_can_be_a_key(add, key):
    first = await add.options(idempotency_key=key).enqueue(1, 2)

    assert (await add.options(idempotency_key=key).enqueue(1, 2)).id == first.id
    assert (await first.info()).idempotency_key == key
    await first.cancel()


async def test_the_key_outlives_a_result_that_is_no_longer_kept(app, start_worker, eventually, raw, namespace):
    @app.task(keep_result="20ms")
    async def quick() -> int:
        return 1

    await start_worker()
    first = await quick.options(idempotency_key="k").enqueue()
    await eventually(lambda: not list(raw.scan_iter(f"{namespace}:*:run:*")))

    again = await quick.options(idempotency_key="k").enqueue()

    assert (again.id, again.deduplicated) == (first.id, True)
    with pytest.raises(ResultExpired):
        await again.result(5)


async def test_large_arguments_are_compared_too(app, raw, namespace):
    @app.task
    async def take(data: bytes) -> None: ...

    first = await take.options(idempotency_key="k").enqueue(b"x" * 100_000)

    assert (await take.options(idempotency_key="k").enqueue(b"x" * 100_000)).id == first.id
    with pytest.raises(Conflict):
        await take.options(idempotency_key="k").enqueue(b"y" * 100_000)
    # What was uploaded for the runs that never came to be goes by itself.
    kept = [key for key in raw.scan_iter(f"{namespace}:*:blob:*") if raw.pttl(key) < 0]
    assert len(kept) == 1
    await first.cancel()


async def test_no_key_means_a_run_of_its_own(add):
    runs = [await add.options(idempotency_key=None).enqueue(1, 2) for _ in range(2)]

    assert runs[0].id != runs[1].id
    for run in runs:
        await run.cancel()


async def test_the_window_of_a_key_can_be_declared(add, raw, namespace, eventually, start_worker):
    first = await add.options(idempotency_key="k", idempotency_window="100ms").enqueue(1, 2)
    await eventually(lambda: not list(raw.scan_iter(f"{namespace}:*idempotency:*")))
    second = await add.options(idempotency_key="k").enqueue(1, 2)
    assert second != first
    with pytest.raises(InvalidOption, match="needs idempotency_key"):
        add.options(idempotency_window="1h")
    await start_worker()
    await second.result(10)
