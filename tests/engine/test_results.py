"""Waiting for results: how long, from whom, and what a lost wake-up costs."""

import asyncio
import os
import time

import pytest

from weft import NotFound, ResultExpired, RunCancelled, StepFailed, Weft
from weft.core.model import INLINE_BYTES
from weft.engine import waiting
from weft.engine.waiting import Waiting

TEN_MB = 10 * 1024 * 1024


async def test_a_wait_that_ends_first_is_a_timeout_and_the_run_goes_on(add, start_worker):
    run = await add.enqueue(1, 2)

    with pytest.raises(TimeoutError):
        await run.result(timeout=0.05)

    await start_worker()
    assert await run.result(timeout=10) == 3


async def test_a_result_may_be_asked_for_many_times_and_by_many_waiters(add, start_worker):
    run = await add.enqueue(1, 2)
    waiters = [asyncio.create_task(run.result(10)) for _ in range(20)]
    await start_worker()

    assert await asyncio.gather(*waiters) == [3] * 20
    assert await run.result() == 3


async def test_a_waiter_in_another_process_gets_the_result_too(app, add, start_worker, server, namespace):
    # Given a client that shares nothing with the producer but the id.
    other = Weft("other", redis_url=server.url, namespace=namespace)
    run = await add.enqueue(20, 22)
    waiter = asyncio.create_task(other.runs.get(run.id).result(10))

    await start_worker()

    assert await waiter == 42
    await other.close()


async def test_an_abandoned_wait_leaves_nothing_behind(add, app, start_worker):
    run = await add.enqueue(1, 2)
    waiter = asyncio.create_task(run.result())
    await asyncio.sleep(0)
    waiter.cancel()
    await asyncio.gather(waiter, return_exceptions=True)

    assert not app.engine().waiting._ends
    await start_worker()
    assert await run.result(10) == 3


async def test_a_lost_wake_up_costs_only_the_slow_re_check(app, add, start_worker, monkeypatch):
    # Given a client to which every message of its inbox is lost.
    lost: list[bytes] = []
    monkeypatch.setattr(Waiting, "_receive", lambda self, message: lost.append(message))
    monkeypatch.setattr(waiting, "RECHECK", 0.1)
    run = await add.enqueue(1, 2)
    waiter = asyncio.create_task(run.result(10))

    # When the run ends while it waits.
    while not app.engine().waiting._ends:
        await asyncio.sleep(0)
    await start_worker()

    # Then the result arrives all the same.
    assert await waiter == 3


async def test_results_arrive_by_message_and_not_by_the_re_check(add, start_worker, monkeypatch):
    monkeypatch.setattr(waiting, "RECHECK", 60.0)
    await start_worker()

    began = time.monotonic()
    for _ in range(20):
        assert await (await add.enqueue(1, 2)).result(10) == 3

    assert time.monotonic() - began < 10


async def test_a_graph_run_that_ends_with_its_start_is_not_waited_for(app, add, start_worker, monkeypatch):
    monkeypatch.setattr(waiting, "RECHECK", 60.0)
    graph = app.graph("sum", input={"type": "object", "required": ["n"]})
    graph.transform("more", "${input.n + 1}")
    await start_worker()

    # Given a client that is likely to wait, so that the runs it starts carry its channel.
    assert await (await add.enqueue(1, 2)).result(10) == 3

    assert await (await graph.start({"n": 4})).result(10) == 5


async def test_news_published_while_the_inbox_was_cut_off_are_looked_up_when_it_is_back(
    app, add, start_worker, raw, monkeypatch, eventually
):
    monkeypatch.setattr(waiting, "RECHECK", 60.0)
    run = await add.enqueue(1, 2)
    waiter = asyncio.create_task(run.result(20))
    channel = app.engine().waiting._inbox.channel
    await eventually(lambda: raw.pubsub_numsub(channel)[0][1] == 1)

    # Given a connection of the inbox that dies again and again while the run is served.
    worker = asyncio.create_task(start_worker())
    for _ in range(5):
        for client in raw.client_list(_type="pubsub"):
            raw.client_kill_filter(_id=client["id"])
        await asyncio.sleep(0.01)
    await worker

    assert await waiter == 3


# --- runs that are expected: their start carries the channel ---------------------------------------


@pytest.fixture
async def waited(add, start_worker):
    """A worker, and a client that has waited for a result before."""
    await start_worker()
    assert await (await add.enqueue(1, 2)).result(10) == 3


async def test_who_waited_before_is_told_of_the_next_run_without_asking(app, add, waited, watch_calls):
    run = await add.enqueue(20, 22)

    assert await run.result(10) == 42
    # Asked once more it is like any other.
    assert watch_calls == []
    assert await run.result(10) == 42
    assert watch_calls == [run.id]


