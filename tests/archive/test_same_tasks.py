"""Runs of tasks, however they went and ended, are told the same by both stores."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest
from views import told_apart, views_of

from weft import Discard, Fatal, Retry, Snooze, Weft, current

pytestmark = pytest.mark.leaves("history", "pending")


async def ends(*runs):
    await asyncio.gather(*(run.result(20) for run in runs), return_exceptions=True)


@pytest.fixture
def declared(app: Weft):
    tries: dict[str, int] = {}

    def count() -> int:
        tries[current().run_id] = tries.get(current().run_id, 0) + 1
        return tries[current().run_id]

    @app.task
    async def add(a: int, b: str = "") -> str:
        current().log.info("adding", a=a)
        await current().progress(0.5, "half")
        return f"{a}{b}"

    @app.task
    async def bad(why: str) -> None:
        current().log.warning("about to fail", why=why)
        try:
            raise KeyError("cause")
        except KeyError as error:
            raise LookupError(why) from error

    @app.task(retries=2, retry_delay="1ms", jitter=False)
    async def shaky(until: int) -> int:
        current().log.info("try", n=count())
        if tries[current().run_id] < until:
            raise ValueError("again")
        return until

    @app.task(retries=1)
    async def asks() -> None:
        if count() == 1:
            raise Retry(after="5ms")

    @app.task
    async def naps() -> int:
        if count() == 1:
            raise Snooze("10ms")
        return count()

    @app.task
    async def drops() -> None:
        raise Discard("not needed")

    @app.task
    async def gives_up() -> None:
        raise Fatal("bad input")

    @app.task(timeout="50ms")
    async def slow() -> None:
        await asyncio.sleep(30)

    @app.task(deadline="150ms")
    async def late() -> None:
        await asyncio.sleep(30)

    @app.task(batch=3, batch_wait="1h")
    async def many(items: list[int]) -> list[int]:
        return [2 * item for item in items]

    @app.task(timeout="60s")
    async def waits() -> None:
        began.set()
        await asyncio.sleep(60)

    @app.task(concurrency=1, rate_limit="100/s")
    async def limited(a: int) -> int:
        return a

    @app.task(unique_for="1h")
    async def once(a: int) -> int:
        return a

    @app.task(debounce="20ms")
    async def settles(a: int) -> int:
        return a

    @app.task
    def threaded() -> bytes:
        return b"\0\xff"

    @app.cron("@yearly")
    async def tick() -> str:
        return "tick"

    began = asyncio.Event()
    return began


async def make(app: Weft, began: asyncio.Event):
    t = app.tasks
    far = timedelta(hours=1)
    made = {
        "plain": await t["add"].enqueue(1),
        "large": await t["add"].enqueue(1, "x" * 10_000),
        "options": await t["add"]
        .options(tags={"team": "a", "owner": "ann"}, priority=9, idempotency_key="k", deadline="1h", delay="10ms")
        .enqueue(2),
        "synced": await t["add"].options(durability="fsync").enqueue(3),
        "committed": await t["add"].options(durability="committed").enqueue(3),
        "failed": await t["bad"].options(tags={"team": "b"}).enqueue("no\n" + "y" * 500),
        "exhausted": await t["shaky"].enqueue(9),
        "retried": await t["shaky"].enqueue(2),
        "asks": await t["asks"].enqueue(),
        "snoozed": await t["naps"].enqueue(),
        "discarded": await t["drops"].enqueue(),
        "fatal": await t["gives_up"].enqueue(),
        "timed out": await t["slow"].enqueue(),
        "deadline": await t["late"].enqueue(),
        "thread": await t["threaded"].enqueue(),
        "unique": await t["once"].enqueue(1),
        "settled": await t["settles"].enqueue(1),
        "cancelled queued": await t["add"].options(delay=far).enqueue(9),
        "overdue": await t["add"].options(delay=far, deadline="100ms").enqueue(9),
        "rescheduled": await t["add"].options(delay=far).enqueue(8),
    }
    await t["settles"].enqueue(2)
    made |= {f"batch {i}": run for i, run in enumerate(await t["many"].enqueue_many([(n,) for n in range(3)]))}
    made |= {f"limited {i}": await t["limited"].enqueue(i) for i in range(3)}
    await made["cancelled queued"].cancel("not any more")
    await made["rescheduled"].reschedule(delay=0)
    made["ticked"] = await app.schedules.trigger("tick")
    await ends(*made.values())
    made["cancelled running"] = await t["waits"].enqueue()
    await began.wait()
    await made["cancelled running"].cancel("stop")
    made["replayed"] = await app.dlq.replay(made["failed"].id)
    await ends(*made.values())
    await app.dlq.investigate(made["failed"].id, "the file was gone", by="ann")
    await app.dlq.investigate(made["exhausted"].id, "never mind", by="ann")
    await app.dlq.investigate(made["exhausted"].id, None, by="ann")
    return made


async def test_tasks_of_every_end_are_told_the_same(app, declared, start_worker, archive, forget):
    await start_worker()
    await archive()  # else nothing could be committed
    made = await make(app, declared)
    hot = await views_of(app, made)
    await archive(1)
    forget(*made.values())

    assert told_apart(hot, await views_of(app, made)) == ([], {"durability"})
