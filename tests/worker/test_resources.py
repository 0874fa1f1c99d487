"""Resources: opened once per worker, handed to tasks by name, closed in reverse order."""

import asyncio
import functools
import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

import pytest

from weft import Depends, StepFailed
from weft.errors import DefinitionError, InvalidArguments

seen: list[str] = []


@pytest.fixture(autouse=True)
def forget() -> None:
    seen.clear()


class Db:
    def __init__(self, name: str = "db") -> None:
        self.name = name


def plain() -> Db:
    return Db("plain")


async def awaited() -> Db:
    await asyncio.sleep(0)
    return Db("awaited")


def generated() -> Iterator[Db]:
    yield Db("generated")
    seen.append("closed")


async def async_generated() -> AsyncIterator[Db]:
    yield Db("async_generated")
    await asyncio.sleep(0)
    seen.append("closed")


@contextmanager
def managed() -> Iterator[Db]:
    yield Db("managed")
    seen.append("closed")


@asynccontextmanager
async def async_managed() -> AsyncIterator[Db]:
    # Entered and left by the same task, or this raises.
    async with asyncio.timeout(60):
        yield Db("async_managed")
    seen.append("closed")


class Client:
    """Made and entered on the loop."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.name = "Client"

    async def __aenter__(self) -> "Client":
        return self

    async def __aexit__(self, *exc: object) -> None:
        seen.append("closed")


OPENERS = [plain, awaited, generated, async_generated, managed, async_managed, Client]


@pytest.mark.parametrize(
    "opener", [*OPENERS, functools.partial(awaited)], ids=lambda opener: getattr(opener, "__name__", "partial")
)
async def test_every_kind_of_opener_opens_once_and_closes_with_the_worker(app, start_worker, opener):
    @app.task
    async def on_loop(n: int, db: Db = Depends(opener)) -> list[int | str]:
        return [n, db.name, id(db)]

    @app.task
    def in_thread(n: int, *, db: Db = Depends(opener)) -> list[int | str]:
        return [n, db.name, id(db)]

    worker = await start_worker()
    runs = await on_loop.enqueue_many([(n,) for n in range(5)]) + await in_thread.enqueue_many([(5,), (6,)])
    results = [await run.result(10) for run in runs]
    assert seen == []
    await worker.stop()

    assert [result[0] for result in results] == list(range(7))
    assert {result[1] for result in results} == {getattr(opener, "__name__", "awaited")}
    assert len({result[2] for result in results}) == 1
    nothing_to_close = opener in (plain, awaited) or isinstance(opener, functools.partial)
    assert seen == ([] if nothing_to_close else ["closed"])


async def test_resources_need_others_and_close_before_them(app, start_worker):
    async def pool() -> AsyncIterator[str]:
        seen.append("open pool")
        yield "pool"
        seen.append("close pool")

    def session(of: str = Depends(pool), size: int = 3) -> Iterator[str]:
        seen.append("open session")
        yield f"{of} session {size}"
        seen.append("close session")

    app.on_shutdown(lambda: seen.append("shutdown"))

    @app.task
    async def job(session: str = Depends(session), pool: str = Depends(pool)) -> str:
        return f"{session}, {pool}"

    worker = await start_worker()
    assert await (await job.enqueue()).result(10) == "pool session 3, pool"
    await worker.stop()

    assert seen == ["open pool", "open session", "close session", "close pool", "shutdown"]


async def test_concurrent_first_uses_open_once(app, start_worker):
    release = asyncio.Event()

    async def slow() -> str:
        seen.append("open")
        await release.wait()
        return "open"

    @app.task(timeout="100ms")
    async def impatient(x: str = Depends(slow)) -> str:
        return x

    @app.task
    async def patient(x: str = Depends(slow)) -> str:
        return x

    await start_worker()
    first = await impatient.enqueue()
    with pytest.raises(StepFailed, match="TimeoutError"):
        await first.result(10)
    others = await patient.enqueue_many([()] * 10)
    release.set()

    assert [await run.result(10) for run in others] == ["open"] * 10
    assert seen == ["open"]


async def test_an_opener_that_raises_fails_the_attempt_and_is_tried_again(app, start_worker):
    async def flaky() -> str:
        seen.append("try")
        if len(seen) < 3:
            raise ConnectionError("refused")
        return "open"

    @app.task(retries=5, retry_delay="1ms", retry_on=ConnectionError)
    async def job(db: str = Depends(flaky)) -> str:
        return db

    @app.task
    async def once(db: str = Depends(flaky)) -> str:
        return db

    await start_worker()

    with pytest.raises(
        StepFailed, match=r"task once: its resource db \(.*flaky\) could not be opened: ConnectionError: refused"
    ) as failed:
        await (await once.enqueue()).result(10)
    assert failed.value.type == "ResourceFailed"
    assert failed.value.causes[0] == {"type": "ConnectionError", "message": "refused"}
    assert await (await job.enqueue()).result(10) == "open"
    assert len(seen) == 3


async def test_a_resource_that_cannot_be_closed_does_not_keep_the_others_open(app, start_worker, caplog):
    def first() -> Iterator[int]:
        yield 1
        seen.append("first closed")

    def second() -> Iterator[int]:
        yield 2
        raise RuntimeError("stuck")

    @app.task
    async def job(a: int = Depends(first), b: int = Depends(second)) -> int:
        return a + b

    worker = await start_worker()
    assert await (await job.enqueue()).result(10) == 3
    caplog.set_level(logging.ERROR, "weft.worker")
    await worker.stop()

    assert seen == ["first closed"]
    assert [record.getMessage().partition("  ")[0] for record in caplog.records] == ["a resource could not be closed"]


async def test_locks_are_handed_out_not_entered(app, start_worker):
    @app.task
    async def job(lock: asyncio.Lock = Depends(asyncio.Lock)) -> bool:
        async with lock:
            return lock.locked()

    await start_worker()

    assert await (await job.enqueue()).result(10) is True


async def test_a_plain_opener_may_block_without_stopping_the_loop(app, start_worker):
    opened = asyncio.Event()
    loop = asyncio.get_running_loop()

    def slow() -> str:
        # Would wait for ever on the loop itself.
        asyncio.run_coroutine_threadsafe(asyncio.wait_for(opened.wait(), 10), loop).result(10)
        return "open"

    @app.task
    async def job(db: str = Depends(slow)) -> str:
        return db

    await start_worker()
    run = await job.enqueue()
    loop.call_later(0.05, opened.set)

    assert await run.result(10) == "open"


async def test_a_resource_is_no_argument(app):
    @app.task
    async def job(n: int, db: Db = Depends(plain), **more: int) -> str:
        return f"{n} {db.name} {more}"

    assert job.signature.text == "job(n: int, **more: int) -> str"
    with pytest.raises(InvalidArguments, match="unexpected keyword argument 'db': whoever runs it supplies that"):
        await job.enqueue(1, db=3)
    with pytest.raises(InvalidArguments, match="too many positional"):
        await job.enqueue(1, Db())
    assert await job(1, db=Db("fake")) == "1 fake {}"
    with pytest.raises(AttributeError, match=r"Depends\(plain\) is not open here"):
        await job(1)


@pytest.mark.parametrize("wrong", [None, 3, "open_db", {}])
def test_what_cannot_be_called_opens_nothing(wrong):
    with pytest.raises(DefinitionError, match="Depends takes a function"):
        Depends(wrong)


def test_definitions_that_could_never_work_are_refused(app):
    def by_position(db: Db = Depends(plain), /) -> None: ...

    with pytest.raises(DefinitionError, match="db is a resource and can only be given by position"):
        app.task(by_position)

    def wants(dsn: str) -> Db:
        return Db(dsn)

    def lacking(db: Db = Depends(wants)) -> None: ...

    with pytest.raises(DefinitionError, match="wants needs dsn, and nobody would give it"):
        app.task(lacking)

    def hen(egg: object = None) -> None: ...

    def egg(hen: object = Depends(hen)) -> None: ...

    hen.__defaults__ = (Depends(egg),)

    def farm(bird: object = Depends(hen)) -> None: ...

    with pytest.raises(DefinitionError, match=r"circle: .*hen -> .*egg -> .*hen"):
        app.task(farm)
    assert app.tasks == {}