@pytest.mark.leaves("open runs")
async def test_who_never_waits_is_not_told(app, add, start_worker, raw):
    await start_worker()

    for _ in range(3):
        run = await add.enqueue(1, 2)
        assert raw.hget(app.engine().ns.keys.run(int(run.id[1 : run.id.index("-")]), run.id), "watch") is None
    assert not app.engine().waiting._expected


async def test_a_result_that_came_before_it_was_asked_for_is_handed_over(app, add, waited, watch_calls, eventually):
    run = await add.enqueue(1, 2)
    await eventually(lambda: app.engine().waiting._expected.get(run.id))

    assert await run.result(10) == 3
    assert watch_calls == []


async def test_a_result_that_nobody_came_for_is_forgotten(app, add, waited, watch_calls, monkeypatch, eventually):
    monkeypatch.setattr(waiting, "RECHECK", 0.05)
    run = await add.enqueue(1, 2)
    await eventually(lambda: not app.engine().waiting._expected)

    assert await run.result(10) == 3
    assert watch_calls == [run.id]


@pytest.mark.leaves("open runs")
async def test_expectations_are_bounded_by_the_waits_there_were(app, add, waited):
    held = app.engine().waiting._expected
    for _ in range(5):
        await add.enqueue(1, 2)

    assert len(held) <= 1


async def test_a_lost_message_of_an_expected_run_costs_only_the_slow_re_check(app, add, waited, monkeypatch):
    monkeypatch.setattr(Waiting, "_receive", lambda self, message: None)
    monkeypatch.setattr(waiting, "RECHECK", 0.1)
    run = await add.enqueue(1, 2)
    assert run.id in app.engine().waiting._expected

    assert await run.result(10) == 3


async def test_expected_runs_are_looked_up_when_the_inbox_was_cut_off(app, add, waited, raw, monkeypatch):
    monkeypatch.setattr(waiting, "RECHECK", 60.0)

    for _ in range(10):
        run = await add.enqueue(1, 2)
        for client in raw.client_list(_type="pubsub"):
            raw.client_kill_filter(_id=client["id"])
        assert await run.result(20) == 3


async def test_a_call_that_joined_another_is_not_expected_under_its_own_name(app, add, waited):
    first = await add.options(idempotency_key="one").enqueue(1, 2)
    assert await first.result(10) == 3
    second = await add.options(idempotency_key="one").enqueue(1, 2)

    assert not app.engine().waiting._expected
    assert second == first
    assert await second.result(10) == 3


async def test_a_failure_of_an_expected_run_is_told_too(app, waited, start_worker):
    run = await app.task(_fails, name="fails").enqueue()

    with pytest.raises(StepFailed, match="no luck"):
        await run.result(10)


async def test_the_end_of_a_run_that_was_retried_since_is_no_result(app, waited, eventually):
    graph = app.graph("retried")
    graph.wait("go", signal="go")
    run = await graph.start()
    await run.cancel()
    await eventually(lambda: app.engine().waiting._expected.get(run.id))
    await run.retry()

    with pytest.raises(TimeoutError):
        await run.result(0.3)

    await run.signal("go", 7)
    assert await run.result(10) == 7


async def _fails() -> None:
    raise ValueError("no luck")


@pytest.fixture
def watch_calls(monkeypatch):
    """The runs a client asked about."""
    asked: list[str] = []
    ask = waiting.watch_runs

    async def noting(ns, p, run_ids, channel):
        asked.extend(run_ids)
        return await ask(ns, p, run_ids, channel)

    monkeypatch.setattr(waiting, "watch_runs", noting)
    return asked


# --- no longer kept, or never there ---------------------------------------------------------------


async def test_a_result_is_gone_after_its_time(app, start_worker, eventually, raw, namespace):
    @app.task(keep_result="50ms")
    async def quick() -> int:
        return 1

    await start_worker()
    run = await quick.enqueue()
    await eventually(lambda: not raw.exists(app.engine().ns.keys.run(int(run.id[1 : run.id.index("-")]), run.id)))

    with pytest.raises(ResultExpired, match=run.id):
        await run.result(5)
    # Who only has the id cannot know that there ever was such a run.
    for ask in (app.runs.get(run.id).result(5), run.info(), run.status(), run.history(), run.cancel()):
        with pytest.raises(NotFound, match=run.id):
            await ask


