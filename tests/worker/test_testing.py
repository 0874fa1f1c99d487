"""What users test their apps with: the plugin's fixtures, a clock that jumps, a worker that works when told."""

import asyncio
from datetime import timedelta

import pytest

from weft import RunStatus, StepFailed, Weft, current
from weft.errors import UserError
from weft.testing import Attempt


def outcomes(ran: list[Attempt]) -> list[tuple[str, int, str]]:
    return [(each.name, each.attempt, each.outcome) for each in ran]


async def test_what_is_due_runs_with_all_that_it_starts_and_nothing_more(weft_app, weft_worker):
    @weft_app.task
    async def parent(n: int) -> int:
        await child.options(queue="elsewhere").enqueue(n)
        await child.options(delay="1h").enqueue(-1)
        return n

    @weft_app.task
    async def child(n: int) -> int:
        return -n

    run = await parent.enqueue(3)
    ran = await weft_worker.run_until_idle()

    assert outcomes(ran) == [("parent", 1, "completed"), ("child", 1, "completed")]
    assert ran[0].run_id == run.id
    assert await run.result(10) == 3
    assert await weft_worker.run_until_idle() == []
    await weft_worker.run_until_idle(advance=True)


async def test_the_clock_jumps_over_delays_and_retries(weft_app, weft_worker, weft_clock):
    @weft_app.task(retries=3, retry_delay="1h", max_delay="1d", jitter=False)
    async def flaky() -> int:
        if current().attempt < 3:
            raise LookupError("not yet")
        return current().attempt

    run = await flaky.options(delay="2d").enqueue()
    before = weft_clock.now()
    ran = await weft_worker.run_until_idle(advance=True)

    assert outcomes(ran) == [("flaky", 1, "retrying"), ("flaky", 2, "retrying"), ("flaky", 3, "completed")]
    assert [each.error for each in ran] == ["LookupError: not yet"] * 2 + [""]
    assert await run.result(10) == 3
    assert weft_clock.now() - before >= timedelta(days=2, hours=3)


async def test_the_clock_goes_as_far_as_it_is_told(weft_app, weft_worker, weft_clock):
    @weft_app.task
    async def job() -> None: ...

    soon, late = await job.options(delay="10m").enqueue(), await job.options(delay="2h").enqueue()

    assert [each.run_id for each in await weft_worker.run_until_idle(advance="1h")] == [soon.id]
    assert await late.status() == RunStatus.QUEUED or await late.status() == RunStatus.WAITING
    await weft_clock.advance("59m")
    assert await weft_worker.run_until_idle() == []
    await weft_clock.advance(60)
    assert [each.run_id for each in await weft_worker.run_until_idle()] == [late.id]


async def test_a_deadline_passes_on_the_virtual_clock(weft_app, weft_worker, weft_clock):
    @weft_app.task(deadline="1h")
    async def job() -> None: ...

    run = await job.options(delay="2h").enqueue()
    ran = await weft_worker.run_until_idle(advance=True)

    assert ran == []
    with pytest.raises(StepFailed, match="DeadlineExceeded"):
        await run.result(10)


async def test_runs_that_wait_at_a_gate_are_not_left_behind(weft_app, weft_worker):
    @weft_app.task(concurrency=1)
    async def one_by_one() -> None: ...

    @weft_app.task(rate_limit="1/h")
    async def rarely() -> None: ...

    await one_by_one.enqueue_many([()] * 5)
    await rarely.enqueue_many([()] * 3)

    assert len(await weft_worker.run_until_idle()) == 6
    assert len(await weft_worker.run_until_idle(advance=True)) == 2


async def test_what_is_paused_has_nothing_to_run(weft_app, weft_worker):
    @weft_app.task(queue="slow")
    async def job() -> None: ...

    @weft_app.task
    async def other() -> None: ...

    await weft_app.controls.pause(queue="slow")
    await weft_app.controls.pause(task="other")
    await job.enqueue()
    await other.enqueue()
    assert await weft_worker.run_until_idle() == []

    await weft_app.controls.resume(queue="slow")
    await weft_app.controls.resume(task="other")
    assert {each.name for each in await weft_worker.run_until_idle()} == {"job", "other"}


@pytest.mark.leaves("open runs")
async def test_steps_that_do_not_end_are_named_after_a_while(weft_app, weft_worker):
    @weft_app.task(timeout=None)
    async def quick() -> None: ...

    @weft_app.task(timeout=None)
    async def hang() -> None:
        await asyncio.sleep(600)

    await quick.enqueue()
    await hang.enqueue()
    with pytest.raises(TimeoutError, match=r"not idle after 0\.5 s; until then these ran: .*quick"):
        await weft_worker.run_until_idle(timeout=0.5)


@pytest.mark.leaves("open runs")
async def test_a_run_of_a_task_nobody_knows_is_an_error_not_a_wait(weft_app, weft_worker, server, namespace):
    other = Weft("other", redis_url=server.url, namespace=namespace)

    @other.task
    async def foreign() -> None: ...

    await foreign.enqueue()
    with pytest.raises(UserError, match="has no task or workflow foreign"):
        await weft_worker.run_until_idle()
    await other.close()


