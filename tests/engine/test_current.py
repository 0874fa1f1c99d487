"""What a step knows about itself."""

import asyncio
import logging

import pytest

from weft import StepFailed, current
from weft.errors import UserError


async def test_outside_of_a_step_there_is_nothing_current(app):
    @app.task
    async def job() -> str:
        return current().run_id

    with pytest.raises(UserError, match="only there inside a step"):
        await job()


async def test_a_step_knows_its_run_name_attempt_and_tags(app, start_worker):
    @app.task(name="billing.charge", tags={"team": "a"})
    async def charge() -> list[str]:
        here = current()
        return [here.run_id, here.step, str(here.attempt), str(here.delivery), here.tags["team"], here.tags["x"]]

    await start_worker()
    run = await charge.options(tags={"x": "y"}).enqueue()

    assert await run.result(10) == [run.id, "billing.charge", "1", "1", "a", "y"]


async def test_plain_functions_know_it_in_their_thread(app, start_worker):
    @app.task
    def job() -> str:
        return current().run_id

    await start_worker()
    run = await job.enqueue()

    assert await run.result(10) == run.id


async def test_concurrent_steps_do_not_see_each_other(app, start_worker):
    @app.task
    async def job() -> str:
        before = current().run_id
        await asyncio.sleep(0.01)
        assert current().run_id == before
        return await asyncio.create_task(inner())

    async def inner() -> str:
        return current().run_id

    await start_worker()
    runs = await job.enqueue_many([()] * 50)

    assert [await run.result(10) for run in runs] == [run.id for run in runs]


async def test_the_effect_key_is_stable_and_the_fence_rises_over_attempts(app, start_worker):
    seen: list[tuple[str, int, int, int]] = []

    @app.task(retries=2, retry_delay="1ms")
    async def charge() -> None:
        here = current()
        seen.append((here.effect_key, here.fence, here.attempt, here.delivery))
        if here.attempt < 3:
            raise ValueError("no")

    await start_worker()
    run = await charge.enqueue()
    await run.result(10)

    assert [key for key, *_ in seen] == [f"{run.id}/charge/0/0"] * 3
    fences = [fence for _, fence, *_ in seen]
    assert fences == sorted(set(fences))
    assert [(attempt, delivery) for *_, attempt, delivery in seen] == [(1, 1), (2, 2), (3, 3)]


async def test_the_fence_rises_while_the_attempt_stays_when_a_step_is_handed_back(app, start_worker):
    seen: list[tuple[str, int, int]] = []
    started = asyncio.Event()

    @app.task(timeout=None)
    async def job() -> None:
        here = current()
        seen.append((here.effect_key, here.fence, here.attempt))
        started.set()
        if here.delivery == 1:
            await asyncio.sleep(60)

    first = await start_worker()
    run = await job.enqueue()
    await asyncio.wait_for(started.wait(), 10)
    await first.stop(grace=0)
    await start_worker()
    await run.result(10)

    assert seen[0][0] == seen[1][0]
    assert seen[0][1] < seen[1][1]
    assert [attempt for *_, attempt in seen] == [1, 1]


async def test_log_lines_of_a_step_carry_its_run(app, start_worker, caplog):
    @app.task
    async def job() -> None:
        current().log.info("half way")

    await start_worker()
    with caplog.at_level(logging.INFO, logger="weft.task"):
        run = await job.enqueue()
        await run.result(10)

    (line,) = [record for record in caplog.records if record.name == "weft.task.job"]
    assert line.getMessage() == "half way"
    assert line.facts == {"run": run.id, "attempt": 1}


async def test_reporting_can_be_awaited_or_not(app, start_worker):
    @app.task
    async def job() -> str:
        await current().progress(0.1)
        current().progress(0.2)
        await current().heartbeat()
        current().heartbeat()
        return "ok"

    await start_worker()

    assert await (await job.enqueue()).result(10) == "ok"


async def test_a_message_of_a_progress_that_is_no_text_is_refused_by_name(app, start_worker):
    @app.task
    async def tell() -> None:
        await current().progress(0.5, 5)

    await start_worker()

    with pytest.raises(StepFailed, match="the message of a progress is a text, not 5"):
        await (await tell.enqueue()).result(10)