async def test_a_waiter_learns_when_the_result_expires_before_it_looks(app, start_worker, monkeypatch):
    # Given a waiter that missed the message of a run that is hardly kept.
    monkeypatch.setattr(Waiting, "_receive", lambda self, message: None)
    monkeypatch.setattr(waiting, "RECHECK", 0.3)

    @app.task(keep_result="1ms")
    async def quick() -> int:
        return 1

    run = await quick.enqueue()
    waiter = asyncio.create_task(run.result(10))
    while not app.engine().waiting._ends:
        await asyncio.sleep(0)
    await asyncio.sleep(0.05)
    await start_worker()

    with pytest.raises(ResultExpired):
        await waiter


@pytest.mark.parametrize("id", ["r0-0000000000000000000000", "r9999-0000000000000000000000"])
async def test_an_unknown_run_is_not_found(app, id):
    run = app.runs.get(id)

    for ask in (run.result(5), run.info(), run.status(), run.history(), run.cancel()):
        with pytest.raises(NotFound, match=id):
            await ask
    with pytest.raises(NotFound, match=id):
        await run
    with pytest.raises(NotFound, match=id):
        async for _ in run.events():
            pass


@pytest.mark.parametrize(
    "id", ["", "x", "r0-abc", "r0-*", "r0-0000000000000000000000\n", "r-1", "r0-{}" + "0" * 20, "0" * 9999]
)
def test_what_cannot_be_an_id_is_not_found_before_it_reaches_a_key(app, add, id):
    with pytest.raises(NotFound):
        app.runs.get(id)
    with pytest.raises(NotFound):
        add.run(id)


async def test_awaiting_a_found_run_gives_a_plain_handle(app, add, start_worker):
    run = await add.enqueue(1, 2)

    found = await app.runs.get(run.id)

    assert found == run
    await start_worker()
    assert await found.result(10) == 3


# --- large values ---------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [INLINE_BYTES - 10, INLINE_BYTES + 10, TEN_MB])
async def test_values_of_every_size_come_back_as_they_were(app, start_worker, size):
    @app.task
    async def flip(data: bytes) -> bytes:
        return data[::-1]

    await start_worker()
    data = os.urandom(size)

    assert await (await flip.enqueue(data)).result(30) == data[::-1]


async def test_large_values_leave_nothing_behind_when_their_run_expires(app, start_worker, raw, namespace, eventually):
    @app.task(keep_result="300ms")
    async def flip(data: bytes) -> bytes:
        return data[::-1]

    await start_worker()
    run = await flip.enqueue(b"x" * 100_000 + b"y")
    assert (await run.result(10))[0] == ord("y")
    assert len(list(raw.scan_iter(f"{namespace}:*:blob:*"))) == 2

    await eventually(
        lambda: not [key for key in raw.scan_iter(f"{namespace}:*") if b":blob:" in key or b":run:" in key]
    )


async def test_large_values_go_through_enqueue_many_threads_and_errors(app, start_worker):
    @app.task
    def size(data: bytes) -> int:
        if len(data) > 50_000:
            raise ValueError(f"too much: {len(data)}")
        return len(data)

    await start_worker()
    runs = await size.enqueue_many([(b"a" * 10_000,), (b"b" * 60_000,), (b"",)])

    assert await runs[0].result(10) == 10_000
    with pytest.raises(StepFailed, match="too much: 60000"):
        await runs[1].result(10)
    assert await runs[2].result(10) == 0


async def test_a_result_over_the_limit_fails_the_run_and_is_not_retried(app, start_worker):
    @app.task(retries=5)
    async def flood() -> bytes:
        return b"x" * (17 * 1024 * 1024)

    await start_worker()
    run = await flood.enqueue()

    with pytest.raises(StepFailed, match="limit is 16,777,216") as caught:
        await run.result(20)
    assert caught.value.type == "PayloadTooLarge"
    assert (await run.info()).attempt == 1


async def test_a_result_that_does_not_fit_its_annotation_fails_the_run_and_is_not_retried(app, start_worker):
    @app.task(retries=5)
    async def wrong() -> int:
        return "text"  # type: ignore[return-value]

    await start_worker()
    run = await wrong.enqueue()

    with pytest.raises(StepFailed, match=r"result of wrong\(\) -> int does not fit `int`"):
        await run.result(10)
    assert (await run.info()).attempt == 1


async def test_a_waiter_hears_of_failure_and_cancellation_while_it_waits(app, start_worker):
    @app.task
    async def boom() -> None:
        raise ValueError("no")

    @app.task
    async def never() -> None: ...

    failing = asyncio.create_task((await boom.enqueue()).result(10))
    doomed = await never.options(queue="nobody").enqueue()
    cancelled = asyncio.create_task(doomed.result(10))
    await start_worker()

    with pytest.raises(StepFailed, match="ValueError: no"):
        await failing
    await doomed.cancel("not needed")
    with pytest.raises(RunCancelled, match="not needed"):
        await cancelled
