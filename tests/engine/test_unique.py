"""Calls that count as one: unique_for with its policies, throttle, debounce."""

import asyncio

import pytest
import redis

from weft import DefinitionError, InvalidArguments, InvalidOption, RunCancelled, StepFailed


async def test_an_equal_call_joins_the_earlier_one(app, start_worker):
    @app.task(unique_for="1h")
    async def report(day: str) -> str:
        return day

    first, again, other = await report.enqueue("mon"), await report.enqueue("mon"), await report.enqueue("tue")

    assert again == first and again.deduplicated and not first.deduplicated
    assert other != first
    await start_worker()
    assert await again.result(10) == "mon"
    assert (await report.enqueue("mon")).deduplicated
    assert await other.result(10) == "tue"


@pytest.mark.parametrize("kind", ["unique_for", "throttle", "debounce"])
async def test_a_default_that_is_written_out_makes_no_other_call(app, kind):
    @app.task(**{kind: "1h"})
    async def report(day: str, full: bool = False, scale: float = 2, *, pages: list[int] | None = None) -> str:
        return day

    first = await report.enqueue("mon")
    for args, kwargs in [(("mon", False), {}), (("mon", False, 2.0), {}), (("mon",), {"scale": 2, "pages": None})]:
        assert await report.enqueue(*args, **kwargs) == first
    (many,) = await report.enqueue_many([{"day": "mon", "full": False}])
    assert many == first and many.deduplicated
    other = await report.enqueue("mon", full=True)
    assert other != first
    await first.cancel()
    await other.cancel()


async def test_a_call_of_defaults_only_is_the_call_without_arguments(app):
    @app.task(unique_for="1h")
    async def sweep(deep: bool = False, mark: object = ...) -> None: ...

    first = await sweep.enqueue()
    assert await sweep.enqueue(deep=False) == first
    await first.cancel()


async def test_the_window_ends(app, advance, raw, namespace, start_worker, eventually):
    @app.task(unique_for="100ms")
    async def report() -> None: ...

    first = await report.enqueue()
    await eventually(lambda: not list(raw.scan_iter(f"{namespace}:*unique:*")))
    second = await report.enqueue()
    assert second != first
    await start_worker()
    await second.result(10)


async def test_what_failed_or_was_cancelled_is_not_in_the_way(app, start_worker):
    @app.task(unique_for="1h")
    async def shaky() -> None:
        raise ValueError("no")

    await start_worker()
    first = await shaky.enqueue()
    with pytest.raises(Exception, match="ValueError"):
        await first.result(10)
    second = await shaky.options(delay="1h").enqueue()
    assert second != first
    await second.cancel()
    third = await shaky.options(delay="1h").enqueue()
    assert third != second
    await third.cancel()


async def test_drop_ends_the_later_call_at_once(app, start_worker):
    @app.task(unique_for="1h", unique="drop")
    async def report() -> int:
        return 1

    first, second = await report.enqueue(), await report.enqueue()
    assert second != first and second.deduplicated
    assert await second.status() == "cancelled"
    with pytest.raises(RunCancelled, match="dropped: a call like it"):
        await second.result(10)
    assert [event.type for event in await second.history()] == ["queued", "cancelled"]
    await start_worker()
    assert await first.result(10) == 1


async def test_replace_ends_the_earlier_call(app, start_worker, eventually):
    began: list[int] = []

    @app.task(unique_for="1h", unique="replace", unique_key=lambda n: "same")
    async def report(n: int) -> int:
        began.append(n)
        if n == 1:
            await asyncio.sleep(60)
        return n

    await start_worker()
    first = await report.enqueue(1)
    await eventually(lambda: began == [1])
    second = await report.enqueue(2)
    with pytest.raises(RunCancelled, match="newer call took its place"):
        await first.result(10)
    assert await second.result(10) == 2


async def test_what_was_replaced_while_no_worker_lived_never_runs(app, start_worker):
    began: list[int] = []

    @app.task(unique_for="1h", unique="replace", concurrency=1)
    async def report(n: int) -> None:
        began.append(n)

    delayed = await report.options(delay="1h").enqueue(1)
    alone = await report.enqueue(1)
    many = await report.enqueue_many([(1,), (2,), (1,)])

    statuses = [await run.status() for run in (delayed, alone, *many)]
    assert statuses == ["cancelled", "cancelled", "cancelled", "queued", "queued"]
    assert not any(run.deduplicated for run in many)
    with pytest.raises(RunCancelled, match="newer call took its place"):
        await alone.result(10)

    await start_worker()
    await asyncio.gather(*(run.result(10) for run in many[1:]))
    assert sorted(began) == [1, 2]


async def test_a_throttled_call_starts_once_per_window_whatever_becomes_of_it(app, start_worker):
    calls = 0

    @app.task(throttle="1h")
    async def ping() -> None:
        nonlocal calls
        calls += 1
        raise ValueError("no")

    await start_worker()
    runs = [await ping.enqueue() for _ in range(5)]
    assert len({run.id for run in runs}) == 1
    await asyncio.gather(*(run.result(10) for run in runs), return_exceptions=True)
    assert (await ping.enqueue()) == runs[0]
    assert calls == 1