def test_plain_tests_use_the_sync_verbs(weft_app, weft_worker, weft_clock):
    @weft_app.task
    def add(a: int, b: int) -> int:
        return a + b

    run = add.sync.enqueue(1, 2)
    late = add.options(delay="1h").sync.enqueue(3, 4)

    assert len(weft_worker.sync.run_until_idle()) == 1
    assert run.sync.result(10) == 3
    weft_clock.sync.advance("1h")
    assert len(weft_worker.sync.run_until_idle()) == 1
    assert late.sync.result(10) == 7


def test_plain_tests_can_have_a_worker_in_the_background(weft_app, weft_worker):
    @weft_app.task
    def double(n: int) -> int:
        return 2 * n

    with weft_worker:
        assert double.sync.enqueue(21).sync.result(timeout=10) == 42
        with pytest.raises(UserError, match="runs already"):
            weft_worker.sync.run_until_idle()


async def test_async_tests_can_have_a_worker_in_the_background(weft_app, weft_worker):
    seen = asyncio.Event()

    @weft_app.task
    async def job() -> str:
        seen.set()
        return "on the test's own loop"

    async with weft_worker:
        run = await job.enqueue()
        await asyncio.wait_for(seen.wait(), 10)
        assert await run.result(10) == "on the test's own loop"


async def test_an_app_is_put_back_where_it_was(server, namespace):
    app = Weft("shop", redis_url=server.url, namespace=namespace)

    @app.task
    async def add(a: int, b: int) -> int:
        return a + b

    async with app.testing(redis_url=server.url) as harness:
        assert harness.namespace != namespace
        run = await add.enqueue(1, 2)
        await harness.run_until_idle()
        assert await run.result(10) == 3
        with pytest.raises(UserError, match="being tested already"):
            app.testing(redis_url=server.url).__enter__()
    # Emptied, and the app is itself again.
    with server.client() as client:
        assert not list(client.scan_iter(f"{harness.namespace}:*"))
    assert app.url() == server.url
    assert app.engine().ns.keys.namespace == namespace
    await app.close()


def test_an_app_without_a_store_is_tested_on_an_embedded_one(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    app = Weft("shop")

    @app.task
    def add(a: int, b: int) -> int:
        return a + b

    with app.testing() as testing:
        run = add.sync.enqueue(1, 2)
        testing.worker.sync.run_until_idle()
        assert run.sync.result(10) == 3
    assert list(tmp_path.iterdir()) == []


async def test_schedules_do_not_keep_the_clock_going(weft_app, weft_worker):
    @weft_app.cron("0 4 * * *")
    async def nightly() -> None: ...

    @weft_app.task(retries=2, retry_delay="1h", max_delay="2h", jitter=False)
    async def shaky() -> None:
        raise ValueError("no")

    await shaky.enqueue()
    ran = await weft_worker.run_until_idle(advance=True)
    assert [attempt for attempt in ran if attempt.name == "shaky"][2:] != []


async def test_batches_do_not_wait_for_items_that_cannot_come(weft_app, weft_worker):
    """Given batches that wait a minute / when a parent enqueues items / then each is called once, with all that there are."""
    sizes: list[int] = []

    @weft_app.task(batch=3, batch_wait="1m", retries=1, retry_delay="1h", max_delay="1h", jitter=False)
    async def embed(texts: list[str]) -> list[int]:
        sizes.append(len(texts))
        if current().batch[0].attempt == 1 and "again" in texts:
            raise LookupError("not yet")
        return [len(text) for text in texts]

    @weft_app.task
    async def parent(texts: list[str]) -> None:
        await asyncio.sleep(0.05)
        await embed.enqueue_many([(text,) for text in texts])

    began = asyncio.get_running_loop().time()
    first = await embed.enqueue("otter")
    await parent.enqueue(["a", "bb", "ccc"])
    await weft_worker.run_until_idle()

    assert sizes == [3, 1] and await first.result(10) == 5

    await embed.enqueue("again")
    ran = await weft_worker.run_until_idle(advance=True)

    assert outcomes(ran) == [("embed", 1, "retrying"), ("embed", 2, "completed")]
    assert asyncio.get_running_loop().time() - began < 20


async def test_one_worker_serves_all_jumps_of_a_call_however_many(weft_app, weft_worker, monkeypatch):
    monkeypatch.setattr("weft.testing.manual.MAX_JUMPS", 5)
    begun: list[str] = []

    @weft_app.on_startup
    async def note() -> None:
        begun.append("worker")

    @weft_app.cron("0 * * * *")
    async def hourly() -> None: ...

    # Whoever says how far to go means it, whatever ticks on the way.
    ran = await weft_worker.run_until_idle(advance="12h")

    assert [each.name for each in ran] == ["hourly"] * 12
    assert begun == ["worker"]
    weft_app.startup.clear()
