"""Suspects: one at a time runs in a worker, ordinary steps go on beside it, and only the one that ran is charged."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import pytest

from weft import StepFailed, current
from weft.store import lost, steps
from weft.store.sessions import end_session
from weft.worker import suspects as module


@dataclass
class Crowd:
    """Steps that run until they are let go, and which of them run now."""

    task: object = None
    running: list[int] = field(default_factory=list)
    begun: list[int] = field(default_factory=list)
    most: int = 0
    open: set[int] = field(default_factory=set)
    opened: asyncio.Event = field(default_factory=asyncio.Event)

    def let_go(self, *numbers: int) -> None:
        self.open.update(numbers)
        self.opened.set()


@pytest.fixture
def crowd(app, one_home) -> Crowd:
    crowd = Crowd()

    @app.task(timeout=None)
    async def stand(n: int) -> int:
        crowd.begun.append(n)
        crowd.running.append(n)
        crowd.most = max(crowd.most, len(crowd.running))
        try:
            while n not in crowd.open:
                crowd.opened.clear()
                await crowd.opened.wait()
        finally:
            crowd.running.remove(n)
        return current().delivery

    crowd.task = stand
    return crowd


@pytest.fixture
def make_suspects(crowd, die_with, ns, raw) -> Callable[[int], Awaitable[list]]:
    """Enqueues steps with which a worker died, the second one already, and has them offered again."""

    async def make(n: int) -> list:
        runs = [await crowd.task.enqueue(i) for i in range(n)]
        tokens = await die_with(0, room=n)
        await bury(ns, tokens)
        for run in runs:
            raw.hset(ns.keys.run(0, run.id), "crashes", 2)
        return runs

    return make


async def bury(ns, tokens) -> None:
    """Takes its tokens from the dead session, as the sweeper does."""
    words = await lost.reclaim_steps(
        ns,
        0,
        dead="s-dead",
        queue="default",
        stream=ns.keys.tasks(0, "default", 5),
        held=[(token.entry, token.run, token.spec, token.gates) for token in tokens],
        keep_ms=lambda spec: spec.keep_ms,
        by="s-sweeper",
        max_crashes=3,
        poison=b"",
    )
    assert words == ["emitted"] * len(tokens)
    await end_session(ns, 0, session="s-dead", streams=steps.queue_streams(ns, 0, ["default"]), swept=True)


@pytest.fixture(autouse=True)
def patience(monkeypatch):
    """Nobody is handed back because a machine is slow; tests of the patience set their own."""
    monkeypatch.setattr(module, "PATIENCE", 60.0)


async def test_one_suspect_runs_at_a_time_and_ordinary_steps_beside_it(crowd, make_suspects, start_worker, eventually):
    # Given four suspects, and a worker with room for ten.
    runs = await make_suspects(4)
    worker = await start_worker(concurrency=10)
    await eventually(lambda: len(crowd.running) == 1)

    # When there is ordinary work, it goes on.
    ordinary = [await crowd.task.enqueue(n) for n in range(10, 15)]
    await eventually(lambda: len(crowd.running) == 6)
    assert [n for n in crowd.running if n < 10] == [0]
    crowd.let_go(*range(10, 15))
    assert [await run.result(10) for run in ordinary] == [1] * 5

    # Then the suspects follow one by one, without a further delivery.
    crowd.most = 0
    crowd.let_go(*range(4))
    assert [await run.result(10) for run in runs] == [2] * 4
    assert crowd.most <= 1
    assert [n for n in crowd.begun if n < 10] == [0, 1, 2, 3]
    await eventually(lambda: worker.slots.free == 10)
    assert all(lane.held == {} for lane in worker.lanes)


async def test_a_worker_with_one_slot_runs_suspects_too_and_never_two_steps(
    crowd, make_suspects, start_worker, eventually
):
    runs = await make_suspects(3)
    worker = await start_worker(concurrency=1)
    runs += [await crowd.task.enqueue(n) for n in range(3, 8)]
    crowd.let_go(*range(8))

    assert [await run.result(10) for run in runs] == [2] * 3 + [1] * 5
    assert crowd.most == 1
    await eventually(lambda: worker.slots.free == 1)


async def test_those_that_waited_are_not_charged_when_their_worker_dies(
    crowd, make_suspects, start_worker, ns, raw, eventually, short_lease, buried
):
    # Given a worker that runs one suspect while two wait, beside a newcomer.
    runs = await make_suspects(3)
    worker = await start_worker(concurrency=10)
    await eventually(lambda: crowd.running == [0])
    runs.append(await crowd.task.enqueue(3))
    await eventually(lambda: sorted(crowd.running) == [0, 3])
    first = worker.session

    # When it is declared dead.
    for p in range(ns.partitions):
        raw.set(ns.keys.session(p, first), "dead", px=60_000)
    await eventually(lambda: worker.session != first)
    crowd.let_go(*range(4))

    # Then the third death is charged to the one that ran and makes it poison; the newcomer has its first.
    for run in runs[1:]:
        await run.result(20)
    with pytest.raises(StepFailed, match="3 workers died"):
        await runs[0].result(20)
    assert [(await run.info()).crashes for run in runs] == [3, 2, 2, 1]
    await buried(first)


async def test_a_suspect_that_waited_too_long_goes_to_a_worker_that_has_time(
    crowd, make_suspects, start_worker, eventually, monkeypatch
):
    monkeypatch.setattr(module, "PATIENCE", 0.05)
    # Given a worker that is long busy with one of two suspects.
    busy, other = await make_suspects(2)
    await start_worker(concurrency=10)
    await eventually(lambda: crowd.running == [0])

    # When another one comes, it gets the second.
    await start_worker(concurrency=10)
    await eventually(lambda: sorted(crowd.running) == [0, 1])
    crowd.let_go(0, 1)

    assert await busy.result(10) == 2
    assert await other.result(10) > 2
    assert {event.type for event in await other.history()} == {"queued", "reclaimed", "returned", "completed"}
    assert [(await run.info()).crashes for run in (busy, other)] == [2, 2]


async def test_a_draining_worker_hands_back_the_suspects_that_wait(crowd, make_suspects, start_worker, eventually):
    runs = await make_suspects(3)
    worker = await start_worker(concurrency=10)
    await eventually(lambda: crowd.running == [0])

    await worker.stop(grace=0)

    assert [await run.status() for run in runs] == ["queued"] * 3
    assert [(await run.info()).crashes for run in runs] == [2] * 3
    assert worker.slots.free == 10
    crowd.let_go(*range(3))
    await start_worker()
    assert [await run.result(10) for run in runs] == [3] * 3


async def test_a_suspect_that_is_cancelled_while_it_waits_is_not_begun(crowd, make_suspects, start_worker, eventually):
    first, second = await make_suspects(2)
    await start_worker(concurrency=10)
    await eventually(lambda: crowd.running == [0])

    await second.cancel()
    crowd.let_go(0, 1)

    assert await first.result(10) == 2
    assert await second.status() == "cancelled"
    after = await crowd.task.enqueue(0)
    assert await after.result(10) == 1
    assert crowd.begun == [0, 0]


async def test_suspects_of_a_batch_task_are_called_alone_at_once_and_cost_no_slot(
    app, one_home, die_with, ns, raw, start_worker, eventually
):
    calls: list[list[int]] = []

    @app.task(batch=10, batch_wait="1h")
    async def gather(items: list[int]) -> list[int]:
        calls.append(items)
        return items

    runs = [await gather.enqueue(n) for n in range(3)]
    await bury(ns, await die_with(0))
    for run in runs:
        raw.hset(ns.keys.run(0, run.id), "crashes", 2)
    other = await gather.enqueue(3)
    worker = await start_worker(concurrency=2)

    assert [await run.result(10) for run in runs] == [0, 1, 2]
    assert calls == [[0], [1], [2]]
    await eventually(lambda: worker.executor.batches.gathered == 1 and worker.slots.free == 2)
    await worker.stop()
    assert await other.result(10) == 3


async def test_only_tokens_that_came_again_are_asked_for_their_crashes(app, one_home, start_worker, monkeypatch):
    asked: list[str] = []
    real = steps._read_crashes

    async def read(ns, p, tokens):
        asked.extend(token.run for token in tokens)
        await real(ns, p, tokens)

    monkeypatch.setattr(steps, "_read_crashes", read)

    @app.task(retries=2, retry_delay="1ms")
    async def flaky(fails: int) -> int:
        if current().attempt <= fails:
            raise ValueError("no")
        return current().attempt

    await start_worker()
    runs = [await flaky.enqueue(n % 3) for n in range(9)]

    assert [await run.result(10) for run in runs] == [n % 3 + 1 for n in range(9)]
    assert asked == []