async def test_debounced_calls_become_one_with_the_newest_arguments(app, advance, start_worker):
    began: list[str] = []

    @app.task(debounce="100s", unique_key=lambda page, text: page)
    async def save(page: str, text: str) -> str:
        began.append(text)
        return text

    await start_worker()
    first = await save.enqueue("home", "a")
    await advance(50_000)
    second = await save.enqueue("home", "ab")
    await advance(70_000)
    third = await save.enqueue("home", "abc" * 5_000)
    assert first == second == third and third.deduplicated
    await asyncio.sleep(0.1)
    assert began == []
    await advance(110_000)
    assert await third.result(10) == "abc" * 5_000
    assert began == ["abc" * 5_000]
    assert [event.type for event in await third.history()] == ["queued", "debounced", "debounced", "completed"]

    later = await save.enqueue("home", "new")
    assert later != third
    await later.cancel()


async def test_the_deadline_of_a_debounced_run_is_that_of_its_newest_call(app, advance, start_worker):
    @app.task(debounce="100s", deadline="150s", unique_key=lambda page: page)
    async def save(page: str, text: str) -> str:
        return text

    await start_worker()
    first = await save.enqueue("home", "a")
    await advance(90_000)
    second = await save.enqueue("home", "ab")
    await advance(90_000)  # beyond what the first call had
    assert await save.enqueue("home", "abc") == second == first
    assert (await first.info()).deadline_at > (await first.info()).due_at
    await advance(110_000)
    assert await first.result(10) == "abc"

    # A call's own word counts, as for any other option.
    run = await save.enqueue("other", "a")
    await save.options(deadline=None).enqueue("other", "b")
    assert (await run.info()).deadline_at is None
    await save.options(deadline="20s").enqueue("other", "c")
    await advance(30_000)
    with pytest.raises(StepFailed, match="DeadlineExceeded"):
        await run.result(10)


async def test_a_debounced_call_is_remembered_while_nobody_fires_timers(app, advance, start_worker, server, namespace):
    """Expiry goes by the server's own clock, which no test can move: so the record's time to live is looked at."""

    @app.task(debounce="1s", unique_key=lambda page: page)
    async def save(page: str, text: str) -> str:
        return text

    raw = redis.Redis.from_url(server.url)

    def lives_ms() -> int:
        (key,) = raw.keys(f"{namespace}:*:unique:*")
        return raw.pttl(key)

    run = await save.enqueue("home", "a")
    assert (
        lives_ms() > 12 * 3_600_000
    )  # a worker may come only tomorrow: the old text must not be saved beside the new one
    assert await save.enqueue("home", "ab") == run
    assert lives_ms() > 12 * 3_600_000
    await advance(2_000)
    await start_worker()
    assert await run.result(10) == "ab"
    for _ in range(100):
        if lives_ms() <= 60_000:
            break
        await asyncio.sleep(0.02)
    assert 0 < lives_ms() <= 60_000  # what has begun is not kept in memory for a day


async def test_many_calls_at_once_become_one(app, start_worker):
    @app.task(unique_for="1h")
    async def report(n: int) -> int:
        return n

    runs = await report.enqueue_many([(1,), (1,), (2,)])
    assert runs[0] == runs[1] != runs[2]
    both = await asyncio.gather(*(report.enqueue(3) for _ in range(20)))
    assert len({run.id for run in both}) == 1
    await start_worker()
    assert await both[0].result(10) == 3
    await asyncio.gather(*(run.result(10) for run in runs))


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"unique_for": "1h", "throttle": "1h"}, DefinitionError),
        ({"unique": "drop"}, DefinitionError),
        ({"unique": "maybe", "unique_for": "1h"}, InvalidOption),
        ({"unique": "drop", "throttle": "1h"}, DefinitionError),
        ({"unique_key": "a", "unique_for": "1h"}, InvalidOption),
        ({"unique_key": lambda: "a"}, DefinitionError),
        ({"debounce": 0}, InvalidOption),
        ({"unique_for": -1}, InvalidOption),
    ],
)
async def test_what_cannot_be_meant_is_refused_at_definition(app, options, error):
    with pytest.raises(error):

        @app.task(**options)
        async def job() -> None: ...


async def test_a_key_that_cannot_be_used_is_refused_at_enqueue(app):
    @app.task(unique_for="1h", unique_key=lambda n: 1 / n if n != 1 else 1)
    async def job(n: int) -> None: ...

    with pytest.raises(InvalidArguments, match="raised ZeroDivisionError"):
        await job.enqueue(0)
    with pytest.raises(InvalidArguments, match="returned a float"):
        await job.enqueue(2)
    with pytest.raises(InvalidOption, match="idempotency_key"):
        await job.options(idempotency_key="k").enqueue(1)
