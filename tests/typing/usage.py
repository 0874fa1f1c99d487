"""How people use Weft, as a type checker sees it. Checked by mypy in strict mode, never executed.

A line that must be refused carries the error it must give; `warn_unused_ignores` fails when it is accepted.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import datetime, timedelta
from typing import Any, assert_type

from weft import (
    Context,
    Current,
    DeadLetter,
    Depends,
    Event,
    Graph,
    LetterGroup,
    LetterPage,
    LogLine,
    ReplayReport,
    Retry,
    Run,
    RunInfo,
    RunStatus,
    ScheduleInfo,
    Snooze,
    Weft,
    WorkflowRun,
    current,
)
from weft.sdk.task import AsyncTask, PlainTask
from weft.testing import Attempt

app = Weft("shop", namespace="typed")


@app.task
async def add(a: int, b: int = 0) -> int:
    return a + b


@app.task(retries=3, retry_delay="1s", timeout=timedelta(seconds=5), tags={"team": "a", "n": 1})
def render(text: str, *, bold: bool = False) -> bytes:
    return text.encode()


@app.task(name="job", aliases=["old"], deadline=None, retry_on=ValueError, fatal_on=(KeyError, TypeError))
async def nothing() -> None: ...


@app.cron("*/5 * * * *", tz="Europe/Berlin", overlap="skip", catch_up="latest", retries=2)
async def tick() -> int:
    return 1


report = app.graph("report", version="1.2", output="${publish}")
assert_type(report, Graph)


@report.node
async def fetch(input: dict[str, Any]) -> list[str]:
    return []


@report.node(after=fetch, map="fetch", max_parallel=8, gather="all", timeout=timedelta(seconds=5))
def publish(item: str) -> int:
    return 1


async def graphs() -> None:
    assert_type(await fetch({}), list[str])
    assert_type(publish("a"), int)
    review = report.approval("review", after=[fetch, "publish"], approvers=["ops"], timeout="2h")
    report.loop("again", after=review, to=fetch, while_="review.again", max_iterations=3)
    report.branch("route", [("size(fetch) > 3", review)], default=publish, after=fetch)
    report.http("get", "https://example.com", method="POST", json={"a": 1}, expect=[200, "3xx"])
    report.http("get", "https://example.com", retires=3)  # type: ignore[call-arg]
    report.wait("pause", duration=b"5s")  # type: ignore[arg-type]
    assert_type(app.load("graphs.yaml"), list[Graph])
    assert_type(app.graphs["report"].version, str | None)


async def schedules() -> None:
    assert_type(await tick(), int)
    assert_type(await tick.enqueue(), Run[int])
    assert_type(await app.schedules.create("s", "@daily", add, (1,), tz="UTC"), ScheduleInfo)
    assert_type(await app.schedules.list(), list[ScheduleInfo])
    assert_type(await app.schedules.trigger("s"), Run[Any])

    app.cron("* * * * *", retires=3)  # type: ignore[call-arg]
    app.cron()  # type: ignore[call-arg]


async def definitions() -> None:
    call: Coroutine[Any, Any, int] = add(1, 2)
    assert_type(await call, int)
    assert_type(render("x", bold=True), bytes)
    direct: AsyncTask[..., int] = add
    plain: PlainTask[..., bytes] = render
    print(direct.name, plain.aliases)

    app.task(retires=3)  # type: ignore[call-overload]
    app.task(priority="high")  # type: ignore[call-overload]


async def enqueueing() -> None:
    run = await add.enqueue(1, 2)
    assert_type(run, Run[int])
    assert_type(await run.result(timeout=5), int)
    assert_type(await (await render.enqueue("x")).result(), bytes)
    assert_type(await (await nothing.enqueue()).result(), None)
    assert_type(await add.enqueue_many([(1, 2), {"a": 3}]), list[Run[int]])
    assert_type(await add.options(delay="10s", idempotency_key="k", priority=9).enqueue(1), Run[int])
    assert_type(await add.options(delay=5).options(tags={"a": True}).enqueue(a=1, b=2), Run[int])

    await add.enqueue("1", 2)  # type: ignore[arg-type]
    await add.enqueue(1, b="2")  # type: ignore[arg-type]
    await add.enqueue()  # type: ignore[call-arg]
    await add.enqueue(1, 2, 3)  # type: ignore[call-arg]
    await add.enqueue(1, c=2)  # type: ignore[call-arg]
    await render.enqueue("x", True)  # type: ignore[call-arg]
    await add.options(delay="10s").enqueue("1")  # type: ignore[arg-type]
    add.options(retires=3)  # type: ignore[call-arg]
    add.options(priority="high")  # type: ignore[arg-type]
    wrong: str = await (await add.enqueue(1)).result()  # type: ignore[assignment]
    print(wrong)


def without_a_loop() -> None:
    assert_type(add.sync.enqueue(1, 2), Run[int])
    assert_type(add.delay(1, 2), Run[int])
    assert_type(add.sync.enqueue(1).sync.result(timeout="5s"), int)
    assert_type(add.options(priority=1).sync.enqueue(1), Run[int])
    assert_type(add.delay(1).sync.status(), RunStatus)

    add.delay("1")  # type: ignore[arg-type]
    add.sync.enqueue(1, b=None)  # type: ignore[arg-type]


async def runs() -> None:
    run = add.run("r0-06GXX7WA3J8F3CH54J1F2A")
    assert_type(run, Run[int])
    assert_type(run.id, str)
    assert_type(run.deduplicated, bool)
    assert_type(await run.status(), RunStatus)
    info = await run.info()
    assert_type(info, RunInfo)
    assert_type(info.finished_at, datetime | None)
    assert_type(await run.cancel(reason="why"), bool)
    assert_type(await run.reschedule(delay="5m"), datetime)
    assert_type(await run.history(), list[Event])
    assert_type(await run.logs(), list[LogLine])
    async for event in run.events(after=3):
        assert_type(event, Event)
        assert_type(event.seq, int)
    assert_type(await app.runs.list(status="failed", name="add", tag=("team", "a"), limit=5), list[RunInfo])
    assert_type(await app.runs.get("r0-06GXX7WA3J8F3CH54J1F2A"), Run[Any])
    assert_type(await app.runs.get("r0-06GXX7WA3J8F3CH54J1F2A").result(), Any)


async def dead_letters() -> None:
    page = await app.dlq.list(task="add", since="1h", tag=("team", "a"), limit=5)
    assert_type(page, LetterPage)
    assert_type(page.letters, list[DeadLetter])
    for letter in page:
        assert_type(letter, DeadLetter)
    assert_type(await app.dlq.groups(), list[LetterGroup])
    assert_type(await app.dlq.replay("r0-06GXX7WA3J8F3CH54J1F2A", force=True), Run[Any])
    assert_type(await app.dlq.replay_many(task="add", dry_run=True), ReplayReport)
    assert_type(await app.dlq.purge(all=True), int)
    await app.dlq.list(taks="add")  # type: ignore[call-arg]
    await add.options(eta=datetime.now()).enqueue(1)
    await add.options(eta="tomorrow").enqueue(1)  # type: ignore[arg-type]
    raise Retry("busy", after="5s") from Snooze("1h")


@app.on_startup
async def open_pool() -> None: ...


@app.on_shutdown
def close_pool() -> None: ...


@app.before_task
def before(here: Current) -> None: ...


@app.after_task
async def after(here: Current, result: object) -> None: ...


@app.on_error
async def failed(here: Current, error: BaseException) -> None: ...


app.before_task(after)  # type: ignore[type-var]


class Db: ...


class Client:
    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(self, *exc: object) -> None: ...


def plain_db() -> Db:
    return Db()


async def awaited_db() -> Db:
    return Db()


def generated_db() -> Iterator[Db]:
    yield Db()


async def async_generated_db(other: Db = Depends(plain_db)) -> AsyncIterator[Db]:
    yield Db()


@contextmanager
def managed_db() -> Iterator[Db]:
    yield Db()


@asynccontextmanager
async def async_managed_db() -> AsyncIterator[Db]:
    yield Db()


@app.task
async def send(
    to: str,
    a: Db = Depends(plain_db),
    b: Db = Depends(awaited_db),
    c: Db = Depends(generated_db),
    d: Db = Depends(async_generated_db),
    e: Db = Depends(managed_db),
    f: Db = Depends(async_managed_db),
    g: Client = Depends(Client),
    h: asyncio.Lock = Depends(asyncio.Lock),
    i: int = Depends(plain_db),  # type: ignore[assignment]
    j: str = Depends(async_generated_db),  # type: ignore[assignment]
) -> str:
    return to


async def sending() -> None:
    assert_type(await send.enqueue("x"), Run[str])
    assert_type(await send("x", a=Db()), str)
    Depends("open_db")  # type: ignore[call-overload]


async def inside() -> None:
    here = current()
    assert_type(here.run_id, str)
    assert_type(here.attempt, int)
    assert_type(here.fence, int)
    assert_type(here.effect_key, str)
    await here.progress(0.5, "half")
    here.heartbeat()
    here.log.info("a line %s", "more", n=1, to="x")
    async with app, app.worker(queues=["default"], concurrency=10, grace="1m") as worker:
        assert_type(worker.session, str)


async def tested() -> None:
    with app.testing() as testing:
        assert_type(testing.app, Weft)
        assert_type(await testing.run_until_idle(advance="1h"), list[Attempt])
        assert_type(testing.worker.sync.run_until_idle(advance=True), list[Attempt])
        await testing.clock.advance(timedelta(days=1))


@app.workflow
async def meter(ctx: Context, total: int) -> int:
    async def add(n: int) -> int:
        return total + n

    ctx.on_update("add", add, validate=lambda n: None)
    if ctx.history_length < 100:
        return total
    # It does not return: nothing behind it is missing.
    await ctx.continue_as_new(total)


async def ask(run: WorkflowRun[int]) -> None:
    answer = await run.update("add", 1, type=int, id="u-1", timeout=5)
    assert_type(answer, Any)
    run.sync.update("add", 1)
