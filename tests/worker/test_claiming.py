"""Claiming and committing against a store that loses replies, blobs and connections."""

import asyncio

import pytest

from weft.core.model import INLINE_BYTES
from weft.engine import steps
from weft.errors import NotExecuted, OutcomeUnknown
from weft.store.blobs import digest_of
from weft.worker import commit, lane


def lose_replies(monkeypatch, where, name: str, times: int) -> list[str]:
    """Makes a store call of the worker carry out its work and then lose the reply, a few times."""
    real = getattr(where, name)
    lost: list[str] = []

    async def flaky(*args, **options):
        reply = await real(*args, **options)
        if reply and len(lost) < times and options.get("after", ">") == ">":
            lost.append(name)
            raise OutcomeUnknown("the reply was lost")
        return reply

    monkeypatch.setattr(where, name, flaky)
    return lost


async def test_tokens_whose_delivery_was_lost_are_adopted(add, start_worker, monkeypatch):
    lost = lose_replies(monkeypatch, lane, "claim_steps", times=3)
    await start_worker(concurrency=5)

    runs = await add.enqueue_many([(n, n) for n in range(20)])

    assert [await run.result(10) for run in runs] == [2 * n for n in range(20)]
    assert len(lost) == 3
    # The same delivery: nothing was handed back, no crash was counted.
    for run in runs:
        info = await run.info()
        assert (info.delivery, info.attempt, info.crashes) == (1, 1, 0)


async def test_adopting_does_not_start_what_runs_already(held, start_worker, monkeypatch, add, one_home):
    # Given a step that runs, when the reply of the next claim is lost.
    await start_worker()
    run = await held.running()
    lose_replies(monkeypatch, lane, "claim_steps", times=1)

    # Then only the lost one is adopted.
    assert await (await add.enqueue(1, 2)).result(10) == 3
    held.release.set()
    assert await run.result(10) == "delivery 1"
    assert held.deliveries == [1]


async def test_a_commit_whose_reply_was_lost_is_sent_again_and_counts_once(add, start_worker, monkeypatch):
    lost = lose_replies(monkeypatch, commit, "commit_steps", times=3)
    worker = await start_worker()

    runs = await add.enqueue_many([(n, n) for n in range(50)])

    assert [await run.result(10) for run in runs] == [2 * n for n in range(50)]
    for run in runs:
        assert [event.type for event in await run.history()] == ["queued", "completed"]
    await worker.stop()
    assert len(lost) == 3
    assert sum(each.committer.refused for each in worker.lanes) == 0


async def test_results_are_kept_while_the_store_takes_none(add, start_worker, monkeypatch, caplog):
    real = commit.commit_steps
    refusals = 0

    async def refuse(*args, **options):
        nonlocal refusals
        if refusals < 4:
            refusals += 1
            raise NotExecuted("LOADING", redis="LOADING")
        return await real(*args, **options)

    monkeypatch.setattr(commit, "commit_steps", refuse)
    await start_worker()

    assert await (await add.enqueue(1, 2)).result(10) == 3
    assert "they are kept and sent again" in caplog.text


async def test_a_result_the_store_lost_before_the_commit_makes_the_step_run_again(app, start_worker, monkeypatch):
    # Given a store that forgets an uploaded result once, as one that lost its last second does.
    real = steps.stage_blob
    forgotten: list[str] = []

    async def forgetful(ns, p, run, data):
        if not forgotten:
            forgotten.append(run)
            return digest_of(data)
        return await real(ns, p, run, data)

    monkeypatch.setattr(steps, "stage_blob", forgetful)

    @app.task
    async def large() -> bytes:
        return b"x" * (INLINE_BYTES + 1)

    await start_worker()
    run = await large.enqueue()

    # Then the step runs once more, and no attempt is burnt.
    assert len(await run.result(10)) == INLINE_BYTES + 1
    assert [event.type for event in await run.history()] == ["queued", "returned", "completed"]
    assert (await run.info()).attempt == 1


async def test_a_worker_survives_the_loss_of_all_its_connections(add, start_worker, raw, eventually):
    await start_worker()
    assert await (await add.enqueue(1, 2)).result(10) == 3

    for _ in range(5):
        for kind in ("normal", "pubsub"):
            for client in raw.client_list(_type=kind):
                if int(client["id"]) != raw.client_id():
                    raw.client_kill_filter(_id=client["id"])
        assert await (await add.enqueue(1, 2)).result(20) == 3


async def test_a_worker_survives_script_flush(add, start_worker, raw):
    await start_worker()

    for n in range(5):
        raw.script_flush()
        assert await (await add.enqueue(n, n)).result(10) == 2 * n


async def test_slots_are_given_back_whatever_happens(app, start_worker, eventually, monkeypatch):
    @app.task(timeout="20ms", retries=1, retry_delay="1ms")
    async def hang() -> None:
        await asyncio.sleep(60)

    @app.task
    async def boom() -> None:
        raise ValueError("no")

    @app.task
    def thread() -> None: ...

    lose_replies(monkeypatch, lane, "claim_steps", times=2)
    worker = await start_worker(concurrency=3)
    runs = [await task.enqueue() for task in (hang, boom, thread) for _ in range(5)]
    await asyncio.gather(*(run.result(20) for run in runs), return_exceptions=True)

    await eventually(lambda: worker.slots.free == 3)
    assert worker.running == {}
    assert all(each.held == {} for each in worker.lanes)


async def test_a_cancellation_that_comes_before_the_step_has_begun_costs_no_slot(add, start_worker, eventually):
    # Given a token that was claimed in this very turn of the loop.
    from weft.core.model import RunSpec, Token
    from weft.worker.execute import LOST

    worker = await start_worker(concurrency=2)
    await eventually(lambda: worker.slots.free == 2)
    token = Token(0, 1, "r0-0000000000000000000000", "1-1", 1, 1, RunSpec("add"), 0)
    worker.slots.free -= 1
    worker._begin(token)

    # When the news that it was cancelled arrives before its task had a turn.
    for execution in worker.running.values():
        execution.stop(LOST)

    await eventually(lambda: worker.slots.free == 2 and not worker.running)


@pytest.mark.parametrize("lanes", [1, 4])
async def test_work_of_every_partition_is_served_by_a_worker_with_one_slot(app, start_worker, monkeypatch, lanes):
    import itertools

    from weft.engine.engine import Engine

    @app.task
    async def job(n: int) -> int:
        return n

    await app.open()
    turn = itertools.count()
    monkeypatch.setattr(Engine, "home", lambda self, key="": next(turn) % min(lanes, self.ns.partitions))
    await start_worker(concurrency=1)

    runs = [await job.enqueue(n) for n in range(30)]

    assert [await run.result(10) for run in runs] == list(range(30))


@pytest.mark.leaves("broken keys", "history")
async def test_what_is_no_token_is_taken_out_of_the_queue_and_keeps_nobody_from_work(
    add, start_worker, ns, raw, one_home
):
    stream = ns.keys.tasks(0, "default", 5)
    before = await add.enqueue(1, 1)
    for entry in (
        {"zz": "1"},
        {"r": "nope", "n": "1:1"},
        {"r": before.id, "s": b"\xff", "n": "1:1"},
        {"r": "nope", "s": "", "n": "x"},
        {"r": b"\xff", "s": ""},
    ):
        raw.xadd(stream, entry)
    after = await add.enqueue(2, 2)

    await start_worker()

    assert [await before.result(10), await after.result(10)] == [2, 4]
    assert raw.xlen(stream) == 0
    assert raw.xpending(stream, "weft")["pending"] == 0
